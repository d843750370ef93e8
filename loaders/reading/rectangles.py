"""Batches as rectangles: where each row begins and how it is padded."""

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
    """The rows of several batches, each batch padded to one width. Valid for all columns with the same row lengths.

    Args:
        values: one of those columns.
        chunks, begins, lengths: int64 [rows], the rows of all batches concatenated.
        bounds: int64 [batches + 1], where each batch begins and ends; no batch is empty.
        widths: int64 [batches], at least the length of each batch's longest row.
        left: pad on the left instead of the right.

    Attributes:
        blank: int64 [rows], number of padding places in each row.
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
        """Return the place in memory where each padded row of a column begins, int64 [rows]."""
        return values.places(self._chunks, self._first)

    def own(self, batch: int) -> Flags | None:
        """Return which places are not padding, bool [rows of the batch, width], or None if the batch has no padding."""
        return None if self._full[batch] else self._edges.windows(self._own[self._batches[batch]], self.widths[batch])

    def take(self, batch: int, values: FlatValues, places: Ints) -> npt.NDArray[Any]:
        """Return a column's values, [rows of the batch, width], as a new array; padding places hold any value."""
        rows, width = self._batches[batch], self.widths[batch]
        if self._inside[batch]:
            return values.windows(places[rows], width)
        begins = places[rows] + self.blank[rows] if self.left else places[rows]
        flat, own = values.lists(begins, self._lengths[rows]), self.own(batch)
        if own is None:
            return flat.reshape(-1, width)
        padded = np.zeros(own.shape, flat.dtype)
        padded[own] = flat
        return padded


@cache
def _edges(size: int) -> FlatValues:
    """Return `size` times False, then True, then False. Every row's flags are a window of it."""
    edges = FlatValues(np.bool_, 1)
    edges.hold(0, np.repeat([False, True, False], size))
    return edges
