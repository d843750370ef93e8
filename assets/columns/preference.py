"""Preference data: a prompt with a chosen and a rejected answer, or with one answer and a label (KTO); and texts in
segments, each with a label that says whether it is trained (axolotl's `input_output`).
"""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.contract import EMPTY_ANSWER, empty_answer, empty_prompt
from tokenloom.assets.columns.dialogue import Columns, conversation_of, prompt_and_completion, prompt_of, with_earlier
from tokenloom.assets.columns.message_objects import shared_columns
from tokenloom.assets.columns.messages import end_messages, join_messages, slice_messages
from tokenloom.assets.columns.source_expressions import LABELS, RowReader, as_labels, as_text
from tokenloom.assets.schema.conventions import kind_of
from tokenloom.assets.stage.forms import RANGES, SEGMENT, SEGMENTS
from tokenloom.resources.tables.json_text import is_json, to_json_text
from tokenloom.resources.tables.json_values import as_lists
from tokenloom.resources.tables.nested_paths import Path, evaluate, list_values, plain
from tokenloom.resources.tables.ragged import (
    Flags,
    Ints,
    any_of,
    flags_of,
    list_array,
    offsets_of,
    ranges,
    row_of,
    sum_rows,
)


def segments_form(rows: RowReader) -> Columns:
    """Return the form `segments`."""
    source = rows.sources["segments"]
    if not isinstance(source, Path):
        raise TypeError(f"segments are a column or a path, not {source}")
    shown = evaluate(rows.table, source)
    lengths, values = list_values(_members(rows.table, source, "text"))
    text, not_text = as_text(values)
    others, labels = list_values(_members(rows.table, source, "label"))
    label = as_labels(labels) if len(labels) else pa.array([], pa.bool_())
    no_flag = any_of(flags_of(label.is_null()), others)
    wrong = (lengths != others) | any_of(not_text | flags_of(values.is_null()), lengths) | no_flag
    lengths_kept = np.where(wrong, 0, lengths)
    text = text.filter(pa.array(np.repeat(~wrong, lengths)))
    is_trained = flags_of(label)[np.repeat(~wrong, others)]
    answers = any_of(is_trained & flags_of(pc.not_equal(text, "")), lengths_kept)
    rows.report(no_flag, "not_a_label", "segments", "the label of a segment is not a flag", shown)
    rows.report(wrong, "not_text", "segments", "a segment has no text", shown)
    rows.report(~answers, EMPTY_ANSWER, "segments", "no segment with a text is labelled", shown)
    flat = pa.StructArray.from_arrays([text, pa.array(is_trained.astype(np.float32))], fields=list(SEGMENT))
    return {"segments": list_array(offsets_of(lengths_kept), flat).cast(SEGMENTS)}


def _members(table: pa.Table, source: Path, name: str) -> pa.Array:
    """Return one field of the segments, as a list for each row; null for values that are not lists."""
    lists = evaluate(table, Path(source.column, (*source.steps, name)))
    lists = as_lists(lists) if is_json(lists.type) else plain(lists)
    return lists if pa.types.is_list(lists.type) else pa.nulls(len(lists), pa.list_(pa.string()))


def preference_form(rows: RowReader) -> Columns:
    """Return the form `preference`: prompt, chosen and rejected as messages.

    The prompt is the common start of chosen and rejected, after the row's own prompt if they do not include that.
    """
    chosen, rejected = (conversation_of(rows, role, "assistant") for role in ("chosen", "rejected"))
    # `own` is empty for rows whose prompt is only the start that both answers share.
    own = prompt_of(rows)
    chosen, rejected = _with_question(chosen, rejected, own), _with_question(rejected, chosen, own)
    identities = _identities(chosen, rejected, own)
    (of_chosen, ids), (of_rejected, _), (of_own, _) = identities
    shared = _shared(*identities[:2])
    prefix = shared, ids[ranges(offsets_of(of_chosen)[:-1], shared)]
    # A prompt of its own can be the start that both share, or come before it.
    before = slice_messages(own, np.zeros_like(shared), np.where(_is_part(identities[2], prefix), 0, of_own))
    prompt = join_messages(before, slice_messages(chosen, np.zeros_like(shared), shared))
    answers = slice_messages(chosen, shared, of_chosen - shared), slice_messages(rejected, shared, of_rejected - shared)
    same, shown = (shared == of_chosen) & (shared == of_rejected), rows.values("chosen")
    rows.report(same, "same_answers", "rejected", "chosen and rejected are the same", shown)
    rows.problems.append(empty_prompt(prompt, "no_common_prompt", "chosen and rejected share no prompt", shown))
    columns = dict(zip(("chosen", "rejected"), answers, strict=True))
    for role, answer in columns.items():
        rows.problems.append(empty_answer(answer, role, f"{role} has no answer after the common prompt", shown))
    return {"prompt": with_earlier(prompt, rows), **columns, **shared_columns(rows)}


def kto_form(rows: RowReader) -> Columns:
    """Return the form `kto`: prompt and completion as messages, and a boolean label.

    Without a source for the prompt, it is the completion's conversation up to its last answer.
    """
    prompt, completion = prompt_and_completion(rows)
    values = rows.values("label")
    label = as_labels(values)
    rows.report(flags_of(label.is_null()), "not_a_label", "label", f"not one of the labels {LABELS}", values)
    return {"prompt": prompt, "completion": completion, "label": label.fill_null(False), **shared_columns(rows)}


