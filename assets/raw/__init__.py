"""The raw stage: the rows of a source, as found, in content-defined chunks.

A row passes through, in order: `chunks` (opens the source), `file_groups` (lets small files share chunks), `unchanged`
(skips what an earlier build has read), `formats` (finds records in files and parses them), `cut` (decides where chunks
end), and `filters` (drops rows by condition).
"""
