"""Reads columns out of rows that are dicts of lists, arrays or tensors: flat values, and how many each row has."""

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

    `values` [sum(lengths)] lie one row after the other; `lengths` is int64 [rows], or None where each row has a single
    number and `values` is [rows].
    """

    values: npt.NDArray[Any]
    lengths: Ints | None

    def first(self, most: int) -> RowColumn:
        """No more than the first `most` values of each row."""
        if self.lengths is None or int(self.lengths.max(initial=0)) <= most:
            return self
        kept = np.minimum(self.lengths, most)
        return RowColumn(self.values[ranges(offsets_of(self.lengths)[:-1], kept)], kept)


def column_names(rows: Rows) -> list[str]:
    """The columns that all rows have, in their order.

    Raises:
        DataValidationError: there are no rows, they are no dicts or have different columns.
    """
    if not len(rows):
        raise DataValidationError("a batch has no rows; collate at least one")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataValidationError(f"row {number} of the batch is a {type(row).__name__}; rows are dicts of columns")
        if row.keys() != rows[0].keys():
            told = ", ".join(sorted(map(repr, row.keys() ^ rows[0].keys())))
            raise DataValidationError(
                f"rows 0 and {number} of the batch differ in {told}; all rows of a batch have the same columns"
            )
    return list(rows[0])


def read_columns(rows: Rows, schema: Mapping[str, OutputColumn]) -> dict[str, RowColumn]:
    """All columns of rows, by name; without those that are None in every row.

    Raises:
        DataValidationError: as `column_names` does, or a column is not in the schema or holds what is no number of its
            dtype.
    """
    found = {}
    for name in column_names(rows):
        values = [row[name] for row in rows]
        if values[0] is None and all(value is None for value in values):
            continue
        if name not in schema:
            raise DataValidationError(
                f"column {name!r} is not in the schema: name it with dtype and pad value, "
                f"schema={{{name!r}: ('int64', 0)}}, or take it out of the rows"
            )
        found[name] = _column(name, values, schema[name])
    return found


def _column(name: str, values: list[Any], column: OutputColumn) -> RowColumn:
    lengths = np.fromiter(map(len, values), np.int64, len(values)) if {*map(type, values)} == {list} else None
    if lengths is not None and (flat := _of_lists(values, column)) is not None:
        return RowColumn(flat, lengths)
    arrays, dimensions = [], -1
    for number, value in enumerate(values):
        try:
            found = column.cast(_array(value))
            if dimensions not in (-1, found.ndim) or found.ndim > 1:
                raise ValueError(f"has {found.ndim} dimensions; each row has a list of numbers, or each a single one")
        except (ValueError, TypeError) as error:
            raise DataValidationError(f"column {name!r}, row {number} of the batch: {error}") from None
        dimensions = found.ndim
        arrays.append(found)
    if dimensions == 0:
        return RowColumn(np.stack(arrays).astype(column.dtype), None)
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    return RowColumn(np.concatenate(arrays, dtype=column.dtype, casting="same_kind"), lengths)


def _of_lists(values: list[list[Any]], column: OutputColumn) -> npt.NDArray[Any] | None:
    """The numbers of lists; None where some are not of this dtype."""
    flat = array("d" if column.dtype.kind == "f" else "q")
    try:
        for value in values:  # several times as fast as np.array, and takes no float for an integer
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
