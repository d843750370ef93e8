"""Conversations as Arrow lists of messages: built from a chunk's columns, and grouped by all but their contents.

Data have either, and so have templates: some concatenate text, some write an object as JSON, some read its items. A
template gets the arguments as in the source. If it refuses them, or writes text as a quoted JSON string or an object as
Python's `repr`, it gets the other form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.content_parts import blank_parts, filled, is_blank
from tokenloom.assets.columns.messages import join_messages, struct_of, to_messages
from tokenloom.assets.prompts.outline import Message, ShapeError
from tokenloom.assets.prompts.row_fields import FieldFinder, RowFields
from tokenloom.assets.prompts.text_ranges import Cuts, CutsOfRows, WeightedRange, shifted
from tokenloom.assets.stage.forms import MESSAGE, MESSAGES, RANGES, REASONING_FIELDS, SPACED
from tokenloom.assets.stage.images import MARK
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import is_reserved_variable
from tokenloom.config.trained_kinds import MESSAGE_ROLES
from tokenloom.resources.tables.json_text import json_column, read_json_value
from tokenloom.resources.tables.ragged import Ints, flags_of, list_array, list_parts, offsets_of, one_array
from tokenloom.resources.templates.marks import Answers, Standing, mark, tracked

_LETTERS = {"system": "s", "user": "u", "assistant": "a", "tool": "t"}
_OTHER_ROLE = "tool"
"""Masks see a role that only a template knows as a message that neither asks nor answers."""


@dataclass(frozen=True)
class Turn:
    """A message without its content and reasoning.

    Args:
        role: one of `MESSAGE_ROLES`.
        weight: the row's own training weight for the message, or None.
        reasons: whether the message has reasoning, even if it is empty.
        fields: the message's fields as in `MESSAGE`; None for only a role and a content.
        spoken: the role that the template gets; default: `role`.
        as_text: whether the template gets a content that is not text as its text; see `readable`.
        problem: code and message of the reject if the message cannot be rendered.
        spaced: whether the content's parts have white space where they meet.
    """

    role: str
    weight: float | None = None
    reasons: bool = False
    fields: dict[str, Any] | None = None
    spoken: str | None = None
    as_text: bool = False
    problem: tuple[str, str] | None = None
    spaced: bool = False

    @property
    def tool_calls(self) -> tuple[dict[str, Any], ...]:
        """The message's tool calls, in OpenAI's form."""
        return tuple((self.fields or {}).get("tool_calls") or ())

    @property
    def content(self) -> Any:
        """The message's content in `fields`: None for text, or if there is none."""
        return (self.fields or {}).get("content")

    @property
    def content_kind(self) -> str | None:
        """What the source has as content: None for text, else `nothing`, parts of text, or another `value`.

        Parts are `parts` if their text is the row's, and `texts` if they have their own.
        """
        if self.content is None:
            return None if self.fields is None or "content" in self.fields else "nothing"
        if self.content and is_blank(self.content):
            return "parts"
        results = (str,) if self.role == "tool" else ()  # a tool's result can be a list of texts
        parts = isinstance(self.content, list) and not all(isinstance(part, results) for part in self.content)
        return "texts" if parts and blank_parts(self.content) is not None else "value"

    @property
    def is_constant(self) -> bool:
        """Whether the template gets a content that is part of the turn."""
        return self.content_kind in ("value", "texts") and not self.as_text

    def message(self, content: str, reasoning: str | None) -> Message:
        """Return the message that a template gets, with the fields that transformers' `apply_chat_template` adds.

        Raises:
            ShapeError: the message cannot be rendered.
        """
        if self.problem is not None:
            raise ShapeError(*self.problem)
        message: Message = dict(self.fields or {"role": None, "content": None})
        message["role"] = self.spoken or self.role
        if "content" in message or self.as_text:
            message["content"] = self._content(content)
        message |= {name: reasoning for name in REASONING_FIELDS if name in message and message[name] is None}
        thought = next((message[name] for name in REASONING_FIELDS if name in message), reasoning)
        if thought is not None:
            message = {"thinking": thought, "reasoning": thought, **message, "reasoning_content": thought}
        return message

    def _content(self, text: str) -> Any:
        if self.content_kind is None or self.as_text:
            return text
        return self.content if self.is_constant else filled(self.content, [text, *[""] * len(self.content)])


