"""Built datasets: one of them, several as a mixture, their rows as tables, and the raw rows behind each row."""
