"""Functions on Arrow tables and columns.

`ragged` converts between Arrow lists and flat NumPy arrays, `flags` converts boolean arrays. `nested_paths`, `row_hash`
and `preference_pairs` work on rows of raw data; `json_text` reads JSON and compares parsed values. `sequence_schema`
names the columns that the last stage writes and loaders read.
"""
