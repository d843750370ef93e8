"""Rows with tool calls, as lines of JSON: every way in which schemas, arguments and results of the field differ."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
Make = Callable[[random.Random, int], "Row | str"]

CITIES = ("Köln", "Paris", "São Paulo", "東京", "Dnipro")
DEEP = 12
WRITTEN = re.compile(r'"@@(.*?)@@"')
CLASSES: dict[str, Make] = {}
"""The classes of rows by name. A class makes a row, or its line, from random numbers and the row's number."""


def lines(name: str, count: int, seed: int = 0) -> list[str]:
    """Return `count` rows of a class, one JSON text each."""
    draw = random.Random(f"{seed} {name}")
    rows = [CLASSES[name](draw, number) for number in range(count)]
    return [row if isinstance(row, str) else as_line(row) for row in rows]


def shuffled(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return `count` rows of every class, shuffled, each with its class."""
    every = [(name, line) for name in CLASSES for line in lines(name, count, seed)]
    random.Random(seed).shuffle(every)
    return every


def as_line(row: Row) -> str:
    """Return a row's JSON. A text `@@…@@` is written without quotes, for JSON that `json.dumps` does not write."""
    return WRITTEN.sub(lambda found: json.loads(f'"{found[1]}"'), json.dumps(row, ensure_ascii=False))


def row(arguments: Any, properties: Row | None = None, result: Any = "sunny", **more: Any) -> Row:
    """Return a conversation with one call."""
    messages = [
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call(arguments)]},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": "It is sunny."},
    ]
    return {"messages": messages, "tools": [tool(properties)], **more}


def call(arguments: Any, name: str = "weather", **more: Any) -> Row:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def tool(properties: Row | None = None, name: str = "weather", **more: Any) -> Row:
    properties = properties if properties is not None else {"city": {"type": "string", "description": "Name"}}
    parameters = {"type": "object", "properties": properties, "required": ["city"]}
    return {
        "type": "function",
        "function": {"name": name, "description": f"Get {name}", "parameters": parameters, **more},
    }


def add(name: str) -> Callable[[Make], Make]:
    def put(make: Make) -> Make:
        CLASSES[name] = make
        return make

    return put


def with_call(made: Row, **fields: Any) -> Row:
    """Change the message with the call; a value of `...` removes the field."""
    message = made["messages"][1]
    message.update(fields)
    for field in [field for field, value in fields.items() if value is ...]:
        del message[field]
    return made


@add("plain")
def _(draw: random.Random, number: int) -> Row:
    return row({"city": draw.choice(CITIES)})


@add("null default")
def _(draw: random.Random, number: int) -> Row:
    unit = {"type": "string", "default": None} if number % 2 else {"default": None, "type": "string"}
    return row({"city": draw.choice(CITIES)}, {"city": {"type": "string"}, "unit": unit})


@add("null argument")
def _(draw: random.Random, number: int) -> Row:
    return row({"unit": None, "city": draw.choice(CITIES)} if number % 2 else {"city": None})


@add("nothing but nulls")
def _(draw: random.Random, number: int) -> Row:
    return row({"a": None, "b": {"c": None}, "d": [None, None]}, {"a": {"default": None, "enum": [None]}})


@add("mixed kinds of an argument")
def _(draw: random.Random, number: int) -> Row:
    kinds = [1, "1", 1.5, True, None, [1], ["a"], {"a": 1}, {"a": "1"}, [{"a": 1}], {}]
    return row({"value": kinds[number % len(kinds)], "city": "Köln"})


@add("mixed kinds of a default")
def _(draw: random.Random, number: int) -> Row:
    kinds = [0, "0", 0.5, False, None, [], {}, {"a": [1, "b", None]}]
    return row({"city": "Köln"}, {"city": {"type": "string", "default": kinds[number % len(kinds)]}})


@add("mixed kinds in one list")
def _(draw: random.Random, number: int) -> Row:
    values = [1, 2.0, "3", None, True, [4], {"five": 5}]
    return row({"values": draw.sample(values, draw.randrange(1, len(values)))})


@add("order of keys")
def _(draw: random.Random, number: int) -> Row:
    keys = draw.sample("abcdef", 6)
    properties = {key: dict(draw.sample([("type", "string"), ("description", key), ("title", key)], 3)) for key in keys}
    return row(dict.fromkeys(draw.sample(keys, 4), number), properties)


