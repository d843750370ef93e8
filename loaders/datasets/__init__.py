"""Built datasets, mixtures of them, their rows as tables, and the raw rows that each row comes from."""
