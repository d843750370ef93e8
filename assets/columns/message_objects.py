"""Converts one conversation, as Python reads it from its source, to canonical messages, with its tools and tool
calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.content_parts import (
    CALL_PARTS,
    REASONING_PARTS,
    RESULT_PARTS,
    TEXT_PARTS,
    ImagePartError,
    blank_parts,
    check_texts,
    is_blank,
    is_image,
    is_spaced,
    part_ranges,
    reference_of,
    text_of,
    with_leading,
)
from tokenloom.assets.columns.source_expressions import RowReader, Turns, empty_texts
from tokenloom.assets.schema.conventions import kind_of, loss_weight
from tokenloom.assets.schema.profiles import CALL_ROLES, ROLE_NAMES, columns_of_turns, pair_of, role_of
from tokenloom.assets.stage.forms import IMAGES, RANGES, REASONING_FIELDS, SPACED
from tokenloom.assets.stage.images import joined_parts
from tokenloom.config.trained_kinds import MESSAGE_ROLES
from tokenloom.resources.tables.json_text import is_json, json_texts, read_json_value, to_json_text
from tokenloom.resources.tables.nested_paths import plain, without_null_fields

ARGUMENT_FIELDS = ("arguments", "parameters", "input", "args")
_IDENTIFIERS = ("id", "call_id", "tool_call_id", "type", "index")
EMPTY = ("", "[]", "{}", "null")


def calls_of(value: Any) -> list[dict[str, Any]]:
    """Return the tool calls that a value describes: one or a list of them, as objects or as JSON text.

    Calls that are already in OpenAI's form, `{"function": {"name": …, "arguments": …}}`, are not changed, but get
    empty arguments if they have none (many servers write "" or null). Arguments that are JSON text within JSON text
    become the object.

    Raises:
        ValueError, TypeError, KeyError, RecursionError: the value is not a call, or its arguments are not an object.
    """
    if isinstance(value, str):
        value = read_json_value(value)
    if isinstance(value, list):
        return [call for item in value for call in calls_of(item)]
    inner = value.get("function")
    call = value if isinstance(inner, dict) else {**_identity(value), "type": "function", "function": _function(value)}
    function = call["function"]
    if not isinstance(function["name"], str) or not function["name"]:
        raise ValueError("a call must have a name")
    arguments = _decoded(function.get("arguments"))
    if isinstance(arguments, str):  # JSON text within JSON text
        arguments = function["arguments"] = _decoded(arguments)
    if arguments is None or arguments in ("", []):
        arguments = function["arguments"] = {}
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of a call are not an object")
    json.dumps(call, ensure_ascii=False).encode()  # raises for a lone surrogate
    return [call]


def _decoded(value: Any) -> Any:
    """Return what a JSON text says, "" for a blank one; other values as they are."""
    return (read_json_value(value) if value.strip() else "") if isinstance(value, str) else value


def _identity(value: dict[str, Any]) -> dict[str, Any]:
    identity = next((value[name] for name in _IDENTIFIERS[:3] if value.get(name) is not None), None)
    return {} if identity is None else {"id": identity}


def _function(value: dict[str, Any]) -> dict[str, Any]:
    """Return the function of a call that has its name and arguments among its other fields."""
    given = next((name for name in ARGUMENT_FIELDS if value.get(name) is not None), None)
    function = {
        name: inner for name, inner in value.items() if name not in (*_IDENTIFIERS, given) and inner is not None
    }
    return function | ({} if given is None else {"arguments": value[given]})


def shared_columns(rows: RowReader) -> dict[str, pa.Array]:
    """Return the columns that forms of messages share, JSON texts, "" for none: `tools`, the text of a list, and
    `template_kwargs`, the text of an object with variables of the chat template. Other values are a problem."""
    source = rows.sources.get("tools")
    read = _functions if isinstance(source, Turns) and source.style == "functions" else _tools
    message = "tools are neither a list of objects nor its JSON text"
    tools = _json_objects(rows, "tools", read, message)
    message = "the variables of the chat template are neither an object nor its JSON text"
    return {"tools": tools, "template_kwargs": _json_objects(rows, "template_kwargs", _variables, message)}


def _json_objects(rows: RowReader, role: str, read: Callable[[Any], Any], message: str) -> pa.Array:
    """Return the JSON text of each row's value; what `read` refuses is a problem.

    Texts that `read` does not change are kept as in the source.
    """
    if role not in rows.sources:
        return empty_texts(rows.table.num_rows)
    values = rows.values(role)
    # Most rows of a dataset have the same tools, so each distinct value is read once.
    distinct, index = _distinct(plain(values))
    texts = [_text(read, value) for value in distinct]
    rows.report(np.array([text is None for text in texts], bool)[index], f"not_{role}", role, message, values)
    return pa.array([text or "" for text in texts], pa.string()).take(pa.array(index))


def _distinct(values: pa.Array) -> tuple[Sequence[str | None], np.ndarray]:
    """Return the distinct values as Python objects or JSON texts, and the index of each row's value."""
    if is_json(values.type):
        values = json_texts(values)
    elif pa.types.is_string(values.type):
        pass
    elif pa.types.is_nested(values.type):
        objects = [None if value is None else to_json_text(_schemas(value)) for value in without_null_fields(values)]
        values = pa.array(objects, pa.string())
    else:
        values = pc.if_else(values.is_valid(), "0", pa.scalar(None, pa.string()))  # no scalar has an object's JSON text
    encoded = values.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def _text(read: Callable[[Any], Any], text: str | None) -> str | None:
    """Return a value as JSON text, "" if it is empty, or None if `read` refuses it."""
    if text is None or text.strip() in EMPTY:
        return ""
    try:
        value = read_json_value(text)
        if isinstance(value, str):  # JSON text inside of JSON
            return _text(read, value)
        converted = read(value)
        if converted is value:
            return text
        json.dumps(converted, ensure_ascii=False).encode()
        return to_json_text(converted)
    except (ValueError, RecursionError):
        return None


