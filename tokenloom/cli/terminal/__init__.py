"""Terminal output of commands: progress, tables, sizes and rows in colour."""
