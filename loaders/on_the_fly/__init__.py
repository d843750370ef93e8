"""Raw rows encoded without a build, as they are read, by the pipeline's own stages.

`preprocessed` is a map-style dataset over a `sequence_cache`; `row_stream` yields the rows of a stream, and
`batch_stream` whole batches. All read `raw_rows`. `row_encoder` isolates rows that cannot be used, and `skip_report`
collects those of all worker processes. `shares` divides a stream among ranks and workers, and `lockstep` gives all
ranks the same number of batches.
"""
