"""The contract of `columns`: one schema for each canonical form, and the problems of rows that lack what it needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.stage.contract import Contract, column, row_column, with_token_columns
from tokenloom.assets.stage.forms import FIELDS, FORMS, MESSAGES, ROW_WEIGHT, has_calls
from tokenloom.assets.stage.images import IMAGES_COLUMN, IMAGES_OF_ROW, REFERENCES, REFERENCES_COLUMN
from tokenloom.assets.stage.rejects import ROW, RowProblem, is_blank
from tokenloom.resources.tables.nested_paths import list_values
from tokenloom.resources.tables.ragged import any_of, flags_of, one_array
from tokenloom.resources.tables.sequence_schema import PER_TOKEN

EMPTY_ANSWER = "empty_answer"


def empty_text(text: pa.Array, code: str, role: str, source: object, shown: pa.Array) -> RowProblem:
    """Return the problem of rows whose text is empty or white space."""
    return RowProblem(is_blank(text), code, role, f"{source} is empty", shown)


def empty_answer(messages: pa.Array, role: str, message: str, shown: pa.Array) -> RowProblem:
    """Return the problem of conversations without an assistant message that has text or a tool call."""
    lengths, flat = list_values(messages)
    speaker, content = flat.flatten()[:2]
    answers = flags_of(pc.equal(speaker, "assistant"))
    blank = np.flatnonzero(answers & is_blank(content))
    answers[blank] = has_calls(flat.take(pa.array(blank)))
    return RowProblem(~any_of(answers, lengths), EMPTY_ANSWER, role, message, shown)


def empty_prompt(prompt: pa.Array, code: str, message: str, shown: pa.Array) -> RowProblem:
    """Return the problem of prompts without messages."""
    return RowProblem(list_values(prompt)[0] == 0, code, "prompt", message, shown)


def _messages_are_valid(table: pa.Table) -> bool:
    for lengths, messages in (list_values(one_array(each)) for each in table.columns if each.type == MESSAGES):
        role, content = messages.flatten()[:2]
        named = pc.all(pc.not_equal(role, ""), min_count=0, skip_nulls=False).as_py()
        if not named or content.null_count or messages.null_count or not (lengths > 0).all():
            return False
    return True


def _rows_ascend(table: pa.Table) -> bool:
    return bool((np.diff(table[ROW].to_numpy()) > 0).all())


_ASCEND = {"row positions ascend": _rows_ascend}
_CHECKS = _ASCEND, {"messages have a role and a text": _messages_are_valid} | _ASCEND
"""The checks of forms without messages, and of those with."""

CONTRACTS = {
    name: Contract(f"One row in the form `{name}`.", {ROW: row_column(), **form.columns}, _CHECKS[bool(form.spoken)])
    for name, form in FORMS.items()
}
CONTRACTS[FIELDS.name] = Contract(
    f"One row in the form `{FIELDS.name}`: a column for each field of `prompt_template.template`, a string column or, "
    "for a Jinja template, one of any type.",
    {ROW: row_column()},
    {"one canonical form": lambda table: MESSAGES not in table.schema.types, **_ASCEND},
    open=True,
)
"""The contract of each form, by name."""

_FURTHER = {
    ROW_WEIGHT: column("The weight of the row's loss.", pa.float32()),
    REFERENCES_COLUMN: column(
        "The images that the row refers to, in the order of their marks: the digest of the bytes, or a path or URL.",
        REFERENCES,
    ),
    IMAGES_COLUMN: column(
        "The images of the row, in the order of their marks: digest, format, width and height in pixels, and bytes.",
        IMAGES_OF_ROW,
    ),
}
"""Columns that rows of every form can have."""


def contract_of(columns: pa.Schema) -> Contract:
    """Return the contract of an output with these columns, which can have weights and images of rows."""
    contract = CONTRACTS[form_of(columns)]
    further = {name: _FURTHER[name] for name in columns.names if name in _FURTHER}
    contract = replace(contract, columns={**contract.columns, **further})
    return contract if contract.open else with_token_columns(contract, columns)


def form_of(columns: pa.Schema) -> str:
    """Return the form that has exactly these columns and types, else `fields`."""
    types = {field.name: field.type for field in columns if field.name not in (ROW, *_FURTHER)}
    if "input_ids" in types:
        types = {name: kind for name, kind in types.items() if not name.startswith(PER_TOKEN)}
    return next((form.name for form in FORMS.values() if types == form.types), FIELDS.name)
