"""Messages reach a chat template as the source has them: the text is what `apply_chat_template` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from support.canonical_tables import call, config_of, prompts_of, weighted_parts
from support.columns_stage import Row, as_json, canonical
from tokenloom.assets.stage.rejects import ROW

EVERYTHING = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{{ note is defined and note | tojson }}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.content is defined %}"
    "{% if m.content is string %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% else %}{{ m.content | tojson }}{% endif %}{% endif %}"
    "{% for name, value in m.items() if name not in ('role', 'content', 'reasoning') %}"
    "{{ ';' + name + '=' + value | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
)
"""Writes all that a template gets, in its order; `reasoning` is another name for `reasoning_content`."""

words = st.text(st.sampled_from("ab é你\n\"\\{}'"), max_size=5)
numbers = st.one_of(st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.sampled_from([1, 1.0, 0, -0.0, 1e16]))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), words, numbers),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=6,
)
objects = st.dictionaries(words, values, max_size=3)
named = st.builds(lambda name, more: {"name": name, **more}, words, st.fixed_dictionaries({}, optional={"x": values}))
calls = st.lists(
    st.builds(
        lambda arguments, more: {**call("find", arguments), **more},
        objects,
        st.fixed_dictionaries({}, optional={"id": st.one_of(words, st.integers())}),
    ),
    min_size=1,
    max_size=2,
)
thoughts = {"reasoning_content": st.one_of(st.none(), words), "thinking": st.one_of(st.booleans(), words)}
extra = st.fixed_dictionaries(
    {}, optional={"name": words, "meta": values, "id": st.one_of(st.none(), numbers), **thoughts}
)
asked = st.builds(lambda text, more: {"role": "user", "content": text, **more}, words, extra)
answered = st.builds(lambda text, more: {"role": "assistant", "content": f"a{text}", **more}, words, extra)
calling = st.builds(
    lambda content, found, more: {"role": "assistant", **content, "tool_calls": found, **more},
    st.sampled_from([{}, {"content": None}, {"content": ""}]),
    calls,
    extra,
)
result = st.builds(
    lambda content, more: {"role": "tool", "content": content, "tool_call_id": "1", **more},
    st.one_of(words, objects, st.lists(objects.map(lambda given: {"day": 1, **given}), max_size=2)),
    extra,
)
rows = st.builds(
    lambda first, rest, last, more: {"messages": [first, *rest, last], **more},
    asked,
    st.lists(st.one_of(asked, answered, calling, result), max_size=3),
    answered,
    st.fixed_dictionaries(
        {},
        optional={
            "tools": st.lists(named, min_size=1, max_size=2),
            "kwargs": values.map(lambda value: {"note": value}),
        },
    ),
)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)


def read(table: pa.Table, folder: Path, template: str, **prompt: Any) -> tuple[dict[int, Row], dict[int, str]]:
    """Return the rendered rows, and the codes of the rejected ones, by position."""
    names = {"messages": "messages", "tools": "tools", "template_kwargs": "kwargs"}
    roles = {role: name for role, name in names.items() if name in table.column_names}
    found = canonical(table, dataset={"column_mapping": roles})
    out = prompts_of("messages", found.table, config_of(folder, {"add_eos": False, **prompt}, template))
    rejects = {row[ROW]: row["code"] for rejected in (found, out) for row in rejected.rejects.to_pylist()}
    rendered = {row[ROW]: row for row in out.table.to_pylist()}
    return {row // 2: made for row, made in rendered.items()}, {row // 2: code for row, code in rejects.items()}


def written(tokenizer: PreTrainedTokenizerFast, template: str, row: Row) -> str:
    text = tokenizer.apply_chat_template(
        row["messages"], tools=row.get("tools"), chat_template=template, tokenize=False, **(row.get("kwargs") or {})
    )
    assert isinstance(text, str)
    return text


@given(st.lists(rows, min_size=1, max_size=4))
def test_templates_get_what_python_reads(
    tokenizer_folder: Path, tokenizer: PreTrainedTokenizerFast, given_rows: list[Row]
) -> None:
    """Rows as JSON, in one file and alone."""
    table = as_json(*given_rows)
    made, rejects = read(table, tokenizer_folder, EVERYTHING)
    assert not rejects
    for number, row in enumerate(given_rows):
        assert made[number]["text"] == written(tokenizer, EVERYTHING, row)
        alone, _ = read(as_json(row), tokenizer_folder, EVERYTHING)
        assert alone[0]["text"] == made[number]["text"]
        answers = [turn["content"] for turn in row["messages"] if turn["role"] == "assistant" and turn.get("content")]
        assert [part for part, _ in weighted_parts(made[number]["text"], made[number]["spans"])] == answers


LISTS = "{% for part in m.content %}{{ part.text }}{% endfor %}"
READS = {
    "text": "{{ m.content + '' }}",
    "parts": LISTS,
    "either": "{% if m.content is string %}{{ m.content }}{% else %}" + LISTS + "{% endif %}",
    "apart": "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{{ part.text + '\n' }}"
    "{% endfor %}{% endif %}",
    "json": "{{ m.content | tojson }}",
    "repr": "{{ m.content }}",
    "only text": "{{ m.content if m.content is string else '' }}",
}
"""Ways in which a template reads contents."""

PARTS = [{"type": "text", "text": "a b"}], [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}], ["a", " b"]
FACTS = {"b": 1, "a": [1.0, None]}
AS_SOURCE, JOINED = "as in the source", "a b"


@pytest.mark.parametrize(
    ("reads", "role", "content", "expected"),
    [
        ("text", "user", PARTS[0], JOINED),
        ("text", "assistant", PARTS[1], JOINED),
        ("text", "user", PARTS[2], JOINED),
        ("text", "tool", FACTS, json.dumps(FACTS)),
        ("text", "tool", [1, 2], "[1, 2]"),
        ("text", "tool", 5, "5"),
        ("parts", "user", PARTS[0], AS_SOURCE),
        ("parts", "assistant", PARTS[1], AS_SOURCE),
        ("either", "user", PARTS[0], AS_SOURCE),
        ("either", "assistant", PARTS[1], AS_SOURCE),
        ("apart", "user", PARTS[1], AS_SOURCE),
        ("apart", "assistant", PARTS[0], AS_SOURCE),
        ("apart", "assistant", PARTS[1], "content_parts"),
        ("json", "user", PARTS[0], JOINED),
        ("json", "user", PARTS[1], JOINED),
        ("json", "tool", FACTS, AS_SOURCE),
        ("json", "tool", [], AS_SOURCE),
        ("repr", "user", PARTS[0], JOINED),
        ("repr", "tool", FACTS, AS_SOURCE),
        ("only text", "user", PARTS[1], JOINED),
        ("only text", "tool", FACTS, json.dumps(FACTS)),
    ],
)
def test_contents_that_are_not_text_reach_the_template_as_it_reads_them(
    tokenizer_folder: Path, tokenizer: PreTrainedTokenizerFast, reads: str, role: str, content: Any, expected: str
) -> None:
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role != 'last' %}"
        + READS[reads]
        + "{% endif %}"
        "{{ '<|im_end|>\n' }}{% endfor %}"
    )
    plain = [[{"type": "text", "text": text}] if reads == "parts" else text for text in ("q", "ok")]
    row = {
        "messages": [
            {"role": "user", "content": plain[0]},
            {"role": role, "content": content},
            {"role": "assistant", "content": plain[1]},
        ]
    }
    made, rejects = read(as_json(row), tokenizer_folder, template)
    if expected == "content_parts":
        assert rejects == {0: expected}
        return
    if expected != AS_SOURCE:
        row["messages"][1]["content"] = expected
    assert made[0]["text"] == written(tokenizer, template, row)
    answer = {"json": 'ok"'}.get(reads, "ok")
    assert weighted_parts(made[0]["text"], made[0]["spans"])[-1] == (f"{answer}<|im_end|>", 1.0)


def test_reasoning_within_a_content_of_parts_is_trained_with_it(
    tokenizer_folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        + READS["either"]
        + "{{ '<|im_end|>\n' }}{% endfor %}"
    )
    said = "<think>\nT\n</think>\n\nA"
    answer = {"role": "assistant", "content": [{"type": "text", "text": said}]}
    row = {"messages": [{"role": "user", "content": "q"}, answer]}
    made, rejects = read(as_json(row), tokenizer_folder, template)
    assert not rejects
    assert made[0]["text"] == written(tokenizer, template, row)
    assert "".join(text for text, weight in weighted_parts(made[0]["text"], made[0]["spans"]) if weight) == (
        f"{said}<|im_end|>"
    )


KNOWS = (
    "{% for m in messages %}{% if m['role'] in ['developer', 'critic'] %}{{ '[' + m.role + ']' + m.content }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
)
CHATML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "role", "expected"),
    [
        (KNOWS, "developer", "[developer]r"),
        (KNOWS, "critic", "[critic]r"),
        (KNOWS, "system", "<|im_start|>system\nr<|im_end|>\n"),
        (CHATML, "developer", "<|im_start|>system\nr<|im_end|>\n"),
        (CHATML, "Function", "<|im_start|>tool\nr<|im_end|>\n"),
        (CHATML, "critic", None),
    ],
)
def test_roles_that_a_template_knows_reach_it(
    tokenizer_folder: Path, template: str, role: str, expected: str | None
) -> None:
    talk = [{"role": role, "content": "r"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    made, rejects = read(as_json({"messages": talk}), tokenizer_folder, template)
    if expected is None:
        assert rejects == {0: "unknown_role"}
    else:
        assert made[0]["text"] == expected + "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
        assert weighted_parts(made[0]["text"], made[0]["spans"]) == [("a<|im_end|>", 1.0)]


def test_variables_of_the_template_are_those_of_the_row(tokenizer_folder: Path) -> None:
    template = "{{ mood | default('none') }};" + CHATML
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    given = [{"mood": "glad"}, '{"mood": 1.0}', None, {"mood": None}, {"messages": []}, "glad"]
    rows = [{"messages": talk, "kwargs": kwargs} for kwargs in given]
    thought = [talk[0], {"role": "assistant", "content": "<think>t</think>a"}]
    made, rejects = read(as_json(*rows, {"messages": thought, "kwargs": {"messages": []}}), tokenizer_folder, template)
    assert [row["text"].split(";")[0] for row in made.values()] == ["glad", "1.0", "none", "None"]
    assert rejects == {4: "template_kwargs", 5: "not_template_kwargs", 6: "template_kwargs"}


def test_a_message_whose_content_is_an_object_cannot_be_trained(tokenizer_folder: Path) -> None:
    template = CHATML.replace("m.content", "(m.content | string)")
    talk = [{"role": "user", "content": "q"}, {"role": "tool", "content": FACTS}, {"role": "assistant", "content": "a"}]
    weighed = [talk[0], {**talk[1], "weight": 1}, talk[2]]
    rows = as_json(*({"messages": each} for each in (talk, weighed)))
    made, rejects = read(rows, tokenizer_folder, template)
    assert (list(made), rejects) == ([0, 1], {})  # nobody asks to train tools
    made, rejects = read(rows, tokenizer_folder, template, train_on=["assistant", "tool"])
    assert rejects == {0: "not_text", 1: "not_text"}
