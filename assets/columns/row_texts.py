"""The texts of canonical rows: what a person wrote or a model says, without tools, labels and variables."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.text_values import as_text
from tokenloom.assets.stage.forms import FORMS, MESSAGES, ROW_WEIGHT, SEGMENTS
from tokenloom.assets.stage.images import IMAGES_COLUMN, REFERENCES_COLUMN
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.store.blobs.blobs import MEDIA
from tokenloom.resources.tables.ragged import Ints, flags_of, list_array, list_parts, one_array, row_of, text_parts
from tokenloom.resources.tables.row_hash import Hashes, hash_rows

PROMPT, COMPLETION = "prompt", "completion"
_ANSWERS = ("completion", "chosen", "rejected")
NOT_TEXT = ("tools", "template_kwargs", "label")

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


def row_texts(table: pa.Table, form: str, search: str = "all", answers: Collection[str] = ()) -> Texts:
    """Return the texts of the rows of a canonical chunk, each message by itself.

    Args:
        form: the name of the rows' form.
        search: `all`, or one side of the rows: `prompt` or `completion`.
        answers: for the form `fields`, the columns that are the completion.
    """
    found: list[Texts] = []
    answers = _ANSWERS if form in FORMS else answers
    for name in table.column_names:
        column = one_array(table[name])
        if name in (ROW, ROW_WEIGHT, IMAGES_COLUMN, REFERENCES_COLUMN) or (form in FORMS and name in NOT_TEXT):
            continue
        if column.type == MESSAGES:
            found += _spoken(column, search, name)
        elif search == "all" or search == (COMPLETION if name in answers else PROMPT):
            texts = _segments(column) if column.type == SEGMENTS else as_text(column)[0]
            found.append((texts, np.arange(table.num_rows)))
    if len(found) == 1:
        return found[0]
    if not found:
        return pa.array([], pa.string()), np.zeros(0, np.int64)
    rows = np.concatenate([of_row for _, of_row in found])
    order = np.argsort(rows, kind="stable")
    return pa.concat_arrays([texts for texts, _ in found]).take(pa.array(order)), rows[order]


def image_hashes(table: pa.Table) -> Hashes:
    """Return a hash of the images of each row of a canonical chunk, uint64 [rows]; 0 for rows without images."""
    if IMAGES_COLUMN not in table.column_names:
        return np.zeros(table.num_rows, np.uint64)
    offsets, images = list_parts(table[IMAGES_COLUMN])
    digests = list_array(offsets, pc.struct_field(images, MEDIA))
    return np.where(np.diff(offsets) > 0, hash_rows(pa.table({MEDIA: digests}))[0], np.uint64(0))


def text_blocks(texts: pa.Array, row_of_text: Ints) -> Iterator[Texts]:
    """Yield the texts of whole rows, about `BLOCK_BYTES` at a time."""
    number = text_parts(texts)[0][:-1] // BLOCK_BYTES
    first = np.flatnonzero(np.diff(row_of_text, prepend=-1))
    starts = first[np.diff(number[first], prepend=-1) != 0]
    for start, end in pairwise([*starts.tolist(), len(texts)]):
        yield texts.slice(start, end - start), row_of_text[start:end]


def joined_texts(table: pa.Table, form: str, search: str) -> pa.Array:
    """Return the texts of each row as one string, a line break between them."""
    texts, rows = row_texts(table, form, search)
    offsets = np.searchsorted(rows, np.arange(table.num_rows + 1))
    return pc.binary_join(list_array(offsets, texts), "\n")


def _spoken(column: pa.Array, search: str, name: str) -> Iterator[Texts]:
    """Yield the contents and the reasoning of messages; in a whole conversation, the assistant's are the completion."""
    offsets, messages = list_parts(column)
    said = flags_of(pc.equal(pc.struct_field(messages, "role"), "assistant"))
    answer = said if name == "messages" else np.full(len(said), name in _ANSWERS)
    wanted = np.full(len(said), True) if search == "all" else answer == (search == COMPLETION)
    rows = row_of(np.diff(offsets))
    for field in ("content", "reasoning"):
        texts = pc.struct_field(messages, field)
        kept = wanted & flags_of(texts.is_valid())
        yield (texts, rows) if kept.all() else (texts.filter(pa.array(kept)), rows[kept])


def _segments(column: pa.Array) -> pa.Array:
    """Return the parts of each text, joined."""
    offsets, parts = list_parts(column)
    return pc.binary_join(list_array(offsets, pc.struct_field(parts, "text")), "")
