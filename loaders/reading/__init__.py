"""How rows become batches: `reader` opens each `chunk` and finds rows, `memory` gathers their numbers from the maps,
`rectangles` pads them, `documents` keeps those of packed rows apart, and `sequences` makes the arrays."""