def _tools(value: Any) -> Any:
    """Return a list of tools, in which each is an object; single tools and JSON texts of tools are converted."""
    tools = value if isinstance(value, list) else [value]
    parsed = [read_json_value(tool) if isinstance(tool, str) else tool for tool in tools]
    if not all(isinstance(tool, dict) for tool in parsed):
        raise ValueError("a tool is not an object")
    return value if isinstance(value, list) and not any(isinstance(tool, str) for tool in tools) else parsed


def _functions(value: Any) -> Any:
    """Return tools in OpenAI's layout, as LLaMA-Factory writes them: those without its type are functions."""
    tools = _tools(value)
    wrapped = [tool if tool.get("type") == "function" else {"type": "function", "function": tool} for tool in tools]
    return tools if wrapped == tools else wrapped


def _schemas(value: Any) -> Any:
    """Return tools of an Arrow column with parameters that are JSON text as objects."""
    for tool in value if isinstance(value, list) else [value]:
        function = tool.get("function") or tool if isinstance(tool, dict) else {}
        if isinstance(function, dict) and isinstance(text := function.get("parameters"), str):
            with suppress(ValueError):
                parsed = read_json_value(text)
                function["parameters"] = parsed if isinstance(parsed, dict) else text
    return value


def _variables(value: Any) -> Any:
    """Return an object; the pairs of key and value of an Arrow map are converted."""
    pairs = value if isinstance(value, list) else ()
    if pairs and all(isinstance(pair, dict) and {"key"} <= {*pair} <= {"key", "value"} for pair in pairs):
        return {pair["key"]: pair.get("value") for pair in pairs}
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


ROLE_FIELDS = ("role", "from", "speaker", "author", "sender")
CONTENT_FIELDS = ("content", "value", "text", "message", "utterance")
_MEDIA = ("image", "audio", "video", "document", "file", "input_")
_RESULT_IDENTIFIERS = ("tool_call_id", "tool_use_id", "call_id", "id")

