"""Rows as people see them, in a terminal, on a page or in Dagster: text with what is trained marked."""
