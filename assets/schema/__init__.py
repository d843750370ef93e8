"""The schema stage: what is in the raw rows, and which dataset format they suggest.

In order: `sketch` describes a chunk and merges the descriptions of all chunks, with `column_statistics` and
`unicode_scripts`; `profiles` asks how well a column's values fit a role, with `speakers` for conversations;
`name_similarity` compares its name with the usual names of roles; `role_candidates` and `format_candidates` combine
both, with `doubts` for what contradicts a format and `unused_columns` for the columns it would not use; `choose_format`
picks the format if it is certain. `display_cells` formats profiles and candidates as text for the terminal and the
Dagster UI. `contract` checks the stage's output.
"""