Object = dict[str, Any]
ReadMessage = tuple[str, str, str | None, float | None, str | None]
"""Role, content, reasoning, weight and fields of a canonical message."""


class Unfit(ValueError):
    """A conversation that cannot be converted: the reject's code and message, and what it quotes if not the row."""

    def __init__(self, code: str, message: str, shown: str | None = None):
        super().__init__(message)
        self.code = code
        self.shown = shown


def conversation(value: Any) -> list[ReadMessage]:
    """Return the messages of a list of objects.

    Raises:
        Unfit: a message cannot be converted.
    """
    # An object of lists is a whole conversation; a list can also hold several.
    value = [value] if isinstance(value, dict) and columns_of_turns(value) else value
    if not isinstance(value, list) or not all(isinstance(item, dict | None) for item in value):
        raise Unfit("not_messages", "a list, but not of messages")
    messages: list[ReadMessage] = []
    for item in value:
        # Nearly all messages have these two fields alone, and nothing to convert.
        role, content = (item.get("role"), item.get("content")) if item and len(item) == 2 else (None, None)
        if type(content) is str and role in MESSAGE_ROLES:
            messages.append((role, content, None, None, None))
            continue
        for message in _turns(item or {}, value):
            is_call = _speaker(_name_of(item)) in CALL_ROLES
            joined = _with_calls(messages[-1], message) if is_call and messages else None
            messages[-1:] = [joined] if joined else [*messages[-1:], message]
    if not all(part.isascii() or _is_unicode(part) for message in messages for part in message if type(part) is str):
        raise Unfit("invalid_json", "a text contains half of a surrogate pair, which is not a character")
    return messages


def _with_calls(before: ReadMessage, called: ReadMessage) -> ReadMessage | None:
    """Return an assistant's message with the calls of the entry after it; None if the two are not one turn.

    ms-swift writes a turn as consecutive entries: a text, and each call (its documentation, Agent support).
    """
    role, content, reasoning, weight, fields = before
    more: Object = json.loads(called[4] or "{}")
    if (role, weight) != ("assistant", called[3]) or called[1] or called[2] or not more.get("tool_calls"):
        return None
    own: Object = {"role": None, "content": None} if fields is None else json.loads(fields)
    calls = own.get("tool_calls", []) + more["tool_calls"]
    return role, content, reasoning, weight, to_json_text(more | own | {"tool_calls": calls})


def _turns(item: Object, items: Iterable[Object | None]) -> Iterator[ReadMessage]:
    """Yield the canonical messages of one object, which can be a pair of turns or an object of lists."""
    if isinstance(item.get("role", item.get("from")), str):
        yield from _messages(item, items)
        return
    for turn in _turns_of(item):
        yield from _messages(turn, items)


def _turns_of(item: Object) -> Iterator[Object]:
    """Yield the messages in an object: a pair has two, an object of lists has several, any other object is one.

    Fields of a pair other than its texts are those of the answer, apart from a system prompt.

    Raises:
        Unfit: lists of an object of lists have different lengths.
    """
    filled = {name: value for name, value in item.items() if value is not None}
    if (columns := columns_of_turns(filled)) and all(isinstance(filled[name], list) for name in columns):
        lists = {name: value for name, value in filled.items() if isinstance(value, list)}
        if len({*map(len, lists.values())}) > 1:
            lengths = ", ".join(f"{name} has {len(value)} items" for name, value in lists.items())
            raise Unfit("not_messages", f"the lists of a conversation have different lengths: {lengths}")
        yield from (dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True))
    elif pair := pair_of(item):
        asked, answered = pair
        rest = {name: value for name, value in filled.items() if name not in (asked, answered, "system")}
        if filled.get("system"):
            yield {"role": "system", "content": filled["system"]}
        if asked in filled or answered not in filled:
            yield {"role": "user", "content": filled.get(asked)}
        if answered in filled:
            yield {"role": "assistant", "content": filled[answered], **rest}
    else:
        yield item


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _messages(item: Object, items: Iterable[Object | None]) -> Iterator[ReadMessage]:
    """Yield the canonical messages of one object: several if its content has tool results."""
    given = {name: value for name, value in item.items() if name not in (RANGES, IMAGES, SPACED)}
    item = {name: value for name, value in given.items() if value is not None and not _is_missing(name, value)}
    said = next((name for name in CONTENT_FIELDS if name in item), None)
    if said and item.get("images") and isinstance(item["images"], list):
        item[said] = with_leading(item.pop("images"), item[said])
    parts = item[said] if said and isinstance(item[said], list) else ()
    kinds = (part.get("type") for part in parts if isinstance(part, dict))
    is_mixed = any(kind in (*REASONING_PARTS, *CALL_PARTS, *RESULT_PARTS) for kind in kinds)
    for each in _separated(item, said or "", parts) if is_mixed else (item,):
        yield _message(each, items)


