"""Few-shot prompting: which examples each row of a chunk gets, and what becomes of rows for which there are too few."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.assets.prompts.few_shot.draw import draw_examples
from tokenloom.assets.stage.rejects import ROW, reject_rows
from tokenloom.config import FewShotConfig
from tokenloom.errors import ConfigError, Fault
from tokenloom.resources.tables.ragged import Ints, one_array
from tokenloom.resources.tables.row_hash import Hashes

SETTING = "prompt_template.few_shot"
LARGEST = 1 << 30
"""Bytes of examples that a chunk may hold: Arrow's strings end at twice that."""


@dataclass(frozen=True)
class Drawn:
    """Examples drawn for a chunk's rows.

    Args:
        table: the rows that have enough.
        picks: int64 [rows, count], which examples, in the order in which they stand.
        rejects: the others.
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
    """Draw examples for each row of a chunk: from a file in the file's order, else in the order drawn.

    Args:
        asked: uint64 [rows], hashes of the rows' prompts.
        offered: uint64 [examples], hashes of the examples' prompts.
        example_bytes: [examples], how long each is.
        shown: strings [rows], what rejects quote.

    Raises:
        ConfigError: a chunk's examples are more than fits into it.
    """
    rows = one_array(table[ROW])
    picks, enough = draw_examples(settings.count, settings.seed, asked, rows.to_numpy(), offered)
    if settings.source is not None:
        picks.sort(axis=1)
    keep, lack = pa.array(enough), pa.array(~enough)
    picks = picks[enough]
    if (total := int(example_bytes[picks].sum())) > LARGEST:
        message = f"{SETTING}.count: {settings.count} examples a row make {total:,} bytes a chunk; lower it"
        raise ConfigError([Fault(f"{SETTING}.count", message)])
    prompts = len(np.unique(offered))
    place, remedy = ("the row's chunk", "name a file in") if settings.source is None else ("the file", "add some to")
    message = f"it takes {settings.count} examples that ask something else; among the {prompts} prompts of {place} are "
    message += f"fewer; lower {SETTING}.count, or {remedy} {SETTING}.source"
    rejects = reject_rows(rows.filter(lack), "prompts", "too_few_examples", "", message, shown.filter(lack))
    return Drawn(table.filter(keep).combine_chunks(), picks, rejects)
