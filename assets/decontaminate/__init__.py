"""decontaminate: rows that contain items of evaluations are found, and dropped or reported."""
