"""The raw stage: the rows of a source, as found, in content-defined chunks.

A row passes through, in order: `chunks` (opens the source), `file_groups` (lets small files share chunks),
`unchanged_files` and `unchanged_prefix` (skip what an earlier build has read), `formats` (finds records in files and
parses them), `cut` (decides where chunks end), `filters` (drops rows by condition, with `condition_operators`), and
`contract` (checks the stage's output).
"""
