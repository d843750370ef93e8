"""Small text data without a build, tokenized on opening or when a row is read.

`text_files` reads the texts of files and `encoding` tokenizes them, for all three datasets: `text_dataset` (one row per
text), `text_windows` (windows over one stream of tokens) and `tokenized_texts` (rows of any text dataset).
"""
