"""Pads the columns of rows to one length, with one scatter per column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokenloom.errors import DataValidationError
from tokenloom.loaders.collation.output_schema import OutputColumn
from tokenloom.loaders.collation.row_columns import RowColumn
from tokenloom.loaders.reading.batch import Padding, PaddingPolicy
from tokenloom.resources.tables.ragged import Ints

Side = Literal["left", "right"]
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class RowPadding:
    """How rows are padded and truncated.

    Args:
        padding: `longest`: to the longest row of the batch; `max_length`: to the limit; or an integer: to the longest
            row, rounded up to a multiple of it. None: `max_length` if there is a limit, else `longest`.
        side: the side on which rows are padded.
        limit: maximum length of a row; None: no limit.
        truncation: keep the first `limit` tokens of longer rows instead of raising.
        argument: the limit's name in messages.

    Raises:
        ValueError: an argument is out of range, or padding or truncation need a limit and `limit` is None.
    """

    padding: Padding | None = None
    side: Side = "right"
    limit: int | None = None
    truncation: bool = False
    argument: str = "max_length"

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"{self.argument} must be at least 1, got {self.limit}")
        if self.limit is None and (self.truncation or self.padding == "max_length"):
            raise ValueError(f"pass {self.argument}=, the length to pad or truncate to")
        self._policy()

    def _policy(self) -> PaddingPolicy:
        padding = self.padding if self.padding is not None else "max_length" if self.limit else "longest"
        return PaddingPolicy(0, padding, self.side, self.limit or 1, packed=False)

    def padded(
        self, columns: Mapping[str, RowColumn], first: str, mask: str, schema: Mapping[str, OutputColumn]
    ) -> Arrays:
        """Return each column of lists as [rows, width], and each column of single numbers as [rows].

        Args:
            columns: the columns of the batch.
            first: the column whose lengths all columns of lists must have.
            mask: name of the attention mask. If it is not in `columns`, it is added, 1 for all tokens of a row;
                otherwise `labels` are set to their pad value where it is 0.
            schema: dtype and pad value of each column.

        Raises:
            DataValidationError: columns of a row differ in length, or a row is longer than the limit.
        """
        lengths = columns[first].lengths if first in columns else None
        if lengths is None:
            raise DataValidationError(
                f"rows need a list {first!r}, but their columns are {', '.join(columns) or 'none'}"
            )
        for name, column in columns.items():
            if column.lengths is not None and not np.array_equal(column.lengths, lengths):
                row = int(np.flatnonzero(column.lengths != lengths)[0])
                raise DataValidationError(
                    f"row {row} of the batch has {column.lengths[row]} values in {name!r}, but {lengths[row]} in "
                    f"{first!r}"
                )
        if self.limit is not None and int(lengths.max()) > self.limit:
            columns, lengths = self._truncated(columns, lengths, self.limit)
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

    def _truncated(
        self, columns: Mapping[str, RowColumn], lengths: Ints, limit: int
    ) -> tuple[Mapping[str, RowColumn], Ints]:
        if not self.truncation:
            row = int(lengths.argmax())
            raise DataValidationError(
                f"row {row} of the batch has {lengths[row]} tokens, but {self.argument} is {limit}; "
                f"shorten the rows, or pass truncation=True to keep the first {limit} tokens of each"
            )
        return {name: column.first(limit) for name, column in columns.items()}, np.minimum(lengths, limit)

    def _own(self, lengths: Ints) -> npt.NDArray[np.bool_]:
        """Return which places are not padding, bool [rows, width]."""
        width = int(self._policy().width(lengths.max(initial=1)))
        positions = np.arange(width)
        return positions < lengths[:, None] if self.side == "right" else positions >= (width - lengths)[:, None]
