"""What several commands print with: progress, tables, sizes and rows in colour."""
