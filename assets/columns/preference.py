"""Preference data: a prompt with a chosen and a rejected answer, or with one answer and a label (KTO); and texts in
segments, each with a label that says whether it is trained (axolotl's `input_output`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.contract import EMPTY_ANSWER, RowProblem, empty_answer, empty_prompt
from tokenloom.assets.columns.dialogue import (
    conversation_of,
    prompt_and_completion,
    prompt_of,
    with_earlier,
)
from tokenloom.assets.columns.messages import join_messages, shared_columns, slice_messages
from tokenloom.assets.columns.source_expressions import LABELS, SourceExpression, as_labels, as_text, values_of
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


def segments_form(
    table: pa.Table, sources: Mapping[str, SourceExpression]
) -> tuple[dict[str, pa.Array], list[RowProblem]]:
    """Return the form `segments`, and the rows that do not fit."""
    source = sources["segments"]
    if not isinstance(source, Path):
        raise TypeError(f"segments are a column or a path, not {source}")
    shown = evaluate(table, source)
    lengths, text, not_text = _flat_texts(_members(table, source, "text"))
    others, labels = list_values(_members(table, source, "label"))
    label = as_labels(labels) if len(labels) else pa.array([], pa.bool_())
    unlike, no_flag = lengths != others, any_of(flags_of(label.is_null()), others)
    wrong = unlike | any_of(not_text, lengths) | no_flag
    lengths_kept = np.where(wrong, 0, lengths)
    text = text.filter(pa.array(np.repeat(~wrong, lengths)))
    is_trained = flags_of(label)[np.repeat(~wrong, others)]
    answers = any_of(is_trained & flags_of(pc.not_equal(text, "")), lengths_kept)
    problems = [
        RowProblem(no_flag, "not_a_label", "segments", "the label of a segment is not a flag", shown),
        RowProblem(wrong, "not_text", "segments", "a segment has no text", shown),
        RowProblem(~answers, EMPTY_ANSWER, "segments", "no segment with a text is labelled", shown),
    ]
    flat = pa.StructArray.from_arrays([text, pa.array(is_trained.astype(np.float32))], fields=list(SEGMENT))
    return {"segments": list_array(offsets_of(lengths_kept), flat).cast(SEGMENTS)}, problems


def _members(table: pa.Table, source: Path, name: str) -> pa.Array:
    """Return one field of the segments, as a list for each row; null for values that are not lists."""
    lists = evaluate(table, Path(source.column, (*source.steps, name)))
    lists = as_lists(lists) if is_json(lists.type) else plain(lists)
    return lists if pa.types.is_list(lists.type) else pa.nulls(len(lists), pa.list_(pa.string()))


def _flat_texts(lists: pa.Array) -> tuple[Ints, pa.Array, Flags]:
    """Return the number of items of each list, their flat texts, and which of them are not text."""
    lengths, values = list_values(lists)
    text, not_text = as_text(values)
    return lengths, text, not_text | flags_of(values.is_null())


def preference_form(
    table: pa.Table, sources: Mapping[str, SourceExpression]
) -> tuple[dict[str, pa.Array], list[RowProblem]]:
    """Return the form `preference`: prompt, chosen and rejected as messages, and the rows that do not fit.

    The prompt is the common start of chosen and rejected, after the row's own prompt if they do not include that.
    """
    chosen, problems = conversation_of(table, sources, "chosen", "assistant")
    rejected, unfit = conversation_of(table, sources, "rejected", "assistant")
    problems += unfit
    # `own` is empty for rows whose prompt is only the start that both answers share.
    own, unfit = prompt_of(table, sources)
    problems += unfit
    shown, _ = values_of(table, sources["chosen"], "chosen")
    chosen, rejected = _with_question(chosen, rejected, own), _with_question(rejected, chosen, own)
    identity = _identities(chosen, rejected, own)
    shared = _shared(identity[0], identity[1])
    lengths = [list_values(part)[0] for part in (chosen, rejected, own)]
    same = (shared == lengths[0]) & (shared == lengths[1])
    prefix = slice_messages(chosen, np.zeros_like(shared), shared)
    # A prompt of its own can be the start that both share, or come before it.
    repeated = _is_part(identity[2], _cut(identity[0], shared))
    before = slice_messages(own, np.zeros_like(shared), np.where(repeated, 0, lengths[2]))
    prompt = join_messages(before, prefix)
    chosen, rejected = (
        slice_messages(part, shared, length - shared) for part, length in zip((chosen, rejected), lengths, strict=False)
    )
    problems += [
        RowProblem(same, "same_answers", "rejected", "chosen and rejected are the same", shown),
        empty_prompt(prompt, "no_common_prompt", "chosen and rejected share no prompt", shown),
        empty_answer(chosen, "chosen", "chosen has no answer after the common prompt", shown),
        empty_answer(rejected, "rejected", "rejected has no answer after the common prompt", shown),
    ]
    prompt, unfit = with_earlier(prompt, table, sources)
    shared, more = shared_columns(table, sources)
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, **shared}, [*problems, *unfit, *more]


def kto_form(table: pa.Table, sources: Mapping[str, SourceExpression]) -> tuple[dict[str, pa.Array], list[RowProblem]]:
    """Return the form `kto`: prompt and completion as messages, a boolean label, and the rows that do not fit.

    Without a source for the prompt, it is the completion's conversation up to its last answer.
    """
    prompt, completion, problems = prompt_and_completion(table, sources)
    values, unfit = values_of(table, sources["label"], "label")
    label = as_labels(values)
    message = f"not one of the labels {LABELS}"
    problems += [*unfit, RowProblem(flags_of(label.is_null()), "not_a_label", "label", message, values)]
    shared, unfit = shared_columns(table, sources)
    columns = {"prompt": prompt, "completion": completion, "label": label.fill_null(False), **shared}
    return columns, [*problems, *unfit]


def _with_question(answers: pa.Array, conversations: pa.Array, own: pa.Array) -> pa.Array:
    """Put the conversation up to its last user message before an answer alone, as ms-swift does.

    Args:
        own: prompts of the rows; a row that has one is unchanged.
    """
    lengths, last = list_values(answers)[0], _last_user(conversations)
    alone = (lengths > 0) & (_other_than_answers(answers) == 0) & (last > 0) & (list_values(own)[0] == 0)
    if not alone.any():
        return answers
    return join_messages(slice_messages(conversations, np.zeros_like(lengths), np.where(alone, last, 0)), answers)


def _other_than_answers(conversations: pa.Array) -> Ints:
    """Return the number of messages that are not the assistant's or a tool's, int64 [rows]."""
    lengths, flat = list_values(conversations)
    answers = flags_of(pc.is_in(pc.struct_field(flat, "role"), pa.array(["assistant", "tool"])))
    return sum_rows((~answers).astype(np.int64), offsets_of(lengths))


def _last_user(conversations: pa.Array) -> Ints:
    """Return the number of messages up to the last of the user, int64 [rows]; 0 if an answer comes first."""
    lengths, flat = list_values(conversations)
    offsets, row, roles = offsets_of(lengths), row_of(lengths), pc.struct_field(flat, "role")
    users, answers = (np.flatnonzero(flags_of(pc.equal(roles, name))) for name in ("user", "assistant"))
    ends = np.zeros(len(lengths), np.int64)
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
    pairs = [ids[ranges(offsets_of(length)[:-1], shorter)] for length, ids in (first, second)]
    return _leading(pairs[0] == pairs[1], shorter)


def _leading(flags: Flags, lengths: Ints) -> Ints:
    offsets = offsets_of(lengths)
    # A flag is leading if no flag before it in its row is unset.
    unset = np.cumsum(~flags)
    before = np.append(0, unset)[offsets[:-1]]
    return sum_rows((unset == before[row_of(lengths)]).astype(np.int64), offsets)


def _cut(conversations: Identities, length: Ints) -> Identities:
    return length, conversations[1][ranges(offsets_of(conversations[0])[:-1], length)]


def _is_part(own: Identities, prefix: Identities) -> Flags:
    """Return whether the prefix starts with the row's own prompt, or ends with the last message of that prompt."""
    starts_same = _shared(own, prefix) == own[0]
    both = (own[0] > 0) & (prefix[0] > 0)
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
    both, last = (said[0] > 0) & (asked[0] > 0), np.zeros(len(said[0]), bool)
    first = offsets_of(said[0])[:-1][both]
    role = pc.struct_field(list_values(completion)[1], "role").take(pa.array(first))
    last[both] = said[1][first] == asked[1][offsets_of(asked[0])[1:][both] - 1]
    last[both] &= flags_of(pc.not_equal(role, "assistant"))
    # The whole prompt, else its last message; never all of the completion, which would leave no answer.
    cut = np.where(_shared(said, asked) == asked[0], asked[0], last)
    cut = np.where(cut < said[0], cut, 0)
    return slice_messages(completion, cut, said[0] - cut), cut > 0
