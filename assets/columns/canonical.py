"""Brings raw rows into canonical form with Arrow kernels; rows that do not fit are set aside."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.mapping import ColumnMapping
from tokenloom.assets.rejects import ROW, join_rejects, reject_rows
from tokenloom.assets.stage import ChunkOutput
from tokenloom.resources.ragged import Ints, list_array, offsets_of, one_array, row_of, sum_rows

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))

ROLE_NAMES: dict[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "ipython": "tool",
}
"""Names of a speaker's role in the wild, and the role each stands for."""

ROLE_FIELDS, CONTENT_FIELDS = ("role", "from"), ("content", "value")


def to_canonical(table: pa.Table, mapping: ColumnMapping) -> ChunkOutput:
    """The rows of one raw chunk in the form that `mapping` says.

    Columns: the row's position, then for `fields` each field, for `completion` prompt, completion and system, for
    `text` text (all strings without nulls), for `messages` a list of {role, content}.
    """
    if mapping.form == "messages":
        return _messages(table, mapping.roles["messages"])
    rows = one_array(table[ROW])
    texts: dict[str, pa.Array] = {}
    bad: list[tuple[np.ndarray, str, str, str]] = []
    for role, column in mapping.roles.items():
        texts[role], unfit = _text(table, column)
        bad.append((unfit, "not_text", role, f"{column} is neither text nor a number"))
    if mapping.answer is not None:
        answer = texts[mapping.answer]
        blank = pc.equal(pc.utf8_trim_whitespace(answer), "")
        name = "text" if mapping.form == "text" else "answer"
        bad.append((_flags(blank), f"empty_{name}", mapping.answer, f"{mapping.roles[mapping.answer]} is empty"))
    if mapping.form == "completion":
        texts = _completion(texts)
    taken, rejects = np.zeros(table.num_rows, bool), []
    for flags, code, field, message in bad:
        first = flags & ~taken
        taken |= flags
        if first.any():
            found = pa.array(first)
            shown = texts.get("completion" if mapping.form == "completion" else field, texts[next(iter(texts))])
            rejects.append(reject_rows(rows.filter(found), "columns", code, field, message, shown.filter(found)))
    keep = pa.array(~taken)
    out = pa.table({ROW: rows.filter(keep), **{name: array.filter(keep) for name, array in texts.items()}})
    return ChunkOutput(out, table.num_rows, join_rejects(rejects))


