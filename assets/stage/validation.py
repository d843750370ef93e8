"""Validates chunks of a stage's output against the stage's contract."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

import pyarrow as pa

from tokenloom.assets.stage.contract import Contract
from tokenloom.assets.stage.definition import Stage
from tokenloom.assets.stage.rejects import REJECTS
from tokenloom.errors import DataValidationError
from tokenloom.resources.tables.ragged import sides

# pandera imports engines while it validates; a thread that comes upon a half-imported one fails.
_PANDERA = Lock()


def validate(stage: Stage, table: pa.Table, by_pandera: bool = False) -> None:
    """Check one chunk of a stage's output.

    Args:
        by_pandera: whether pandera, which must come to the same verdict, checks a chunk without problems too.

    Raises:
        DataValidationError: the chunk breaks the contract; the message lists every violation.
    """
    contract = stage.contract(table.schema)
    tables = sides(table) if contract.pairs else {"": table}
    problems = [f"{side} {problem}".strip() for side, rows in tables.items() for problem in contract.problems(rows)]
    if by_pandera and not problems:
        problems = [problem for rows in tables.values() for problem in _found_by_pandera(contract, rows)]
    if problems:
        raise DataValidationError(f"{stage.name}: output breaks its contract: {'; '.join(problems)}")


def validate_rejects(table: pa.Table) -> None:
    """Check a rejects table.

    Raises:
        DataValidationError: it has other columns than `REJECTS`.
    """
    if table.schema != REJECTS:
        raise DataValidationError(f"rejects have other columns than expected: {table.schema}")


def _found_by_pandera(contract: Contract, table: pa.Table) -> Iterator[str]:
    from pandera.errors import SchemaError, SchemaErrors

    try:
        with _PANDERA:
            contract.schema().validate(table, lazy=True)
    except (SchemaErrors, SchemaError) as error:
        for case in getattr(error, "schema_errors", [error]):
            yield str(getattr(case, "args", [case])[0]).splitlines()[0]