def _is_missing(name: str, value: Any) -> bool:
    """Return whether a value is NaN, in a field that is not a number."""
    return type(value) is float and value != value and kind_of(name) is None


def _message(item: Object, items: Iterable[Object | None]) -> ReadMessage:
    speaks = next((name for name in ROLE_FIELDS if name in item), "")
    said = next((name for name in CONTENT_FIELDS if name in item), None)
    role, written = _role(item, speaks, items)
    calls = _calls(item, said, speaks)
    is_call = _speaker(item.get(speaks)) in CALL_ROLES
    content, kept = ("", None) if said is None or is_call else _content(item[said], role)
    thought = next((item[name] for name in REASONING_FIELDS if name in item), None)
    reasoning = _thought(thought)
    if said is None and not calls and reasoning is None:
        raise Unfit("missing_content", "a message has no text")
    # What a column of the message holds is null here, so that each value is stored once, and its place is kept.
    fields: Object = {}
    for name, value in item.items():
        if name == speaks:
            fields["role"] = written
        elif name == said:
            fields["content"] = kept
        elif name == "tool_calls":
            fields[name] = calls
        else:
            is_column = reasoning is not None and name in REASONING_FIELDS and value in (reasoning, thought)
            fields[name] = None if is_column else value
    if calls:
        fields["tool_calls"] = calls
    if said is not None:
        _add_images(item[said], fields)
    if kept is not None or type(thought) is list:
        if role == "assistant" and said is not None and is_spaced(item[said]):
            fields[SPACED] = True
        _add_ranges(fields, {"content": () if said is None else item[said], "reasoning": thought}, role)
    plain = fields == {"role": None, "content": None}
    return role, content, reasoning, _weight(item), None if plain else to_json_text(fields)


def _thought(value: Any) -> str | None:
    """Return reasoning that is text, or a list of text parts; else None."""
    parts = value if isinstance(value, list) else ()
    if parts and all(isinstance(part, dict) and text_of(part) is not None for part in parts):
        return _text_of_all(parts)
    return value if isinstance(value, str) else None


def _text_of_all(parts: Iterable[Any]) -> str:
    return "".join(filter(None, map(text_of, parts)))


def _speaker(name: Any) -> str:
    return name.strip().lower() if isinstance(name, str) else ""


def _role(item: Object, field: str, items: Iterable[Object | None]) -> tuple[str, str | None]:
    """Return a message's role, and the source's own name for it if a chat template could know that name.

    Raises:
        Unfit: the role is unknown. In messages for chat templates, a role with any name is kept.
    """
    name = item.get(field)
    role, as_template = role_of(name) if isinstance(name, str) else None, field == "role"
    if role is not None:
        return role, name if as_template and name != role and _speaker(name) not in CALL_ROLES else None
    if as_template and isinstance(name, str) and name.strip():
        return name, None
    unknown = [other for other in map(_name_of, items) if _speaker(other) not in ROLE_NAMES]
    shown = ", ".join(_speaker(other) or str(other) for other in unknown)
    raise Unfit("unknown_role", f"a role is not one of {', '.join(ROLE_NAMES)}", shown)


