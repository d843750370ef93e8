"""Turns in templates without generation marks: everything from the generation prompt to the stop is trained.

Expected texts are differences of what `transformers` renders, or are written by hand next to their templates
(support/chat_templates).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from support.canonical_tables import Row, field_of, said, table_of, weighted_parts
from support.canonical_tables import call as made_call
from support.columns_stage import canonical
from support.paths import CHAT_TEMPLATES
from support.rendered_prompts import assert_partition, trained_parts
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.prompts.spans import SPAN_ROLES
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PromptTemplateConfig
from tokenloom.resources.templates.jinja import JinjaTemplate

TEMPLATES = {path.stem: path.read_text() for path in CHAT_TEMPLATES.glob("*.jinja")}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CONTROL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<think>", "</think>"),
    *("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>", "<|observation|>", "<|user|>"),
)
WEATHER = json.dumps([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}])


def chat(template: str, bos: str | None = None, eos: str | None = None, **prompt: Any) -> ChatFormat:
    source = TEMPLATES.get(template, template)
    settings = PromptTemplateConfig(format_type="chat", **prompt)
    return ChatFormat(JinjaTemplate(source), settings, TOKENS, CONTROL, bos, eos)


def render(template: str, rows: list[Row], **options: Any) -> ChunkOutput:
    out = chat(template, **options).render(table_of("messages", rows))
    assert out.table.num_rows + out.rejects.num_rows == len(rows)
    for made in out.table.to_pylist():
        assert_partition(made["text"], made["spans"])
    return out


def parts(template: str, talk: list[Row], tools: str = "", **options: Any) -> list[str] | str:
    """Return the trained parts of a conversation, or its reject code."""
    out = render(template, [{"messages": talk, "tools": tools}], **options)
    if out.rejects.num_rows:
        return out.rejects["code"][0].as_py()
    (made,) = out.table.to_pylist()
    return trained_parts(made["text"], made["spans"])


def call(name: str = "weather", arguments: Any = '{"in": "Rome"}', identity: str | None = None) -> Row:
    """A call; its arguments are an object if the text is one."""
    return made_call(name, json.loads(arguments), identity)


def calls_of(turn: Row) -> list[Row]:
    return field_of(turn, "tool_calls") or []


def as_read(talk: list[Row]) -> list[Row]:
    """Return messages as a caller of `transformers` passes them."""
    return [
        {"role": turn["role"], "content": turn["content"], **({"tool_calls": calls_of(turn)} if calls_of(turn) else {})}
        for turn in talk
    ]


def transformers_text(template: str, messages: list[Row], tools: str, prompt: bool = False) -> str:
    told = json.loads(tools) if tools else None
    given: dict[str, Any] = {"chat_template": template, "add_generation_prompt": prompt, **TOKENS}
    return render_jinja_template([messages], tools=told, **given)[0][0]


def expected_parts(template: str, talk: list[Row], tools: str) -> list[str]:
    """Return for each answer the text that it adds to what `transformers` renders for the messages before it."""
    messages = as_read(talk)
    whole, found = transformers_text(template, messages, tools), []
    for index, turn in enumerate(talk):
        if turn["role"] != "assistant":
            continue
        asked, told = (transformers_text(template, messages[:index], given, True) for given in (tools, ""))
        before = asked if whole.startswith(asked) else told  # tools that stand further behind
        answered = transformers_text(template, messages[: index + 1], tools if before is asked else "").rstrip()
        assert whole.startswith(answered) and answered.startswith(before)
        part = answered[len(before) :]
        found.append(part if calls_of(turn) else part.lstrip(" "))
    return found


def glaive_rows(real_data: Path) -> list[Row]:
    records = json.loads((real_data / "chat" / "glaive_toolcall_en_demo.json").read_text(encoding="utf-8"))
    rows = canonical(records).table.to_pylist()
    assert sum(any(calls_of(turn) for turn in row["messages"]) for row in rows) > 150
    return rows


@pytest.mark.parametrize("name", ["hermes", "headers", "brackets", "qwen2.5-instruct"])
def test_real_tool_conversations_train_what_follows_the_generation_prompt(real_data: Path, name: str) -> None:
    template = TEMPLATES.get(name) or (real_data / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
    rows = glaive_rows(real_data)
    out = render(template, rows)
    assert out.table.num_rows == len(rows), out.rejects.to_pylist()[:3]
    for row, made in zip(rows, out.table.to_pylist(), strict=True):
        assert made["text"] == transformers_text(template, as_read(row["messages"]), row["tools"])
        assert trained_parts(made["text"], made["spans"]) == expected_parts(template, row["messages"], row["tools"])


def hermes(talk: list[Row], weights: list[float]) -> tuple[str, list[tuple[str, float]]]:
    """Return what support/chat_templates/hermes.jinja renders for a conversation, and its weighted parts."""
    text, found = "", []
    for index, (turn, weight) in enumerate(zip(talk, weights, strict=True)):
        head, body, tail = f"<|im_start|>{turn['role']}\n", turn["content"], "<|im_end|>"
        for made in (found["function"] for found in calls_of(turn)):
            arguments = json.dumps(made["arguments"], ensure_ascii=False)
            body += "\n" if body else ""
            body += f'<tool_call>\n{{"name": "{made["name"]}", "arguments": {arguments}}}\n</tool_call>'
        if turn["role"] == "tool":
            follows, goes_on = (0 <= at < len(talk) and talk[at]["role"] == "tool" for at in (index - 1, index + 1))
            text += ("" if follows else "<|im_start|>user") + f"\n<tool_response>\n{body}\n</tool_response>"
            text += "" if goes_on else f"{tail}\n"
            continue
        text += head + body + tail + "\n"
        if weight:
            found.append((body + tail, weight))
    return text, found


words = st.text(st.sampled_from("ab é你\n\"\\{}'"), max_size=6)
names = st.text(st.sampled_from("ab_.-é"), min_size=1, max_size=4)
calls = st.lists(st.builds(call, names, st.dictionaries(words, words).map(json.dumps)), min_size=1, max_size=3)
weights = st.sampled_from([None, None, 0.0, 0.5, 2.0])
turns = st.one_of(
    st.builds(lambda text, weight: said("user", text, weight=weight), words, weights),
    st.builds(lambda text: said("tool", text), words),
    st.builds(lambda text, weight: said("assistant", text, weight=weight), words, weights),
    st.builds(
        lambda text, found, weight: said("assistant", text, tool_calls=found, weight=weight), words, calls, weights
    ),
)


talks = st.builds(
    lambda asked, rest: [said("user", asked), *rest],
    words,
    st.lists(turns, max_size=4),
)


@given(st.lists(talks, max_size=4), st.sampled_from(["completions", "last", ["user"]]))
def test_calls_contents_and_stops_get_their_messages_weight(talks: list[list[Row]], train_on: Any) -> None:
    out = render("hermes", [{"messages": talk} for talk in talks], train_on=train_on)
    assert out.table[ROW].to_pylist() == list(range(len(talks)))
    for talk, made in zip(talks, out.table.to_pylist(), strict=True):
        answers = [index for index, turn in enumerate(talk) if turn["role"] == "assistant"]
        chosen = {
            "completions": answers,
            "last": answers[-1:],
        }.get(str(train_on), [index for index, turn in enumerate(talk) if turn["role"] == "user"])
        named = {"assistant", *(train_on if isinstance(train_on, list) else ())}
        counts = [
            float(i in chosen) if turn["weight"] is None or turn["role"] not in named else turn["weight"]
            for i, turn in enumerate(talk)
        ]
        text, expected = hermes(talk, counts)
        assert made["text"] == text
        assert weighted_parts(made["text"], made["spans"]) == expected


@given(talks)
def test_masked_turns_stay_masked_with_train_on_all(talk: list[Row]) -> None:
    (made,) = render("hermes", [{"messages": talk}], train_on="all").table.to_pylist()
    text, masked = hermes(talk, [float(turn["weight"] == 0.0) for turn in talk])
    assert made["text"] == text
    turned = [{**span, "weight": float(span["weight"] == 0.0)} for span in made["spans"]]
    assert trained_parts(made["text"], turned) == [part for part, _ in masked]


Q1, Q2, R1, R2 = said("user", "Q1"), said("user", "Q2"), said("tool", "R1"), said("tool", "R2")
A1, A2 = said("assistant", "A1"), said("assistant", "A2")
C1 = said("assistant", tool_calls=[call()])
BOTH = said("assistant", "Let me see.", tool_calls=[call("f", "{}"), call("g", '{"a": [1]}')])
THOUGHT1, THOUGHT2 = {**A1, "reasoning": "T1"}, {**A2, "reasoning": "\nT2 "}
THINKS = {**C1, "reasoning": "T1"}
IM, EMPTY = "<|im_end|>", "<think>\n\n</think>\n\n"
CALLED = '<tool_call>\n{"name": "weather", "arguments": {"in": "Rome"}}\n</tool_call>'
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
TO = ' to=functions.weather<|channel|>commentary<|message|>{"in": "Rome"}<|call|>'


@pytest.mark.parametrize(
    ("template", "talk", "expected"),
    [
        ("hermes", [Q1, BOTH, R1, R2, A1], [
            'Let me see.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
            f'<tool_call>\n{{"name": "g", "arguments": {{"a": [1]}}}}\n</tool_call>{IM}', f"A1{IM}"]),
        ("hermes", [Q1, C1], [CALLED + IM]),
        ("hermes", [Q1, A1, C1, R1], [f"A1{IM}", CALLED + IM]),
        ("headers", [Q1, C1, R1, A1], ['{"name": "weather", "parameters": {"in": "Rome"}}<|eom_id|>', "A1<|eot_id|>"]),
        ("headers", [Q1, BOTH], "template_refused"),
        ("headers", [Q1, said("assistant", "Let me see.", tool_calls=[call()])], "content_dropped"),
        ("brackets", [Q1, C1, R1, A1, Q2, A2],
         ['[TOOL_CALLS] [{"name": "weather", "arguments": {"in": "Rome"}, "id": "none"}]</s>', "A1</s>", "A2</s>"]),
        ("thinking", [Q1, A1, Q2, A2], [f"A1{IM}", f"{EMPTY}A2{IM}"]),
        ("thinking", [Q1, THOUGHT1, Q2, THOUGHT2], [f"A1{IM}", f"<think>\nT2 \n</think>\n\nA2{IM}"]),
        ("thinking", [Q1, THINKS, R1, THOUGHT2],
         [f"<think>\nT1\n</think>\n\n{CALLED}{IM}",
          f"<think>\nT2 \n</think>\n\nA2{IM}"]),
        ("thinking", [Q1, THINKS, R1, A1, Q2, A2], [CALLED + IM, f"A1{IM}", f"{EMPTY}A2{IM}"]),
        ("thinking", [Q1, {**THOUGHT1, "content": ""}], [f"<think>\nT1\n</think>\n\n{IM}"]),
        ("thinking", [Q1, {**THOUGHT1, "reasoning": ""}], [f"{EMPTY}A1{IM}"]),
        ("channels", [Q1, A1, Q2, A2], [f"{FINAL}A1<|end|>", f"{FINAL}A2<|return|>"]),
        ("channels", [Q1, THINKS, R1, {**A1, "reasoning": "T2"}],
         [f"{ANALYSIS}T1<|end|><|start|>assistant{TO}", f"{ANALYSIS}T2<|end|><|start|>assistant{FINAL}A1<|return|>"]),
        ("channels", [Q1, THOUGHT1, Q2, A2], [f"{FINAL}A1<|end|>", f"{FINAL}A2<|return|>"]),
        ("channels", [Q1, {**BOTH, "content": ""}], "tool_calls_ignored"),
        ("hermes", [Q1, THOUGHT1], "reasoning_ignored"),
        ("hermes", [Q1, THINKS, R1, A1], "reasoning_ignored"),
        ("hermes", [Q1, THOUGHT1, Q2, A2], [f"A1{IM}", f"A2{IM}"]),
    ],
)  # fmt: skip
def test_what_each_family_of_templates_generates_is_trained(template: str, talk: list[Row], expected: Any) -> None:
    assert parts(template, talk, train_on="completions") == expected


@pytest.mark.parametrize(
    ("train_on", "expected"),
    [
        ("last", [f"A1{IM}"]),
        (["assistant"], [CALLED + IM, f"A1{IM}"]),
        (["user"], [f"Q1{IM}"]),
    ],
)
def test_train_on_chooses_among_turns_with_calls(train_on: Any, expected: list[str]) -> None:
    assert parts("hermes", [Q1, C1, R1, A1], train_on=train_on) == expected
    if train_on == "last":
        assert parts("hermes", [Q1, A1, Q2, C1], train_on=train_on) == [CALLED + IM]


HERMES = TEMPLATES["hermes"]
PROMPT = "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
UNTOLD = {
    "no generation prompt": HERMES.replace(PROMPT, ""),
    "another generation prompt": HERMES.replace(PROMPT, PROMPT.replace("assistant", "model")),
    "a beginning that goes on otherwise": "{{ messages | length }}" + HERMES,
    "an end that is not an end": HERMES.replace("<|im_end|>\\n' }}\n    {%- elif message.role == 'tool'", (
        "' + ('<|end|>' if loop.last else '<|im_end|>') + '\\n' }}\n    {%- elif message.role == 'tool'")),
    "names changed": HERMES.replace("call.function.name", "(call.function.name | tojson)[1:-1]"),
    "no conversation ends with a call": HERMES + (
        "{% if messages[-1].tool_calls %}{{ raise_exception('call') }}{% endif %}"),
}  # fmt: skip


@pytest.mark.parametrize("reason", UNTOLD)
def test_calls_with_unknown_boundaries_are_rejected(reason: str) -> None:
    template, odd = (
        UNTOLD[reason],
        said("assistant", tool_calls=[call('"' if reason == "names changed" else "weather")]),
    )
    assert template != HERMES
    rows = [{"messages": [Q1, odd, R1, A1]}, {"messages": [Q1, A1]}, {"messages": [Q1, {**odd, "weight": 0.0}, R1, A1]}]
    out = render(template, rows)
    assert out.rejects.select([ROW, "code"]).to_pylist() == [{ROW: 0, "code": "tool_calls"}]
    assert "message 1" in out.rejects["message"][0].as_py()
    assert [trained_parts(made["text"], made["spans"])[-1] for made in out.table.to_pylist()] == [f"A1{IM}"] * 2 or (
        reason == "an end that is not an end"
    )


def test_a_template_without_generation_prompt_for_calls_only_is_rejected() -> None:
    """Without a plain answer to compare with, the header of a turn cannot be determined."""
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' and not m.tool_calls %}{{ raise_exception('calls only') }}"
        "{% endif %}{{ '<|im_start|>' + m.role + m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        "{% endfor %}{{ '<|im_end|>' }}{% endfor %}"
    )
    assert parts(template, [Q1, C1]) == "tool_calls"
    assert parts(template, [Q1, {**C1, "weight": 0.0}]) == []


INSIDE = (
    "{% for m in messages %}{% set following = messages[loop.index0 + 1] %}"
    "{% if m.role == 'user' %}<user>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<bot>{% for c in m.tool_calls or [] %}[{{ c.function.name }}]"
    "{% if following %}({{ following.content }}){% endif %}{% endfor %}{{ m.content }}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)
"""Writes the result of a call into the turn that calls, before its content."""


def test_a_turn_that_another_message_is_written_into_is_rejected() -> None:
    calls = said("assistant", "Sunny.", tool_calls=[call()])
    out = render(INSIDE, [{"messages": talk} for talk in ([Q1, calls, R1, A1], [Q1, A1], [Q1, calls])])
    assert out.rejects.select([ROW, "code"]).to_pylist() == [{ROW: 0, "code": "tool_calls"}]
    assert "the template writes the results of its calls into it" in out.rejects["message"][0].as_py()
    made = [trained_parts(row["text"], row["spans"]) for row in out.table.to_pylist()]
    assert made == [["A1<end>"], ["[weather]Sunny.<end>"]]


def test_a_name_that_the_template_escapes_moves_nothing_else() -> None:
    masked = said("assistant", tool_calls=[call('a"b')], weight=0.0)
    (part,) = parts("thinking", [Q1, masked, R1, A1])
    assert part in (f"A1{IM}", f"{EMPTY}A1{IM}")


def test_reasoning_with_unknown_boundaries_is_rejected() -> None:
    template = "{{ messages | length }}" + TEMPLATES["thinking"]
    assert parts(template, [Q1, THOUGHT1]) == "reasoning"
    assert parts(template, [Q1, {**THOUGHT1, "weight": 0.0}]) == []


MERGES = (
    "{% for m in messages %}"
    "{% if m.role != 'assistant' or loop.first or messages[loop.index0 - 1].role != 'assistant' %}"
    "{{ '<|im_start|>' + m.role + '\n' }}{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '<call>' + c.function.name + '</call>' }}{% endfor %}"
    "{% if loop.last or m.role != 'assistant' or messages[loop.index0 + 1].role != 'assistant' %}{{ '<|im_end|>\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_merged_answers_are_trained_only_if_their_ends_are_known() -> None:
    assert parts(MERGES, [Q1, C1]) == ["<call>weather</call><|im_end|>"]
    assert parts(MERGES, [Q1, A1, C1]) == "tool_calls"
    assert parts(MERGES, [Q1, C1, A1]) == "tool_calls"


def test_control_tokens_of_a_call_belong_to_its_message() -> None:
    (made,) = render("hermes", [{"messages": [Q1, C1, R1, A1]}]).table.to_pylist()
    data = made["text"].encode()
    mine = [span for span in made["spans"] if span["message"] == 1]
    assert "".join(data[span["start"] : span["end"]].decode() for span in mine) == CALLED + IM
    control = [data[span["start"] : span["end"]].decode() for span in mine if span["control"]]
    assert control == ["<tool_call>", "</tool_call>", IM]
    assert {(SPAN_ROLES[span["role"]], span["weight"]) for span in mine} == {("assistant", 1.0), ("tool_call", 1.0)}


BARE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '{' + c.function.name + '}' }}{% endfor %}{{ STOP + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("stop", "ended"),
    [("''", "</s>"), ("'<|im_end|>'", "<|im_end|>"), ("'\n####'", "\n####"), ("eos_token", "</s>")],
)
def test_eos_follows_a_last_call_only_if_the_template_writes_no_stop(stop: str, ended: str) -> None:
    template = BARE.replace("STOP", stop)
    for talk in ([Q1, C1], [Q1, A1, Q2, C1], [Q1, C1, R1]):
        assert parts(template, talk, eos="</s>")[-1] == "{weather}" + ended
    assert parts(template, [Q1, {**C1, "weight": 0.0}], eos="</s>") == []


def test_eos_is_not_added_after_a_marked_call_with_a_stop() -> None:
    marked = HERMES.replace("{{- '<|im_start|>assistant\\n' + message.content }}", (
        "{{- '<|im_start|>assistant\\n' }}{% generation %}{{ message.content }}")).replace(
        "{{- '<|im_end|>\\n' }}\n    {%- elif message.role == 'tool'", (
        "{{- '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}\n    {%- elif message.role == 'tool'"))  # fmt: skip
    assert parts(marked, [Q1, C1], eos="</s>") == parts("hermes", [Q1, C1], eos="</s>") == [CALLED + IM]
    unstopped = marked.replace("'<|im_end|>' }}{% endgen", "'' }}{% endgen")
    assert parts(unstopped, [Q1, C1], eos="</s>") == [CALLED + "</s>"]


def test_without_stops_the_next_speaker_ends_answers_and_calls() -> None:
    template = (
        "{% for m in messages %}{{ {'tool': '<|observation|>', 'user': '<|user|>'}.get(m.role, '<|start|>') }}"
        "{{ m.content }}{% for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function.name + '</tool_call>' }}"
        "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>' }}{% endif %}"
    )
    expected = ["<tool_call>weather</tool_call><|observation|>", "A1<|user|>", "A2</s>"]
    assert parts(template, [Q1, C1, R1, A1, Q2, A2], eos="</s>") == expected


@pytest.mark.parametrize("template", TEMPLATES)
def test_omitted_tools_are_rejected(template: str) -> None:
    assert isinstance(parts(template, [Q1, A1], WEATHER), list)
    deaf = TEMPLATES[template].replace("if tools", "if nothing")
    assert parts(deaf, [Q1, A1], WEATHER) == "tools_ignored"
    assert isinstance(parts(deaf, [Q1, A1]), list)


EMPTY_QUESTION, EMPTY_ANSWER = said("user"), said("assistant")


@pytest.mark.parametrize(
    ("talk", "train_on", "expected"),
    [
        ([EMPTY_QUESTION, A1], ["user"], [IM]),
        ([Q1, A1, EMPTY_QUESTION, A2], ["user"], [f"Q1{IM}", IM]),
        ([{**EMPTY_QUESTION, "weight": 1.0}, A1], ["user", "assistant"], [IM, f"A1{IM}"]),
        ([said("system", weight=1.0), Q1, A1], ["system", "assistant"], [IM, f"A1{IM}"]),
        ([Q1, EMPTY_ANSWER, Q2, A2], "completions", [IM, f"A2{IM}"]),
        ([Q1, {**EMPTY_ANSWER, "weight": 0.0}, Q2, A2], "completions", [f"A2{IM}"]),
        ([EMPTY_QUESTION, A1], "completions", [f"A1{IM}"]),
    ],
)
def test_the_stop_of_an_empty_message_has_its_weight(talk: Any, train_on: Any, expected: list[str]) -> None:
    assert parts("hermes", talk, train_on=train_on, eos="</s>") == expected


def test_an_empty_message_that_leaves_no_trace_has_no_stop() -> None:
    template = "{% for m in messages if m.content %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}"
    assert parts(template, [EMPTY_QUESTION, A1], train_on=["user"]) == []


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Co"])), min_size=1, max_size=5))
def test_results_written_as_json_are_rendered(results: list[str]) -> None:
    rows = [{"messages": [Q1, C1, said("tool", text), A1]} for text in results]
    out = render("headers", rows)
    for made in out.table.to_pylist():
        text = results[made[ROW]]
        assert json.dumps(text, ensure_ascii=False) in made["text"]
        assert made["text"] == transformers_text(TEMPLATES["headers"], as_read(rows[made[ROW]]["messages"]), "")
        (span,) = [span for span in made["spans"] if span["role"] == 4] or [None]
        found = "" if span is None else made["text"].encode()[span["start"] : span["end"]].decode()
        assert found == json.dumps(text, ensure_ascii=False)[1:-1]
    assert out.table.num_rows == len(results)


SPLITS = HERMES.replace("message.content", "message.content.split('</think>')[-1]")


@pytest.mark.parametrize(
    ("template", "content", "expected"),
    [
        ("hermes", "<think>T</think>A", [f"<think>T</think>A{IM}"]),
        ("thinking", "<think>\nT\n</think>\n\nA", [f"<think>\nT\n</think>\n\nA{IM}"]),
        ("thinking", "<think>T\n\n</think>A", [f"<think>\nT\n</think>\n\nA{IM}"]),
        ("thinking", "<think>\n\n</think>\n\nA", [f"{EMPTY}A{IM}"]),
        ("thinking", "Well, <think>T</think>A", "unverified_spans"),
        ("thinking", "<think>T</think>A</think>B", "unverified_spans"),
        (SPLITS, "<think>T</think>A", "reasoning_ignored"),
        ("thinking", "no thought", [f"{EMPTY}no thought{IM}"]),
        ("thinking", "<think> never ends", [f"{EMPTY}<think> never ends{IM}"]),
    ],
)
def test_inline_reasoning_is_rendered_if_the_template_keeps_it(template: str, content: str, expected: Any) -> None:
    assert parts(template, [Q1, said("assistant", content)]) == expected
    if isinstance(expected, list):
        texts = render(template, [{"messages": [Q1, said("assistant", content)]}]).table["text"].to_pylist()
        messages = [{"role": "user", "content": "Q1"}, {"role": "assistant", "content": content}]
        assert texts == [transformers_text(TEMPLATES[template], messages, "")]


@given(
    st.lists(st.tuples(st.text(st.sampled_from("ab é\n<>/{}")), st.text(st.sampled_from("ab é\n<>/{}"))), max_size=6)
)
def test_inline_reasoning_of_many_rows_is_what_the_template_writes(said_so: list[tuple[str, str]]) -> None:
    contents = [f"<think>{thought}</think>{text}x" for thought, text in said_so] + ["plain", "<think>open"]
    rows = [{"messages": [Q1, said("assistant", content), Q2, said("assistant", content)]} for content in contents]
    out = render("thinking", rows)
    assert out.table[ROW].to_pylist() == list(range(len(rows)))
    for content, made in zip(contents, out.table.to_pylist(), strict=True):
        turns = [
            {"role": role, "content": text}
            for role, text in zip(("user", "assistant") * 2, ("Q1", content, "Q2", content), strict=True)
        ]
        assert made["text"] == transformers_text(TEMPLATES["thinking"], turns, "")
        asked = transformers_text(TEMPLATES["thinking"], turns[:3], "", prompt=True)
        assert trained_parts(made["text"], made["spans"])[-1] == made["text"].removeprefix(asked).rstrip()


CHANGED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content | upper | replace('A', 'AA') }}{{ '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content }}"
    "{{ '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
)


def test_generation_marks_decide_also_where_the_template_changes_contents() -> None:
    talk = [Q1, said("assistant", "a b"), Q2, said("assistant", "éa")]
    assert parts(CHANGED, talk) == [f"AA B{IM}", f"ÉAA{IM}"]
    assert parts(CHANGED, talk, train_on="last") == [f"ÉAA{IM}"]
    assert parts(CHANGED, [Q1, said("assistant", f"a{IM}")]) == "control_token_in_content"
    masked = {**talk[1], "weight": 0.0}
    assert parts(CHANGED, [Q1, masked, *talk[2:]]) == [f"ÉAA{IM}"]
    assert parts(CHANGED, talk, eos="</s>") == [f"AA B{IM}", f"ÉAA{IM}"]
    unstopped = CHANGED.replace("{{ '<|im_end|>' }}{% endgeneration %}", "{% endgeneration %}")
    assert parts(unstopped, talk, eos="</s>") == ["AA B", "ÉAA</s>"]


@given(st.lists(st.tuples(words, st.one_of(st.none(), words)), min_size=1, max_size=6))
def test_reasoning_is_placed_as_the_template_does(said_so: list[tuple[str, str | None]]) -> None:
    rows = [{"messages": [Q1, said("assistant", "A" + text, reasoning=thought)]} for text, thought in said_so]
    out = render("thinking", rows)
    assert out.table[ROW].to_pylist() == list(range(len(rows)))
    for (text, thought), made in zip(said_so, out.table.to_pylist(), strict=True):
        stripped = (thought or "").strip("\n")
        assert trained_parts(made["text"], made["spans"]) == [f"<think>\n{stripped}\n</think>\n\nA{text}{IM}"]


def test_templates_get_reasoning_under_every_usual_name() -> None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        turn = "{{ m.role }}:{% if m.NAME %}[{{ m.NAME }}]{% endif %}{{ m.content }}</s>".replace("NAME", name)
        out = render("{% for m in messages %}" + turn + "{% endfor %}", [{"messages": [Q1, THOUGHT1]}], train_on="all")
        assert out.table["text"].to_pylist() == ["user:Q1</s>assistant:[T1]A1</s>"]


def test_rows_with_reasoning_none_and_an_empty_one_do_not_mix() -> None:
    rows = [{"messages": [Q1, {**A1, "reasoning": thought}]} for thought in ("T", None, "", "U", None)]
    template = (
        "{% for m in messages %}{{ m.role }}:"
        "{{ '(' + m.reasoning_content + ')' if m.reasoning_content is defined else '-' }}"
        "{{ m.content }}</s>{% endfor %}"
    )
    out = render(template, rows, train_on="all")
    middle = [text.split("assistant:")[1] for text in out.table["text"].to_pylist()]
    assert middle == ["(T)A1</s>", "-A1</s>", "()A1</s>", "(U)A1</s>", "-A1</s>"]
