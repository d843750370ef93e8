"""Columns: which column plays which role, and the canonical form of every row, against a per-row oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping, resolve
from tokenloom.assets.rejects import ROW
from tokenloom.assets.schema.sketch import merge, sketch
from tokenloom.assets.stage import ChunkOutput
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError

Row = dict[str, Any]

TEXT = st.one_of(st.text(max_size=8), st.sampled_from(["", " ", "\n\t", "\u00a0", "x", "0"]))
MAYBE = st.one_of(st.none(), TEXT)


def table_of(rows: list[Row], columns: dict[str, pa.DataType] | None = None) -> pa.Table:
    """A raw chunk; row positions have gaps, as they have behind rejects."""
    schema = pa.schema(list(columns.items())) if columns else None
    table = pa.Table.from_pylist(rows, schema)
    return table.append_column(ROW, pa.array([2 * index + 1 for index in range(len(rows))], pa.int32()))


def config_of(**sections: Any) -> PipelineConfig:
    return PipelineConfig.from_mapping({"dataset": {"name": "x", **sections.pop("dataset", {})}, **sections})


def described(*tables: pa.Table) -> list[Row]:
    return merge([sketch(table) for table in tables])


def columns_named(*names: str, kind: str = "string") -> list[Row]:
    return [{"column": name, "type": kind} for name in names]


def canonical(rows: list[Row], columns: dict[str, pa.DataType] | None = None, **sections: Any) -> ChunkOutput:
    table = table_of(rows, columns)
    out = to_canonical(table, resolve(config_of(**sections), described(table)))
    assert out.rows_in == len(rows) == out.table.num_rows + out.rejects.num_rows + out.filtered
    positions = sorted(out.table[ROW].to_pylist() + out.rejects[ROW].to_pylist())
    assert positions == table[ROW].to_pylist()
    assert out.table[ROW].to_pylist() == sorted(out.table[ROW].to_pylist())
    return out


def kept(out: ChunkOutput) -> list[Row]:
    return out.table.drop_columns([ROW]).to_pylist()


def codes(out: ChunkOutput) -> dict[int, str]:
    return dict(zip(out.rejects[ROW].to_pylist(), out.rejects["code"].to_pylist(), strict=True))


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


def test_a_mapping_given_wins_over_names() -> None:
    config = config_of(dataset={"column_mapping": {"prompt": "b", "completion": "question"}})
    found = resolve(config, columns_named("question", "answer", "b"))
    assert (found.form, found.roles) == ("completion", {"prompt": "b", "completion": "question"})


def test_conversations_are_found_by_name_and_type() -> None:
    kind = "list<item: struct<from: string, value: string>>"
    columns = [*columns_named("id", "text"), *columns_named("conversations", kind=kind)]
    assert resolve(config_of(), columns) == ColumnMapping("messages", {"messages": "conversations"}, "messages")


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
def test_the_label_stands_in_the_template_exactly_once(template: str) -> None:
    prompt = {"template": template, "label_column": "a"}
    with pytest.raises(ConfigError, match="label_column"):
        resolve(config_of(prompt_template=prompt), columns_named("q", "a"))


def test_input_columns_that_the_template_lacks_are_faults() -> None:
    prompt = {"template": "{q} {a}", "label_column": "a", "input_columns": ["q", "b", "c"]}
    with pytest.raises(ConfigError) as raised:
        resolve(config_of(prompt_template=prompt), columns_named("q", "a", "b", "c"))
    assert len(raised.value.faults) == 2


@given(st.lists(st.fixed_dictionaries({"q": MAYBE, "n": st.integers(-5, 5), "a": MAYBE}), max_size=8))
def test_fields_are_strings_and_empty_answers_are_rejected(rows: list[Row]) -> None:
    columns = {"q": pa.string(), "n": pa.int64(), "a": pa.string()}
    out = canonical(rows, columns, prompt_template={"template": "{q} {n} {a}", "label_column": "a"})
    good = [row for row in rows if (row["a"] or "").strip()]
    assert kept(out) == [{"q": row["q"] or "", "n": str(row["n"]), "a": row["a"]} for row in good]
    assert set(codes(out).values()) <= {"empty_answer"}


@given(
    st.lists(st.fixed_dictionaries({"instruction": TEXT, "input": MAYBE, "output": MAYBE, "system": MAYBE}), max_size=8)
)
def test_completion_joins_prompt_and_context_by_a_blank_line(rows: list[Row]) -> None:
    columns: dict[str, pa.DataType] = dict.fromkeys(["instruction", "input", "output", "system"], pa.string())
    out = canonical(rows, columns)
    good = [row for row in rows if (row["output"] or "").strip()]
    expected = [
        {
            "prompt": row["instruction"] + ("\n\n" + row["input"] if row["input"] else ""),
            "completion": row["output"],
            "system": row["system"] or "",
        }
        for row in good
    ]
    assert kept(out) == expected
    assert set(codes(out).values()) <= {"empty_answer"}


@given(st.lists(st.fixed_dictionaries({"text": MAYBE}), max_size=8))
def test_text_goes_on_as_it_is(rows: list[Row]) -> None:
    out = canonical(rows, {"text": pa.string()})
    assert kept(out) == [row for row in rows if (row["text"] or "").strip()]
    assert set(codes(out).values()) <= {"empty_text"}


NAMES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "Assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
}
MESSAGE = st.fixed_dictionaries({"speaker": st.sampled_from([*NAMES, "narrator", "", None]), "said": MAYBE})
MESSAGES = st.one_of(
    st.none(), st.lists(st.one_of(MESSAGE, MESSAGE.filter(lambda m: m["speaker"] in NAMES and m["said"])), max_size=4)
)


def problems(talk: list[Row] | None) -> set[str]:
    """Codes of everything wrong with a conversation."""
    if not talk:
        return {"no_messages"}
    found = {"unknown_role"} if any(turn["speaker"] not in NAMES for turn in talk) else set()
    found |= {"missing_content"} if any(turn["said"] is None for turn in talk) else set()
    answers = [turn["said"] for turn in talk if NAMES.get(turn["speaker"] or "") == "assistant"]
    return found if any((answer or "").strip() for answer in answers) else found | {"empty_answer"}


@pytest.mark.parametrize("keys", [("role", "content"), ("from", "value")])
@given(talks=st.lists(MESSAGES, max_size=6))
def test_conversations_of_either_form_become_messages(keys: tuple[str, str], talks: list[list[Row] | None]) -> None:
    shaped = [
        None if talk is None else [dict(zip(keys, (turn["speaker"], turn["said"]), strict=True)) for turn in talk]
        for talk in talks
    ]
    kind = pa.list_(pa.struct([(key, pa.string()) for key in keys]))
    out = canonical([{"conversations": talk} for talk in shaped], {"conversations": kind})
    good = [talk for talk in talks if talk and not problems(talk)]
    expected = [[{"role": NAMES[turn["speaker"]], "content": turn["said"]} for turn in talk] for talk in good]
    assert [row["messages"] for row in kept(out)] == expected
    for position, code in codes(out).items():
        assert code in problems(talks[position // 2])


@pytest.mark.parametrize(
    ("talk", "code"),
    [
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": " \n"}], "empty_answer"),
        ([{"role": "user", "content": "a"}], "empty_answer"),
        ([{"role": "robot", "content": "a"}, {"role": "assistant", "content": "b"}], "unknown_role"),
        ([{"role": "user", "content": None}, {"role": "assistant", "content": "b"}], "missing_content"),
        ([{"role": "user"}, {"role": "assistant", "content": "b"}], "missing_content"),
        ([None, {"role": "assistant", "content": "b"}], "unknown_role"),
        ([], "no_messages"),
        (None, "no_messages"),
    ],
)
def test_a_bad_conversation_is_rejected_with_its_code_and_others_go_on(talk: Any, code: str) -> None:
    good = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    out = canonical([{"messages": good}, {"messages": talk}, {"messages": good}])
    assert codes(out) == {3: code}
    assert [row["messages"] for row in kept(out)] == [good, good]
    assert out.rejects["stage"].to_pylist() == ["columns"]


def test_further_keys_of_messages_do_not_matter() -> None:
    talk = [
        {"role": "user", "content": "hi", "name": "Ann", "weight": 1},
        {"role": "assistant", "content": "ho", "name": None, "weight": 1},
    ]
    (row,) = kept(canonical([{"id": 1, "messages": talk}]))
    assert row["messages"] == [{"role": turn["role"], "content": turn["content"]} for turn in talk]


def test_numbers_and_truth_values_become_text_and_lists_are_refused_by_name() -> None:
    rows = [{"q": 1.5, "a": True}, {"q": None, "a": False}]
    prompt = {"template": "{q} {a}", "label_column": "a"}
    assert kept(canonical(rows, prompt_template=prompt)) == [{"q": "1.5", "a": "true"}, {"q": "", "a": "false"}]
    with pytest.raises(ConfigError, match="column q"):
        canonical([{"q": ["x"], "a": "y"}], prompt_template=prompt)


def test_a_chunk_without_an_optional_column_reads_it_as_empty() -> None:
    tables = (
        table_of([{"instruction": "a", "input": "b", "output": "c"}]),
        table_of([{"instruction": "d", "output": "e"}]),
    )
    mapping = resolve(config_of(), described(*tables))
    found = [kept(to_canonical(table, mapping)) for table in tables]
    assert found[0] == [{"prompt": "a\n\nb", "completion": "c", "system": ""}]
    assert found[1] == [{"prompt": "d", "completion": "e", "system": ""}]


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.binary(), pa.struct([("x", pa.int64())])])
def test_a_chunk_whose_column_holds_no_text_rejects_its_rows(kind: pa.DataType) -> None:
    value = {"list": ["x"], "binary": b"x", "struct": {"x": 1}}[str(kind).split("<")[0]]
    mapping = ColumnMapping("fields", {"q": "q", "a": "a"}, "a")
    table = table_of([{"q": value, "a": "fine"}, {"q": None, "a": "fine"}], {"q": kind, "a": pa.string()})
    out = to_canonical(table, mapping)
    assert codes(out) == {1: "not_text"}
    assert kept(out) == [{"q": "", "a": "fine"}]


@pytest.mark.parametrize(
    ("special", "code"),
    [
        ({"tool_calls": [{"name": "f"}]}, "tool_calls"),
        ({"function_call": "f()"}, "tool_calls"),
        ({"weight": 0}, "message_weight"),
        ({"loss_weight": 0.5}, "message_weight"),
        ({"train": False}, "message_weight"),
    ],
)
def test_what_would_be_trained_otherwise_than_it_says_is_rejected(special: Row, code: str) -> None:
    plain = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    odd = [plain[0], {**plain[1], **special}]
    out = canonical([{"messages": plain}, {"messages": odd}, {"messages": plain}])
    assert out.table["messages"].to_pylist() == [plain, plain]
    assert out.rejects["code"].to_pylist() == [code]
