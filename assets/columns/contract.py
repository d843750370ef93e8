"""The contract of `columns`: one schema for each canonical form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.stage.contract import Contract, column, row_column
from tokenloom.assets.stage.forms import FIELDS, FORMS, MESSAGES, ROW_WEIGHT
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.tables.nested_paths import list_values
from tokenloom.resources.tables.ragged import one_array


def _messages_are_valid(table: pa.Table) -> bool:
    """Whether every message has a role and a text, and every conversation has a message."""
    return all(_is_valid(one_array(column)) for column in table.columns if column.type == MESSAGES)


def _is_valid(conversations: pa.Array) -> bool:
    lengths, messages = list_values(conversations)
    role, content = messages.flatten()[:2]
    named = pc.all(pc.not_equal(role, ""), min_count=0, skip_nulls=False).as_py()
    return bool(named and not content.null_count and not messages.null_count and (lengths > 0).all())


def _rows_ascend(table: pa.Table) -> bool:
    return bool((np.diff(table[ROW].to_numpy()) > 0).all())


_CHECKS = {"row positions ascend": _rows_ascend}
_MESSAGE_CHECKS = {"messages have a role and a text": _messages_are_valid, **_CHECKS}

CONTRACTS = {
    form.name: Contract(
        f"One row in the form `{form.name}`.",
        {ROW: row_column(), **form.columns},
        _MESSAGE_CHECKS if form.spoken else _CHECKS,
    )
    for form in FORMS.values()
}
CONTRACTS[FIELDS.name] = Contract(
    f"One row in the form `{FIELDS.name}`: a column for each field of `prompt_template.template`, a string column or, "
    "for a Jinja template, one of any type.",
    {ROW: row_column()},
    {"one canonical form": lambda table: MESSAGES not in table.schema.types, **_CHECKS},
    open=True,
)
"""The contract of each form, by name."""

_WEIGHT = column("The weight of the row's loss.", pa.float32())


def contract_of(columns: pa.Schema) -> Contract:
    """Return the contract of an output with these columns, which can have weights of rows."""
    contract = CONTRACTS[form_of(columns)]
    weighted = ROW_WEIGHT in columns.names
    return replace(contract, columns={**contract.columns, ROW_WEIGHT: _WEIGHT}) if weighted else contract


def form_of(columns: pa.Schema) -> str:
    """Return the form that has exactly these columns and types, else `fields`."""
    types = {field.name: field.type for field in columns if field.name not in (ROW, ROW_WEIGHT)}
    return next((form.name for form in FORMS.values() if types == form.types), FIELDS.name)
