"""Conversations, prompts with or without their completions, and earlier turns in a column of their own, as messages."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.contract import EMPTY_ANSWER, empty_answer, empty_prompt, empty_text
from tokenloom.assets.columns.message_objects import shared_columns
from tokenloom.assets.columns.messages import (
    end_messages,
    join_messages,
    messages_of,
    no_messages,
    slice_messages,
    struct_of,
    to_messages,
    with_system,
)
from tokenloom.assets.columns.source_expressions import RowReader, Turns, as_text
from tokenloom.assets.schema.profiles import ROLE_NAMES
from tokenloom.assets.stage.forms import has_calls
from tokenloom.assets.stage.rejects import RowProblem
from tokenloom.resources.tables.json_text import is_json, json_column, json_texts
from tokenloom.resources.tables.json_values import LIST, OBJECT, as_lists, items_of, kinds_of
from tokenloom.resources.tables.nested_paths import list_values, plain
from tokenloom.resources.tables.ragged import Flags, any_of, flags_of, list_array, offsets_of, row_of

Columns = dict[str, pa.Array]

_PAIR = "history is not a list of [question, answer], both of them texts, or of messages"


def continued_form(rows: RowReader) -> Columns:
    """Return the form `messages` of prompts and completions of text with earlier turns.

    A row without earlier turns is the conversation that it would be as a prompt and a completion.
    """
    prompt, completion = rows.texts("prompt"), rows.texts("completion")
    rows.problems.append(empty_text(completion, EMPTY_ANSWER, "completion", rows.sources["completion"], prompt))
    every = np.ones(rows.table.num_rows, bool)
    last = join_messages(messages_of("user", prompt, every), messages_of("assistant", completion, every))
    return {"messages": with_earlier(last, rows), **shared_columns(rows)}


def with_earlier(messages: pa.Array, rows: RowReader) -> pa.Array:
    """Put the row's system prompt and earlier turns, if any, before each conversation."""
    if "history" in rows.sources:
        values, as_turns = rows.values("history"), isinstance(rows.sources["history"], Turns)
        history = rows.checked(alternating_turns(values, "history") if as_turns else earlier_turns(values))
        messages = join_messages(history, messages)
    return with_system(messages, rows)


def earlier_turns(values: pa.Array) -> tuple[pa.Array, list[RowProblem]]:
    """Convert each row's value to messages.

    Args:
        values: lists of pairs, or of messages, as Arrow types or as a JSON column; null for none.

    Returns:
        An array of type MESSAGES without nulls, and the rows that cannot be converted.
    """
    values = plain(values)
    if not is_json(values.type):
        if pa.types.is_list(values.type) and pa.types.is_struct(plain(list_values(values)[1]).type):
            return to_messages(values, "history", "user")
        return _pairs(values, values)
    texts, none = json_texts(values), pa.scalar(None, pa.string())
    # A row can hold pairs, another messages: each is converted by its own function, with null in place of the other.
    spoken = pa.array(_hold_objects(texts))
    messages, problems = to_messages(json_column(pc.if_else(spoken, texts, none)), "history", "user")
    paired, unfit = _pairs(json_column(pc.if_else(spoken, none, texts)), values)
    return join_messages(paired, messages), [*problems, *unfit]


def alternating_turns(values: pa.Array, role: str) -> tuple[pa.Array, list[RowProblem]]:
    """Convert lists of texts, or of [question, answer], to messages of user and assistant in turn."""
    values = plain(values)
    turns, is_list = _lists(values)
    lengths, items = list_values(turns)
    text, not_text = as_text(items)
    paired = any_of(_lists(items)[1], lengths)
    # `["user", "Hi"]` names a speaker, so that alternating speakers would train the wrong side.
    named = any_of(flags_of(pc.is_in(text, pa.array(list(ROLE_NAMES)))), lengths)
    unfit = any_of(not_text | flags_of(items.is_null()), lengths)
    wrong = ~paired & (unfit | named | (~is_list & flags_of(values.is_valid())))
    sizes = np.where(wrong | paired, 0, lengths)
    # The place of a text in its own row decides who speaks: the first is the user's.
    content = text.filter(pa.array(np.repeat(sizes > 0, lengths)))
    roles = pa.array(["user", "assistant"]).take(
        pa.array((np.arange(len(content)) - offsets_of(sizes)[row_of(sizes)]) % 2)
    )
    spoken = list_array(offsets_of(sizes), struct_of({"role": roles, "content": content}, len(content)))
    # Rows of pairs are null in the one conversion, all others in the other.
    pairs, problems = _pairs(values.take(pa.array(np.arange(len(values)), mask=~paired)), values)
    message = "neither a list of texts nor of [question, answer] without the names of speakers"
    return join_messages(spoken, pairs), [RowProblem(wrong, "not_turns", role, message, values), *problems]


def _hold_objects(texts: pa.Array) -> Flags:
    """Return which JSON texts are lists with an object among their items."""
    is_list = kinds_of(texts) == LIST
    lengths, items = items_of(texts.filter(pa.array(is_list)))

    holds = np.zeros(len(texts), bool)
    holds[is_list] = any_of(kinds_of(items) == OBJECT, lengths)
    return holds


