"""sequences: makes rows of tokens fit `max_length`, and packs them into sequences.

Modules, in the order in which a row passes through them:

- `stage`: the stage, its contract and its probe.
- `drop_turns`: drops the oldest turns of long conversations, and renders and tokenizes them again.
- `documents`: a chunk's rows of tokens as flat arrays.
- `truncation`: which tokens of a long row are kept.
- `packing`: which documents go into which sequence (`best_fit`, `concat`).
- `answers`: what is left of each answer, and its stop.
- `lengths`: objects with the lengths of all rows, and histograms of them.
- `shown`: which tokens a row lost, and rows that splits share.
"""