def _with_question(answers: pa.Array, conversations: pa.Array, own: pa.Array) -> pa.Array:
    """Put the conversation up to its last user message before an answer alone, as ms-swift does.

    Args:
        own: prompts of the rows; a row that has one is unchanged.
    """
    (lengths, flat), last = list_values(answers), _last_user(conversations)
    of_others = ~flags_of(pc.is_in(pc.struct_field(flat, "role"), pa.array(["assistant", "tool"])))
    alone = (lengths > 0) & ~any_of(of_others, lengths) & (last > 0) & (list_values(own)[0] == 0)
    if not alone.any():
        return answers
    return join_messages(slice_messages(conversations, np.zeros_like(lengths), np.where(alone, last, 0)), answers)


def _last_user(conversations: pa.Array) -> Ints:
    """Return the number of messages up to the last of the user, int64 [rows]; 0 if an answer comes first."""
    lengths, flat = list_values(conversations)
    offsets, row, roles = offsets_of(lengths), row_of(lengths), pc.struct_field(flat, "role")
    users, answers = (np.flatnonzero(flags_of(pc.equal(roles, name))) for name in ("user", "assistant"))
    ends = np.zeros(len(lengths), np.int64)
    # Of several assignments to one place NumPy keeps the last, which is that of the row's last user message.
    ends[row[users]] = users + 1 - offsets[row[users]]
    ends[row[answers[answers == offsets[row[answers]]]]] = 0
    return ends


_MAY_WEIGH = re.compile(r"""(?i)"[^"]*(?:weight|loss|train|learn|mask|ignore|ranges)[^"]*":""")

Identities = tuple[Ints, Ints]
"""Lengths [rows], and one number per message, equal for messages that differ only in their weight."""


def _identities(*conversations: pa.Array) -> list[Identities]:
    """Number the messages of several arrays of conversations so that equal messages have equal numbers."""
    split = [list_values(part) for part in conversations]
    role, content, reasoning, _, fields = pa.concat_arrays([flat for _, flat in split]).flatten()
    keys = [role, content, reasoning, _without_weights(fields)]
    codes = [key.dictionary_encode(null_encoding="encode").indices.to_numpy() for key in keys]
    identity = np.zeros(len(role), np.int64)
    # Fold the columns' codes into one number a message, renumbered after each so that it stays below 2**63.
    for code in codes:
        identity = np.unique(identity * (int(code.max(initial=0)) + 1) + code, return_inverse=True)[1]
    ends = np.cumsum([len(flat) for _, flat in split])[:-1]
    return [(length, ids) for (length, _), ids in zip(split, np.split(identity, ends), strict=True)]


def _without_weights(fields: pa.Array) -> pa.Array:
    """Return messages' fields without those that declare a weight; null if no other field is left."""
    encoded = fields.dictionary_encode()
    texts = [_without_weight(text) for text in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _without_weight(text: str) -> str | None:
    # Parsing JSON is slow, and few fields declare a weight.
    if not _MAY_WEIGH.search(text):
        return text
    fields = json.loads(text)
    rest = {name: value for name, value in fields.items() if name != RANGES and kind_of(name) is None}
    if len(rest) == len(fields):
        return text
    return None if rest == {"role": None, "content": None} else to_json_text(rest)


def _shared(first: Identities, second: Identities) -> Ints:
    """Return the number of messages that two conversations have in common at their start, int64 [rows]."""
    shorter = np.minimum(first[0], second[0])
    one, other = (ids[ranges(offsets_of(length)[:-1], shorter)] for length, ids in (first, second))
    offsets, different = offsets_of(shorter), np.cumsum(one != other)
    # A message is shared if there are as many differences up to it as before its row.
    before = np.append(0, different)[offsets[:-1]]
    return sum_rows((different == before[row_of(shorter)]).astype(np.int64), offsets)


def _is_part(own: Identities, prefix: Identities) -> Flags:
    """Return whether the prefix starts with the row's own prompt, or ends with the last message of that prompt."""
    starts_same = _shared(own, prefix) == own[0]
    both = (own[0] > 0) & (prefix[0] > 0)
    # A prompt of one question can also come after earlier turns that only the answers hold.
    ends_same = np.zeros(len(both), bool)
    last = [ids[offsets_of(length)[1:][both] - 1] for length, ids in (own, prefix)]
    ends_same[both] = last[0] == last[1]
    return starts_same | ends_same


def without_prompt_messages(prompt: pa.Array, completion: pa.Array) -> tuple[pa.Array, Flags]:
    """Remove the prompt, or its last message, from the start of completions that go on after it.

    Args:
        prompt, completion: conversations [rows].

    Returns:
        The completions, and bool [rows], which of them were changed.
    """
    said, asked = _identities(completion, prompt)
    both = (said[0] > 0) & (asked[0] > 0)
    last = flags_of(pc.not_equal(pc.struct_field(end_messages(completion, 0), "role"), "assistant")) & both
    last[both] &= said[1][offsets_of(said[0])[:-1][both]] == asked[1][offsets_of(asked[0])[1:][both] - 1]
    # The whole prompt, else its last message; never all of the completion, which would leave no answer.
    cut = np.where(_shared(said, asked) == asked[0], asked[0], last)
    cut = np.where(cut < said[0], cut, 0)
    return slice_messages(completion, cut, said[0] - cut), cut > 0