@dataclass(frozen=True)
class Conversations:
    """Conversations that differ only in contents and reasoning.

    Args:
        rows: int64 [rows], their indices in the chunk.
        turns: their messages.
        values: string arrays [rows]: the content of each message, then the reasoning of messages that have it.
        empty: for each value, whether it is empty (in all rows).
        tools: the tools described to the model, as JSON text; "" for none.
        template_kwargs: the rows' variables of the chat template, as JSON text; "" for none.
        cuts: the weighted ranges of texts, of all rows of the chunk.
        own: for each row, its fields in place of those of the first in `turns` and `tools`; empty if they are the same.
        kind: what all rows share in place of the fields.
        standing_tools: the tools, with a `Standing` in place of each field.
        answers: the template's questions about the fields of the first row.
        following: the message after these, of conversations that are cut.
        led: whether outlines are rendered with the contents of the first row, not with marks.
        around: the messages whose reasoning is within their contents, but is a value of its own; with the text before
            and after it, which all rows share: `<think>` (some data omit it), and `</think>` with the line feeds next
            to them.
    """

    rows: Ints
    turns: tuple[Turn, ...]
    values: Sequence[pa.Array]
    empty: Sequence[bool]
    tools: str
    template_kwargs: str
    cuts: Cuts = field(default_factory=dict, kw_only=True)
    own: Sequence[RowFields] = field(default=(), kw_only=True)
    kind: str = field(default="", kw_only=True)
    standing_tools: Any = field(default=None, kw_only=True)
    answers: Answers = field(default_factory=dict, kw_only=True)
    following: Turn | None = field(default=None, kw_only=True)
    led: bool = field(default=False, kw_only=True)
    around: Mapping[int, tuple[str, str]] = field(default_factory=dict, kw_only=True)

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The index of each value's message."""
        return (*range(len(self.turns)), *(index for index, turn in enumerate(self.turns) if turn.reasons))

    @property
    def marks(self) -> list[str]:
        """A mark for each value that is not empty."""
        return ["" if empty else mark(value) for value, empty in enumerate(self.empty)]

    @cached_property
    def tracked(self) -> list[str]:
        """What outlines are rendered with for each value that is not empty: a mark, or the text of the leading row."""
        leading = [value[0].as_py() if self.led else "" for value in self.values]
        return ["" if empty else tracked(value, leading[value]) for value, empty in enumerate(self.empty)]

    def messages(self, values: Sequence[str]) -> list[Message]:
        """Return the messages with these values, in the form that templates get."""
        count = len(self.turns)
        contents, thoughts = [*values[:count]], dict(zip(self.owners[count:], values[count:], strict=True))
        for index in self.around.keys() & thoughts.keys():
            before, after = self.around[index]
            contents[index] = f"{before}{thoughts.pop(index)}{after}{contents[index]}"
        return [turn.message(contents[index], thoughts.get(index)) for index, turn in enumerate(self.turns)]

    def of_row(self, place: int) -> Self:
        """Return the conversations with the fields of one row in place of each `Standing`."""
        own = self.own[place]
        return replace(self._with(own.messages), own=(), standing_tools=own.tools)

    def _with(self, fields: Sequence[dict[str, Any] | None]) -> Self:
        given = ({name: of for name, of in (one or {}).items() if name != SPACED} for one in fields)
        pairs = zip(self.turns, given, strict=False)  # of conversations that are cut, there are more fields
        return replace(self, turns=tuple(replace(turn, fields=turn.fields and one) for turn, one in pairs))

    def led_by(self, index: Ints) -> Self:
        """Return some of the conversations, with the fields of the first in place of all.

        Args:
            index: int64 [rows], positions in the group.
        """
        answers: Answers = {}
        fields, tools = self.own[int(index[0])].standing(answers)
        taken = replace(self._with(fields), standing_tools=tools, answers=answers, rows=self.rows[index])
        values = [value.take(pa.array(index)) for value in self.values]
        return replace(taken, values=values, own=[self.own[place] for place in index.tolist()])

    def cuts_of(self, value: int, place: int) -> list[WeightedRange]:
        """Return the ranges of a value of the row at a place of the group."""
        message, count = self.owners[value], len(self.turns)
        inline = message in self.around
        kind = "content" if inline or value < count else "reasoning"
        ranges = list(self.cuts.get((int(self.rows[place]), message, kind), ()))
        if not inline:
            return ranges
        before, after = (len(text.encode()) for text in self.around[message])
        thought = count + self.owners[count:].index(message)
        rest, size = (len(self.values[index][place].as_py().encode()) for index in (message, thought))
        return shifted(ranges, before, size) if value >= count else shifted(ranges, before + size + after, rest)

    def cuts_by_row(self, rows: pa.Array) -> dict[int, CutsOfRows]:
        """Return the ranges of all values: by value, then by row position; `rows` are those of the chunk."""
        if not self.cuts:
            return {}
        numbers = rows.take(pa.array(self.rows)).to_pylist()
        found = {
            value: {row: ranges for place, row in enumerate(numbers) if (ranges := self.cuts_of(value, place))}
            for value in range(len(self.values))
        }
        return {value: ranges for value, ranges in found.items() if ranges}

    @cached_property
    def shape(self) -> str:
        """A text that other conversations of the same shape share: all but rows and values."""
        every = [*self.turns, *([self.following] if self.following else ())]
        turns = [len(self.turns), *([getattr(turn, part.name) for part in fields(Turn)] for turn in every)]
        led = self.led and self.tracked
        key = [turns, self.empty, self.tools, self.template_kwargs, self.kind, list(self.around.items()), led]
        return json.dumps(key)

    @cached_property
    def parsed_tools(self) -> Any:
        """The tools in the form that templates get, or None.

        Raises:
            ShapeError: they are not valid JSON.
        """
        if self.standing_tools is not None:
            return self.standing_tools
        try:
            return json.loads(self.tools) if self.tools else None
        except ValueError as error:
            raise ShapeError("tools_not_json", f"the tools are not valid JSON: {error}") from error


