"""The few-shot draw: which examples each row gets.

The draw is a pure function of the seed, of the prompts of rows and examples, and of the rows' positions. A row never
gets an example with the row's own prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.assets.stage.rejects import ROW, reject_rows
from tokenloom.config import FewShotConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.digest import digest_json
from tokenloom.resources.tables.hashes import Hashes, mix
from tokenloom.resources.tables.ragged import Ints, one_array

SETTING = "prompt_template.few_shot"
LARGEST = 1 << 30
"""Largest size of a chunk's examples in bytes: Arrow's strings end at twice that."""

_STEP = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


@dataclass(frozen=True)
class Drawn:
    """Examples drawn for a chunk's rows.

    Args:
        table: the rows for which there are enough examples.
        picks: int64 [rows, count], the index of each example, in the order in which they are placed.
        rejects: the other rows.
    """

    table: pa.Table
    picks: Ints
    rejects: pa.Table


def draw_for(
    settings: FewShotConfig,
    table: pa.Table,
    asked: Hashes,
    offered: Hashes,
    example_bytes: npt.NDArray[np.integer],
    shown: pa.Array,
) -> Drawn:
    """Draw examples for each row of a chunk; reject rows for which there are too few.

    Examples from a file keep the file's order, others the order of the draw.

    Args:
        asked: uint64 [rows], a hash of each row's prompt.
        offered: uint64 [examples], a hash of each example's prompt.
        example_bytes: int [examples], the size of each example.
        shown: string [rows], the text that rejects quote.

    Raises:
        ConfigError: a chunk's examples are larger than `LARGEST`.
    """
    rows = one_array(table[ROW])
    picks, enough = draw_examples(settings.count, settings.seed, asked, rows.to_numpy(), offered)
    if settings.source is not None:
        picks.sort(axis=1)
    keep, lack = pa.array(enough), pa.array(~enough)
    picks = picks[enough]
    if (total := int(example_bytes[picks].sum())) > LARGEST:
        message = f"{SETTING}.count: {settings.count} examples per row add {total:,} bytes to a chunk; lower it"
        raise ConfigError.at(f"{SETTING}.count", message)
    prompts = len(np.unique(offered))
    origin, remedy = ("the row's chunk", "name a file in") if settings.source is None else ("the file", "add some to")
    message = f"the row needs {settings.count} examples with other prompts, but {origin} has only {prompts} prompts; "
    message += f"lower {SETTING}.count, or {remedy} {SETTING}.source"
    rejects = reject_rows(rows.filter(lack), "prompts", "too_few_examples", "", message, shown.filter(lack))
    return Drawn(table.filter(keep).combine_chunks(), picks, rejects)


def draw_examples(
    count: int, seed: int, asked: Hashes, positions: npt.NDArray[np.integer], offered: Hashes
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Draw `count` examples for each row, without replacement, uniformly over the examples' distinct prompts.

    Of several examples with one prompt, a row gets at most one. It never gets one with the row's own prompt.

    Args:
        asked: uint64 [rows], a hash of each row's prompt.
        positions: int [rows], the row's position in its chunk, so that rows with the same prompt draw differently.
        offered: uint64 [examples], a hash of each example's prompt.

    Returns:
        int64 [rows, count], the index of each example; and bool [rows], whether there are enough examples for the
        row. If not, its indices are meaningless.
    """
    prompts, member_of, sizes = np.unique(offered, return_inverse=True, return_counts=True)
    groups, rows = len(prompts), len(asked)
    place = np.minimum(np.searchsorted(prompts, asked), max(groups - 1, 0))
    own = prompts[place] == asked if groups else np.zeros(rows, bool)
    available = groups - own.astype(np.int64)
    enough = available >= count
    if not enough.any():
        return np.zeros((rows, count), np.int64), enough
    words = mix(asked ^ np.uint64(int(digest_json(["few_shot", seed])[:16], 16)))
    words = mix(words + positions.astype(np.uint64) * _STEP)
    barred = np.where(own, place, groups)[:, None]
    chosen = np.empty((rows, count), np.int64)
    for turn in range(count):
        words = mix(words + _STEP)
        drawn = _below(words, np.maximum(available - turn, 1))
        for column in barred.T:  # ascending: the number counts over the groups that are not barred
            drawn += drawn >= column
        chosen[:, turn] = drawn = np.minimum(drawn, groups - 1)
        barred = np.sort(np.column_stack([barred, drawn]), axis=1)
    first = np.cumsum(sizes) - sizes
    within = _below(mix(words[:, None] + np.arange(1, count + 1).astype(np.uint64) * _STEP), sizes[chosen])
    return np.argsort(member_of, kind="stable")[first[chosen] + within], enough


def _below(words: Hashes, limits: Ints) -> Ints:
    """Map each word to a number in [0, limit), by the upper half of the word."""
    return (((words >> _HALF) * limits.astype(np.uint64)) >> _HALF).astype(np.int64)
