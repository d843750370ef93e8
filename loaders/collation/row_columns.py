"""The columns of a batch: read from rows that are dicts of lists, arrays or tensors, described, and padded with one
scatter per column.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from tokenloom.errors import DataValidationError
from tokenloom.loaders.reading.batch import IGNORED, Padding, PaddingPolicy
from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges


class OutputColumn:
    """The dtype and the pad value of one column of a batch.

    Args:
        dtype: a NumPy or torch dtype, or its name: integers, bool, or floats of 16 to 64 bits.
        pad_value: fills rows up to the batch's length; a value of this dtype.

    Raises:
        ValueError: the dtype is not supported, or cannot represent the pad value.
    """

    def __init__(self, dtype: npt.DTypeLike | torch.dtype, pad_value: float):
        try:
            known = torch.empty(0, dtype=dtype).numpy().dtype if isinstance(dtype, torch.dtype) else np.dtype(dtype)
            torch.from_numpy(np.empty(0, known))
        except TypeError:
            known = np.dtype(object)
        if known.kind not in "biuf":
            raise ValueError(
                f"dtype must be a number type of both NumPy and torch, such as 'int64' or 'float32', got {dtype!r}"
            )
        self.dtype: np.dtype[Any] = known
        self.pad_value = pad_value
        try:
            self.cast(np.array(pad_value))
        except ValueError:
            raise ValueError(f"pad value {pad_value} does not fit dtype {known}") from None

    def cast(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return numbers in this dtype, or in one that converts to it; only floats can lose precision.

        Raises:
            ValueError: a number does not fit this dtype.
        """
        if (
            values.dtype == self.dtype
            or np.can_cast(values.dtype, self.dtype)
            or (self.dtype.kind == "f" and values.dtype.kind in "biuf")
        ):
            return values
        if values.dtype.kind not in "biuf":
            raise ValueError(f"contains {_described(values)} instead of numbers")
        with np.errstate(invalid="ignore"):
            cast = values.astype(self.dtype)
        if not np.array_equal(cast, values):
            raise ValueError(f"contains {values[cast != values].flat[0]}, which does not fit dtype {self.dtype}")
        return cast

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputColumn) and (self.dtype, self.pad_value) == (other.dtype, other.pad_value)

    def __hash__(self) -> int:
        return hash((self.dtype, self.pad_value))

    def __repr__(self) -> str:
        return f"OutputColumn({str(self.dtype)!r}, {self.pad_value})"


class OutputSchema(Mapping[str, OutputColumn]):
    """The columns that a batch can have: a mapping from names to `OutputColumn`. `|` merges schemas.

    Args:
        columns: `(dtype, pad_value)` or an `OutputColumn` for each name.

    Raises:
        ValueError: a dtype is not supported, or cannot represent its pad value.
    """

    def __init__(self, columns: Mapping[str, OutputColumn | tuple[npt.DTypeLike | torch.dtype, float]]):
        self._columns: dict[str, OutputColumn] = {}
        for name, column in columns.items():
            try:
                self._columns[name] = column if isinstance(column, OutputColumn) else OutputColumn(*column)
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}") from None

    @classmethod
    def default(cls, pad_token_id: int = 0, label_pad_token_id: int = IGNORED) -> OutputSchema:
        """Return the usual columns.

        int64 `input_ids`, `attention_mask`, `labels`, `position_ids`, `token_type_ids`, `special_tokens_mask`,
        `decoder_input_ids` and `decoder_attention_mask`, and float32 `loss_weights`. All but the ids and labels are
        padded with 0.

        Args:
            pad_token_id: pads `input_ids` and `decoder_input_ids`.
            label_pad_token_id: pads `labels`.
        """
        zero = ("attention_mask", "position_ids", "token_type_ids", "special_tokens_mask", "decoder_attention_mask")
        fill = {"input_ids": pad_token_id, "decoder_input_ids": pad_token_id, "labels": label_pad_token_id}
        columns = {name: ("int64", value) for name, value in {**fill, **dict.fromkeys(zero, 0)}.items()}
        return cls({**columns, "loss_weights": ("float32", 0)})

    def __getitem__(self, name: str) -> OutputColumn:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __or__(self, other: Mapping[str, OutputColumn | tuple[npt.DTypeLike | torch.dtype, float]]) -> OutputSchema:
        """Return these columns and those of `other`, which takes precedence."""
        return OutputSchema({**self._columns, **other})

    def __repr__(self) -> str:
        return f"OutputSchema({self._columns})"


