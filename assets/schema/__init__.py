"""The schema stage: what is in the raw rows, and which dataset format they suggest.

In order: `sketch` describes a chunk, with `column_statistics`; `merge` combines the descriptions of all chunks to
profiles; `profiles` compares columns with roles, by their names and values, and `conventions` with the names that tools
use; `doubts` finds what contradicts a role; `formats` detects the formats that the dataset could have, with one
function per format; `candidates` lists the roles that each column could have, and picks the format if one is certain.
`stage` formats profiles and candidates as text for the terminal and the Dagster UI.
"""
