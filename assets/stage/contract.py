"""Validates a stage's output: exact Arrow types, no nulls, and with pandera the stage's own named checks."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

from tokenloom.assets.stage.definition import Stage
from tokenloom.assets.stage.rejects import REJECTS, ROW
from tokenloom.errors import DataValidationError
from tokenloom.resources.tables.preference_pairs import sides


def validate(stage: Stage, table: pa.Table) -> None:
    """Check one chunk of a stage's output.

    Raises:
        DataValidationError: listing every property that does not hold.
    """
    found = {"": table} if stage.output_schema is None else sides(table)
    problems = [f"{side} {problem}".strip() for side, rows in found.items() for problem in _problems(stage, rows)]
    if problems:
        raise DataValidationError(f"{stage.name}: output breaks its contract: {'; '.join(problems)}")


def validate_rejects(table: pa.Table) -> None:
    """Check a rejects table.

    Raises:
        DataValidationError: it has another layout.
    """
    if table.schema != REJECTS:
        raise DataValidationError(f"rejects have another layout: {table.schema}")


def _problems(stage: Stage, table: pa.Table) -> list[str]:
    from pandera.errors import SchemaError, SchemaErrors

    if problems := _type_problems(stage, table) or _null_problems(stage, table):
        return problems
    try:
        _schema(stage).validate(table, lazy=True)
    except (SchemaErrors, SchemaError) as error:
        cases = getattr(error, "schema_errors", [error])
        return [str(getattr(case, "args", [case])[0]).splitlines()[0] for case in cases]
    return []


def _type_problems(stage: Stage, table: pa.Table) -> list[str]:
    if stage.output_schema is None:
        return []
    problems = [f"no column {name}" for name in stage.output_schema if name not in table.column_names]
    known = {**stage.output_schema, **stage.optional_columns}
    problems += [f"unexpected column {name}" for name in table.column_names if name not in known]
    for name, allowed in known.items():
        if name in table.column_names and table.schema.field(name).type not in allowed:
            problems.append(f"column {name} is {table.schema.field(name).type}, not {' or '.join(map(str, allowed))}")
    return problems


def _null_problems(stage: Stage, table: pa.Table) -> list[str]:
    required = [ROW] if stage.output_schema is None else table.column_names
    problems = [f"no column {name}" for name in required if name not in table.column_names]
    return problems or [f"column {name} holds nulls" for name in required if table[name].null_count]


@cache
def _schema(stage: Stage) -> Any:
    """Whole-table checks alone: those of pandera on single columns cost as much as tokenizing the chunk does."""
    from pandera.pyarrow import Check, DataFrameSchema

    checks = [
        Check(lambda data, holds=holds: bool(holds(data.table)), name=name, error=name)
        for name, holds in stage.checks.items()
    ]
    return DataFrameSchema(checks=checks)
