"""`train_on` by kind: what is trained of each answer is divided into content, reasoning, tool calls and the stop.

The oracle is written by hand: for each template, the trained text of each answer with its kinds. The whole text is
what `transformers` renders. Over all templates of TRL and of the tests, the kinds are a partition of what
`train_on: completions` trains.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from support.built_prompts import built
from support.chat_shapes import DESCRIBED, TOOLS, called, shapes
from support.columns_stage import as_json, canonical
from support.paths import CHAT_TEMPLATES, SWEEP_TEMPLATES
from support.small_tokenizers import byte_level
from support.soak import SOAK
from support.trl_templates import FOLDER, Twins
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.prompts.chat_certificate import certificate
from tokenloom.assets.prompts.spans import KIND_PARTS, SPAN_ROLES
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig, PromptTemplateConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.templates.jinja import JinjaTemplate
from tokenloom.resources.templates.named import chatml

Message = dict[str, Any]
Kinds = list[tuple[str, str]]
"""Kinds of text with their texts, in order."""

ALL_ONE = {"content": 1, "reasoning": 1, "tool_calls": 1, "stop": 1}
ALL_DIFFERENT = {"content": 1, "reasoning": 2, "tool_calls": 3, "stop": 4}
KIND_OF_WEIGHT = {1.0: "content", 2.0: "reasoning", 3.0: "tool_calls", 4.0: "stop"}
DATE = "26 Jul 2024"


def call(city: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "arguments": {"city": city}}}


def answer(content: str, *cities: str, thought: str = "", **more: Any) -> Message:
    message: Message = {"role": "assistant", "content": content, **more}
    message |= {"reasoning_content": thought} if thought else {}
    return message | ({"tool_calls": [call(city) for city in cities]} if cities else {})


Q1, Q2 = {"role": "user", "content": "Q1"}, {"role": "user", "content": "Q2"}
RESULT = {"role": "tool", "content": "R", "name": "weather"}
INLINE = "<think>\nT\n</think>\n\nA"

THINKING = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{% if m.thinking %}{{ OPEN + m.thinking + CLOSE }}{% endif %}{% endif %}
{{- m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Writes reasoning between other tags than `<think>`, only if there is some."""
ALWAYS = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{{ OPEN + (m.thinking or '') + CLOSE }}{% endif %}
{{- m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Writes the tags before every answer."""

WITH_CALLS = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.thinking and (loop.last or m.tool_calls) %}{{ OPEN + m.thinking + CLOSE }}{% endif %}
{{- m.content }}{% for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function.name + '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Drops the reasoning of earlier answers, but not that of calls."""


def tagged(template: str, opening: str, closing: str) -> str:
    return template.replace("OPEN", repr(opening)).replace("CLOSE", repr(closing))


OWN_TEMPLATES = {
    "chatml": chatml(),
    "brackets": tagged(THINKING, "[THINK]", "[/THINK]"),
    "always brackets": tagged(ALWAYS, "[THINK]", "[/THINK]"),
    "always with a label": tagged(ALWAYS, "<think>", "</think>\nAnswer: "),
    "with calls": tagged(WITH_CALLS, "<think>", "</think>"),
    "with calls in brackets": tagged(WITH_CALLS, "[THINK]", "[/THINK]"),
    "words": tagged(THINKING, "Thought: ", "\nFinal: "),
    "marked channel": "{% for m in messages %}{{ m.role + ':' }}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "marked header": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
    "{{ '<|im_start|>assistant\\n' + m.content + '<|im_end|>\\n' }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "hermes": (CHAT_TEMPLATES / "hermes.jinja").read_text(encoding="utf-8"),
    "mistral": (CHAT_TEMPLATES / "brackets.jinja").read_text(encoding="utf-8"),
    "no stop": "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
}


def chat_of(name: str, marked: bool = False, **prompt: Any) -> ChatFormat:
    """Return a template of TRL or of `OWN_TEMPLATES` with settings."""
    twins = Twins("qwen3" if name in OWN_TEMPLATES else name)
    text = OWN_TEMPLATES.get(name) or (twins.marked if marked else twins.plain)
    settings = PromptTemplateConfig.model_validate({"format_type": "chat", "date_string": twins.date, **prompt})
    eos = "</s>" if name in ("mistral", "no stop") else twins.eos
    tokens, control = {**twins.tokens, "eos_token": eos}, tuple({*twins.control, eos})
    return ChatFormat(JinjaTemplate(text, twins.date), settings, tokens, control, None, eos)


def rendered(chat: ChatFormat, talk: list[Message]) -> list[dict[str, Any]]:
    """Return the texts of one conversation."""
    out = chat.render(canonical(as_json({"messages": talk})).table)
    assert not out.rejects.num_rows, out.rejects.to_pylist()
    return out.table.to_pylist()


def code_of(chat: ChatFormat, talk: list[Message]) -> str:
    out = chat.render(canonical(as_json({"messages": talk})).table)
    assert not out.table.num_rows
    return out.rejects["code"][0].as_py()


def parts_of(row: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield the role, text and weight of each span."""
    data = row["text"].encode()
    for span in row["spans"]:
        yield SPAN_ROLES[span["role"]], data[span["start"] : span["end"]].decode(), span["weight"]


def kinds_of(rows: list[dict[str, Any]]) -> Kinds:
    """Return what is trained, by kind: each weight is that of one kind."""
    found = [(KIND_OF_WEIGHT[weight], text) for row in rows for _, text, weight in parts_of(row) if weight]
    return [(kind, "".join(text for _, text in group)) for kind, group in groupby(found, key=lambda part: part[0])]


def trained_bytes(row: dict[str, Any]) -> tuple[str, list[tuple[int, int]]]:
    """Return the text, and the maximal ranges of trained bytes."""
    ranges: list[tuple[int, int]] = []
    for span in row["spans"]:
        if span["weight"] and ranges and ranges[-1][1] == span["start"]:
            ranges[-1] = ranges[-1][0], span["end"]
        elif span["weight"]:
            ranges.append((span["start"], span["end"]))
    return row["text"], ranges


STOP, LAST = ("stop", "<|im_end|>"), ("stop", "</s>")
QWEN_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
LLAMA_CALL = '{"name": "weather", "parameters": {"city": "Rome"}}'
END = "<｜end▁of▁sentence｜>"

CASES: dict[str, tuple[str, dict[str, Any], list[Message], Kinds]] = {
    "chatml: content and stop": ("chatml", {}, [Q1, answer("A")], [("content", "A"), STOP]),
    "chatml: reasoning with its tags": (
        "chatml",
        {},
        [Q1, answer("A", thought="T")],
        [("reasoning", "<think>\nT\n</think>\n\n"), ("content", "A"), STOP],
    ),
    "chatml: reasoning within the content": (
        "chatml",
        {},
        [Q1, answer(INLINE)],
        [("reasoning", "<think>\nT\n</think>\n\n"), ("content", "A"), STOP],
    ),
    "chatml: a content that begins with white space and <think>": (
        "chatml",
        {},
        [Q1, answer(" \n<think>T</think>\nA")],
        [("reasoning", " \n<think>T</think>\n"), ("content", "A"), STOP],
    ),
    "chatml: reasoning and a call": (
        "chatml",
        {},
        [Q1, answer("", "Rome", thought="T"), RESULT, answer("A")],
        [("reasoning", "<think>\nT\n</think>\n\n"), ("tool_calls", QWEN_CALL), STOP, ("content", "A"), STOP],
    ),
    "qwen3: an empty thought is reasoning": (
        "qwen3",
        {},
        [Q1, answer("A")],
        [("reasoning", "<think>\n\n</think>\n\n"), ("content", "A"), STOP],
    ),
    "qwen3: the content before a call, the last reasoning": (
        "qwen3",
        {},
        [Q1, answer("W", "Rome"), RESULT, answer("A", thought="T")],
        [
            *[("content", "W"), ("tool_calls", "\n" + QWEN_CALL), STOP],
            *[("reasoning", "<think>\nT\n</think>\n\n"), ("content", "A"), STOP],
        ],
    ),
    "qwen3: a content that the template takes apart": (
        "qwen3",
        {},
        [Q1, answer(INLINE)],
        [("reasoning", "<think>\nT\n</think>\n\n"), ("content", "A"), STOP],
    ),
    "qwen3: exact turns, of which each has its reasoning": (
        "qwen3",
        {"turns": "exact"},
        [Q1, answer("A1", thought="T1"), Q2, answer("<think>T2</think>A2")],
        [
            *[("reasoning", "<think>\nT1\n</think>\n\n"), ("content", "A1"), STOP],
            *[("reasoning", "<think>\nT2\n</think>\n\n"), ("content", "A2"), STOP],
        ],
    ),
    "qwen3 with marks: all that ends the turn is the stop": (
        "qwen3",
        {"marked": True},
        [Q1, answer("W", "Rome", thought="T")],
        [
            *[("reasoning", "<think>\nT\n</think>\n\n"), ("content", "W"), ("tool_calls", "\n" + QWEN_CALL)],
            ("stop", "<|im_end|>\n"),
        ],
    ),
    "deepseek-r1: the prompt opens the thought": (
        "deepseek_r1_distill",
        {"turns": "exact"},
        [Q1, answer(INLINE)],
        [("reasoning", "T\n</think>\n\n"), ("content", "A"), ("stop", END)],
    ),
    "deepseek-v3: calls between their own tokens": (
        "deepseekv3",
        {},
        [Q1, answer("W", "Rome"), RESULT, answer("A")],
        [
            ("content", "W"),
            (
                "tool_calls",
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
                '```json\n{"city": "Rome"}\n```'
                "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ),
            *[("stop", END), ("content", "A"), ("stop", END)],
        ],
    ),
    "hermes: two calls": (
        "hermes",
        {},
        [Q1, answer("W", "Rome", "Bonn"), RESULT, RESULT, answer("A")],
        [
            ("content", "W"),
            ("tool_calls", "\n" + QWEN_CALL + "\n" + QWEN_CALL.replace("Rome", "Bonn")),
            *[STOP, ("content", "A"), STOP],
        ],
    ),
    "llama-3.1: a call is all of the turn": (
        "llama3_1",
        {},
        [Q1, answer("", "Rome"), RESULT, answer("A")],
        [("tool_calls", LLAMA_CALL), ("stop", "<|eot_id|>"), ("content", "A"), ("stop", "<|eot_id|>")],
    ),
    "mistral: EOS ends calls and answers": (
        "mistral",
        {},
        [Q1, answer("A")],
        [("content", "A"), LAST],
    ),
    "gpt-oss: the header of the answer is content, <|call|> a stop": (
        "gptoss",
        {},
        [Q1, answer("", "Rome"), RESULT, answer("A", thought="T")],
        [
            ("tool_calls", ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Rome"}'),
            ("stop", "<|call|>"),
            ("reasoning", "<|channel|>analysis<|message|>T<|end|><|start|>assistant"),
            *[("content", "<|channel|>final<|message|>A"), ("stop", "<|return|>")],
        ],
    ),
    "gpt-oss with marks that train the header": (
        "gptoss",
        {"marked": True},
        [Q1, answer("A", thought="T")],
        [
            ("reasoning", "<|start|>assistant<|channel|>analysis<|message|>T<|end|>"),
            *[("content", "<|start|>assistant<|channel|>final<|message|>A"), ("stop", "<|return|>")],
        ],
    ),
    "glm: the stop is the next turn's token": (
        "glm4moe",
        {},
        [Q1, answer("A1"), Q2, answer("A2", thought="T")],
        [
            *[("reasoning", "\n<think></think>\n"), ("content", "A1"), ("stop", "<|user|>")],
            *[("reasoning", "\n<think>T</think>\n"), ("content", "A2"), ("stop", "<|endoftext|>")],
        ],
    ),
    "other tags, only with reasoning": (
        "brackets",
        {},
        [Q1, answer("A1", thought="T"), Q2, answer("A2")],
        [("reasoning", "[THINK]T[/THINK]"), ("content", "A1"), STOP, ("content", "A2"), STOP],
    ),
    "other tags, always": (
        "always brackets",
        {},
        [Q1, answer("A1", thought="T"), Q2, answer("A2")],
        [
            *[("reasoning", "[THINK]T[/THINK]"), ("content", "A1"), STOP],
            *[("reasoning", "[THINK][/THINK]"), ("content", "A2"), STOP],
        ],
    ),
    "reasoning ends with its tag, though more text follows before the answer": (
        "always with a label",
        {},
        [Q1, answer("A1", thought="T"), Q2, answer("A2")],
        [
            *[("reasoning", "<think>T</think>\n"), ("content", "Answer: A1"), STOP],
            *[("reasoning", "<think></think>\n"), ("content", "Answer: A2"), STOP],
        ],
    ),
    "reasoning that depends on calls": (
        "with calls",
        {},
        [Q1, answer("W", "Rome", thought="T"), RESULT, answer("A")],
        [
            *[("reasoning", "<think>T</think>"), ("content", "W"), ("tool_calls", "<tool_call>weather</tool_call>")],
            *[STOP, ("content", "A"), STOP],
        ],
    ),
    "words around reasoning": (
        "words",
        {},
        [Q1, answer("A", thought="T")],
        [("reasoning", "Thought: T\nFinal: "), ("content", "A"), STOP],
    ),
    "marks: a content with reasoning": (
        "marked channel",
        {},
        [Q1, answer(INLINE)],
        [("reasoning", "<think>\nT\n</think>\n\n"), ("content", "A"), STOP],
    ),
    "marks that train headers: the next header is no stop": (
        "marked header",
        {},
        [Q1, answer("A1"), answer("A2")],
        [
            *[("content", "<|im_start|>assistant\nA1"), ("stop", "<|im_end|>")],
            *[("content", "\n<|im_start|>assistant\nA2"), ("stop", "<|im_end|>\n")],
        ],
    ),
    "an added EOS is the stop": ("no stop", {}, [Q1, answer("A")], [("content", "A"), LAST]),
    "the weight of a message is a factor": (
        "chatml",
        {},
        [Q1, answer("A1", weight=0), Q2, answer("A2", weight=1)],
        [("content", "A2"), STOP],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_trained_text_has_the_kinds_that_are_written_here(case: str) -> None:
    name, settings, talk, expected = CASES[case]
    rows = rendered(chat_of(name, train_on=ALL_DIFFERENT, **settings), talk)
    assert kinds_of(rows) == expected
    base = rendered(chat_of(name, **settings), talk)
    assert [*map(trained_bytes, rows)] == [*map(trained_bytes, base)]
    for masked in ALL_ONE:
        rows = rendered(chat_of(name, train_on={**ALL_DIFFERENT, masked: 0}, **settings), talk)
        assert "".join(text for _, text in kinds_of(rows)) == "".join(text for kind, text in expected if kind != masked)


@pytest.mark.parametrize("name", ["qwen3", "deepseekv3", "gptoss", "llama3_1", "glm4moe"])
def test_the_text_is_what_transformers_renders(name: str) -> None:
    twins, talk = Twins(name), [Q1, answer("", "Rome"), RESULT, answer("A")]
    (row,) = rendered(chat_of(name, train_on=ALL_DIFFERENT), talk)
    given = {**talk[1], "tool_calls": [called("Rome")]} if name == "deepseekv3" else talk[1]  # it joins text to text
    talk = [talk[0], given, *talk[2:]]
    tokens: dict[str, Any] = {**twins.tokens, "date_string": twins.date}
    (text,), _ = render_jinja_template([talk], chat_template=twins.plain, **tokens)
    assert row["text"].removesuffix(twins.eos) == text.removesuffix(twins.eos)


TALKS = {
    **shapes("<s>", "</s>"),
    "reasoning": [Q1, answer("A1", thought="T1"), Q2, answer("A2", thought="T2")],
    "inline reasoning": [Q1, answer(INLINE), Q2, answer(INLINE)],
    "reasoning and call": [Q1, answer("", "Rome", thought="T1"), RESULT, answer("A2", thought="T2")],
    "all": [Q1, answer("W", "Rome", thought="T1"), RESULT, answer("A2", thought="T2"), Q2, answer("A3")],
}
CLEAR = {
    name: talk
    for name, talk in TALKS.items()
    if not name.startswith(("think marks", "blank")) and not (name == "all" or "call" in name)
}
"""Conversations without tags within contents and without tool calls, whose kinds every template must show."""
SWEPT = [
    *sorted(SWEEP_TEMPLATES.glob("*.jinja")),
    *sorted(CHAT_TEMPLATES.glob("*.jinja")),
    *sorted(FOLDER.glob("*.jinja")),
]
FEW = {
    "qwen3",
    "qwen3_training",
    "gptoss",
    "glm4moe_training",
    "hermes",
    "text-stop",
    "two-part-stop",
    "marked-contents",
}


@pytest.mark.parametrize("turns", ["together", "exact"])
@pytest.mark.parametrize("file", [file for file in SWEPT if SOAK or file.stem in FEW], ids=lambda file: file.stem)
def test_kinds_are_a_partition_of_what_completions_train(file: Path, turns: str) -> None:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    control = tuple({*Twins(file.stem.removesuffix("_training")).control} if file.parent == FOLDER else ())
    template = JinjaTemplate(file.read_text(encoding="utf-8"), DATE)
    rows = [
        {"messages": json.dumps(talk), "tools": json.dumps(TOOLS) * (name in DESCRIBED)} for name, talk in TALKS.items()
    ]
    table, names = canonical(pa.Table.from_pylist(rows)).table, list(TALKS)

    def texts(**settings: Any) -> tuple[dict[int, list[dict[str, Any]]], dict[int, str]]:
        given = {"format_type": "chat", "date_string": DATE, "turns": turns, **settings}
        prompt = PromptTemplateConfig.model_validate(given)
        chat = ChatFormat(template, prompt, tokens, (*control, "<s>", "</s>"), None, "</s>")
        out, found = chat.render(table), {}
        for row in out.table.to_pylist():
            found.setdefault(row[ROW], []).append(row)
        return found, {row[ROW]: row["code"] for row in out.rejects.to_pylist()}

    (base, refused), (equal, same), (different, more) = (
        texts(),
        texts(train_on=ALL_ONE),
        texts(train_on=ALL_DIFFERENT),
    )
    assert (refused, base.keys()) == (same, equal.keys())
    assert base.keys() >= different.keys() and len(base) - len(different) <= 12
    for row, found in equal.items():
        assert [*map(trained_bytes, found)] == [*map(trained_bytes, base[row])]
    for row, found in different.items():
        assert [*map(trained_bytes, found)] == [*map(trained_bytes, base[row])]
        for role, _, weight in (part for text in found for part in parts_of(text)):
            assert not weight or role == KIND_PARTS[KIND_OF_WEIGHT[weight]]
    unknown = {names[row // 2] for row in base.keys() - different.keys()}
    assert {more[row] for row in base.keys() - different.keys()} <= {"kind_unknown"}
    assert not unknown & CLEAR.keys()


REFUSED: dict[str, tuple[str, dict[str, float], list[Message]]] = {
    "two thoughts in a content": ("chatml", {"reasoning": 0}, [Q1, answer("<think>a</think> <think>b</think> c")]),
    "a thought after text": ("qwen2_5", {"reasoning": 0}, [Q1, answer("So: <think>a</think> b")]),
    "a thought without its end": ("qwen2_5", {"content": 1, "reasoning": 0.5}, [Q1, answer("<think>a")]),
    "reasoning in other tags that depends on calls": (
        "with calls in brackets",
        {"reasoning": 0},
        [Q1, answer("", "Rome", thought="T"), RESULT, answer("A")],
    ),
    "text on both sides of what a call adds": (
        "gptoss",
        {"tool_calls": 0},
        [Q1, answer("W", "Rome"), RESULT, answer("A")],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_template_does_not_show_is_refused_if_weights_differ(case: str) -> None:
    name, weights, talk = REFUSED[case]
    turns = "exact" if name == "gptoss" else "together"
    assert code_of(chat_of(name, train_on=weights, turns=turns), talk) == "kind_unknown"
    same = rendered(chat_of(name, train_on=ALL_ONE, turns=turns), talk)
    assert [*map(trained_bytes, same)] == [*map(trained_bytes, rendered(chat_of(name, turns=turns), talk))]


ROLES_WEIGHED = {
    "a role beside the kinds": ({"assistant": 1, "tool": 0.5}, {"R": 0.5, "A": 1.0, "<|im_end|>": 1.0}),
    "assistant is the weight of other kinds": ({"assistant": 0.5, "stop": 1}, {"A": 0.5, "<|im_end|>": 1.0}),
    "only the tools' messages": ({"assistant": 0, "tool": 1}, {"R": 1.0}),
    "reasoning masked, all else trained": ({"reasoning": 0}, {"A": 1.0, "<|im_end|>": 1.0}),
}


@pytest.mark.parametrize("name", ["chatml", "hermes"])
@pytest.mark.parametrize("case", ROLES_WEIGHED)
def test_roles_are_weighed_beside_kinds(case: str, name: str) -> None:
    weights, expected = ROLES_WEIGHED[case]
    talk = [Q1, answer("", "Rome"), RESULT, answer("A"), {**Q2, "weight": 1}, answer("B", weight=0.5)]
    (row,) = rendered(chat_of(name, train_on=weights), talk)
    found = {text: weight for _, text, weight in parts_of(row) if text in ("A", "R", "Q2", "B") and weight}
    assert found == {text: weight for text, weight in expected.items() if text in "AR"} | (
        {"B": expected["A"] / 2} if "A" in expected else {}
    )
    stop = next((weight for role, text, weight in parts_of(row) if role == "stop"), 0)
    assert stop == expected.get("<|im_end|>", 0)


FAULTS: dict[str, tuple[Any, str]] = {
    "a typo": ({"reasonng": 0}, "did you mean reasoning?"),
    "a truth value": ({"reasoning": False}, "got false; write reasoning: 0"),
    "a negative weight": ({"stop": -1}, "must be 0 or a number from 1e-6 to 1e6, got -1"),
    "infinity": ({"stop": float("inf")}, "got inf"),
    "text": ({"stop": "1"}, "got '1'"),
    "nothing": ({}, "names nothing, but not the assistant"),
    "a role alone": ({"tool": 1}, "add assistant: 1, or assistant: 0"),
    "some kinds, all 1": ({"tool_calls": 1}, "content, reasoning, stop would have weight 1 too"),
    "all 0": ({"assistant": 0, "user": 0}, "nothing would be trained"),
    "assistant without effect": ({"assistant": 1, **ALL_ONE}, "remove it"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_faulty_mapping_is_one_clear_sentence(case: str) -> None:
    given, expected = FAULTS[case]
    with pytest.raises(ConfigError) as error:
        PipelineConfig.from_mapping({"dataset": {"name": "x"}, "prompt_template": {"train_on": given}})
    assert len(error.value.faults) == 1 and expected in str(error.value)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    twins = Twins("qwen3")
    model = byte_level((*twins.control, "</s>"), 900)
    PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<|im_end|>", pad_token="</s>").save_pretrained(
        tmp_path / "tokenizer"
    )
    return tmp_path / "tokenizer"


UNFIT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a custom template": (
        {"q": "Q", "a": "A"},
        {"format_type": "custom", "template": "{q} {a}", "label_column": "a", "train_on": {"reasoning": 0}},
        "need rows that go through a chat template",
    ),
    "prompts alone": ({"prompt": [Q1]}, {"format_type": "prompt_only", "train_on": {"stop": 0}}, "have no effect"),
    "halves in preference data": (
        {"prompt": [Q1], "chosen": [answer("A")], "rejected": [answer("B")]},
        {"format_type": "preference", "train_on": {"reasoning": 0.5}},
        "use 0 and 1 in place of reasoning: 0.5",
    ),
    "exact turns of users": (
        {"messages": [Q1, answer("A")]},
        {"format_type": "chat", "turns": "exact", "train_on": {"assistant": 1, "user": 1}},
        "exact trains what the model writes",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_weights_without_effect_are_an_error(case: str, tokenizer: Path, tmp_path: Path) -> None:
    row, prompt, expected = UNFIT[case]
    (tmp_path / "rows.jsonl").write_text("\n".join([json.dumps(row)] * 3))
    tokens = {"name_or_path": str(tokenizer), "chat_template": "chatml"}
    with pytest.raises(ConfigError, match=expected):
        built(tmp_path / "rows.jsonl", tmp_path / "store", "prompts", tokenizer=tokens, prompt_template=prompt)


def test_a_template_that_never_shows_the_kinds_is_an_error(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": [Q1, answer("A")]}))
    opened = OWN_TEMPLATES["chatml"].replace("{% if message.reasoning_content %}", "{{ '<think>\\n' }}{% if false %}")
    tokens = {"name_or_path": str(tokenizer), "chat_template": opened}
    prompt = {"format_type": "chat", "train_on": {"reasoning": 0}}
    with pytest.raises(ConfigError, match="content or reasoning, whose weights differ"):
        built(tmp_path / "rows.jsonl", tmp_path / "store", "prompts", tokenizer=tokens, prompt_template=prompt)


def test_preference_data_mask_kinds_on_both_sides() -> None:
    chat = chat_of("qwen3", train_on={"reasoning": 0})
    table = canonical(
        as_json({"prompt": [Q1], "chosen": [answer("A", thought="T")], "rejected": [answer(INLINE)]}), form="preference"
    ).table
    for side in ("chosen", "rejected"):
        other = table.select([ROW, "prompt", side]).rename_columns([ROW, "prompt", "completion"])
        (row,) = chat.render(other).table.to_pylist()
        assert "".join(text for _, text, weight in parts_of(row) if weight) == "A<|im_end|>"


def test_the_certificate_lists_the_kinds() -> None:
    (finding,) = (each for each in certificate(chat_of("qwen3", train_on={"stop": 0})) if each["name"] == "kinds")
    assert finding["found"] == (
        "answers: reasoning, content, stop; reasoning: reasoning, content, stop; "
        "inline reasoning: reasoning, content, stop; tool calls: tool_call, stop, reasoning, content"
    )
    assert next(each for each in certificate(chat_of("qwen3", train_on={"stop": 0})) if each["name"] == "stop")[
        "found"
    ].startswith("trained")
    assert not [each for each in certificate(chat_of("qwen3")) if each["name"] == "kinds"]


def counted_rows() -> list[list[Message]]:
    rows = []
    for number in range(12):
        here = f"{number}x"
        talk = [{"role": "user", "content": f"where is it {here}? " * 8}]
        talk += [answer("", f"Rome{here}", thought=f"look {here}"), {**RESULT, "content": f"sunny {here}"}] * (
            number % 2
        )
        rows.append([*talk, answer(f"It is sunny {here}. " * (number + 1), thought=f"so {here} " * 3)])
    return rows


def counters_of(tmp_path: Path, tokenizer: Path, train_on: Any, **length: Any) -> dict[str, int]:
    source = tmp_path / "counted.jsonl"
    source.write_text("\n".join(json.dumps({"messages": talk}) for talk in counted_rows()))
    tokens = {"name_or_path": str(tokenizer), "chat_template": Twins("qwen3").plain, "max_length": 192}
    prompt = {"format_type": "chat", "train_on": train_on}
    build = built(source, tmp_path / "store", "sequences", tokenizer=tokens, prompt_template=prompt, length=length)
    return dict(build.manifest("sequences").counters)


PARTS = ("content", "reasoning", "tool_call", "stop")


STRATEGIES = ["smart", "truncate_left", *(["truncate_right", "split"] if SOAK else [])]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_trained_tokens_are_counted_by_kind(strategy: str, tokenizer: Path, tmp_path: Path) -> None:
    """The counts of the kinds are those of builds that train each kind alone, and add up to all trained tokens."""
    base = counters_of(tmp_path, tokenizer, "completions", strategy=strategy)
    whole = counters_of(tmp_path, tokenizer, ALL_ONE, strategy=strategy)
    assert sum(whole[f"trained_tokens.{part}"] for part in PARTS) == whole["trained_tokens.assistant"]
    by_kind = {f"trained_tokens.{part}" for part in PARTS}
    assert {name: n for name, n in whole.items() if name not in by_kind} == {
        name: n for name, n in base.items() if name not in by_kind
    }
    for kind, part in KIND_PARTS.items():
        masked = counters_of(tmp_path, tokenizer, {**ALL_ONE, kind: 0}, strategy=strategy)
        assert f"trained_tokens.{part}" not in masked
        others = [f"trained_tokens.{other}" for other in PARTS if other != part]
        if strategy != "truncate_left":  # masks stops that no longer follow their answer
            assert [masked[name] for name in others] == [whole[name] for name in others]
        assert masked["tokens_trained"] == sum(masked[name] for name in others)


@pytest.mark.parametrize("kind", ["content", "reasoning", "stop"])
def test_masked_kinds_do_not_change_how_answers_are_counted(kind: str, tokenizer: Path, tmp_path: Path) -> None:
    """Answers are the same; a masked stop is not a lost one, and masked reasoning is no context to truncate first."""
    base = counters_of(tmp_path, tokenizer, ALL_ONE)
    masked = counters_of(tmp_path, tokenizer, {**ALL_ONE, kind: 0})
    assert base["answers"] == masked["answers"] == 18
    assert base["answers_without_stop"] > 0
    assert masked["answers_without_stop"] == (0 if kind == "stop" else base["answers_without_stop"])
    assert masked["tokens_cut"] == base["tokens_cut"]


def test_a_row_without_a_trained_kind_is_rejected_for_that(tokenizer: Path, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(json.dumps({"messages": talk}) for talk in counted_rows()))
    tokens = {"name_or_path": str(tokenizer), "chat_template": Twins("qwen3").plain}
    prompt = {"format_type": "chat", "train_on": {"assistant": 0, "tool_calls": 1}}
    more = {"validation": {"max_reject_fraction": 1.0}}
    build = built(source, tmp_path / "store", "sequences", tokenizer=tokens, prompt_template=prompt, **more)
    (chunk,) = build.manifest("sequences").chunks
    rejects = build.store.objects.get(str(chunk.rejects))
    assert rejects["code"].to_pylist() == ["nothing_trained"] * 6
    assert rejects[ROW].to_pylist() == [*range(0, 12, 2)]


def test_the_default_has_the_roles_and_weights_that_it_had() -> None:
    (row,) = rendered(chat_of("qwen3"), [Q1, answer("", "Rome", thought="T"), RESULT, answer("A")])
    assert {role for role, _, _ in parts_of(row)} == {"template", "user", "tool", "assistant", "reasoning", "tool_call"}
    assert {weight for *_, weight in parts_of(row)} == {0.0, 1.0}