def _described(values: npt.NDArray[Any]) -> str:
    if values.dtype.kind in "US":
        return "text"
    other = next((value for value in values.flat if not isinstance(value, int | float)), None)
    return "None" if other is None else f"a {type(other).__name__}"


Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class RowColumn:
    """One column of all rows of a batch.

    Args:
        values: the concatenated rows, [sum(lengths)]; or [rows], with a single number per row.
        lengths: length of each row, int64 [rows]; or None for single numbers.
    """

    values: npt.NDArray[Any]
    lengths: Ints | None

    def first(self, most: int) -> RowColumn:
        """Return at most the first `most` values of each row."""
        if self.lengths is None or int(self.lengths.max(initial=0)) <= most:
            return self
        kept = np.minimum(self.lengths, most)
        return RowColumn(self.values[ranges(offsets_of(self.lengths)[:-1], kept)], kept)


def column_names(rows: Rows) -> list[str]:
    """Return the columns of the rows, which must all have the same ones.

    Raises:
        DataValidationError: `rows` is empty, a row is not a dict, or the columns of two rows differ.
    """
    if not len(rows):
        raise DataValidationError("the batch has no rows; collate at least one")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataValidationError(f"row {number} of the batch must be a dict of columns, got {type(row).__name__}")
        if row.keys() != rows[0].keys():
            names = ", ".join(sorted(map(repr, row.keys() ^ rows[0].keys())))
            raise DataValidationError(
                f"rows 0 and {number} of the batch differ in {names}; all rows of a batch need the same columns"
            )
    return list(rows[0])


def read_columns(rows: Rows, schema: Mapping[str, OutputColumn]) -> dict[str, RowColumn]:
    """Return all columns of rows by name, without those that are None in every row.

    Raises:
        DataValidationError: the rows differ in columns, a column is not in the schema, or a value does not fit its
            dtype.
    """
    columns = {}
    for name in column_names(rows):
        values = [row[name] for row in rows]
        if values[0] is None and all(value is None for value in values):
            continue
        if name not in schema:
            raise DataValidationError(
                f"column {name!r} is not in the schema: add it with dtype and pad value, such as "
                f"schema={{{name!r}: ('int64', 0)}}, or remove it from the rows"
            )
        columns[name] = _column(name, values, schema[name])
    return columns


def _column(name: str, values: list[Any], column: OutputColumn) -> RowColumn:
    lengths = np.fromiter(map(len, values), np.int64, len(values)) if {*map(type, values)} == {list} else None
    if lengths is not None and (flat := _of_lists(values, column)) is not None:
        return RowColumn(flat, lengths)
    arrays, dimensions = [], -1
    for number, value in enumerate(values):
        try:
            cast = column.cast(_array(value))
            if dimensions not in (-1, cast.ndim) or cast.ndim > 1:
                raise ValueError(f"has {cast.ndim} dimensions; rows need a list of numbers each, or a single one each")
        except (ValueError, TypeError) as error:
            raise DataValidationError(f"column {name!r}, row {number} of the batch: {error}") from None
        dimensions = cast.ndim
        arrays.append(cast)
    if dimensions == 0:
        return RowColumn(np.stack(arrays).astype(column.dtype), None)
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    return RowColumn(np.concatenate(arrays, dtype=column.dtype, casting="same_kind"), lengths)


def _of_lists(values: list[list[Any]], column: OutputColumn) -> npt.NDArray[Any] | None:
    """Return the concatenated numbers of lists, or None if a number does not fit the dtype."""
    flat = array("d" if column.dtype.kind == "f" else "q")
    try:
        for value in values:  # several times faster than np.array, and refuses floats for integers
            flat.fromlist(value)
        return column.cast(np.frombuffer(flat, flat.typecode)).astype(column.dtype, copy=False)
    except (TypeError, OverflowError, ValueError):
        return None


def _array(value: Any) -> npt.NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, torch.Tensor):
        return value.numpy(force=True)
    if isinstance(value, pa.Scalar):
        value = value.values if isinstance(value, pa.ListScalar) else value.as_py()
    return np.asarray(value)


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