@add("keys of their own")
def _(draw: random.Random, number: int) -> Row:
    return row(
        {f"key {number}": 1, f"ключ{number}": {f"{number}.{number}": 2}}, {f"p{number}": {f"x-{number}": number}}
    )


@add("awkward keys")
def _(draw: random.Random, number: int) -> Row:
    keys = ["", " ", "a.b", "a[0]", "{x}", 'quo"te', "back\\slash", "items", "é", "👩‍👩‍👧", "role", "content", "_row"]
    return row(dict.fromkeys(draw.sample(keys, 5), number), {keys[number % len(keys)]: {"type": "integer"}})


@add("integers next to floats")
def _(draw: random.Random, number: int) -> Row:
    return row({"days": draw.choice([1, 2.5, 3.0, 4])}, {"days": {"minimum": draw.choice([0, 0.5]), "maximum": 16.0}})


@add("floats")
def _(draw: random.Random, number: int) -> Row:
    values = [1.0, 2.5, 1e16, 1e-7, -0.0, 0.1 + 0.2, 1.7976931348623157e308, 5e-324, 123456789.123456789, 1e22]
    return row({"value": values[number % len(values)], "city": "Köln"})


@add("ways to write a number")
def _(draw: random.Random, number: int) -> Row:
    written = ["1E5", "1e+5", "1.50", "0.10", "-0", "100e-2", "1.0E-2", "2.50e10", "-1.00", "0e0"]
    return row({"value": f"@@{written[number % len(written)]}@@"})


@add("big integers")
def _(draw: random.Random, number: int) -> Row:
    values = [2**53 + 1, 2**63 - 1, 2**63, 2**64, 2**64 + 1, -(2**63), -(2**63) - 1, 10**30, 2**31, -(10**25)]
    return row({"id": values[number % len(values)]}, {"id": {"type": "integer", "maximum": values[-number % 10]}})


@add("big integers next to floats")
def _(draw: random.Random, number: int) -> Row:
    return row({"ids": [2**53 + 1 + number, 0.5], "id": 2**53 + 1 if number % 2 else 1.5})


@add("booleans")
def _(draw: random.Random, number: int) -> Row:
    return row({"now": bool(number % 2), "flags": [True, False]}, {"now": {"type": "boolean", "default": False}})


@add("unicode")
def _(draw: random.Random, number: int) -> Row:
    texts = [
        "Grüße",
        "你好世界",
        "مرحبا \u202bשלום\u202c",
        "e\u0301 n\u0303",
        "👩‍👩‍👧‍👦🏳️‍🌈",
        "\u00a0\u3000",
        "क्षि",
        "\u2028\u2029",
    ]
    return row({"text": texts[number % len(texts)]}, {"text": {"description": draw.choice(texts)}}, draw.choice(texts))


@add("unicode written as escapes")
def _(draw: random.Random, number: int) -> str:
    return json.dumps(row({"city": draw.choice(CITIES), "face": "👍🏽", "line": "\u2028"}), ensure_ascii=True)


@add("escapes")
def _(draw: random.Random, number: int) -> Row:
    texts = [
        'say "hi"',
        "back\\slash \\n",
        "line\nline\r\n\ttab",
        "a/b",
        "<b>&amp;'</b>",
        "\b\f\x01\x1f\x7f",
        "{{ x }}",
    ]
    return row({"text": texts[number % len(texts)]}, {"text": {"description": draw.choice(texts)}}, draw.choice(texts))


@add("slashes written as escapes")
def _(draw: random.Random, number: int) -> str:
    return as_line(row({"path": "a/b"}, {"path": {"description": "such as /tmp/x"}})).replace("/", "\\/")


@add("empty objects")
def _(draw: random.Random, number: int) -> Row:
    return row({} if number % 2 else {"options": {}, "city": "Köln"}, {} if number % 3 else {"options": {}})


@add("empty lists")
def _(draw: random.Random, number: int) -> Row:
    return row({"names": [], "rows": [[], [[]]]}, {"names": {"type": "array", "enum": [], "default": []}})


@add("empty texts")
def _(draw: random.Random, number: int) -> Row:
    return row({"city": ""}, {"city": {"type": "string", "description": "", "default": ""}}, "" if number % 2 else " ")


