"""The mapping: which column has which role, and the errors if none has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.columns_stage import Row, columns_named, config_of, described, mapped, table_of
from tokenloom.assets.columns.fitting import follow
from tokenloom.assets.columns.mapping import ColumnMapping, resolve
from tokenloom.assets.columns.unused import unused_by
from tokenloom.assets.schema.profiles import profiles
from tokenloom.assets.schema.sketch import kind_of
from tokenloom.config import Constant, PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.tables.nested_paths import Path as ColumnPath
from tokenloom.resources.tables.nested_paths import evaluate


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["instruction", "input", "output"], {"prompt": "instruction", "context": "input", "completion": "output"}),
        (["id", "question", "answer"], {"prompt": "question", "completion": "answer"}),
        (["Question", "ANSWER"], {"prompt": "Question", "completion": "ANSWER"}),
        (["input", "output"], {"prompt": "input", "completion": "output"}),
        (
            ["query", "response", "system_prompt"],
            {"prompt": "query", "completion": "response", "system": "system_prompt"},
        ),
        (["text"], {"text": "text"}),
        (["title", "content"], {"text": "content"}),
    ],
)
def test_roles_follow_from_the_usual_names(names: list[str], expected: dict[str, str]) -> None:
    found = resolve(config_of(), columns_named(*names))
    assert found.roles == expected
    assert found.form == ("text" if "text" in expected else "completion")


def test_a_given_mapping_wins_over_names() -> None:
    config = config_of(dataset={"column_mapping": {"prompt": "b", "completion": "question"}})
    found = resolve(config, columns_named("question", "answer", "b"))
    assert (found.form, found.roles) == ("completion", {"prompt": "b", "completion": "question"})


def test_conversations_are_found_by_name_and_type() -> None:
    kind = pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())]))
    columns = [*columns_named("id", "text"), *columns_named("conversations", kind=kind)]
    assert resolve(config_of(), columns) == ColumnMapping("messages", {"messages": "conversations"})


def test_a_mapping_renames_the_fields_of_a_template() -> None:
    prompt = {"template": "{q}\n{a}", "label_column": "a"}
    config = config_of(dataset={"column_mapping": {"q": "Frage", "a": "Antwort"}}, prompt_template=prompt)
    found = resolve(config, columns_named("Frage", "Antwort"))
    assert (found.form, found.roles, found.answer) == ("fields", {"q": "Frage", "a": "Antwort"}, "a")


FAULTY = """\
dataset:
  name: x
  columns:
    - instrution
  column_mapping:
    prompt: instructoin
    completion: output
prompt_template:
  label_column: output
  template: |
    Do this.

    {instructon}, {prompt}, {completion} and {nothing_like_it}
    {output}
