"""dedup: rows that repeat an earlier one, or differ little from it, are dropped."""
