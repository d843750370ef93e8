"""How rows become batches.

`reader` opens each chunk, whose bytes `memory` verifies and maps, and builds the arrays of a `batch`. `columns` reads
values beside the tokens. `ahead` downloads chunks and prepares batches in the background.
"""
