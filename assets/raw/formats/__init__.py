"""File formats: from the bytes of a file to the rows of each chunk.

In the order in which they are used:

1. `record_file` opens a file of records. `decode` turns its text into UTF-8, `legacy_encodings` detects encodings.
2. `json_layout` determines where the rows of a JSON file are.
3. `record_boundaries` finds records in bytes: lines, paragraphs, quoted lines. `json_boundaries` finds the elements of
   an array or the entries of an object.
4. `json`, `csv` and `text` parse the records of a chunk; `explode` turns lists within records into rows; `tables` reads
   Parquet, Arrow and `datasets`.
5. `parsed_chunk` holds the resulting rows, rejects and positions.
"""
