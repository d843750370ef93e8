"""A chunk of sequences, as it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt
import pyarrow as pa

from tokenloom.resources.tables.preference_pairs import SIDES
from tokenloom.resources.tables.ragged import Ints

DEFERRED = tuple(
    f"{side}{name}" for side in ("", *(f"{side}_" for side in SIDES)) for name in ("input_ids", "trained", "weights")
)
"""Columns whose values are checked when a batch touches them: nearly all bytes of a chunk."""


class Chunk(Protocol):
    """A chunk of sequences. Until `unchecked` is 0, what is read of its flat values is handed to `touch` before."""

    @property
    def table(self) -> pa.Table: ...

    @property
    def unchecked(self) -> int: ...

    def touch(self, values: Sequence[npt.NDArray[Any]], begins: Ints, ends: Ints) -> None: ...


@dataclass(frozen=True)
class InMemory:
    """A chunk that needs no check."""

    table: pa.Table
    unchecked: int = 0

    def touch(self, values: Sequence[npt.NDArray[Any]], begins: Ints, ends: Ints) -> None:
        """Nothing is to be checked."""
