"""Builds the contract of a stage: the pandera schema of its output.

The contract of each stage is `CONTRACT` in `assets/<stage>/contract.py`. Importing pandera takes more than a second,
so contracts are imported only when a chunk is validated or a contract is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pandera.api.pyarrow.types import PyArrowData
from pandera.pyarrow import Check, Column, DataFrameSchema

from tokenloom.resources.tables.preference_pairs import SIDES

Holds = Callable[[pa.Table], bool]

_TYPES, _PAIRS = "arrow types", "pairs"


@dataclass(frozen=True)
class ContractRow:
    """A readable description of a column.

    Args:
        type: Arrow types allowed.
        nullable: whether values can be null.
        required: whether every chunk has the column.
    """

    name: str
    type: str
    nullable: bool
    required: bool
    description: str


def column(description: str, *types: pa.DataType, nullable: bool = False, required: bool = True) -> Column:
    """Return a column of a contract.

    Args:
        types: the Arrow types allowed, which a check enforces. If pandera knows a single one, its `dtype` is set too.
        nullable: whether values can be null.
        required: whether every chunk has the column.
    """
    dtype = types[0] if len(types) == 1 and not pa.types.is_binary(types[0]) else None

    def has_type(data: PyArrowData) -> bool:
        return data.table.schema.field(data.key).type in types

    check = Check(has_type, name="arrow type", error=f"type is {' or '.join(map(str, types))}")
    return Column(dtype, check, nullable=nullable, required=required, description=description, metadata={_TYPES: types})


def row_column() -> Column:
    """Return the column with the position of each row."""
    return column("Position of the row within its raw chunk.", pa.int32())


def contract(
    description: str,
    columns: Mapping[str, Column],
    checks: Mapping[str, Holds] | None = None,
    open: bool = False,
    pairs: bool = False,
) -> DataFrameSchema:
    """Return the contract of a stage.

    Args:
        description: what one row of the table is.
        checks: properties of the whole table, by name. Checks of single columns would cost as much as tokenizing.
        open: whether chunks can have further columns, of any type.
        pairs: whether chunks of preference pairs have all columns but `_row` and `rows` twice, under `chosen_` and
            `rejected_`. Each side must satisfy the contract.
    """
    return DataFrameSchema(
        dict(columns),
        checks=[_check(name, holds) for name, holds in (checks or {}).items()],
        strict=not open,
        description=description,
        metadata={_PAIRS: pairs},
    )


def types_of(column: Column) -> tuple[pa.DataType, ...]:
    """Return the Arrow types that a column allows."""
    return (column.metadata or {})[_TYPES]


def allows_pairs(contract: DataFrameSchema) -> bool:
    """Whether a contract also describes chunks of preference pairs."""
    return (contract.metadata or {})[_PAIRS]


def contract_rows(contract: DataFrameSchema) -> Iterator[ContractRow]:
    """Yield readable descriptions of a contract's columns."""
    for name, column in contract.columns.items():
        types = " or ".join(map(str, types_of(column)))
        yield ContractRow(name, types, column.nullable, column.required, column.description or "")


def contract_row(contract: DataFrameSchema, field: pa.Field) -> ContractRow:
    """Return the row for a chunk's column; its description is empty if the contract does not have the column."""
    side = next((side for side in SIDES if allows_pairs(contract) and field.name.startswith(f"{side}_")), None)
    column = contract.columns.get(field.name.removeprefix(f"{side}_") if side else field.name)
    if column is None:
        return ContractRow(field.name, str(field.type), True, False, "")
    description = f"The {side} side. {column.description}" if side else column.description or ""
    return ContractRow(field.name, str(field.type), column.nullable, column.required, description)


def _check(name: str, holds: Holds) -> Check:
    def holds_of(data: PyArrowData) -> bool:
        return bool(holds(data.table))

    return Check(holds_of, name=name, error=name)
