"""Fields of calls and tools that differ: every row has the text, spans and verdict that it has when rendered alone."""

from __future__ import annotations

import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.columns_stage import as_json, canonical
from support.paths import CHAT_TEMPLATES
from support.soak import each
from tokenloom.assets.prompts import verify
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.prompts.row_fields import FieldFinder, FieldTexts, RowFields
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PromptTemplateConfig
from tokenloom.errors import TemplateError
from tokenloom.resources.templates.jinja import JinjaTemplate
from tokenloom.resources.templates.marks import FIELD_CLOSE, FIELD_OPEN

DATE = "2024-07-26"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
CONTROL = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|user|>",
)
MODES: dict[str, dict[str, Any]] = {
    "together": {},
    "exact": {"turns": "exact"},
    "kinds": {"train_on": {"content": 1, "reasoning": 0.5, "tool_calls": 0.25, "stop": 1}},
}
OWN = ("hermes", "thinking", "channels", "brackets", "headers")
OF_TRL = ("qwen3", "glm4moe", "qwen3_6", "lfm2_2_5", "gptoss", "gemma4_v5", "qwen3_training")
TEXTS = (
    *(
        "Paris",
        "New York",
        "",
        " lead",
        "trail ",
        "a\nb",
        'q"uote',
        "back\\slash",
        "é漢😀",
        "\u2028",
        "string",
        "name",
        "1",
    ),
    *("<|im_end|>", "</think>", "</s>", "<tool_call>", "tool_call>", "}", '"}', "{", "]", "null", "{{x}}", "%s"),
    *(f"{FIELD_OPEN}0{FIELD_CLOSE}", "8371946200000", "\ue0d00\ue0d1", "\ue0d0999\ue0d1", "\ue0d4"),
)
NAMES = ("look_up", "get_weather", "a", "python", "tool_call", "with space", 'q"x', "function", "final")
SCALARS = (0, int("8371946200001"), 1, -5, 10**20, 1.5, 1e100, -0.0, True, False, None)


def template(name: str) -> str:
    if name in OWN:
        return (CHAT_TEMPLATES / f"{name}.jinja").read_text()
    spec = find_spec("trl")
    if spec is None or spec.origin is None:
        pytest.skip("needs the chat templates that TRL ships")
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text()


