"""How rows become batches.

`reader` opens each `chunk`, whose bytes `checksum` verifies, and `sequences` builds the arrays of a `batch`:
`address_space` gathers values straight from the memory maps, `rectangles` pads them, and `documents` keeps the
documents of packed rows apart. `unpadded` splits a batch into rows again, `prefetch` prepares batches in the
background, and `workers` chooses the number of worker processes.
"""
