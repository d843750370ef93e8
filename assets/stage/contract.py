"""Contracts: the columns of a stage's output and what holds for every chunk of it.

The contract of each stage is `CONTRACT` in `assets/<stage>/stage.py`. `Contract.problems` checks a chunk with Arrow
alone; `Contract.schema` is the same contract as a pandera schema, whose import takes most of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tokenloom.resources.tables.ragged import SIDES
from tokenloom.resources.tables.sequence_schema import OF_TOKENS, PER_TOKEN

if TYPE_CHECKING:
    from pandera.pyarrow import DataFrameSchema

Holds = Callable[[pa.Table], bool]


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


@dataclass(frozen=True)
class Column:
    """A column of a contract.

    Args:
        types: the Arrow types allowed.
        nullable: whether values can be null.
        required: whether every chunk has the column.
    """

    description: str
    types: tuple[pa.DataType, ...]
    nullable: bool = False
    required: bool = True

    @property
    def type(self) -> str:
        """The types as text."""
        return " or ".join(map(str, self.types))


def column(description: str, *types: pa.DataType, nullable: bool = False, required: bool = True) -> Column:
    """Return a column of a contract."""
    return Column(description, types, nullable, required)


def with_token_columns(contract: Contract, columns: pa.Schema) -> Contract:
    """Return the contract of a chunk with these columns, which can have columns with a number per token."""
    described = "A number for each token of pre-tokenized rows, which follows it into batches."
    further = {name: column(described, OF_TOKENS) for name in columns.names if name.startswith(PER_TOKEN)}
    return replace(contract, columns={**contract.columns, **further}) if further else contract


def row_column() -> Column:
    """Return the column with the position of each row."""
    return column("Position of the row within its raw chunk.", pa.int32())


@dataclass(frozen=True)
class Contract:
    """What holds for every chunk of a stage's output.

    Args:
        description: what one row of the table is.
        checks: properties of the whole table, by name. Checks of single values would cost as much as tokenizing.
        open: whether chunks can have further columns, of any type.
        pairs: whether chunks of preference pairs have all columns but `_row` and `rows` twice, under `chosen_` and
            `rejected_`. Each side must satisfy the contract.
    """

    description: str
    columns: Mapping[str, Column]
    checks: Mapping[str, Holds] = field(default_factory=dict)
    open: bool = False
    pairs: bool = False

    def problems(self, table: pa.Table) -> list[str]:
        """Return what is wrong with a table: columns and types; if these are right, nulls; else the checks."""
        return [*self._wrong_columns(table)] or [*self._nulls(table)] or [*self._failed_checks(table)]

    def _wrong_columns(self, table: pa.Table) -> Iterator[str]:
        for name, column in self.columns.items():
            if column.required and name not in table.column_names:
                yield f"no column {name}"
        for name in table.column_names:
            if not self.open and name not in self.columns:
                yield f"unexpected column {name}"
        for name, column in self.columns.items():
            if name in table.column_names and (found := table.schema.field(name).type) not in column.types:
                yield f"column {name} is {found}, not {column.type}"

    def _nulls(self, table: pa.Table) -> Iterator[str]:
        for name, column in self.columns.items():
            if name in table.column_names and not column.nullable and table[name].null_count:
                yield f"column {name} has nulls"

    def _failed_checks(self, table: pa.Table) -> Iterator[str]:
        for name, holds in self.checks.items():
            try:
                if not holds(table):
                    yield f"fails the check: {name}"
            except (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError) as error:
                yield f"fails the check: {name}: {error}"

    def schema(self) -> DataFrameSchema:
        """Return the contract as a pandera schema, which accepts the same tables. Imports pandera.

        pandera does not distinguish all Arrow types, so that a check of each column compares them.
        """
        from pandera.pyarrow import Check, Column, DataFrameSchema

        def typed(declared: tuple[pa.DataType, ...]) -> Check:
            type_is = f"type is {' or '.join(map(str, declared))}"
            return Check(
                lambda data: data.table.schema.field(data.key).type in declared, name="arrow type", error=type_is
            )

        def holding(name: str, holds: Holds) -> Check:
            return Check(lambda data: bool(holds(data.table)), name=name, error=name)

        columns = {}
        for name, own in self.columns.items():
            binary = pa.types.is_binary(own.types[0]) or pa.types.is_fixed_size_binary(own.types[0])
            dtype = own.types[0] if len(own.types) == 1 and not binary else None
            options = {"nullable": own.nullable, "required": own.required, "description": own.description}
            columns[name] = Column(dtype, typed(own.types), **options)
        checks = [holding(name, holds) for name, holds in self.checks.items()]
        return DataFrameSchema(columns, checks=checks, strict=not self.open, description=self.description)

    def rows(self) -> Iterator[ContractRow]:
        """Yield readable descriptions of the columns."""
        for name, column in self.columns.items():
            yield ContractRow(name, column.type, column.nullable, column.required, column.description)

    def row(self, field: pa.Field) -> ContractRow:
        """Return the description of a chunk's column, empty if the contract does not have the column."""
        side = next((side for side in SIDES if self.pairs and field.name.startswith(f"{side}_")), None)
        column = self.columns.get(field.name.removeprefix(f"{side}_") if side else field.name)
        if column is None:
            return ContractRow(field.name, str(field.type), True, False, "")
        description = f"The {side} side. {column.description}" if side else column.description
        return ContractRow(field.name, str(field.type), column.nullable, column.required, description)
