"""sequences: makes rows of tokens fit `max_length`, and packs them into sequences.

Modules, in the order in which a row passes through them:

- `stage`: the stage. `probe` builds sequences of fixed tokens.
- `drop_turns`: drops the oldest turns of long conversations, and renders and tokenizes them again.
- `fit_and_pack`: truncates, splits or drops long rows, and packs the others.
- `documents`: a chunk's rows of tokens as flat arrays.
- `truncate`, `smart_truncation`, `split`: which tokens of a long row are kept.
- `packing`: which documents go into which sequence (`best_fit`, `concat`).
- `dropped_tokens`: which tokens a row lost, and where.
- `length_histogram`: histograms of lengths before and after.
- `contract`: the columns of a stored chunk, and the checks that every chunk must pass.
"""