def _name_of(item: Object | None) -> Any:
    return next((item[name] for name in ROLE_FIELDS if item and item.get(name) is not None), None)


def _calls(item: Object, said: str | None, speaks: str) -> list[Object]:
    """Return the tool calls of a message.

    Raises:
        Unfit: a call is invalid.
    """
    by_role = [item[said]] if said is not None and _speaker(item.get(speaks)) in CALL_ROLES else []
    given = [item[name] for name in ("tool_calls", "function_call") if name in item]
    given = [value for value in given if value != [] and not (isinstance(value, str) and value.strip() in EMPTY)]
    try:
        found = [calls_of(value) for value in (*by_role, *given)]
        if not all(found):
            raise ValueError("no call")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Unfit("invalid_tool_call", "a tool call is not a JSON object with a name and JSON arguments") from error
    return [call for calls in found for call in calls]


def _content(value: Any, role: str) -> tuple[str, Any]:
    """Return a content as text, and what replaces it among the message's fields: null for text.

    Raises:
        Unfit: the content is neither text nor text parts; in tool messages it can be any value.
    """
    if isinstance(value, str) or (value == [] and role != "tool"):
        return value or "", None
    if role == "tool" and _is_plain_result(value):
        return to_json_text(value), value
    if isinstance(value, bool | int | float):
        return str(value), None
    if _is_illustrated(value):
        return joined_parts([None if is_image(part) else text_of(part) for part in value]), None
    blank = blank_parts(value) if isinstance(value, list) else None
    if blank is not None:
        return _text_of_all(value), blank if len(blank) < 2 or role == "assistant" else value
    if role == "tool" and not is_blank(value) and not _has_media(value):
        return to_json_text(value), value
    kinds = {str(part.get("type")) if isinstance(part, dict) else type(part).__name__ for part in value}
    named = f", but has parts of type {', '.join(sorted(kinds))}" if isinstance(value, list) else ""
    raise Unfit("not_text", f"the content of a message is not text{named}")


def _is_illustrated(value: Any) -> bool:
    """Return whether a content is a list of parts that are texts and images."""
    parts = value if isinstance(value, list) else ()
    return any(map(is_image, parts)) and all(is_image(part) or text_of(part) is not None for part in parts)


def _add_images(content: Any, fields: Object) -> None:
    """Add the images of a content to a message's fields, if it has any, or why they cannot be used."""
    if not _is_illustrated(content):
        return
    kinds = {str(part.get("type")) if isinstance(part, dict) else type(part).__name__ for part in content}
    found: Object = {"references": [], "types": ", ".join(sorted(kinds))}
    try:
        check_texts([None if is_image(part) else text_of(part) for part in content])
        found["references"] = [reference_of(part) for part in content if is_image(part)]
        if any(isinstance(part, dict) and any(map(kind_of, part)) for part in content):
            raise ImagePartError("a content part next to an image has a weight; give it to the message")
    except ImagePartError as error:
        found["problem"] = str(error)
    fields[IMAGES] = found


