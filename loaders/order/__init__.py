"""Which rows are read when: row orders, mixtures, ranks, batch plans and the check of resume states."""
