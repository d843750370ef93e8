"""Which rows stand where: orders that are computed, mixtures, and what each rank reads at each step."""
