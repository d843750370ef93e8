"""Conversations as Arrow lists of messages: built from a chunk's columns, and grouped by all but their contents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.forms import MESSAGE, MESSAGES, REASONING_FIELDS
from tokenloom.resources.tables.ragged import Ints, list_array, list_parts, offsets_of, one_array, ranges

Message = dict[str, Any]
"""A message in the form that templates get."""

_LETTERS = {"system": "s", "user": "u", "assistant": "a", "tool": "t"}


@dataclass(frozen=True)
class Turn:
    """A message without its content and reasoning.

    Args:
        tool_calls: the calls, in the form that templates get.
        weight: the row's own training weight for the message, or None.
        reasons: whether the message has reasoning, even if it is empty.
    """

    role: str
    name: str | None
    tool_calls: tuple[dict[str, Any], ...]
    weight: float | None
    reasons: bool = False

    def message(self, content: str, reasoning: str | None) -> Message:
        """Return the message that a template gets."""
        message: Message = {"role": self.role, "content": content}
        if reasoning is not None:
            message |= dict.fromkeys(REASONING_FIELDS, reasoning)
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = list(self.tool_calls)
        return message


@dataclass(frozen=True)
class Conversations:
    """Conversations that differ only in contents and reasoning.

    Args:
        rows: int64 [rows], their indices in the chunk.
        turns: their messages.
        values: string arrays [rows]: the content of each message, then the reasoning of messages that have it.
        empty: for each value, whether it is empty (in all rows).
        tools: the tools described to the model, as JSON text; "" for none.
    """

    rows: Ints
    turns: tuple[Turn, ...]
    values: Sequence[pa.Array]
    empty: Sequence[bool]
    tools: str

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The index of each value's message."""
        return (*range(len(self.turns)), *(index for index, turn in enumerate(self.turns) if turn.reasons))

    def messages(self, values: Sequence[str]) -> list[Message]:
        """Return the messages with these values, in the form that templates get."""
        count = len(self.turns)
        reasoning = dict(zip(self.owners[count:], values[count:], strict=True))
        return [turn.message(values[index], reasoning.get(index)) for index, turn in enumerate(self.turns)]

    @cached_property
    def parsed_tools(self) -> Any:
        """The tools in the form that templates get, or None.

        Raises:
            ValueError: they are not valid JSON.
        """
        return json.loads(self.tools) if self.tools else None


def conversations(table: pa.Table, system: str | None) -> pa.Array:
    """Return the conversations of a chunk.

    Args:
        table: rows of messages, of prompts and completions as text, or of prompts and completions as messages.
        system: a system message for conversations that do not start with one, or None.

    Returns:
        `MESSAGES` [rows]. If completions are messages, the messages of a prompt have weight 0.
    """
    if "messages" in table.column_names:
        return _with_system(one_array(table["messages"]), system, None)
    if pa.types.is_string(table.schema.field("completion").type):
        return _with_system(_from_text(table), system, None)
    joined = _joined(one_array(table["prompt"]), one_array(table["completion"]))
    return _with_system(joined, system, 0.0)