"""


def test_every_missing_column_is_one_fault_with_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    path = tmp_path / "data.yaml"
    path.write_text(FAULTY)
    with pytest.raises(ConfigError) as raised:
        resolve(PipelineConfig.from_file(path), columns_named("instruction", "output"))
    found = {fault.place: fault.message for fault in raised.value.faults}
    lines = FAULTY.splitlines()
    mapped, listed = lines.index("    prompt: instructoin") + 1, lines.index("    - instrution") + 1
    used = lines.index("    {instructon}, {prompt}, {completion} and {nothing_like_it}") + 1
    assert len(raised.value.faults) == 4
    assert {place.removeprefix(f"{path}:") for place in found} <= {str(n) for n in (mapped, listed, listed - 1, used)}
    for name, line in (("instructoin", mapped), ("instructon", used)):
        assert any(name in f.message and f.place == f"{path}:{line}" for f in raised.value.faults)
    near = [fault.message for fault in raised.value.faults if "did you mean instruction?" in fault.message]
    assert len(near) == 3
    assert all("instruction, output" in fault.message for fault in raised.value.faults)


@pytest.mark.parametrize(
    ("prompt", "names"),
    [
        ({}, ["title", "score"]),
        ({"format_type": "text"}, ["question", "answer"]),
        ({"format_type": "completion"}, ["question", "reply"]),
    ],
)
def test_columns_that_fit_no_form_are_listed(prompt: Row, names: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(config_of(prompt_template=prompt), columns_named(*names))
    (fault,) = raised.value.faults
    assert all(name in fault.message for name in names)


@pytest.mark.parametrize("template", ["{q} {a} {a}", "{q}"])
def test_the_label_is_in_the_template_exactly_once(template: str) -> None:
    prompt = {"template": template, "label_column": "a"}
    with pytest.raises(ConfigError, match="label_column"):
        resolve(config_of(prompt_template=prompt), columns_named("q", "a"))


def test_input_columns_that_the_template_lacks_are_faults() -> None:
    prompt = {"template": "{q} {a}", "label_column": "a", "input_columns": ["q", "b", "c"]}
    with pytest.raises(ConfigError) as raised:
        resolve(config_of(prompt_template=prompt), columns_named("q", "a", "b", "c"))
    assert len(raised.value.faults) == 2


TALK = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
DEEP = pa.list_(pa.struct([("text", pa.string()), ("spans", pa.list_(pa.struct([("start", pa.int64())])))]))


def faults_of(columns: list[Row], **sections: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        resolve(config_of(**sections), columns)
    return [fault.message for fault in raised.value.faults]


@pytest.mark.parametrize(
    ("roles", "form"),
    [
        ({"text": "a"}, "text"),
        ({"prompt": "a", "completion": "b"}, "completion"),
        ({"prompt": "a", "completion": "b", "label": "n"}, "kto"),
        ({"chosen": "a", "rejected": "b"}, "preference"),
        ({"prompt": "talk", "chosen": "a", "rejected": "talk"}, "preference"),
        ({"messages": "talk", "tools": "talk"}, "messages"),
        ({"messages": "a"}, "messages"),
        ({"prompt": "`n`", "completion": {"constant": "x"}}, "completion"),
    ],
)
def test_the_mapped_roles_determine_the_form(roles: Row, form: str) -> None:
    columns = [*columns_named("a", "b", "question", "answer"), *columns_named("talk", kind=TALK)]
    columns += columns_named("n", kind=pa.int64())
    found = resolve(config_of(**mapped(roles)), columns)
    assert found.form == form
    expected = {role: text.strip("`") if isinstance(text, str) else Constant(**text) for role, text in roles.items()}
    assert found.roles | expected == found.roles
    assert json.loads(json.dumps(found.to_json()))["form"] == form


@pytest.mark.parametrize(
    ("format_type", "names", "form"),
    [
        ("chat", ["messages", "text"], "messages"),
        ("chat", ["question", "answer", "text"], "completion"),
        ("completion", ["messages", "question", "answer"], "completion"),
        ("text", ["messages", "text"], "text"),
        ("custom", ["messages", "id"], "messages"),
    ],
)
def test_the_format_type_determines_the_form(format_type: str, names: list[str], form: str) -> None:
    columns = [one for name in names for one in columns_named(name, kind=TALK if name == "messages" else None)]
    assert resolve(config_of(prompt_template={"format_type": format_type}), columns).form == form


@pytest.mark.parametrize(
    ("roles", "format_type", "form"),
    [
        ({"prompt": "talk", "completion": "talk"}, "chat", "dialogue"),
        ({"prompt": "talk", "completion": "a"}, "custom", "dialogue"),
        ({"prompt": "a", "completion": "b", "tools": "t"}, "custom", "dialogue"),
        ({"prompt": "a", "completion": "b", "context": "t"}, "custom", "completion"),
        ({"completion": "talk", "label": "n"}, "custom", "kto"),
        ({"prompt": "a", "chosen": "one", "rejected": "one"}, "custom", "preference"),
        ({"prompt": "a", "context": "b"}, "prompt_only", "prompt_only"),
    ],
)
def test_the_values_of_the_mapped_roles_determine_the_form(roles: Row, format_type: str, form: str) -> None:
    columns = [*columns_named("a", "b", "t"), *columns_named("talk", kind=TALK), *columns_named("n", kind=pa.bool_())]
    columns += described(pa.table({"one": [{"role": "assistant", "content": "Yes."}]}))
    found = resolve(config_of(**mapped(roles, prompt_template={"format_type": format_type})), columns)
    assert (found.form, found.roles) == (form, roles)


def test_messages_cannot_be_joined_to_text() -> None:
    columns = [*columns_named("a"), *columns_named("talk", kind=TALK)]
    (message,) = faults_of(columns, **mapped({"prompt": "talk", "completion": "a", "context": "a"}))
    assert "context is added to a prompt of text, but prompt holds messages" in message
    joined = mapped({"prompt": "talk", "completion": "a"}, prompt_template={"format_type": "completion"})
    (message,) = faults_of(columns, **joined)
    assert "set prompt_template.format_type: chat" in message


def test_what_a_mapping_leaves_unused_is_known() -> None:
    columns = [*columns_named("a", "b", "notes", "title", "source_url", "id"), *columns_named("n", kind=pa.int64())]
    mapping = resolve(config_of(**mapped({"prompt": "a", "completion": "b"})), columns)
    assert unused_by(mapping, columns) == ["notes", "title"]


def test_the_mapping_in_a_key_does_not_depend_on_how_it_was_written() -> None:
    columns = [*columns_named("q", "a.b"), *columns_named("a", kind=pa.struct([("b", pa.string())]))]
    texts = [("q", "a.b"), ("`q`", "`a.b`")]
    found = [resolve(config_of(**mapped({"prompt": q, "completion": a})), columns).to_json() for q, a in texts]
    assert found[0] == found[1]
    assert found[0]["roles"] == {"prompt": "q", "completion": "`a.b`"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "answer.text",
            "no column answer; the data has q, a, answers; write {constant: …}",
        ),
        ("answers[0].txt", "answers[0] has no field txt; it has text, spans; did you mean text?"),
        ("answers.spans[0][0].begin", "has no field begin; it has start"),
        ("q.x", "q is string: it has no field x"),
        ("q[0]", "q is string, not a list"),
        ("qq", "did you mean q?"),
        ("You are kind.", "{constant: …}"),
        ("Q: {qq}", "no column qq"),
        ("{q", "unmatched '{'"),
        ("{answers.text:numbers}", "unknown style 'numbers'"),
        ("choices[{q}]", "no column choices"),
        ("answers.text[{qq}]", "no column qq"),
    ],
)
def test_a_missing_column_or_field_is_a_fault_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    columns = [*columns_named("q", "a"), *columns_named("answers", kind=DEEP)]
    path = tmp_path / "data.yaml"
    roles = json.dumps({"prompt": text, "completion": "a"}, indent=4, ensure_ascii=False)
    path.write_text(f"dataset:\n  name: x\n  column_mapping: {roles}\n".replace("\n}", "\n  }"), encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        resolve(PipelineConfig.from_file(path), columns)
    (fault,) = raised.value.faults
    assert expected in fault.message
    assert fault.place == f"{path}:4"
    assert fault.message.startswith("dataset.column_mapping.prompt: ")


FIRST = {role: f"{role}?" for role in ("messages", "prompt", "completion", "text")}


@pytest.mark.parametrize(
    ("roles", "names", "expected"),
    [
        (FIRST, ["text", "instruction", "output"], {"text": "text"}),
        (FIRST, ["messages", "text"], {"messages": "messages"}),
        (FIRST, ["messages", "prompt"], {"messages": "messages"}),
        (FIRST, ["prompt", "completion", "text"], {"prompt": "prompt", "completion": "completion"}),
        (FIRST, ["question", "answer"], {"prompt": "question", "completion": "answer"}),
        ({"messages": "messages", "system": "sys?"}, ["messages", "sys"], {"messages": "messages", "system": "sys"}),
        ({"messages": "messages", "system": "sys?"}, ["messages", "system"], {"messages": "messages"}),
        ({"prompt": "q?", "completion": "a"}, ["q?", "q", "a"], {"prompt": "q?", "completion": "a"}),
        ({"prompt": "{q}?", "completion": "a"}, ["q", "a"], {"prompt": "{q}?", "completion": "a"}),
        (
            {"prompt": "{t}, who is {q}?", "completion": "a"},
            ["q", "t", "a"],
            {"prompt": "{t}, who is {q}?", "completion": "a"},
        ),
    ],
)
def test_columns_that_the_data_may_lack(roles: dict[str, str], names: list[str], expected: dict[str, str]) -> None:
    messages = [name for name in names if name == "messages"]
    columns = columns_named(*(name for name in names if name not in messages))
    found = resolve(config_of(dataset={"column_mapping": roles}), [*columns, *columns_named(*messages, kind=TALK)])
    assert {role: str(source) for role, source in found.roles.items()} == expected


def test_columns_that_a_template_may_lack_are_empty() -> None:
    given = {"template": "{q}{more}{a}", "label_column": "a"}
    config = PipelineConfig.from_mapping(
        {"dataset": {"name": "x", "column_mapping": {"more": "more?"}}, "prompt_template": given}
    )
    assert resolve(config, columns_named("q", "a")).roles == {"q": "q", "more": Constant(constant=""), "a": "a"}
    assert resolve(config, columns_named("q", "a", "more")).roles["more"] == "more"


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ({"messages": "{m:functions}"}, "{m:functions} is tools; messages needs something else"),
        ({"prompt": "{q:functions}", "completion": "a"}, "is tools; prompt needs something else"),
        ({"messages": "m", "tools": "{a:turns}"}, "is a conversation; tools needs text"),
        ({"messages": "m", "system": "x {a:functions}"}, "{a:functions} is tools, to which no text can be added"),
    ],
)
def test_functions_are_for_tools_alone(roles: dict[str, str], expected: str) -> None:
    columns = [*columns_named("q", "a"), *columns_named("m", kind=TALK)]
    with pytest.raises(ConfigError, match=re.escape(expected)):
        resolve(config_of(dataset={"column_mapping": roles}), columns)


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ({"prompt": "answers", "completion": "a"}, "answers[0].text"),
        ({"prompt": "words", "completion": "a"}, 'words[0] for the first item, "{words}"'),
        ({"prompt": "{answers}", "completion": "a"}, "text or a list of texts"),
        ({"prompt": "{q:letters}", "completion": "a"}, "needs a list of texts"),
        ({"prompt": "a[{q}]", "completion": "a"}, "needs a list"),
        ({"prompt": "answers[{q}]", "completion": "a"}, "needs text"),
        ({"messages": "words"}, "needs text or a list of messages"),
        ({"messages": "answers", "system": "words"}, "system needs text"),
        ({"chosen": "words", "rejected": "a"}, "chosen needs text or a list of messages"),
        ({"prompt": "a", "completion": "a", "label": "words"}, "label needs text"),
        ({"text": "raw"}, "column raw is large_binary"),
    ],
)
def test_an_unsuitable_type_is_a_fault_with_a_remedy(roles: Row, expected: str) -> None:
    columns = [*columns_named("q", "a"), *columns_named("answers", kind=DEEP)]
    columns += [*columns_named("words", kind=pa.list_(pa.string())), *columns_named("raw", kind=pa.large_binary())]
    assert any(expected in message for message in faults_of(columns, **mapped(roles)))


def test_a_type_that_fits_in_some_chunk_is_not_a_fault() -> None:
    columns = described(pa.table({"a": ["x"], "b": [["y"]]}), pa.table({"a": ["x"], "b": ["y"]}))
    assert resolve(config_of(**mapped({"prompt": "b", "completion": "a"})), columns).form == "completion"
    (message,) = faults_of(columns, **mapped({"messages": "a", "tools": "a", "system": "b.c"}))
    assert "it has no field c" in message
    columns = described(pa.table({"a": ["x"], "b": [["y"]]}), pa.table({"a": ["x"], "b": [{"c": "y"}]}))
    (message,) = faults_of(columns, **mapped({"prompt": "a", "completion": "b"}))
    assert "column b is list<item: string> | struct<c: string>; completion needs text" in message


def test_roles_of_different_forms_are_an_error() -> None:
    (message,) = faults_of(columns_named("a", "b"), **mapped({"messages": "a", "prompt": "b"}))
    assert "no form takes messages and prompt together" in message
    (message,) = faults_of(columns_named("a"), **mapped({"chosen": "a"}, prompt_template={"format_type": "text"}))
    assert "text takes text" in message


def test_close_candidates_are_listed_with_an_example_mapping() -> None:
    columns = described(table_of([{"prompt": "why?", "response_a": "since a", "response_b": "since b"}] * 20))
    with pytest.raises(
        ConfigError, match=r"response_a.* or .*response_b.*; map the columns to use.*column_mapping: "
    ) as raised:
        resolve(config_of(), columns)
    assert len(raised.value.faults) == 1
    found = resolve(config_of(**mapped({"completion": "response_b"})), columns)
    assert found == ColumnMapping("completion", {"prompt": "prompt", "completion": "response_b"})


def test_a_mapped_role_raises_no_doubt() -> None:
    table = pa.table({"instruction": ["Why?"] * 9, "completions": [[{"response": "a"}, {"response": "b"}]] * 9})
    with pytest.raises(ConfigError, match="most rows hold 2 or more"):
        resolve(config_of(), described(table))
    given = {"completion": "completions[1].response"}
    found = resolve(config_of(dataset={"column_mapping": given}), described(table))
    assert found.roles == {"prompt": "instruction", **given}


@pytest.mark.parametrize(
    ("form", "columns", "expected"),
    [
        ("kto", {"prompt": ["p"] * 9, "completion": ["c"] * 9, "label": [0, 1, 2] * 3}, "label has 0, 1, 2"),
        ("preference", {"chosen": [["c"]] * 9, "rejected": ["r"] * 9}, "chosen has lists of up to 1"),
    ],
)
def test_columns_with_unsuitable_values_are_an_error(form: str, columns: Row, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(config_of(prompt_template={"format_type": form}), described(pa.table(columns)))
    assert expected in str(raised.value) and f"{form} needs " in str(raised.value)
    assert "no column found" not in str(raised.value)


def test_a_missing_column_to_keep_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no column nope; the columns kept are none; `tokenloom inspect` shows all$"):
        resolve(config_of(dataset={"columns": ["nope"]}), [])


def test_a_complete_mapping_is_used_unchanged() -> None:
    columns = columns_named("instruction", "input", "output", "system")
    given = {"prompt": "instruction", "completion": "output"}
    assert resolve(config_of(**mapped(given)), columns).roles == given


KINDS = st.recursive(
    st.sampled_from([pa.string(), pa.int64(), pa.bool_(), pa.timestamp("ms", "UTC"), pa.decimal128(9, 2)]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda kind: pa.list_(kind, 2)),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.dictionaries(st.sampled_from(["a", "b", "?"]), inner, min_size=1).map(
            lambda fields: pa.struct(list(fields.items()))
        ),
    ),
    max_leaves=6,
)
STEPS = st.lists(st.sampled_from(["a", "b", "key", "value", 0, -1]), max_size=4)


@given(KINDS, STEPS)
def test_a_path_leads_to_what_rows_have_there(kind: pa.DataType, steps: list[str | int]) -> None:
    table, path = pa.table({"c": pa.array([], kind)}), ColumnPath("c", tuple(steps))
    reached, taken = follow(profiles(described(table)), path)
    values = evaluate(table, path)
    assert (taken == len(steps)) == (not pa.types.is_null(values.type))
    assert not reached.is_open()
    if taken == len(steps):
        assert list(reached.kinds) == [kind_of(values.type)]
