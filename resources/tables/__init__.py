"""Functions on Arrow tables and columns.

`ragged` converts between Arrow lists and flat NumPy arrays, and gives a sliced table the bytes that its rows
alone would have. `nested_paths` and `hashes` work on rows of raw data; `json_text` and `json_values` read, write and
compare JSON. `sequence_schema` names the columns that the last stage writes and loaders read, and checks them.
"""
