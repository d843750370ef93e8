"""Histograms of lengths before and after truncation and packing: counted per chunk, shown as bars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenloom.resources.png import DARK, GREEN, GREY, png
from tokenloom.resources.tables.preference_pairs import sides
from tokenloom.resources.tables.ragged import Ints, list_parts

BEFORE, AFTER = "rows_of_length", "sequences_of_length"
MORE = "more"
_BUCKETS = 16
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Histogram:
    """A histogram of lengths.

    Args:
        bounds: inclusive upper bounds of the buckets: sixteenths of max_length, then 2 and 4 times max_length.
        counts: the number of lengths in each bucket; the additional last bucket has no upper bound.
    """

    bounds: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, counters: Mapping[str, int], name: str, max_length: int) -> Histogram:
        """Return the histogram in a stage's counters."""
        bounds = length_bounds(max_length)
        return cls(bounds, tuple(counters.get(f"{name}/{bound}", 0) for bound in (*bounds, MORE)))

    def bars(self) -> str:
        """Return one character per bucket; only empty buckets are blank."""
        most = max(self.counts) or 1
        return "".join(_BARS[-(-8 * count // most)] for count in self.counts)


def length_bounds(max_length: int) -> tuple[int, ...]:
    """Return the bounds of a histogram."""
    within = {-(-max_length * part // _BUCKETS) for part in range(1, _BUCKETS + 1)}
    return (*sorted(within), 2 * max_length, 4 * max_length)


def count_lengths(name: str, table: pa.Table, max_length: int) -> dict[str, int]:
    """Return counters of the lengths of a table's `input_ids`, for pairs of both sides, without empty buckets."""
    lengths: list[Ints] = [np.diff(list_parts(side["input_ids"])[0]) for side in sides(table).values()]
    bounds = length_bounds(max_length)
    counts = np.bincount(np.searchsorted(bounds, np.concatenate(lengths)), minlength=len(bounds) + 1).tolist()
    return {f"{name}/{bound}": count for bound, count in zip((*bounds, MORE), counts, strict=True) if count}


def fill(counters: Mapping[str, int], tokens: int, max_length: int) -> float:
    """Return the packing efficiency: tokens divided by sequences times `max_length`; 0 without sequences."""
    sequences = sum(Histogram.of(counters, AFTER, max_length).counts)
    return tokens / (sequences * max_length) if sequences else 0.0


def histogram_png(before: Histogram, after: Histogram, width: int = 304, height: int = 60) -> bytes:
    """Return a PNG with two rows of bars, grey and green, each with a line at max_length; sizes in pixels."""
    picture = np.zeros((2 * height + 4, width), np.uint8)
    step = width // len(before.counts)
    for row, (found, colour) in enumerate(((before, GREY), (after, GREEN))):
        top, most = row * (height + 4), max(found.counts) or 1
        picture[top : top + height, step * (len(found.bounds) - 2) - 1] = DARK
        for place, count in enumerate(found.counts):
            tall = -(-(height - 2) * count // most)
            picture[top + height - tall : top + height, place * step + 1 : (place + 1) * step - 1] = colour
        picture[top + height - 1, : step * len(found.counts)] = DARK
    return png(picture)