def one_conversation(messages: Sequence[Message], tools: str = "") -> pa.Table:
    """Return a chunk of one conversation in canonical form; `tools` is JSON text."""
    conversation, _ = to_messages(json_column([json.dumps(messages)]), "messages")
    return pa.table({ROW: pa.array([0], pa.int32()), "messages": conversation, "tools": [tools]})


def conversations(table: pa.Table, system: str | None) -> pa.Array:
    """Return the conversations of a chunk.

    Args:
        table: rows of messages, of prompts and completions as text, or of prompts as messages, with or without
            completions.
        system: a system message for conversations that do not start with one, or None.

    Returns:
        `MESSAGES` [rows]. If prompts are messages, these have weight 0.
    """
    if "messages" in table.column_names:
        return _with_system(one_array(table["messages"]), system, None)
    if "completion" not in table.column_names:
        return _with_system(_untrained(one_array(table["prompt"])), system, 0.0)
    if pa.types.is_string(table.schema.field("completion").type):
        return _with_system(_from_text(table), system, None)
    joined = join_messages(_untrained(one_array(table["prompt"])), one_array(table["completion"]))
    return _with_system(joined.cast(MESSAGES), system, 0.0)


def group_by_shape(
    messages: pa.Array,
    tools: pa.Array | None = None,
    template_kwargs: pa.Array | None = None,
    cuts: Cuts | None = None,
    finder: FieldFinder | None = None,
    index: Ints | None = None,
) -> Iterator[Conversations]:
    """Group conversations that differ only in contents and reasoning, with the same ones empty; in order of occurrence.

    Conversations with ranges and without are in different groups.

    Args:
        messages: `MESSAGES` [rows].
        tools, template_kwargs: string [rows], JSON text, or None.
        cuts: the weighted ranges of texts.
        finder: finds fields in which conversations can differ, too; or None.
        index: int64, the rows to group; default: all.
    """
    if index is None:
        index = np.arange(len(messages))
    elif len(index) < len(messages):
        kept = pa.array(index)
        messages = messages.take(kept)
        tools, template_kwargs = (None if one is None else one.take(kept) for one in (tools, template_kwargs))
    offsets, flat = list_parts(messages)
    role, content, reasoning, weight, fields = flat.flatten()
    own_fields = list[RowFields]()
    if finder is not None:
        read = finder.in_messages(fields)
        described = None if tools is None else finder.in_tools(tools)
        bounds = enumerate(pairwise(offsets.tolist()))
        own_fields = [RowFields(read[start:end], described[row] if described else None) for row, (start, end) in bounds]
        fields = pa.array([one and one.key for one in read], pa.string())
        tools = None if described is None else pa.array([one and one.key for one in described], pa.string())
    keys = pc.binary_join(list_array(offsets, _keys(role, content, reasoning, weight, fields)), "")
    given = [column for column in (tools, template_kwargs) if column is not None]
    given += [pa.array([str(row.numbers) for row in own_fields], pa.string())] if own_fields else []
    if cuts:
        given.append(pc.if_else(pa.array(np.isin(index, [row for row, _, _ in cuts])), "ranges", ""))
    if given:
        keys = pc.binary_join_element_wise(keys, *given, "\n")
    group = keys.dictionary_encode().indices.to_numpy()
    order = np.argsort(group, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(order) else ():
        places = range(offsets[rows[0]], offsets[rows[0] + 1])
        shared = ["" if column is None else column[rows[0]].as_py() for column in (tools, template_kwargs)]
        own = [own_fields[row] for row in rows.tolist()] if own_fields else []
        texts = (fields[at].as_py() for at in places)
        said = own[0].messages if own else [None if text is None else json.loads(text) for text in texts]
        pairs = zip(places, said, strict=True)
        turns = tuple(_turn(role[at].as_py(), weight[at].as_py(), reasoning[at].is_valid, one) for at, one in pairs)
        taken = [(content, index) for index in range(len(turns))]
        taken += [(reasoning, index) for index, turn in enumerate(turns) if turn.reasons]
        values = [array.take(pa.array(offsets[rows] + index)) for array, index in taken]
        empty = [value[0].as_py() == "" for value in values]
        kind = keys[rows[0]].as_py() if own and own[0].values else ""
        own = own if kind else ()
        yield Conversations(index[rows], turns, values, empty, *shared, cuts=cuts or {}, own=own, kind=kind)


def with_results_in_order(messages: pa.Array) -> pa.Array:
    """Return conversations in which the results of parallel calls are in the order of their calls, not of their ends.

    This holds for calls that have one result each, right after them, with their ids. Other messages keep their places,
    and so do results with images, which are in the order of the row's images.
    """
    offsets, flat = list_parts(messages)
    role, content, _, _, fields = flat.flatten()
    results = flags_of(pc.match_substring(fields, '"tool_call_id"')) & flags_of(pc.equal(role, "tool"))
    if not (results[1:] & results[:-1]).any():
        return messages
    results &= ~flags_of(pc.match_substring(content, MARK))
    results[offsets[:-1][np.diff(offsets) > 0]] = False  # a first message answers no call
    changes = np.flatnonzero(np.diff(results, prepend=False, append=False)).reshape(-1, 2)
    order = np.arange(len(flat))
    for first, end in changes[np.diff(changes)[:, 0] > 1].tolist():
        calls = json.loads(fields[first - 1].as_py() or "{}").get("tool_calls") or ()
        place = {call["id"]: at for at, call in enumerate(calls, first) if isinstance(call.get("id"), str)}
        named = [json.loads(fields[at].as_py()).get("tool_call_id") for at in range(first, end)]
        answered = len(calls) == len(named) == len(place) and all(isinstance(name, str) for name in named)
        if answered and place.keys() == {*named}:
            order[[place[name] for name in named]] = range(first, end)
    return list_array(offsets, flat.take(pa.array(order))).cast(MESSAGES)


def _turn(role: str, weight: float | None, reasons: bool, parsed: dict[str, Any] | None) -> Turn:
    if parsed is not None and RANGES in parsed:
        return Turn(role if role in MESSAGE_ROLES else _OTHER_ROLE, problem=tuple(parsed[RANGES]))
    spaced = parsed is not None and bool(parsed.get(SPACED))
    parsed = parsed and {name: value for name, value in parsed.items() if name != SPACED}
    if role in MESSAGE_ROLES:
        return Turn(role, weight, reasons, parsed, spaced=spaced)
    remedy = "rename it in the data, or use a template that reads it"
    problem = "unknown_role", f"the role {role!r} is unknown to the chat template; {remedy}"
    return Turn(_OTHER_ROLE, weight, reasons, parsed, role, problem=problem)


def _keys(role: pa.Array, content: pa.Array, reasoning: pa.Array, weight: pa.Array, fields: pa.Array) -> pa.Array:
    """Return a string for each message that encodes everything but its values; joined strings remain unambiguous."""
    letters = pa.array(list(_LETTERS.values())).take(pc.index_in(role, pa.array(list(_LETTERS))))
    if letters.null_count:
        other = pc.equal(letters.is_null(), True)
        quoted = pa.array([json.dumps(name) for name in role.filter(other).to_pylist()], pa.string())
        letters = pc.replace_with_mask(letters, other, quoted)
    letters = pc.binary_join_element_wise(letters, pc.if_else(pc.equal(content, ""), "0", ""), "")
    if reasoning.null_count < len(reasoning):
        letters = pc.binary_join_element_wise(letters, pc.if_else(pc.equal(reasoning, ""), "R", "r").fill_null(""), "")
    if weight.null_count < len(weight):
        letters = pc.binary_join_element_wise(letters, weight.cast(pa.string()).fill_null(""), "|")
    if fields.null_count < len(fields):
        letters = pc.binary_join_element_wise(letters, fields.fill_null(""), "")
    return letters


def _from_text(table: pa.Table) -> pa.Array:
    """Return prompts and completions as conversations, with the row's system message if it has one."""
    system, prompt, completion = (one_array(table[name]) for name in ("system", "prompt", "completion"))
    has_system = np.asarray(pc.not_equal(system, "").to_numpy(zero_copy_only=False), bool)
    content = pa.concat_arrays([system, prompt, completion])
    count = table.num_rows
    order = (np.arange(count)[:, None] + np.array([0, count, 2 * count])).ravel()
    present = np.column_stack([has_system, np.ones((count, 2), bool)]).ravel()
    role = pa.array(["system", "user", "assistant"]).take(pa.array(np.tile(np.arange(3), count)[present]))
    struct = struct_of({"role": role, "content": content.take(pa.array(order[present]))}, len(role))
    return list_array(offsets_of(has_system + 2), struct).cast(MESSAGES)


def _untrained(messages: pa.Array) -> pa.Array:
    """Return conversations with weight 0 for each message."""
    offsets, flat = list_parts(messages)
    columns = dict(zip(MESSAGE.names, flat.flatten(), strict=True))
    columns["weight"] = pa.repeat(pa.scalar(0.0, pa.float32()), len(flat))
    return list_array(offsets, struct_of(columns, len(flat))).cast(MESSAGES)


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


@lru_cache(maxsize=256)
def parsed_kwargs(text: str) -> dict[str, Any]:
    """Return a row's own variables for the template.

    Raises:
        ShapeError: they are not a JSON object, or tokenloom itself sets one of them.
    """
    try:
        parsed = read_json_value(text) if text else {}
    except ValueError as error:
        raise ShapeError("template_kwargs", f"chat_template_kwargs is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ShapeError("template_kwargs", "chat_template_kwargs is not a JSON object")
    if reserved := next(filter(is_reserved_variable, parsed), None):
        message = f"chat_template_kwargs sets {reserved!r}, a variable that tokenloom itself passes to templates"
        raise ShapeError("template_kwargs", message)
    return parsed


ArgumentForm = Callable[[Any], Any]
"""Converts a call's arguments; what it cannot convert is returned unchanged."""


def parsed(arguments: Any) -> Any:
    """Return the object that arguments are the JSON text of; other arguments unchanged."""
    if isinstance(arguments, Standing):
        return {arguments: 0} if arguments.is_object else arguments
    if not isinstance(arguments, str):
        return arguments
    try:
        found = read_json_value(arguments)
    except ValueError:
        return arguments
    return found if isinstance(found, dict) else arguments


def dumped(arguments: Any) -> Any:
    """Return an object as JSON text; other arguments unchanged."""
    if not isinstance(arguments, dict):
        return arguments
    standing = next(iter(arguments), None)
    return standing if isinstance(standing, Standing) else json.dumps(arguments, ensure_ascii=False)


def unchanged(arguments: Any) -> Any:
    return arguments


def with_arguments(messages: Sequence[Message], form: ArgumentForm) -> list[Message]:
    """Return messages with the arguments of their calls in another form."""
    converted = list[Message]()
    for message in messages:
        calls = [_converted(call, form) for call in message.get("tool_calls") or ()]
        converted.append({**message, "tool_calls": calls} if calls else message)
    return converted


def _converted(call: Any, form: ArgumentForm) -> Any:
    function = call.get("function", call) if isinstance(call, dict) else {}
    if not isinstance(function, dict) or "arguments" not in function:
        return call
    function = {**function, "arguments": form(function["arguments"])}
    return {**call, "function": function} if "function" in call else function
