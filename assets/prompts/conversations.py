"""Conversations as Arrow lists of messages: put together, and grouped by all that is not content."""

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
"""A message as templates read it."""

_LETTERS = {"system": "s", "user": "u", "assistant": "a", "tool": "t"}


@dataclass(frozen=True)
class Turn:
    """A message but for its content and reasoning. `tool_calls` is as templates read it; `weight` is None where the
    data has none; `reasons` says whether there is reasoning, even if it is empty."""

    role: str
    name: str | None
    tool_calls: tuple[dict[str, Any], ...]
    weight: float | None
    reasons: bool = False

    def message(self, content: str, reasoning: str | None) -> Message:
        """The message that a template is given."""
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
    """Conversations that differ in contents and reasoning alone.

    Args:
        rows: int64, their places in the chunk.
        turns: their messages.
        values: string arrays [rows]: each message's content, then the reasoning of those that have one.
        empty: for each value, whether it is empty, in all rows.
        tools: JSON text of the tools described to the model; empty: none.
    """

    rows: Ints
    turns: tuple[Turn, ...]
    values: Sequence[pa.Array]
    empty: Sequence[bool]
    tools: str

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The message that each value is of."""
        return (*range(len(self.turns)), *(index for index, turn in enumerate(self.turns) if turn.reasons))

    def messages(self, values: Sequence[str]) -> list[Message]:
        """The messages with these values, as templates read them."""
        count = len(self.turns)
        reasoning = dict(zip(self.owners[count:], values[count:], strict=True))
        return [turn.message(values[index], reasoning.get(index)) for index, turn in enumerate(self.turns)]

    @cached_property
    def parsed_tools(self) -> Any:
        """The tools as templates read them, None for none.

        Raises:
            ValueError: they are not JSON.
        """
        return json.loads(self.tools) if self.tools else None


def conversations(table: pa.Table, system: str | None) -> pa.Array:
    """The conversations of a chunk of messages, of prompts and completions, or of prompts and completions in messages.

    Args:
        system: a system message for conversations that begin with none.

    Returns:
        `MESSAGES` [rows]. Messages of a prompt have weight 0 where completions are messages.
    """
    if "messages" in table.column_names:
        return _with_system(one_array(table["messages"]), system, None)
    if pa.types.is_string(table.schema.field("completion").type):
        return _with_system(_spoken(table), system, None)
    joined = _continued(one_array(table["prompt"]), one_array(table["completion"]))
    return _with_system(joined, system, 0.0)


def alike(messages: pa.Array, tools: pa.Array | None) -> Iterator[Conversations]:
    """Group conversations by all but contents and reasoning, and by which of those are empty, in order of occurrence.

    Args:
        messages: `MESSAGES` [rows].
        tools: string [rows], JSON text.
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
                _as_read(calls[at].as_py()),
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
    """For each message a string that says all but its values; a sequence of them can be read in one way only."""
    letters = pa.array(list(_LETTERS.values())).take(pc.index_in(role, pa.array(list(_LETTERS))))
    letters = pc.if_else(pc.equal(content, ""), pc.utf8_upper(letters), letters)
    if reasoning.null_count < len(reasoning):
        reasons = pc.if_else(pc.equal(reasoning, ""), "R", "r").fill_null("")
        letters = pc.binary_join_element_wise(letters, reasons, "")
    extra = pc.or_(name.is_valid(), pc.greater(pc.list_value_length(calls), 0).fill_null(False))
    if weight.null_count == len(weight) and not pc.any(extra).as_py():
        return letters
    told = zip(name.filter(extra).to_pylist(), calls.filter(extra).to_pylist(), strict=True)
    texts = pa.array([json.dumps(found) for found in told], pa.string())
    extras = pc.replace_with_mask(pa.repeat(pa.scalar("", pa.string()), len(letters)), extra, texts)
    return pc.binary_join_element_wise(letters, weight.cast(pa.string()).fill_null(""), extras, "")


def _as_read(calls: list[dict[str, Any]] | None) -> tuple[dict[str, Any], ...]:
    """Tool calls as templates read them; arguments are an object where they are JSON of one."""
    return tuple(
        {
            "type": "function",
            **({} if call["id"] is None else {"id": call["id"]}),
            "function": {"name": call["name"], "arguments": _object(call["arguments"])},
        }
        for call in calls or ()
    )


def _object(text: str | None) -> Any:
    try:
        found = json.loads(text or "")
    except ValueError:
        return text
    return found if isinstance(found, dict) else text


def _struct(columns: dict[str, pa.Array], count: int) -> pa.Array:
    """Messages of some fields, the others null."""
    found = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in MESSAGE]
    return pa.StructArray.from_arrays(found, fields=list(MESSAGE))


def _spoken(table: pa.Table) -> pa.Array:
    """Prompt and completion as a conversation, with the system message where there is one."""
    system, prompt, completion = (one_array(table[name]) for name in ("system", "prompt", "completion"))
    spoken = np.asarray(pc.not_equal(system, "").to_numpy(zero_copy_only=False), bool)
    content = pa.concat_arrays([system, prompt, completion])
    count = table.num_rows
    order = (np.arange(count)[:, None] + np.array([0, count, 2 * count])).ravel()
    present = np.column_stack([spoken, np.ones((count, 2), bool)]).ravel()
    role = pa.array(np.tile(["system", "user", "assistant"], count)[present], pa.string())
    struct = _struct({"role": role, "content": content.take(pa.array(order[present]))}, len(role))
    return list_array(offsets_of(spoken + 2), struct).cast(MESSAGES)


def _continued(prompt: pa.Array, completion: pa.Array) -> pa.Array:
    """Each prompt's messages, with weight 0, and behind them the completion's."""
    (before, asked), (after, said) = list_parts(prompt), list_parts(completion)
    columns = dict(zip(MESSAGE.names, asked.flatten(), strict=True))
    columns["weight"] = pa.repeat(pa.scalar(0.0, pa.float32()), len(asked))
    flat = pa.concat_arrays([_struct(columns, len(asked)), said])
    starts = np.column_stack([before[:-1], after[:-1] + len(asked)]).ravel()
    lengths = np.column_stack([np.diff(before), np.diff(after)])
    taken = flat.take(pa.array(ranges(starts, lengths.ravel())))
    return list_array(offsets_of(lengths.sum(axis=1)), taken).cast(MESSAGES)


def _with_system(messages: pa.Array, system: str | None, weight: float | None) -> pa.Array:
    """The conversations, each that begins with no system message behind the YAML's."""
    if system is None:
        return messages
    offsets, flat = list_parts(messages)
    lengths = np.diff(offsets)
    first = flat.flatten()[0].take(pa.array(offsets[:-1]))
    lacking = np.asarray(pc.not_equal(first, "system").to_numpy(zero_copy_only=False), bool)
    grown = offsets_of(lengths + lacking)
    source = np.full(grown[-1], len(flat), np.int64)
    inherited = np.ones(grown[-1], bool)
    inherited[grown[:-1][lacking]] = False
    source[inherited] = np.arange(len(flat))
    said = pa.array([{"role": "system", "content": system, "weight": weight}], MESSAGE)
    return list_array(grown, pa.concat_arrays([flat, said]).take(pa.array(source))).cast(MESSAGES)
