"""Batches of rows that come one by one."""
