"""Raw rows encoded without a build, as they are read, by the pipeline's own stages.

`preprocessed` is a map-style dataset; `row_stream` yields the rows of a stream, and `batch_stream` whole batches.
`row_encoder` reads and encodes raw rows, and isolates those that cannot be used.
"""
