"""Boolean Arrow arrays as NumPy flags, and flags of list items as flags of their rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.resources.tables.ragged import Ints, offsets_of, sum_rows

Flags = npt.NDArray[np.bool_]


def flags_of(array: pa.Array | pa.ChunkedArray) -> Flags:
    """Return a boolean array as bool [rows], with null as False."""
    return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), bool)


def any_of(flags: Flags, lengths: Ints) -> Flags:
    """Return bool [rows]: which rows have a flagged item.

    Args:
        flags: bool [items].
        lengths: int64 [rows], the number of items of each row.
    """
    return sum_rows(flags, offsets_of(lengths)) > 0
