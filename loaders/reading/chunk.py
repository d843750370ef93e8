"""A chunk of sequences as the reader sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt
import pyarrow as pa

from tokenloom.resources.tables.preference_pairs import SIDES
from tokenloom.resources.tables.ragged import Ints
from tokenloom.resources.tables.sequence_schema import TOKEN_COLUMNS

DEFERRED = tuple(f"{side}{name}" for side in ("", *(f"{side}_" for side in SIDES)) for name in TOKEN_COLUMNS)
"""Columns whose values are checked when a batch first reads them: nearly all bytes of a chunk."""


class Chunk(Protocol):
    """A chunk of sequences. Flat values that are not `checked` are passed to `touch` before they are read."""

    @property
    def table(self) -> pa.Table: ...

    def checked(self, values: Sequence[npt.NDArray[Any]]) -> bool: ...

    def touch(self, values: Sequence[npt.NDArray[Any]], begins: Ints, ends: Ints) -> None: ...


@dataclass(frozen=True)
class InMemory:
    """A chunk in memory, which needs no check."""

    table: pa.Table

    def checked(self, values: Sequence[npt.NDArray[Any]]) -> bool:
        """Return True."""
        return True

    def touch(self, values: Sequence[npt.NDArray[Any]], begins: Ints, ends: Ints) -> None:
        """Do nothing."""
