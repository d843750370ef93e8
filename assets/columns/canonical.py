"""Converts raw rows to their canonical form with Arrow kernels; rows that do not fit are rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.contract import EMPTY_ANSWER, empty_text
from tokenloom.assets.columns.dialogue import Columns, continued_form, dialogue_form, messages_form, prompt_only_form
from tokenloom.assets.columns.images import refuse_images, with_images
from tokenloom.assets.columns.mapping import ColumnMapping
from tokenloom.assets.columns.message_objects import CONTENT_FIELDS
from tokenloom.assets.columns.preference import kto_form, preference_form, segments_form, without_prompt_messages
from tokenloom.assets.columns.repeated_prompts import REMOVED, REPEATED, count_repeated, with_started, without_prompt
from tokenloom.assets.columns.source_expressions import (
    RowReader,
    SourceExpression,
    as_text,
    empty_texts,
    parse_source,
    row_weights,
    with_context,
)
from tokenloom.assets.columns.tokens import tokens_form
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.forms import FIELDS, FORMS, MESSAGES, ROW_WEIGHT, Form, form_named
from tokenloom.assets.stage.images import REFERENCES_COLUMN
from tokenloom.assets.stage.rejects import ROW, RowProblem, is_blank, reject
from tokenloom.resources.store.objects import IMAGES, media_of
from tokenloom.resources.tables.json_text import json_column, to_json_text
from tokenloom.resources.tables.nested_paths import (
    Path,
    evaluate,
    has_objects,
    null_fields,
    with_null_fields,
    without_null_fields,
)
from tokenloom.resources.tables.ragged import Flags, flags_of, one_array
from tokenloom.resources.tables.sequence_schema import PAIR
from tokenloom.resources.tables.stored_texts import decoded, is_binary

NULL_FIELDS = "null_fields"
"""Counter: rows with structs whose null fields are omitted."""

_OBJECTS = ("tools", "template_kwargs")
"""Roles whose values are objects, not messages."""

Convert = Callable[[RowReader], Columns]


def to_canonical(table: pa.Table, mapping: ColumnMapping, unanswered: bool = False) -> ChunkOutput:
    """Convert the rows of one raw chunk to the form of a mapping.

    Args:
        unanswered: whether to keep rows with an empty answer.

    Returns:
        A table with the row positions, int32, then the columns of the form, with the types in
        `tokenloom.assets.stage.forms`; for `fields`, one column per field: strings, or values of any type for a
        mapping with `objects`. Only these values can be null. With a mapped weight also `ROW_WEIGHT`; rows with the
        weight 0, which train nothing, are filtered.
    """
    sources = mapping.sources() | mapping.of_tokens()
    if mapping.nulls:
        table = _with_null_fields(table)
    problems, counted = list[RowProblem](), Counter[str]()
    if mapping.dialect is not None:
        from tokenloom.assets.columns.dialects import as_messages

        table, sources, problems, counted = as_messages(table, sources, mapping.dialect)
    null_fields = _null_fields(table, sources, mapping)
    form = form_named(mapping.form)
    read = RowReader(table, sources if form is FIELDS else with_context(sources), problems)
    if form is FIELDS:
        columns = (_values if mapping.objects else _fields)(read, mapping.answer)
    else:
        columns = CONVERTERS.get(form.name, partial(_written, form))(read)
    removed = np.zeros(table.num_rows, bool)
    if form.batch == PAIR:
        pair = columns["chosen"], columns["rejected"]
        (columns["chosen"], columns["rejected"]), removed = without_prompt(columns["prompt"], pair)
    elif {"prompt", "completion"} <= columns.keys() and columns["completion"].type == MESSAGES:
        columns["completion"], removed = without_prompt_messages(columns["prompt"], columns["completion"])
    if "prompt" in mapping.roles and form.prompted:
        answers = {side: columns[side] for side in form.spoken if side != "prompt"}
        columns["prompt"], joined, begun = with_started(columns["prompt"], answers.values(), join=not unanswered)
        columns |= dict(zip(answers, joined, strict=True))
        problems.append(begun)
    images: Columns = {}
    media: dict[str, bytes] = {}
    if mapping.media:
        source = None if mapping.images is None else parse_source(mapping.images)
        columns, images[REFERENCES_COLUMN], media = with_images(read, columns, source, mapping.form)
    else:
        problems += refuse_images(columns)
    weights = None
    if mapping.weight is not None and not unanswered:
        columns[ROW_WEIGHT] = weights = row_weights(read, parse_source(mapping.weight))
    rows = one_array(table[ROW])
    counting = [problem for problem in problems if not (unanswered and problem.code == EMPTY_ANSWER)]
    rejected, rejects = reject(rows, "columns", counting)
    # A row with the weight 0 is filtered, not rejected: the data asks for it.
    untrained = np.zeros(len(rows), bool) if weights is None else ~rejected & flags_of(pc.equal(weights, 0))
    keep = pa.array(~rejected & ~untrained)
    out = pa.table({name: array.filter(keep) for name, array in ({ROW: rows} | columns | images).items()})
    counters = {
        NULL_FIELDS: int((null_fields & ~rejected).sum()),
        REMOVED: int((removed & ~rejected).sum()),
        REPEATED: 0 if unanswered else count_repeated(columns, mapping.answer, ~rejected),
    }
    counters = {name: n for name, n in {**counters, **counted}.items() if n}
    if images:
        named = media_of(out)
        counters[IMAGES] = len(named)
        media = {digest: content for digest, content in media.items() if digest in named}
    return ChunkOutput(out, table.num_rows, rejects, int(untrained.sum()), counters=counters, media=media)


def _with_null_fields(table: pa.Table) -> pa.Table:
    """Return a table with its structs as JSON columns, which distinguish null fields from missing ones."""
    for index, field in enumerate(table.schema):
        if has_objects(field.type):
            table = table.set_column(index, field.name, with_null_fields(one_array(table[field.name])))
    return table


def _null_fields(table: pa.Table, sources: Mapping[str, SourceExpression], mapping: ColumnMapping) -> Flags:
    """Return bool [rows]: from which rows null fields of structs are omitted, which could be null in the source.

    Null fields of messages and of content parts are not counted: no template gets them from any source.
    """
    omitted = np.zeros(table.num_rows, bool)
    paths = {role: source for role, source in sources.items() if isinstance(source, Path)}
    for role, path in paths.items() if mapping.form in FORMS or mapping.objects else ():
        values = evaluate(table, path)
        if has_objects(values.type):
            spoken = mapping.form in FORMS and role not in _OBJECTS
            omitted |= null_fields(values, int(spoken), CONTENT_FIELDS)
    return omitted


def _fields(rows: RowReader, answer: str | None) -> Columns:
    """Return the text of each field of a template; rows with an empty answer are a problem."""
    texts = {role: rows.texts(role) for role in rows.sources}
    if answer is not None:
        shown = next(iter(texts.values()))
        rows.problems.append(empty_text(texts[answer], EMPTY_ANSWER, answer, rows.sources[answer], shown))
    return texts


def _values(rows: RowReader, answer: str | None) -> Columns:
    """Return the values of each field of a template; rows with an empty answer are a problem."""
    columns: Columns = {}
    for role, source in rows.sources.items():
        values = _without_null_fields(_as_text_if_time(rows.values(role, as_read=True)))
        if is_binary(values.type):
            columns[role], not_text = decoded(values)
        else:
            columns[role], not_text = values, flags_of(values.is_valid())
        # Binary data inside lists or structs has no text to decode it to.
        if "binary" in str(values.type):
            rows.report(not_text, "not_text", role, f"{source} is binary data", values)
    if answer is not None:
        text, not_text = as_text(columns[answer])
        shown = next(iter(columns.values()))
        rows.report(is_blank(text) & ~not_text, EMPTY_ANSWER, answer, f"{rows.sources[answer]} is empty", shown)
    return columns


def _without_null_fields(values: pa.Array) -> pa.Array:
    """Return structs without their null fields, as a JSON column; other values unchanged."""
    if not (has_objects(values.type) and null_fields(values).any()):
        return values
    return json_column([None if value is None else to_json_text(value) for value in without_null_fields(values)])


def _as_text_if_time(values: pa.Array) -> pa.Array:
    """Return times and decimals, which the sandbox does not give to templates, as text; other values unchanged."""
    if not (pa.types.is_temporal(values.type) or pa.types.is_decimal(values.type)):
        return values
    return pc.if_else(values.is_valid(), as_text(values)[0], pa.scalar(None, pa.string()))


def _written(form: Form, rows: RowReader) -> Columns:
    """Return a form of texts; optional ones that are not mapped are empty."""
    texts = {role: rows.texts(role) for role in rows.sources}
    shown = texts[next(iter(form.columns))]
    for role in form.filled or form.required:
        code = EMPTY_ANSWER if form.written[role] == "answer" else "empty_text"
        rows.problems.append(empty_text(texts[role], code, role, rows.sources[role], shown))
    return {name: texts.get(name, empty_texts(len(shown))) for name in form.columns}


CONVERTERS: Mapping[str, Convert] = {
    "segments": segments_form,
    "messages": lambda rows: (messages_form if "messages" in rows.sources else continued_form)(rows),
    "dialogue": dialogue_form,
    "prompt_only": prompt_only_form,
    "preference": preference_form,
    "kto": kto_form,
    "tokens": tokens_form,
}
"""The converters of all forms but those of texts."""