def _is_plain_result(value: Any) -> bool:
    """Return whether a tool's result is a number, a truth value or a list of texts, not content parts."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, str) for item in value)
    return isinstance(value, bool | int | float)


def _has_media(value: Any) -> bool:
    """Return whether a content has a part that text cannot replace, such as an image."""
    parts = value if isinstance(value, list) else ()
    kinds = [part.get("type") for part in parts if isinstance(part, dict)]
    return any(isinstance(kind, str) and kind not in TEXT_PARTS and kind.startswith(_MEDIA) for kind in kinds)


def _separated(item: Object, said: str, parts: Iterable[Any]) -> Iterator[Object]:
    """Split a message whose parts include reasoning, calls or results into several messages, in the order of the parts.

    Raises:
        Unfit: a part is neither of these nor text, or the message has calls outside of its parts too.
    """
    if "tool_calls" in item or "function_call" in item:
        raise Unfit("invalid_tool_call", "a message has tool calls both in a field and in its content parts")
    weights = {name: value for name, value in item.items() if kind_of(name)}
    rest = {name: value for name, value in item.items() if name != said}
    current: Object = {}
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        text = text_of(part)
        if kind in RESULT_PARTS:
            if current:
                yield {**rest, **_joined(current)}
            current = {}
            yield {"role": "tool", **_result(part), **weights}
        elif kind in CALL_PARTS:
            if any(map(kind_of, part)):
                raise Unfit("invalid_weight", "a content part that is a tool call has a weight; give it to the message")
            current.setdefault("tool_calls", []).append(_call(part))
        elif kind in REASONING_PARTS or text is not None or is_image(part):
            name = "reasoning_content" if kind in REASONING_PARTS else "content"
            # In a message, reasoning comes before text, and text before calls: anything else starts another message.
            if current.keys() & ({"content", "tool_calls"} if kind in REASONING_PARTS else {"tool_calls"}):
                yield {**rest, **_joined(current)}
                current = {}
            if is_image(part):
                current.setdefault(name, []).append(part)
                continue
            said_here = text if name == "content" else _reasoning(part, item)
            flags = {flag: value for flag, value in part.items() if kind_of(flag)} if isinstance(part, dict) else {}
            current.setdefault(name, []).append({"type": "text", "text": said_here, **flags})
        else:
            raise Unfit("not_text", f"a content part of type {kind} is not text")
    if current:
        yield {**rest, **_joined(current)}


def _joined(fields: Object) -> Object:
    """Return fields with texts in place of lists of text parts, unless a part declares a weight."""
    return {
        name: value
        if name == "tool_calls" or any(len(part) > 2 or is_image(part) for part in value)
        else "".join(part["text"] for part in value)
        for name, value in fields.items()
    }


def _reasoning(part: Object, item: Object) -> str:
    values = (part.get(name) for name in ("text", "content", *REASONING_FIELDS))
    text = next((value for value in values if isinstance(value, str)), None)
    if text is None or any(name in item for name in REASONING_FIELDS):
        raise Unfit("not_text", "a content part has reasoning that is not text, or is repeated in the message's fields")
    return text


def _call(part: Object) -> Object:
    inner = part.get("tool_call", part.get("function_call"))
    return inner if isinstance(inner, dict) else {name: value for name, value in part.items() if name != "type"}


def _result(part: Object) -> Object:
    found = next((name for name in _RESULT_IDENTIFIERS if part.get(name) is not None), None)
    said = next((name for name in ("content", "output", "result", "text") if part.get(name) is not None), None)
    rest = {name: value for name, value in part.items() if name not in ("type", "role", found, said)}
    identity = {} if found is None else {"tool_call_id": part[found]}
    return {**identity, **rest, **({} if said is None else {"content": part[said]})}


def _weight(item: Object) -> float | None:
    """Return the loss weight that a message declares, or None.

    Raises:
        Unfit: a value is not understood, or two fields contradict each other.
    """
    try:
        return loss_weight(item)
    except ValueError as error:
        raise Unfit("invalid_weight", f"a message {error}") from error


def _add_ranges(fields: Object, values: Mapping[str, Any], role: str) -> None:
    """Add the ranges of text parts that declare a weight to a message's fields.

    Raises:
        Unfit: a weight is invalid.
    """
    content = values["content"]
    typed = isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content)
    if role == "tool" and not typed:
        return  # a tool's result can be any value
    try:
        ranges = {name: found for name, value in values.items() if (found := part_ranges(value))}
    except ValueError as error:
        raise Unfit("invalid_weight", f"a content part {error}") from error
    if ranges:
        fields[RANGES] = ranges
