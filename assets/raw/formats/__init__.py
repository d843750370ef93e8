"""File formats: from the bytes of a file to the rows of each chunk.

In the order in which they are used:

1. `record_file` opens a file of records. `decode` turns its text into UTF-8.
2. `json_layout` determines where the rows of a JSON file are, and finds the elements of an array or object.
3. `record_boundaries` finds records in bytes: lines, paragraphs, quoted lines; `line_parts` the lines of a large file,
   by several readers.
4. `json` and `text` parse the records of a chunk; `tables` reads Parquet, Arrow and `datasets`.
5. `parsed_chunk` holds the resulting rows, rejects and positions.
"""