def group_by_shape(messages: pa.Array, tools: pa.Array | None) -> Iterator[Conversations]:
    """Group conversations that differ only in contents and reasoning, with the same ones empty; in order of occurrence.

    Args:
        messages: `MESSAGES` [rows].
        tools: string [rows], JSON text, or None.
    """
    offsets, flat = list_parts(messages)
    role, content, name, calls, weight, reasoning = flat.flatten()
    keys = pc.binary_join(list_array(offsets, _keys(role, content, name, calls, weight, reasoning)), "")
    if tools is not None:
        keys = pc.binary_join_element_wise(keys, tools, "\n")
    group = keys.dictionary_encode().indices.to_numpy()
    order = np.argsort(group, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(order) else ():
        places = range(offsets[rows[0]], offsets[rows[0] + 1])
        turns = tuple(
            Turn(
                role[at].as_py(),
                name[at].as_py(),
                _template_calls(calls[at].as_py()),
                weight[at].as_py(),
                reasoning[at].is_valid,
            )
            for at in places
        )
        taken = [(content, index) for index in range(len(turns))]
        taken += [(reasoning, index) for index, turn in enumerate(turns) if turn.reasons]
        values = [array.take(pa.array(offsets[rows] + index)) for array, index in taken]
        empty = [value[0].as_py() == "" for value in values]
        yield Conversations(rows, turns, values, empty, "" if tools is None else tools[rows[0]].as_py())


def _keys(
    role: pa.Array, content: pa.Array, name: pa.Array, calls: pa.Array, weight: pa.Array, reasoning: pa.Array
) -> pa.Array:
    """Return a string for each message that encodes everything but its values; joined strings remain unambiguous."""
    letters = pa.array(list(_LETTERS.values())).take(pc.index_in(role, pa.array(list(_LETTERS))))
    letters = pc.if_else(pc.equal(content, ""), pc.utf8_upper(letters), letters)
    if reasoning.null_count < len(reasoning):
        reasons = pc.if_else(pc.equal(reasoning, ""), "R", "r").fill_null("")
        letters = pc.binary_join_element_wise(letters, reasons, "")
    extra = pc.or_(name.is_valid(), pc.greater(pc.list_value_length(calls), 0).fill_null(False))
    if weight.null_count == len(weight) and not pc.any(extra).as_py():
        return letters
    pairs = zip(name.filter(extra).to_pylist(), calls.filter(extra).to_pylist(), strict=True)
    texts = pa.array([json.dumps(pair) for pair in pairs], pa.string())
    extras = pc.replace_with_mask(pa.repeat(pa.scalar("", pa.string()), len(letters)), extra, texts)
    return pc.binary_join_element_wise(letters, weight.cast(pa.string()).fill_null(""), extras, "")


def _template_calls(calls: list[dict[str, Any]] | None) -> tuple[dict[str, Any], ...]:
    """Return tool calls in the form that templates get, with arguments as in the data."""
    return tuple(
        {
            "type": "function",
            **({} if call["id"] is None else {"id": call["id"]}),
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in calls or ()
    )


def _struct(columns: dict[str, pa.Array], count: int) -> pa.Array:
    """Return messages with these fields, all others null."""
    fields = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in MESSAGE]
    return pa.StructArray.from_arrays(fields, fields=list(MESSAGE))


def _from_text(table: pa.Table) -> pa.Array:
    """Return prompts and completions as conversations, with the row's system message if it has one."""
    system, prompt, completion = (one_array(table[name]) for name in ("system", "prompt", "completion"))
    has_system = np.asarray(pc.not_equal(system, "").to_numpy(zero_copy_only=False), bool)
    content = pa.concat_arrays([system, prompt, completion])
    count = table.num_rows
    order = (np.arange(count)[:, None] + np.array([0, count, 2 * count])).ravel()
    present = np.column_stack([has_system, np.ones((count, 2), bool)]).ravel()
    role = pa.array(np.tile(["system", "user", "assistant"], count)[present], pa.string())
    struct = _struct({"role": role, "content": content.take(pa.array(order[present]))}, len(role))
    return list_array(offsets_of(has_system + 2), struct).cast(MESSAGES)


def _joined(prompt: pa.Array, completion: pa.Array) -> pa.Array:
    """Return each prompt's messages, with weight 0, followed by the completion's."""
    (prompt_offsets, prompts), (completion_offsets, completions) = list_parts(prompt), list_parts(completion)
    columns = dict(zip(MESSAGE.names, prompts.flatten(), strict=True))
    columns["weight"] = pa.repeat(pa.scalar(0.0, pa.float32()), len(prompts))
    flat = pa.concat_arrays([_struct(columns, len(prompts)), completions])
    starts = np.column_stack([prompt_offsets[:-1], completion_offsets[:-1] + len(prompts)]).ravel()
    lengths = np.column_stack([np.diff(prompt_offsets), np.diff(completion_offsets)])
    taken = flat.take(pa.array(ranges(starts, lengths.ravel())))
    return list_array(offsets_of(lengths.sum(axis=1)), taken).cast(MESSAGES)


def _with_system(messages: pa.Array, system: str | None, weight: float | None) -> pa.Array:
    """Return the conversations, with the YAML's system message before those that do not start with one."""
    if system is None:
        return messages
    offsets, flat = list_parts(messages)
    lengths = np.diff(offsets)
    first = flat.flatten()[0].take(pa.array(offsets[:-1]))
    lacking = np.asarray(pc.not_equal(first, "system").to_numpy(zero_copy_only=False), bool)
    new_offsets = offsets_of(lengths + lacking)
    source = np.full(new_offsets[-1], len(flat), np.int64)
    own = np.ones(new_offsets[-1], bool)
    own[new_offsets[:-1][lacking]] = False
    source[own] = np.arange(len(flat))
    added = pa.array([{"role": "system", "content": system, "weight": weight}], MESSAGE)
    return list_array(new_offsets, pa.concat_arrays([flat, added]).take(pa.array(source))).cast(MESSAGES)
