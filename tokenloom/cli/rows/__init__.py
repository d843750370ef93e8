"""Rows as the model sees them.

`token_runs` reads stored rows, `source_rows` encodes rows of the source, `rendered_row` renders the first one for
`tokenloom inspect`.
"""
