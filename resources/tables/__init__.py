"""Functions on Arrow tables and columns.

`ragged` converts between Arrow lists and flat NumPy arrays. `nested_paths`, `row_hash` and `preference_pairs` work on
rows of raw data. `sequence_schema` names the columns that the last stage writes and loaders read.
"""