def _completion(texts: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Prompt and context joined by a blank line, where there is a context."""
    prompt = texts["prompt"]
    if "context" in texts:
        joined = pc.binary_join_element_wise(prompt, texts["context"], "\n\n")
        prompt = pc.if_else(pc.equal(texts["context"], ""), prompt, joined)
    system = texts.get("system", pa.repeat(pa.scalar("", pa.string()), len(prompt)))
    return {"prompt": prompt, "completion": texts["completion"], "system": system}


def _text(table: pa.Table, column: str) -> tuple[pa.Array, np.ndarray]:
    """A column as strings, null as the empty one, and which rows hold neither text nor a number."""
    nothing = np.zeros(table.num_rows, bool)
    if column not in table.column_names or pa.types.is_null(table.schema.field(column).type):
        return pa.repeat(pa.scalar("", pa.string()), table.num_rows), nothing
    array = one_array(table[column])
    if pa.types.is_nested(array.type) or pa.types.is_binary(array.type):
        return pa.repeat(pa.scalar("", pa.string()), table.num_rows), _flags(array.is_valid())
    return array.cast(pa.string()).fill_null(""), nothing


def _messages(table: pa.Table, column: str) -> ChunkOutput:
    rows = one_array(table[ROW])
    array = one_array(table[column]) if column in table.column_names else pa.nulls(table.num_rows, MESSAGES)
    if pa.types.is_null(array.type):
        array = pa.nulls(len(array), MESSAGES)
    lengths = np.asarray(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    flat = array.flatten()
    speaker, content = _field(flat, ROLE_FIELDS), _field(flat, CONTENT_FIELDS)
    index = pc.index_in(pc.utf8_lower(speaker), pa.array(list(ROLE_NAMES)))
    role = pa.array(list(ROLE_NAMES.values())).take(index)
    offsets, within = offsets_of(lengths), row_of(lengths)
    answers = _flags(pc.and_(pc.equal(role, "assistant"), pc.not_equal(pc.utf8_trim_whitespace(content), "")))
    tools, weighted = _special(flat)
    checks = [
        (lengths == 0, "no_messages", "the conversation is empty"),
        (_any(_flags(role.is_null()), offsets), "unknown_role", f"a role is none of {', '.join(ROLE_NAMES)}"),
        (_any(tools, offsets), "tool_calls", "tool calls are not available in this version"),
        (
            _any(weighted, offsets),
            "message_weight",
            "messages with a weight of their own are not available in this version",
        ),
        (_any(_flags(content.is_null()), offsets), "missing_content", "a message has no text"),
        (~_any(answers, offsets), "empty_answer", "no assistant message holds text"),
    ]
    taken, rejects = np.zeros(len(rows), bool), []
    for flags, code, message in checks:
        first = flags & ~taken
        taken |= flags
        if first.any():
            shown = [_told(value, code) for value in array.filter(pa.array(first)).to_pylist()]
            rejects.append(reject_rows(rows.filter(pa.array(first)), "columns", code, "messages", message, shown))
    keep = ~taken
    kept = pa.array(keep[within])
    struct = pa.StructArray.from_arrays([role.filter(kept), content.filter(kept)], fields=list(MESSAGES.value_type))
    messages = list_array(offsets_of(lengths[keep]), struct).cast(MESSAGES)
    out = pa.table({ROW: rows.filter(pa.array(keep)), "messages": messages})
    return ChunkOutput(out, table.num_rows, join_rejects(rejects))


def _told(messages: list[dict[str, object] | None] | None, code: str) -> str:
    """What a rejected conversation is shown as: its unknown roles, or its begin."""
    if code == "unknown_role":
        known = [message or {} for message in messages or ()]
        spoken = [str(next((m[name] for name in ROLE_FIELDS if m.get(name)), None)) for m in known]
        return ", ".join(dict.fromkeys(role for role in spoken if role.lower() not in ROLE_NAMES))
    return str(messages)[:400]


def _field(flat: pa.Array, names: tuple[str, ...]) -> pa.Array:
    """The first of the named fields that the messages have, as strings; nulls where they have none."""
    if pa.types.is_struct(flat.type):
        for name in names:
            index = flat.type.get_field_index(name)
            if index >= 0 and not pa.types.is_nested(flat.type.field(index).type):
                return flat.flatten()[index].cast(pa.string())
    return pa.nulls(len(flat), pa.string())


def _special(flat: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """bool [messages]: which call tools, and which ask to be trained otherwise than the rest."""
    tools, weighted = np.zeros(len(flat), bool), np.zeros(len(flat), bool)
    for field, values in zip(flat.type, flat.flatten(), strict=True) if pa.types.is_struct(flat.type) else ():
        if field.name in ("tool_calls", "function_call"):
            filled = (
                pc.not_equal(pc.list_value_length(values), 0) if pa.types.is_list(field.type) else values.is_valid()
            )
            tools |= _flags(filled)
        elif field.name in ("weight", "loss_weight", "train") and not pa.types.is_nested(field.type):
            weighted |= _flags(pc.not_equal(values.cast(pa.float64()), 1.0))
    return tools, weighted


def _any(flags: np.ndarray, offsets: Ints) -> np.ndarray:
    return sum_rows(flags.astype(np.int64), offsets) > 0


def _flags(array: pa.Array) -> np.ndarray:
    return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), bool)
