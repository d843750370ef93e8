"""Validates chunks of a stage's output against the stage's contract."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pandera.errors import SchemaError, SchemaErrors
from pandera.pyarrow import DataFrameSchema

from tokenloom.assets.stage.contract import allows_pairs, types_of
from tokenloom.assets.stage.definition import Stage
from tokenloom.assets.stage.rejects import REJECTS
from tokenloom.errors import DataValidationError
from tokenloom.resources.tables.preference_pairs import sides


def validate(stage: Stage, table: pa.Table) -> None:
    """Check one chunk of a stage's output.

    Raises:
        DataValidationError: the chunk breaks the contract; the message lists every violation.
    """
    contract = stage.contract(table.schema)
    tables = sides(table) if allows_pairs(contract) else {"": table}
    problems = [f"{side} {problem}".strip() for side, rows in tables.items() for problem in _problems(contract, rows)]
    if problems:
        raise DataValidationError(f"{stage.name}: output breaks its contract: {'; '.join(problems)}")


def validate_rejects(table: pa.Table) -> None:
    """Check a rejects table.

    Raises:
        DataValidationError: it has other columns than `REJECTS`.
    """
    if table.schema != REJECTS:
        raise DataValidationError(f"rejects have other columns than expected: {table.schema}")


def _problems(contract: DataFrameSchema, table: pa.Table) -> list[str]:
    """Return what is wrong with a table: columns and types, else nulls, else the contract's checks.

    Columns are checked in plain Arrow: pandera does not distinguish all Arrow types, and takes longer.
    """
    if problems := [*_column_problems(contract, table)] or [*_null_problems(contract, table)]:
        return problems
    if not contract.checks:
        return []
    try:
        DataFrameSchema(checks=contract.checks).validate(table, lazy=True)
    except (SchemaErrors, SchemaError) as error:
        cases = getattr(error, "schema_errors", [error])
        return [str(getattr(case, "args", [case])[0]).splitlines()[0] for case in cases]
    return []


def _column_problems(contract: DataFrameSchema, table: pa.Table) -> Iterator[str]:
    for name, column in contract.columns.items():
        if column.required and name not in table.column_names:
            yield f"no column {name}"
    for name in table.column_names:
        if contract.strict and name not in contract.columns:
            yield f"unexpected column {name}"
    for name, column in contract.columns.items():
        if name in table.column_names and (found := table.schema.field(name).type) not in types_of(column):
            yield f"column {name} is {found}, not {' or '.join(map(str, types_of(column)))}"


def _null_problems(contract: DataFrameSchema, table: pa.Table) -> Iterator[str]:
    for name, column in contract.columns.items():
        if name in table.column_names and not column.nullable and table[name].null_count:
            yield f"column {name} has nulls"
