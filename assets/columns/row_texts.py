"""The content of canonical rows: the texts that people wrote and models said or called, and what belongs to a row
beside them, such as tools, labels and weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.source_expressions import as_text
from tokenloom.assets.stage.forms import FORMS, MESSAGES, ROW_WEIGHT, SEGMENTS
from tokenloom.assets.stage.images import IMAGES_COLUMN, REFERENCES_COLUMN
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.store.blobs.blobs import MEDIA
from tokenloom.resources.tables.hashes import Hashes, hash_rows, mix
from tokenloom.resources.tables.ragged import (
    Ints,
    any_of,
    flags_of,
    list_array,
    list_parts,
    offsets_of,
    one_array,
    row_of,
    text_parts,
)

PROMPT, COMPLETION = "prompt", "completion"
_ANSWERS = ("completion", "chosen", "rejected")
OWN = "own"
"""Texts without calls and system messages: rows with other calls are different rows, and a system message is what many
rows share rather than what two of them have in common."""
NOT_TEXT = ("tools", "template_kwargs", "label")
OF_PROMPTS = (IMAGES_COLUMN, "tools", "template_kwargs")
"""Columns beside the texts that a prompt has, too."""
_SYSTEM = ("system", "developer")

BLOCK_BYTES = 1 << 20
"""Bytes of text that are worked on at a time, so that arrays stay small."""

Texts = tuple[pa.Array, Ints]
"""Strings without nulls, and the row of each, int64 [texts], ascending."""


def has_sides(form: str, answers: Collection[str]) -> bool:
    """Return whether rows of a form have a prompt and a completion.

    Args:
        answers: for the form `fields`, the columns that are trained.
    """
    return not FORMS[form].promptless if form in FORMS else bool(answers)


Calls = Mapping[str, pa.Array]
"""By column of messages: the texts of the calls of each, or null."""


def row_texts(
    table: pa.Table, form: str, search: str = "all", answers: Collection[str] = (), calls: Calls | None = None
) -> Texts:
    """Return the texts of the rows of a canonical chunk, each message by itself.

    Args:
        form: the name of the rows' form.
        search: `all`; `own`: all but calls and system messages; or one side of the rows: `prompt` or `completion`.
        answers: for the form `fields`, the columns that are the completion.
        calls: as `calls_of`, if known.
    """
    by_column: list[Texts] = []
    answers = _ANSWERS if form in FORMS else answers
    for name in table.column_names:
        column = one_array(table[name])
        if name in (ROW, ROW_WEIGHT, IMAGES_COLUMN, REFERENCES_COLUMN) or (form in FORMS and name in NOT_TEXT):
            continue
        if column.type == MESSAGES:
            by_column += _spoken(column, search, name, calls)
        elif search in ("all", OWN, COMPLETION if name in answers else PROMPT):
            texts = _segments(column) if column.type == SEGMENTS else as_text(column)[0]
            by_column.append((texts, np.arange(table.num_rows)))
    if len(by_column) == 1:
        return by_column[0]
    if not by_column:
        return pa.array([], pa.string()), np.zeros(0, np.int64)
    rows = np.concatenate([of_row for _, of_row in by_column])
    order = np.argsort(rows, kind="stable")
    return pa.concat_arrays([texts for texts, _ in by_column]).take(pa.array(order)), rows[order]


def beside_texts(table: pa.Table, form: str, calls: Calls | None = None) -> Hashes:
    """Return a hash of what rows have beside their texts, uint64 [rows]; 0 for rows that have nothing.

    Rows are not alike if it differs: images, tools, variables of the chat template, label, weights, calls, system
    messages.

    Args:
        form: the name of the rows' form.
        calls: as `calls_of`, if known.
    """
    given: dict[str, pa.Array] = {}
    for name in table.column_names:
        column = one_array(table[name])
        if name == ROW_WEIGHT or (form in FORMS and name in NOT_TEXT):
            given[name] = column
        elif name == IMAGES_COLUMN:
            offsets, images = list_parts(column)
            given[name] = list_array(offsets, pc.struct_field(images, MEDIA))
        elif column.type == MESSAGES:
            offsets, messages = list_parts(column)
            role, content, _, weight, fields = messages.flatten()
            system = pc.if_else(pc.is_in(role, pa.array(_SYSTEM)), content, None)
            given[f"{name}.weight"] = _by_message(offsets, weight)
            called = _calls(fields) if calls is None else calls[name]
            for part, values in (("system", system), ("calls", called)):  # in order, wherever they stand
                valid = flags_of(values.is_valid())
                # Without the nulls, a row's list ends after as many values as there are up to its old end.
                ends = offsets_of(valid.astype(np.int64))[offsets]
                given[f"{name}.{part}"] = list_array(ends, values.filter(pa.array(valid)))
    return _hashes(given, table.num_rows)


def calls_of(table: pa.Table) -> Calls:
    """Return what both `row_texts` and `beside_texts` need, so that it is computed once."""
    names = [name for name in table.column_names if table.schema.field(name).type == MESSAGES]
    return {name: _calls(pc.struct_field(list_parts(table[name])[1], "fields")) for name in names}


def message_fields(table: pa.Table) -> Hashes:
    """Return a hash of the role and of all other fields of each message, such as ids of calls, uint64 [rows]."""
    given: dict[str, pa.Array] = {}
    for name in table.column_names:
        if table.schema.field(name).type == MESSAGES:
            offsets, messages = list_parts(table[name])
            for part in ("role", "fields"):
                given[f"{name}.{part}"] = _by_message(offsets, pc.struct_field(messages, part))
    return _hashes(given, table.num_rows)


def _by_message(offsets: Ints, values: pa.Array) -> pa.Array:
    """Return lists of a value for each message; empty lists for rows whose values are all null."""
    counts = np.diff(offsets)
    given = any_of(flags_of(values.is_valid()), counts)
    return list_array(offsets_of(np.where(given, counts, 0)), values.filter(pa.array(np.repeat(given, counts))))


def _hashes(columns: Mapping[str, pa.Array], rows: int) -> Hashes:
    """Return a hash of the values that are neither null nor empty, uint64 [rows]; 0 for rows without any."""
    hashes = np.zeros(rows, np.uint64)
    for name, values in columns.items():
        given = flags_of(values.is_valid())
        if pa.types.is_list(values.type):
            given = np.diff(list_parts(values)[0]) > 0
        elif pa.types.is_string(values.type):
            given = given & flags_of(pc.not_equal(values, ""))
        # XOR does not depend on the order of columns; the name is hashed too, so equal values in two columns differ.
        hashes ^= np.where(given, mix(hash_rows(pa.table({name: values}))[0]), np.uint64(0))
    return hashes


def text_blocks(texts: pa.Array, row_of_text: Ints) -> Iterator[Texts]:
    """Yield the texts of whole rows, about `BLOCK_BYTES` at a time."""
    number = text_parts(texts)[0][:-1] // BLOCK_BYTES
    first = np.flatnonzero(np.diff(row_of_text, prepend=-1))
    # A block starts at the first row whose text begins in another stretch of `BLOCK_BYTES`.
    starts = first[np.diff(number[first], prepend=-1) != 0]
    for start, end in pairwise([*starts.tolist(), len(texts)]):
        yield texts.slice(start, end - start), row_of_text[start:end]


def joined_texts(table: pa.Table, form: str, search: str) -> pa.Array:
    """Return the texts of each row as one string, a line break between them."""
    texts, rows = row_texts(table, form, search)
    offsets = np.searchsorted(rows, np.arange(table.num_rows + 1))
    return pc.binary_join(list_array(offsets, texts), "\n")


def _spoken(column: pa.Array, search: str, name: str, calls: Calls | None) -> Iterator[Texts]:
    """Yield contents, reasoning and calls of messages; in a whole conversation, the assistant's are the completion."""
    offsets, messages = list_parts(column)
    role = pc.struct_field(messages, "role")
    said = flags_of(pc.equal(role, "assistant"))
    answer = said if name == "messages" else np.full(len(said), name in _ANSWERS)
    wanted = np.full(len(said), True) if search in ("all", OWN) else answer == (search == COMPLETION)
    if search == OWN:
        wanted &= ~flags_of(pc.is_in(role, pa.array(_SYSTEM)))
    rows = row_of(np.diff(offsets))
    by_part = [pc.struct_field(messages, part) for part in ("content", "reasoning")]
    if search != OWN:
        by_part.append(_calls(pc.struct_field(messages, "fields")) if calls is None else calls[name])
    for texts in by_part:
        chosen = wanted & flags_of(texts.is_valid())
        yield (texts, rows) if chosen.all() else (texts.filter(pa.array(chosen)), rows[chosen])


_ID = r'"(?:id|call_id)":\s*"[^"]*",?\s*'
_NO_WORDS = rf'(?:{_ID})?"type":\s*"function",?\s*(?:{_ID})?|"(?:tool_calls|function)":'


def _calls(fields: pa.Array) -> pa.Array:
    """Return the names and arguments of the calls of messages as text, each on a line of its own; null without calls.

    Keys and punctuation of the JSON do not become words. Escapes are decoded, also in JSON text within JSON.
    """
    # By replacements instead of a JSON parser: Arrow works on the column at once, and words need no structure.
    texts = pc.if_else(pc.match_substring(fields, '"tool_calls":'), fields, None)
    texts = pc.replace_substring_regex(texts, _NO_WORDS, " ")
    texts = pc.replace_substring(pc.replace_substring_regex(texts, r'\\+["n]', '"'), '"', "\n")
    for marks, text in ((r"\\+(?:u[0-9a-fA-F]{4}|[tr])", " "), (r"\\+", "")):
        texts = pc.replace_substring_regex(texts, marks, text)
    return texts


def _segments(column: pa.Array) -> pa.Array:
    offsets, parts = list_parts(column)
    return pc.binary_join(list_array(offsets, pc.struct_field(parts, "text")), "")