@add("deep nesting")
def _(draw: random.Random, number: int) -> Row:
    value: Any = number
    for depth in range(DEEP):
        value = {"in": value, "at": depth} if (depth + number) % 2 else [value, depth]
    return row({"value": value}, {"value": {"anyOf": [{"type": "object", "properties": {"in": {"type": "array"}}}]}})


@add("lists of lists")
def _(draw: random.Random, number: int) -> Row:
    return row({"matrix": [[draw.randrange(9) for _ in range(draw.randrange(4))] for _ in range(draw.randrange(1, 4))]})


@add("lists of objects that differ")
def _(draw: random.Random, number: int) -> Row:
    items = [{"a": 1}, {"b": "x"}, {"a": "1", "b": None}, {"c": {"d": []}}, {}]
    return row({"items": draw.sample(items, draw.randrange(1, 5))})


@add("arguments as text")
def _(draw: random.Random, number: int) -> Row:
    return row(json.dumps({"city": draw.choice(CITIES), "days": number, "unit": None}, ensure_ascii=False))


@add("arguments as text with spacing of its own")
def _(draw: random.Random, number: int) -> Row:
    return row(draw.choice(['{"city":"Köln","days":1}', '{ "days" : 1.0, "city" : null }', '{"c":"K\\u00f6ln"}', "{}"]))


@add("results as objects")
def _(draw: random.Random, number: int) -> Row:
    return row({"city": "Köln"}, result={"temperature": draw.choice([1, 2.5, None]), "sky": ["clear"], "é": {}})


@add("results as lists")
def _(draw: random.Random, number: int) -> Row:
    return row(
        {"city": "Köln"}, result=[{"day": day, "sky": draw.choice(["clear", None])} for day in range(number % 3)]
    )


@add("results as JSON text")
def _(draw: random.Random, number: int) -> Row:
    return row({"city": "Köln"}, result=json.dumps({"temperature": 2.0, "sky": None, "days": [1, 2]}))


@add("results as text parts")
def _(draw: random.Random, number: int) -> Row:
    return row({"city": "Köln"}, result=[{"type": "text", "text": "sunny"}, {"type": "text", "text": ", 20 °C"}])


@add("results as plain values")
def _(draw: random.Random, number: int) -> Row:
    results = [["clear", "rain"], {}, 3, 0, 2.50, True, False, 2**70, ["clear"], [1, "a", None]]
    return row({"city": "Köln"}, result=results[number % len(results)])


@add("keys and numbers at the edge")
def _(draw: random.Random, number: int) -> Row:
    written = ["NaN", "-Infinity", "1e400", "1e-400", "0.1000000000000000055511151231257827", "7" * 500, "-0.0", "1.0"]
    return row({"": f"@@{written[number % len(written)]}@@", "a.b": {"": None}, "line": "\u2028\u0085\u0000"})


@add("questions as text parts")
def _(draw: random.Random, number: int) -> Row:
    made = row({"city": "Köln"})
    made["messages"][0]["content"] = [{"type": "text", "text": text} for text in ("How is", " the weather?")]
    return made if number % 2 else {"messages": [made["messages"][0], made["messages"][3]]}


@add("parallel calls")
def _(draw: random.Random, number: int) -> Row:
    made = with_call(row({}), tool_calls=[call({"city": city}) for city in draw.sample(CITIES, 2)])
    made["messages"].insert(3, {"role": "tool", "content": "rain"})
    return made


@add("calls of different functions")
def _(draw: random.Random, number: int) -> Row:
    calls = [call({"city": "Köln"}), call({"zone": 1, "at": None}, "time")]
    made = with_call(row({}), tool_calls=calls[:: 1 if number % 2 else -1])
    made["messages"].insert(3, {"role": "tool", "content": "noon"})
    return made | {"tools": [tool(), tool({"zone": {"type": "integer"}}, "time")]}


@add("several steps")
def _(draw: random.Random, number: int) -> Row:
    made = row({"city": "Köln"})
    again = {"role": "assistant", "content": "", "tool_calls": [call({"city": ["Bonn", number]})]}
    made["messages"][3:3] = [again, {"role": "tool", "content": "rain"}]
    return made


@add("identifiers of calls")
def _(draw: random.Random, number: int) -> Row:
    made = with_call(row({}), tool_calls=[call({"city": "Köln"}, id=f"call_{number}")])
    made["messages"][2]["tool_call_id"] = f"call_{number}"
    return made


