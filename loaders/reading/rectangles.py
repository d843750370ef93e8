"""Where the rows of batches stand, each batch as a rectangle."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenloom.loaders.reading.address_space import FlatValues
from tokenloom.resources.tables.ragged import Ints

Flags = npt.NDArray[np.bool_]


class Rectangles:
    """The rows of some batches, those of each batch padded to one width: the same for all columns whose lists are as
    long.

    Args:
        values: one of those columns.
        chunks, begins, lengths: int64 [rows], of all batches, one behind the other.
        bounds: int64 [batches + 1]; rows between two of them make a batch, and none is without rows.
        widths: int64 [batches]; no row is longer.
        left: rows end at the right border; else they begin at the left one.

    Attributes:
        blank: int64 [rows], how much of the width is padding.
    """

    def __init__(
        self, values: FlatValues, chunks: Ints, begins: Ints, lengths: Ints, bounds: Ints, widths: Ints, left: bool
    ):
        width, firsts = np.repeat(widths, np.diff(bounds)), bounds[:-1]
        self.blank, self.widths, self.bounds, self.left = width - lengths, widths.tolist(), bounds, left
        self._chunks, self._lengths = chunks, lengths
        self._batches = [slice(*pair) for pair in pairwise(bounds.tolist())]
        self._first = begins - self.blank if left else begins
        inside = (self._first >= 0) & (values.reach(chunks, self._first) >= width)
        self._inside = np.logical_and.reduceat(inside, firsts).tolist()
        self._full = (np.maximum.reduceat(self.blank, firsts) == 0).tolist()
        size = 1 << int(width.max()).bit_length()
        self._edges = _edges(size)
        self._own = self._edges.places(np.zeros_like(lengths), size - self.blank if left else 2 * size - lengths)

    def places(self, values: FlatValues) -> Ints:
        """int64 [rows]: where in memory what a column has of each row begins, padding counted."""
        return values.places(self._chunks, self._first)

    def own(self, batch: int) -> Flags | None:
        """bool [rows of the batch, width]: which places are a row's own; None: all."""
        return None if self._full[batch] else self._edges.windows(self._own[self._batches[batch]], self.widths[batch])

    def take(self, batch: int, values: FlatValues, places: Ints) -> npt.NDArray[Any]:
        """[rows of the batch, width] of a column's values, not shared; anything where they are no row's own."""
        rows, width = self._batches[batch], self.widths[batch]
        if self._inside[batch]:
            return values.windows(places[rows], width)
        begins = places[rows] + self.blank[rows] if self.left else places[rows]
        flat, own = values.lists(begins, self._lengths[rows]), self.own(batch)
        if own is None:
            return flat.reshape(-1, width)
        found = np.zeros(own.shape, flat.dtype)
        found[own] = flat
        return found


@cache
def _edges(size: int) -> FlatValues:
    """So many False, as many True and as many False: flags of a row's own places are what stands around an edge."""
    edges = FlatValues(np.bool_, 1)
    edges.hold(0, np.repeat([False, True, False], size))
    return edges