def value(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.random()
    if kind < 0.5 or depth > 2:
        return draw.choice(TEXTS)
    if kind < 0.75:
        return draw.choice(SCALARS)
    if kind < 0.9:
        return [value(draw, depth + 1) for _ in range(draw.randrange(3))]
    return {draw.choice(["a", "b c", "type", 'x"y']): value(draw, depth + 1) for _ in range(draw.randrange(3))}


def arguments(draw: random.Random, wild: bool) -> Any:
    if not wild:
        found: Any = {
            "city": draw.choice(["Paris", "Rome"]),
            "n": draw.randrange(9),
            "more": ["x", {"y": draw.random()}],
        }
    else:
        found = {draw.choice(["city", "query", "content"]): value(draw) for _ in range(draw.randrange(3))}
    odd = ["", "{}", ' {"a": 1} ', "[1]", "5", '{"b":1,"a":2}', r'{"a": "<\/think>"}', r'{"a": "<\u007cim_end|>"}']
    texts = [found, json.dumps(found, ensure_ascii=False), json.dumps(found), draw.choice(odd) if wild else found]
    return draw.choice(texts)


def tool(draw: random.Random, wild: bool) -> Any:
    described = draw.choice(TEXTS) if wild else f"Finds {draw.randrange(9)} things"
    properties = {"city": {"type": "string", "description": described}}
    function = {"name": draw.choice(NAMES), "description": "Look up", "parameters": {"properties": properties}}
    return {"type": "function", "function": function} if draw.random() < 0.8 else function


def talk(draw: random.Random, wild: bool) -> dict[str, Any]:
    texts = TEXTS if wild else ("Fine", "Good")
    parts = [[{"type": "text", "text": "p"}], [{"type": "text", "text": "p"}, {"type": "text", "text": "q"}]]
    said: list[Any] = [{"role": "user", "content": draw.choice(["Hi", *parts, *texts])}]
    for at in range(draw.choice([1, 1, 2])):
        function = {"name": draw.choice(NAMES if wild else NAMES[:2]), "arguments": arguments(draw, wild)}
        call = {"id": f"call-{draw.randrange(9)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": draw.choice(["", "So", "<think>hm</think>ok"]), "tool_calls": [call]}
        message |= {"reasoning_content": draw.choice(texts)} if draw.random() < 0.5 else {}
        message |= draw.choice([{}, {}, {"note": f"n {at}"}, {"steps": draw.randrange(9)}, {"train": False}])
        result = draw.choice(["42", {"t": draw.randrange(9)}, ["a", "b"], *texts])
        said += [message, {"role": "tool", "content": result, "tool_call_id": call["id"]}]
    said.append({"role": "assistant", "content": draw.choice(["Done.", *texts])})
    tools = [tool(draw, wild) for _ in range(draw.choice([1, 2]))]
    return {"messages": said, "tools": draw.choice([tools, json.dumps(tools), None])}


def rendered(name: str, rows: list[dict[str, Any]], without: bool = False, **prompt: Any) -> ChunkOutput:
    settings = PromptTemplateConfig(format_type="chat", date_string=DATE, **prompt)
    chat = ChatFormat(JinjaTemplate(template(name), DATE), settings, TOKENS, CONTROL, None, "</s>")
    if without:
        chat.__dict__["_takes_fields"] = False
    return chat.render(canonical(as_json(*rows)).table)


@pytest.mark.parametrize(("name", "mode"), each([*OWN, *OF_TRL], MODES))
def test_rendering_rows_together_changes_no_text_span_or_verdict(name: str, mode: str) -> None:
    draw = random.Random(f"{name} {mode}")
    rows = [talk(draw, wild) for wild in (False,) * 12 + (True,) * 12]
    ours, plain = (rendered(name, rows, without, **MODES[mode]) for without in (False, True))
    assert ours.table.to_pylist() == plain.table.to_pylist()
    assert ours.rejects.to_pylist() == plain.rejects.to_pylist()
    assert (ours.counters, ours.counts()) == (plain.counters, plain.counts())


@pytest.mark.parametrize(
    ("name", "as_text"),
    [
        *(
            pytest.param(name, False, id=name)
            for name in ("hermes", "thinking", "qwen3", "glm4moe", "qwen3_6", "gemma4_v5")
        ),
        pytest.param("glm4moe", True, id="glm4moe, arguments as text"),
    ],
)
def test_calls_that_differ_in_values_are_one_shape(name: str, as_text: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[Any] = []
    probe = JinjaTemplate.probe
    monkeypatch.setattr(JinjaTemplate, "probe", lambda *given: probed.append(given) or probe(*given))
    rows = []
    for number in range(40):
        given = {"city": f"Rome {number}", "count": number, "near": {"to": f'"{number}"'}}
        function = {"name": f"find_{number}", "arguments": json.dumps(given) if as_text else given}
        call = {"id": f"c{number}", "type": "function", "function": function}
        said = [
            {"role": "user", "content": f"Where is {number}?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"There, {number}"},
            {"role": "assistant", "content": f"It is there: {number}."},
        ]
        function = {"name": f"find_{number}", "description": f"Finds {number}", "parameters": {"type": "object"}}
        rows.append({"messages": said, "tools": [{"type": "function", "function": function}]})
    out = rendered(name, rows)
    assert out.table.num_rows == 40
    assert len(probed) < 20
    for number, text in zip(out.table[ROW].to_pylist(), out.table["text"].to_pylist(), strict=True):
        assert all(f"{word}{number // 2}" in text for word in ("Rome ", "find_", "Where is ", "there: "))


@pytest.mark.parametrize("name", ["hermes", "qwen3"])
def test_objects_that_are_only_written_are_one_shape_whatever_is_in_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[Any] = []
    probe = JinjaTemplate.probe
    monkeypatch.setattr(JinjaTemplate, "probe", lambda *given: probed.append(given) or probe(*given))
    rows = []
    for number in range(40):
        given = {f"key {at}": [at] * at if at % 2 else {"to": at} for at in range(number + 1)}
        call = {"id": f"c{number}", "type": "function", "function": {"name": f"find_{number}", "arguments": given}}
        said = [
            {"role": "user", "content": f"Where is {number}?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"There, {number}"},
            {"role": "assistant", "content": f"It is there: {number}."},
        ]
        function = {"name": f"find_{number}", "description": "Finds", "parameters": {"type": "object", "of": given}}
        rows.append({"messages": said, "tools": [{"type": "function", "function": function}]})
    out = rendered(name, rows)
    assert out.table.num_rows == 40
    assert len(probed) < 20


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    draw = random.Random(3)
    rows = [talk(draw, wild) for wild in (False,) * 6 + (True,) * 10]
    together = rendered("thinking", rows)
    texts = {row[ROW] // 2: (row["text"], row["spans"]) for row in together.table.to_pylist()}
    for number, row in enumerate(rows):
        alone = rendered("thinking", [row]).table.to_pylist()
        assert texts.get(number) == next(((made["text"], made["spans"]) for made in alone), None)


WRITTEN = [
    "{{ f.arguments | tojson }}",
    "{{ f.arguments | tojson(indent=2) }}",
    "{{ [f] | tojson(indent=4, sort_keys=true) }}",
    "{{ {'a': [f.arguments, f.name]} | tojson(separators=(',', ':')) }}",
    "{{ f.arguments | tojson | tojson }}",
    "{{ f | tojson(ensure_ascii=true) }}",
    "{% for name, value in f.arguments.items() %}{{ name }}={{ value }};{{ value | tojson }}{% endfor %}",
    "{{ f.arguments.to }}{% if f.arguments.to == 'Rome' %}!{% endif %}{{ f.name | upper }}",
    "{% if 'Ro' in f.arguments.to %}!{% elif f.arguments.n > 3 %}?{% endif %}{{ f.arguments.n }}",
    "{{ f.arguments }}",
    "{{ f.arguments | length }}{{ f.arguments.to.split('o') | join('-') }}",
    "{% if f.name == f.arguments.to %}same {% endif %}{{ f.arguments.values() | list | last }}",
    "{% if f.arguments is mapping %}{{ f.arguments | items | list | tojson }}{% endif %}{{ 'to' in f.arguments }}",
]
ARGUMENTS: list[Any] = [
    *(
        {"to": name, "n": number}
        for name, number in (("Rome", 5), ("Oslo", 2), ("look", 9), ("Rome", 1), ("é \u2028", 4))
    ),
    *(
        {"to": 'q"', "n": 3},
        {"to": "a\\\n b", "n": 1.5},
        {"n": 2, "to": "x"},
        {"to": "", "n": 0},
        {"to": " x", "n": -1},
    ),
    *({"to": "Rome", "n": 5, "more": ["a", {"b": None}]}, {"to": "Bonn", "n": 5, "more": ["c", {"b": None}]}),
]


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("source", WRITTEN)
def test_fields_are_written_as_the_template_writes_them(source: str, as_text: bool) -> None:
    """Whatever it asks of them: rows are together only if they answer alike."""
    loop = "{% for m in messages %}<|{{ m.role }}|>{% for c in m.tool_calls or [] %}{% set f = c.function %}[" + source
    jinja = JinjaTemplate(loop + "]{% endfor %}{{ m.content }}</s>{% endfor %}")
    rows = []
    for number, given in enumerate(ARGUMENTS * 2):
        function = {"name": "look" if number % 3 else "find", "arguments": json.dumps(given) if as_text else given}
        call = {"id": f"c{number}", "type": "function", "function": function}
        said = [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": f"There {number}."},
        ]
        rows.append(
            {"messages": [{"role": "user", "content": "Where?"}, *said, {"role": "assistant", "content": "So."}]}
        )
    settings = PromptTemplateConfig(format_type="chat", train_on="all")
    ours, plain = (ChatFormat(jinja, settings, TOKENS, CONTROL, None, "</s>") for _ in range(2))
    plain.__dict__["_takes_fields"] = False
    table = canonical(as_json(*rows)).table
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "SAMPLED", 0)
        made, expected = ours.render(table), plain.render(table)
    assert made.table.to_pylist() == expected.table.to_pylist()
    assert made.rejects.to_pylist() == expected.rejects.to_pylist()


def test_fields_are_put_in_the_places_of_their_marks() -> None:
    message = {"tool_calls": [{"function": {"name": "find", "arguments": {"a": 1, "b": "x"}}}], "note": "call"}
    (found,) = FieldFinder(()).in_messages(pa.array([json.dumps(message)]))
    row = RowFields([found], None)
    assert row.values == ["find", {"a": 1, "b": "x"}, "call"]
    texts, marks = FieldTexts([row], ("<call>",)), [f"{FIELD_OPEN}{at}{FIELD_CLOSE}" for at in ("0", "1", "1/0", "1/1")]
    assert texts.fill("none") is None
    filled = [texts.fill(f"<{mark}") for mark in marks]
    assert [None if one is None else one[0].as_py() for one in filled] == ["<find", '<{"a": 1, "b": "x"}', "<1", "<x"]
    with pytest.raises(TemplateError, match="changes"):
        texts.fill(marks[0][:-1])
    with pytest.raises(TemplateError, match="control token"):
        texts.fill(f"<{FIELD_OPEN}2{FIELD_CLOSE}>")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["channels", "hermes", "gemma4_v5"])
def test_equal_values_within_a_conversation_stay_equal(name: str, mode: str) -> None:
    rows = []
    for names in ("aa", "ab", "ba", "cd", "cc"):
        said: list[Any] = [{"role": "user", "content": "Hi"}]
        for at, word in enumerate(names):
            function = {"name": f"find_{word}", "arguments": {"q": word}}
            call = {"id": word if names == "cc" else f"{word}{at}", "type": "function", "function": function}
            said.append({"role": "assistant", "content": "", "tool_calls": [call]})
            said.append({"role": "tool", "content": "There", "tool_call_id": call["id"]})
        rows.append({"messages": [*said, {"role": "assistant", "content": "Done."}]})
    ours, plain = (rendered(name, rows, without, **MODES[mode]) for without in (False, True))
    assert ours.table.to_pylist() == plain.table.to_pylist()
    assert ours.rejects.to_pylist() == plain.rejects.to_pylist()
