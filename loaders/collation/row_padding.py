"""Brings the columns of rows to one length: one scatter a column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokenloom.errors import DataValidationError
from tokenloom.loaders.collation.batch import Padding, PaddingPolicy
from tokenloom.loaders.collation.output_schema import OutputColumn
from tokenloom.loaders.collation.row_columns import RowColumn
from tokenloom.resources.tables.ragged import Ints

Side = Literal["left", "right"]
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class RowPadding:
    """How rows come to one length.

    Args:
        padding: `longest` (of the batch), `max_length`, or a multiple; None: `max_length` where a limit is given, else
            `longest`.
        side: which side is filled.
        limit: the longest row; None: any.
        truncation: keep the first `limit` tokens of longer rows, instead of refusing them.
        argument: what callers call the limit.

    Raises:
        ValueError: these are out of range, or padding and truncation lack the limit that they need.
    """

    padding: Padding | None = None
    side: Side = "right"
    limit: int | None = None
    truncation: bool = False
    argument: str = "max_length"

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"{self.argument} {self.limit} must be at least 1")
        if self.limit is None and (self.truncation or self.padding == "max_length"):
            raise ValueError(f"say {self.argument}=, the length to pad or cut to")
        self._policy()

    def _policy(self) -> PaddingPolicy:
        padding = self.padding if self.padding is not None else "max_length" if self.limit else "longest"
        return PaddingPolicy(0, padding, self.side, self.limit or 1, packed=False)

    def padded(
        self, columns: Mapping[str, RowColumn], first: str, mask: str, schema: Mapping[str, OutputColumn]
    ) -> Arrays:
        """[rows, width] of each column that has lists, [rows] of the others.

        Args:
            first: the column whose lengths all have.
            mask: the attention mask: made, 1 for all that a row has, where there is none; `labels` are masked where it
                is 0.

        Raises:
            DataValidationError: columns of a row differ in length, or a row is longer than the limit.
        """
        lengths = columns[first].lengths if first in columns else None
        if lengths is None:
            raise DataValidationError(f"rows have no list {first!r}; their columns are {', '.join(columns) or 'none'}")
        for name, column in columns.items():
            if column.lengths is not None and not np.array_equal(column.lengths, lengths):
                row = int(np.flatnonzero(column.lengths != lengths)[0])
                raise DataValidationError(
                    f"row {row} of the batch has {column.lengths[row]} {name!r} for {lengths[row]} {first!r}"
                )
        if self.limit is not None and int(lengths.max()) > self.limit:
            columns, lengths = self._cut(columns, lengths, self.limit)
        own = self._own(lengths)
        batch: Arrays = {}
        for name, column in columns.items():
            if column.lengths is None:
                batch[name] = column.values
            else:
                batch[name] = np.full(own.shape, schema[name].pad_value, schema[name].dtype)
                batch[name][own] = column.values
        if mask not in batch:
            batch[mask] = own.astype(schema[mask].dtype)
        elif "labels" in batch and batch["labels"].ndim == 2:
            batch["labels"][batch[mask] == 0] = schema["labels"].pad_value
        return batch

    def _cut(self, columns: Mapping[str, RowColumn], lengths: Ints, limit: int) -> tuple[Mapping[str, RowColumn], Ints]:
        if not self.truncation:
            row = int(lengths.argmax())
            raise DataValidationError(
                f"row {row} of the batch has {lengths[row]} tokens, {self.argument} is {limit}; "
                f"make rows shorter, or say truncation=True to keep the first {limit} tokens of each"
            )
        return {name: column.first(limit) for name, column in columns.items()}, np.minimum(lengths, limit)

    def _own(self, lengths: Ints) -> npt.NDArray[np.bool_]:
        """bool [rows, width]: what is no padding."""
        width = int(self._policy().width(lengths.max(initial=1)))
        positions = np.arange(width)
        return positions < lengths[:, None] if self.side == "right" else positions >= (width - lengths)[:, None]
