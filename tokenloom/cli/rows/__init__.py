"""Rows as the model sees them: `source_rows` encodes rows of the source."""
