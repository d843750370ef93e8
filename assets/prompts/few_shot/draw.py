"""Which examples stand before which row: drawn by a keyed hash, never one that asks what the row asks.

A draw is a pure function of the seed, of what each row and each example ask, and of the rows' positions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenloom.resources.digest import digest_json
from tokenloom.resources.tables.ragged import Ints
from tokenloom.resources.tables.row_hash import Hashes, mix

_STEP = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


def draw_examples(
    count: int, seed: int, asked: Hashes, positions: npt.NDArray[np.integer], offered: Hashes
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Draw `count` examples for each row, without replacement, uniformly over what they ask.

    Examples that ask the same are drawn at most once for a row; those that ask what the row asks, never.

    Args:
        asked: uint64 [rows], a hash of each row's prompt.
        positions: [rows], the row's position in its chunk: rows that ask the same draw differently.
        offered: uint64 [examples], a hash of each example's prompt.

    Returns:
        int64 [rows, count], which examples; and bool [rows], whether there are enough. Where not, the draw means
        nothing.
    """
    prompts, member_of, sizes = np.unique(offered, return_inverse=True, return_counts=True)
    groups, rows = len(prompts), len(asked)
    place = np.minimum(np.searchsorted(prompts, asked), max(groups - 1, 0))
    own = prompts[place] == asked if groups else np.zeros(rows, bool)
    room = groups - own.astype(np.int64)
    enough = room >= count
    if not enough.any():
        return np.zeros((rows, count), np.int64), enough
    words = mix(asked ^ np.uint64(int(digest_json(["few_shot", seed])[:16], 16)))
    words = mix(words + positions.astype(np.uint64) * _STEP)
    barred = np.where(own, place, groups)[:, None]
    chosen = np.empty((rows, count), np.int64)
    for turn in range(count):
        words = mix(words + _STEP)
        found = _below(words, np.maximum(room - turn, 1))
        for column in barred.T:  # ascending: the number counts over what is not barred
            found += found >= column
        chosen[:, turn] = found = np.minimum(found, groups - 1)
        barred = np.sort(np.column_stack([barred, found]), axis=1)
    first = np.cumsum(sizes) - sizes
    within = _below(mix(words[:, None] + np.arange(1, count + 1).astype(np.uint64) * _STEP), sizes[chosen])
    return np.argsort(member_of, kind="stable")[first[chosen] + within], enough


def _below(words: Hashes, limits: Ints) -> Ints:
    """A number from 0 to less than the limit, by the upper half of each word."""
    return (((words >> _HALF) * limits.astype(np.uint64)) >> _HALF).astype(np.int64)