@add("names of tool messages")
def _(draw: random.Random, number: int) -> Row:
    made = row({"city": "Köln"})
    made["messages"][2] = {"role": "tool", "name": "weather", "content": "sunny"}
    return made


@add("custom fields of messages")
def _(draw: random.Random, number: int) -> Row:
    made = with_call(row({"city": "Köln"}), meta={"score": draw.choice([1, 0.5, None]), "tags": []}, id=number)
    made["messages"][0]["lang"] = draw.choice(["de", None, 1])
    return made


@add("custom fields of calls and tools")
def _(draw: random.Random, number: int) -> Row:
    calls = [{"index": 0, **call({"city": "Köln"}), "meta": None}]
    strict = {**tool(strict=True), "x-cost": draw.choice([1, 1.5])}
    return with_call(row({}), tool_calls=calls) | {"tools": [strict]}


@add("no text beside a call: null")
def _(draw: random.Random, number: int) -> Row:
    return with_call(row({"city": draw.choice(CITIES)}), content=None)


@add("no text beside a call: absent")
def _(draw: random.Random, number: int) -> Row:
    return with_call(row({"city": draw.choice(CITIES)}), content=...)


@add("text beside a call")
def _(draw: random.Random, number: int) -> Row:
    return with_call(row({"city": "Köln"}), content="Let me see.")


@add("reasoning beside a call")
def _(draw: random.Random, number: int) -> Row:
    return with_call(row({"city": "Köln"}), reasoning_content="The user asks about Köln.")


@add("answer without a call")
def _(draw: random.Random, number: int) -> Row:
    made = row({})
    made["messages"][1:3] = []
    return made


@add("a system message")
def _(draw: random.Random, number: int) -> Row:
    made = row({"city": draw.choice(CITIES), "n": number})
    made["messages"].insert(0, {"role": "system", "content": "Be brief."})
    return made


@add("tools as text")
def _(draw: random.Random, number: int) -> Row:
    made = row({"city": "Köln"}, {"city": {"default": None, "minimum": 1.0, "é": [2**64, {}]}})
    return made | {"tools": json.dumps(made["tools"], ensure_ascii=bool(number % 2))}


@add("tools without a wrapper")
def _(draw: random.Random, number: int) -> Row:
    made = row({"city": "Köln"})
    return made | {"tools": [described["function"] for described in made["tools"]]}


@add("many tools")
def _(draw: random.Random, number: int) -> Row:
    kinds = [
        {"type": "number", "minimum": 0.5},
        {"type": ["string", "null"]},
        {"enum": [1, "a", None]},
        {"$ref": "#/x"},
    ]
    tools = [tool({f"p{at}": draw.choice(kinds)}, f"f{at}") for at in range(draw.randrange(2, 8))]
    return row({"city": "Köln"}) | {"tools": [tool(), *tools]}


@add("enumerations")
def _(draw: random.Random, number: int) -> Row:
    enum = draw.sample(["c", "f", None, 1, 1.0, True], 4)
    return row({"unit": enum[0]}, {"unit": {"enum": enum, "const": enum[1]}})


@add("kinds of a schema")
def _(draw: random.Random, number: int) -> Row:
    kind = draw.choice(["string", ["string", "null"], ["integer", "number"]])
    shared = {"$defs": {"Day": {"type": "integer", "exclusiveMinimum": 0}}}
    properties = {"a": {"type": kind}, "b": {"anyOf": [{"$ref": "#/$defs/Day"}, {"type": "null"}]}}
    made = row({"a": "x", "b": None}, properties)
    made["tools"][0]["function"]["parameters"] |= {**shared, "additionalProperties": bool(number % 2)}
    return made


@add("no tools")
def _(draw: random.Random, number: int) -> Row:
    made = row({"city": "Köln"})
    del made["tools"]
    return made if number % 3 else made | {"tools": [] if number % 2 else None}


@add("a key twice")
def _(draw: random.Random, number: int) -> str:
    return as_line(row({"city": '@@1, "city": "Köln"@@'}))


@add("other columns beside")
def _(draw: random.Random, number: int) -> Row:
    return row({"city": "Köln"}, source=draw.choice(["a", None, 1, {"b": 2}]), score=draw.choice([1, 1.5, "high"]))