def _pairs(values: pa.Array, shown: pa.Array) -> tuple[pa.Array, list[RowProblem]]:
    """Convert lists of [question, answer]; other values than lists and nulls are a problem."""
    turns, is_list = _lists(values)
    lengths, pairs = list_values(turns)
    pairs, are_lists = _lists(pairs)
    sizes, said = list_values(pairs)
    text, not_text = as_text(said)
    unfit = ~are_lists | (sizes != 2) | any_of(not_text | flags_of(said.is_null()), sizes)
    wrong = any_of(unfit, lengths) | (~is_list & flags_of(plain(values).is_valid()))
    # One wrong pair makes the whole row wrong, since without it the other turns do not follow each other.
    fits = np.repeat(~wrong, lengths)
    content = text.filter(pa.array(np.repeat(fits, sizes)))
    roles = pa.array(["user", "assistant"]).take(pa.array(np.arange(len(content)) % 2))
    flat = struct_of({"role": roles, "content": content}, len(content))
    messages = list_array(offsets_of(np.where(wrong, 0, 2 * lengths)), flat).cast(no_messages(0).type)
    return messages, [RowProblem(wrong, "not_turns", "history", _PAIR, shown)]


def _lists(values: pa.Array) -> tuple[pa.Array, Flags]:
    """Return values as a list array, and which of them are lists; all others are null."""
    lists = as_lists(values) if is_json(values.type) else plain(values)
    if not pa.types.is_list(lists.type):
        lists = pa.nulls(len(values), pa.list_(pa.string()))
    return lists, flags_of(lists.is_valid())


def messages_form(rows: RowReader) -> Columns:
    """Return the form `messages`."""
    values, messages = rows.values("messages"), conversation_of(rows, "messages", None)
    message = "no assistant message holds text or a tool call"
    rows.problems.append(empty_answer(messages, "messages", message, values))
    return {"messages": with_system(messages, rows), **shared_columns(rows)}


def dialogue_form(rows: RowReader) -> Columns:
    """Return the form `dialogue`: prompt and completion as messages."""
    prompt, completion = prompt_and_completion(rows)
    return {"prompt": prompt, "completion": completion, **shared_columns(rows)}


def prompt_only_form(rows: RowReader) -> Columns:
    """Return the form `prompt_only`: prompts as messages."""
    prompt = prompt_of(rows)
    rows.problems.append(empty_prompt(prompt, "empty_prompt", "the prompt is empty", rows.values("prompt")))
    return {"prompt": with_earlier(prompt, rows), **shared_columns(rows)}


def prompt_and_completion(rows: RowReader) -> tuple[pa.Array, pa.Array]:
    """Return each row's prompt and completion as messages; rows in which either is empty are a problem."""
    prompt, completion = prompt_of(rows), conversation_of(rows, "completion", "assistant")
    shown = rows.values("completion")
    if "prompt" not in rows.sources:
        prompt, completion = _before_last_answer(completion)
    rows.problems.append(empty_prompt(prompt, "empty_prompt", "the prompt is empty", shown))
    rows.problems.append(empty_answer(completion, "completion", "completion has no answer", shown))
    return with_earlier(prompt, rows), completion


def conversation_of(rows: RowReader, role: str, speaker: str | None) -> pa.Array:
    """Return the values of a role as messages; plain text is a message of the speaker, if there is one."""
    values, as_turns = rows.values(role), isinstance(rows.sources[role], Turns)
    return rows.checked(alternating_turns(values, role) if as_turns else to_messages(values, role, speaker))


def prompt_of(rows: RowReader) -> pa.Array:
    """Return the row's own prompt without an empty assistant message at its end; empty for rows without a prompt."""
    if "prompt" not in rows.sources:
        return no_messages(rows.table.num_rows)
    prompt = conversation_of(rows, "prompt", "user")
    lengths, last = list_values(prompt)[0], end_messages(prompt, -1)
    empty = flags_of(pc.equal(pc.struct_field(last, "content"), "")) & ~has_calls(last)
    empty &= flags_of(pc.equal(pc.struct_field(last, "role"), "assistant"))
    return slice_messages(prompt, np.zeros_like(lengths), lengths - empty)


def _before_last_answer(conversations: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Split each conversation before its last message of the assistant; without one, it is all prompt."""
    lengths, flat = list_values(conversations)
    answers = np.flatnonzero(flags_of(pc.equal(pc.struct_field(flat, "role"), "assistant")))
    starts = offsets_of(lengths)[:-1]
    # The last answer before the end of each row; it belongs to an earlier row if it lies before the row's start.
    last = np.append(-1, answers)[np.searchsorted(answers, starts + lengths)]
    before = np.where(last >= starts, last - starts, lengths)
    prompts = slice_messages(conversations, np.zeros_like(before), before)
    return prompts, slice_messages(conversations, before, lengths - before)
