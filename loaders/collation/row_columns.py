"""Reads columns from rows that are dicts of lists, arrays or tensors: flat values, and the length of each row."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from tokenloom.errors import DataValidationError
from tokenloom.loaders.collation.output_schema import OutputColumn
from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges

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
