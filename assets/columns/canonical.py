"""Brings raw rows into canonical form with Arrow kernels; rows that do not fit are set aside."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.forms import MESSAGES
from tokenloom.assets.columns.mapping import ColumnMapping
from tokenloom.assets.columns.messages import messages_form
from tokenloom.assets.columns.preference import kto_form, preference_form
from tokenloom.assets.columns.source import Source
from tokenloom.assets.columns.text import Problem, empty_texts, flags_of, texts_of
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import EXCERPT_CHARACTERS, ROW, join_rejects, reject_rows
from tokenloom.resources.tables.ragged import one_array

__all__ = ["MESSAGES", "to_canonical"]

UNANSWERED = "empty_answer"

Columns = dict[str, pa.Array]
Convert = Callable[[pa.Table, Mapping[str, Source]], tuple[Columns, list[Problem]]]


def to_canonical(table: pa.Table, mapping: ColumnMapping, unanswered: bool = False) -> ChunkOutput:
    """The rows of one raw chunk in the form that `mapping` says; those without an answer too where `unanswered`.

    Columns: the row's position, int32, then those of the form, with the types of `tokenloom.assets.columns.forms`;
    for `fields` one string column for each field. No value is null.
    """
    sources = mapping.sources()
    if mapping.form == "fields":
        columns, problems = _fields(table, sources, mapping.answer)
    else:
        columns, problems = _CONVERTERS[mapping.form](table, sources)
    rows = one_array(table[ROW])
    taken, rejects = np.zeros(table.num_rows, bool), []
    for problem in problems:
        if unanswered and problem.code == UNANSWERED:
            continue
        first = problem.flags & ~taken
        taken |= first
        if first.any():
            bad = pa.array(first)
            shown = _excerpts(problem.shown.filter(bad))
            rejects.append(
                reject_rows(rows.filter(bad), "columns", problem.code, problem.field, problem.message, shown)
            )
    keep = pa.array(~taken)
    out = pa.table({ROW: rows.filter(keep), **{name: array.filter(keep) for name, array in columns.items()}})
    return ChunkOutput(out, table.num_rows, join_rejects(rejects))


def _excerpts(array: pa.Array) -> pa.Array | list[str]:
    if pa.types.is_string(array.type):
        return array
    return [str(value)[: 2 * EXCERPT_CHARACTERS] for value in array.to_pylist()]


def _texts(table: pa.Table, sources: Mapping[str, Source]) -> tuple[Columns, list[Problem]]:
    texts: Columns = {}
    problems: list[Problem] = []
    for role, source in sources.items():
        texts[role], found = texts_of(table, source, role)
        problems += found
    return texts, problems


def _empty(text: pa.Array, code: str, role: str, source: Source, shown: pa.Array) -> Problem:
    blank = flags_of(pc.equal(pc.utf8_trim_whitespace(text), ""))
    return Problem(blank, code, role, f"{source} is empty", shown)


def _fields(table: pa.Table, sources: Mapping[str, Source], answer: str | None) -> tuple[Columns, list[Problem]]:
    texts, problems = _texts(table, sources)
    if answer is not None:
        shown = texts[next(iter(texts))]
        problems.append(_empty(texts[answer], UNANSWERED, answer, sources[answer], shown))
    return texts, problems


def _text(table: pa.Table, sources: Mapping[str, Source]) -> tuple[Columns, list[Problem]]:
    texts, problems = _texts(table, sources)
    return texts, [*problems, _empty(texts["text"], "empty_text", "text", sources["text"], texts["text"])]


def _completion(table: pa.Table, sources: Mapping[str, Source]) -> tuple[Columns, list[Problem]]:
    """Prompt and context joined by a blank line, where there is a context."""
    texts, problems = _texts(table, sources)
    prompt = texts["prompt"]
    if "context" in texts:
        joined = pc.binary_join_element_wise(prompt, texts["context"], "\n\n")
        prompt = pc.if_else(pc.equal(texts["context"], ""), prompt, joined)
    problems.append(_empty(texts["completion"], UNANSWERED, "completion", sources["completion"], prompt))
    system = texts.get("system", empty_texts(len(prompt)))
    return {"prompt": prompt, "completion": texts["completion"], "system": system}, problems


_CONVERTERS: Mapping[str, Convert] = {
    "text": _text,
    "completion": _completion,
    "messages": messages_form,
    "preference": preference_form,
    "kto": kto_form,
}
