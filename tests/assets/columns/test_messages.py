"""Conversations of every layout become messages, compared with a per-row oracle."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.canonical_tables import call, field_of
from support.canonical_tables import said as message
from support.columns_stage import MAYBE, TEXT, Row, as_json, canonical, codes, kept, mapped, table_of
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping
from tokenloom.assets.columns.stage import STAGE
from tokenloom.assets.stage.definition import ChunkOutput, validate
from tokenloom.resources.tables.json_text import json_column

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


def problems(talk: list[Row] | None, kept_roles: tuple[str, ...] = ()) -> set[str]:
    """Return the codes of all problems of a conversation, given the unknown roles that its layout keeps."""
    if not talk:
        return {"no_messages"}
    known = {*NAMES, *kept_roles}
    found = {"unknown_role"} if any(turn["speaker"] not in known for turn in talk) else set()
    found |= {"missing_content"} if any(turn["said"] is None for turn in talk) else set()
    answers = [turn["said"] for turn in talk if NAMES.get(turn["speaker"] or "") == "assistant"]
    return found if any((answer or "").strip() for answer in answers) else found | {"empty_answer"}


LAYOUTS = [
    ("role", "content", pa.list_),
    ("from", "value", pa.large_list),
    ("speaker", "text", pa.list_view),
    ("author", "content", pa.list_),
]


@pytest.mark.parametrize(("who", "what", "listed"), LAYOUTS)
@given(talks=st.lists(MESSAGES, max_size=6))
def test_conversations_of_any_layout_become_messages(
    who: str, what: str, listed: Any, talks: list[list[Row] | None]
) -> None:
    keys = (who, what)
    shaped = [
        None if talk is None else [dict(zip(keys, (turn["speaker"], turn["said"]), strict=True)) for turn in talk]
        for talk in talks
    ]
    kind = listed(pa.struct([(key, pa.string()) for key in keys]))
    roles = mapped({"messages": "talk"})
    out = canonical([{"talk": talk} for talk in shaped], {"talk": kind}, **roles)
    others = ("narrator",) if who == "role" else ()

    def expected(turn: Row) -> Row:
        name = turn["speaker"]
        role = NAMES.get(name, name)
        own = name if who == "role" and name != role else None
        fields = json.dumps({"role": own, "content": None}) if own else None
        return {**message(role, turn["said"]), "fields": fields}

    good = [talk for talk in talks if talk and not problems(talk, others)]
    assert [row["messages"] for row in kept(out)] == [[expected(turn) for turn in talk] for talk in good]
    for position, code in codes(out).items():
        assert code in problems(talks[position // 2], others)


@pytest.mark.parametrize(
    ("talk", "code"),
    [
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": " \n"}], "empty_answer"),
        ([{"role": "user", "content": "a"}], "empty_answer"),
        ([{"from": "robot", "value": "a"}, {"from": "gpt", "value": "b"}], "unknown_role"),
        ([{"role": "", "content": "a"}, {"role": "assistant", "content": "b"}], "unknown_role"),
        ([{"role": "user", "content": None}, {"role": "assistant", "content": "b"}], "missing_content"),
        ([{"role": "user"}, {"role": "assistant", "content": "b"}], "missing_content"),
        ([None, {"role": "assistant", "content": "b"}], "unknown_role"),
        ([], "no_messages"),
        (None, "no_messages"),
    ],
)
def test_a_bad_conversation_is_rejected_and_the_others_are_kept(talk: Any, code: str) -> None:
    good = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    out = canonical(as_json({"messages": good}, {"messages": talk}, {"messages": good}))
    assert codes(out) == {3: code}
    assert [row["messages"] for row in kept(out)] == [[message(**turn) for turn in good]] * 2
    assert out.rejects["stage"].to_pylist() == ["columns"]


def rows_of(*talks: list[Row], **more: Any) -> list[Row]:
    return [{"messages": talk, **more} for talk in talks]


HI, HO = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}


def test_all_fields_of_messages_are_kept_in_their_order_but_nulls() -> None:
    meta = {"b": [1, 1.0, None], "a": 2**70}
    talk = [{"id": 7, **HI, "name": "Ann"}, {**HO, "name": None, "meta": meta}]
    (row,) = kept(canonical(as_json(*rows_of(talk)), **mapped({"messages": "messages"})))
    asked, said = (json.loads(turn["fields"]) for turn in row["messages"])
    assert list(asked.items()) == [("id", 7), ("role", None), ("content", None), ("name", "Ann")]
    assert str(said) == str({"role": None, "content": None, "meta": meta})


@pytest.mark.parametrize(
    ("field", "value", "weight"),
    [
        ("weight", 0, 0.0),
        ("weight", 0.5, 0.5),
        ("loss_weight", 1.0, 1.0),
        ("train", False, 0.0),
        ("train", True, 1.0),
        ("train", None, None),
        ("training", False, 0.0),
        ("loss", False, 0.0),
        ("loss", "false", 0.0),
        ("train", " True", 1.0),
        ("weight", "0.5", 0.5),
        ("weight", "heavy", "invalid_weight"),
        ("weight", [1], "invalid_weight"),
        ("weight", float("nan"), "invalid_weight"),
        ("loss", 2.31, "invalid_weight"),
    ],
)
def test_the_weight_of_a_message_is_read(field: str, value: Any, weight: float | str | None) -> None:
    rows = rows_of([HI, {**HO, field: value}], [HI, HO])
    for out in (canonical(rows), canonical(as_json(*rows))):
        if isinstance(weight, str):
            assert codes(out) == {1: weight}
            continue
        row, plain = kept(out)
        assert [turn["weight"] for turn in row["messages"]] == [None, weight]
        assert field_of(row["messages"][1], field) == value
        assert [turn["weight"] for turn in plain["messages"]] == [None, None]


def test_fields_that_declare_different_weights_are_rejected() -> None:
    both = {**HO, "train": False, "weight": 1}
    assert codes(canonical(rows_of([HI, both], [HI, {**both, "weight": 0}]))) == {1: "invalid_weight"}


@pytest.mark.parametrize(
    ("thought", "expected"),
    [
        ({"reasoning_content": "hm"}, "hm"),
        ({"reasoning": "hm"}, "hm"),
        ({"thinking": "hm"}, "hm"),
        ({"thinking": "", "reasoning_content": None}, ""),
        ({"reasoning_content": "first", "thinking": "second"}, "first"),
        ({"thinking": True}, None),
        ({"reasoning": {"effort": "high"}}, None),
        ({"reasoning": ["a"]}, None),
    ],
)
def test_reasoning_under_any_usual_name_is_kept_if_it_is_text(thought: Row, expected: str | None) -> None:
    rows = rows_of([HI, {**HO, **thought}], [HI, HO])
    for row, plain in (kept(canonical(rows)), kept(canonical(as_json(*rows)))):
        turn = row["messages"][1]
        others = {name: value for name, value in thought.items() if value not in (None, expected)}
        assert (turn["content"], turn["reasoning"]) == ("ho", expected)
        assert {name: value for name, value in json.loads(turn["fields"]).items() if value is not None} == others
        assert plain["messages"] == [message(**HI), message(**HO)]


def test_reasoning_alone_is_not_an_answer_but_can_precede_one() -> None:
    thought = {"role": "assistant", "content": None, "reasoning": "hm"}
    out = canonical(rows_of([HI, thought, HO], [HI, thought]))
    assert codes(out) == {3: "empty_answer"}
    (row,) = kept(out)
    fields = json.dumps({"role": None, "reasoning": None})
    assert row["messages"][1] == {**message("assistant"), "reasoning": "hm", "fields": fields}


ARGUMENTS = {"q": "é", "n": [1, None], "none": None}
OPENAI = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q":1}'}, "index": 0}
CALL = {"name": "find", "arguments": ARGUMENTS}
FOUND = call("find", ARGUMENTS)
EMPTY = {"name": "f", "arguments": {}}


@pytest.mark.parametrize(
    ("special", "calls"),
    [
        ({"tool_calls": [OPENAI]}, [OPENAI]),
        ({"tool_calls": [{"function": CALL}]}, [{"function": CALL}]),
        *(
            ({"tool_calls": [{"function": {"name": "f", "arguments": nothing}}]}, [{"function": EMPTY}])
            for nothing in (None, "", " ", "null", "[]", [], {}, '"{}"')
        ),
        ({"tool_calls": [CALL]}, [FOUND]),
        ({"tool_calls": [{"id": 5, **CALL}]}, [{"id": 5, **FOUND}]),
        ({"tool_calls": [{"name": "find"}]}, [call("find", {})]),
        ({"tool_calls": [{"name": "find", "parameters": {"a": 1}}]}, [call("find", {"a": 1})]),
        ({"tool_calls": json.dumps([CALL])}, [FOUND]),
        ({"function_call": {"name": "find", "arguments": ' {"a": 1}'}}, [call("find", ' {"a": 1}')]),
        ({"function_call": {"name": "find", "arguments": '"{\\"a\\": 1}"'}}, [call("find", {"a": 1})]),
        ({"function_call": {"name": "find", "arguments": ""}}, [call("find", {})]),
        ({"tool_calls": [CALL, {"name": "g"}]}, [FOUND, call("g", {})]),
        ({"tool_calls": []}, []),
        ({"tool_calls": None, "function_call": None}, None),
    ],
)
@pytest.mark.parametrize("content", ["ho", None, ...])
def test_tool_calls_of_any_layout_are_in_that_of_openai(special: Row, calls: list[Row] | None, content: Any) -> None:
    turn = {"role": "assistant", "content": content, **special}
    turn = {name: value for name, value in turn.items() if value is not ...}
    out = canonical(as_json(*rows_of([HI, HO], [HI, turn, HO])))
    if content in (None, ...) and not calls:
        assert codes(out) == {3: "missing_content"}
        return
    plain, row = kept(out)
    assert plain["messages"] == [message(**HI), message(**HO)]
    asked, called, answer = row["messages"]
    assert (asked, answer) == (message(**HI), message(**HO))
    assert field_of(called, "tool_calls") == calls
    assert called["content"] == ("" if content in (None, ...) else content)
    assert ("content" in json.loads(called["fields"] or '{"content": null}')) == (content == "ho")


def test_calls_keep_the_order_of_keys_and_the_kinds_of_numbers() -> None:
    arguments = {"b": 1, "a": 1.0, "c": 2**64, "d": [1, "1", None, {"z": {}, "y": []}]}
    turn = {"role": "assistant", "content": None, "tool_calls": [call("f", arguments)]}
    (row,) = kept(canonical(as_json(*rows_of([HI, turn, HO]))))
    assert str(field_of(row["messages"][1], "tool_calls")) == str([call("f", arguments)])


@pytest.mark.parametrize(
    "value",
    ["f()", "", "{", "7", "null", "[]", "[7]", '{"arguments": {}}', '{"name": 7}', '{"name": "f", "arguments": "{"}',
     '{"name": "f", "arguments": [1]}', '{"name": "f", "arguments": 3}', '{"name": "f", "arguments": "[1]"}',
     '{"name": "f", "arguments": "x"}', '{"name": "f", "arguments": "\\"x\\""}', '{"name": "f", "arguments": true}',
     '{"name": "\\ud800"}', '{"name": "f", "arguments": {"x": "\\ud800"}}', "[" * 9999],
)  # fmt: skip
def test_an_invalid_call_is_rejected(value: str) -> None:
    good = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
    out = canonical([{"conversations": talk} for talk in (good, [*good, {"from": "function_call", "value": value}])])
    assert codes(out) == {3: "invalid_tool_call"}


def test_calls_and_observations_of_sharegpt_become_tool_calls_and_tool_messages() -> None:
    talk = [
        ("human", "hi"),
        ("function_call", '[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]'),
        ("observation", "42"),
        ("gpt", "ho"),
    ]
    (row,) = kept(canonical([{"conversations": [{"from": who, "value": said} for who, said in talk], "tools": "[{}]"}]))
    assert row["messages"] == [
        message("user", "hi"),
        message("assistant", "", tool_calls=[call("f", {"a": 1}), call("g", {})]),
        message("tool", "42"),
        message("assistant", "ho"),
    ]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "text", "value": "a", "text": None}], "a"),
        ([{"type": None, "content": "a"}], "a"),
        (["a", "b"], "ab"),
        ([], ""),
        ([{"type": "image_url", "text": None}], "not_text"),
        ([{"type": "image_url", "text": "x"}], "not_text"),
        ([{"type": "text", "text": None}], "not_text"),
        ([7], "not_text"),
    ],
)
def test_content_parts_are_joined_and_other_parts_than_text_rejected(parts: list[Any], expected: str) -> None:
    talk = [{"role": "user", "content": parts}, {"role": "assistant", "content": parts}]
    again = [*talk, {"role": "assistant", "content": [type(parts[0])("")] if parts[:1] == ["a"] else parts}]
    out = canonical(rows_of(talk, again))
    if expected == "not_text":
        assert set(codes(out).values()) == {"not_text"}
    elif not expected:
        assert set(codes(out).values()) == {"empty_answer"}
    else:
        assert [turn["content"] for turn in kept(out)[0]["messages"]] == [expected, expected]


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ('[{"name": "f"}]', '[{"name": "f"}]'),
        ("[]", ""),
        (" null ", ""),
        ("", ""),
        (None, ""),
        ('[{"name": "f", "more": null}]', '[{"name": "f", "more": null}]'),
        ([], ""),
        ({"name": "f"}, '[{"name": "f"}]'),
        (['{"name": "f", "n": 1.0}', '{"name": "g"}'], '[{"name": "f", "n": 1.0}, {"name": "g"}]'),
        ([1], "not_tools"),
        ("tools", "not_tools"),
        ("[[]]", "not_tools"),
        (7, "not_tools"),
    ],
)
def test_tools_are_the_json_text_of_a_list_and_empty_without_tools(tools: Any, expected: str) -> None:
    roles = mapped({"messages": "messages", "tools": "tools"})
    rows = rows_of([HI, HO], [HI, HO], tools=tools)
    for out in (canonical(rows, **roles), canonical(as_json(*rows), **roles)):
        assert {row["tools"] for row in kept(out)} | set(codes(out).values()) == {expected}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"enable_thinking": False, "n": 1.0}, '{"enable_thinking": false, "n": 1.0}'),
        ('{ "b":1}', '{ "b":1}'),
        (None, ""),
        ({}, ""),
        ("{}", ""),
        ([1], "not_template_kwargs"),
        ("yes", "not_template_kwargs"),
    ],
)
def test_variables_of_the_template_are_the_json_text_of_an_object(given: Any, expected: str) -> None:
    roles = mapped({"messages": "messages", "template_kwargs": "kwargs"})
    out = canonical(as_json(*rows_of([HI, HO], kwargs=given)), **roles)
    assert {row["template_kwargs"] for row in kept(out)} | set(codes(out).values()) == {expected}


def test_tools_are_kept_as_the_source_writes_them() -> None:
    text = '[{"b":1.50,"a":[1E5, null]},{"é":18446744073709551616, "a" : {}}]'
    table = pa.table({"messages": json_column([json.dumps([HI, HO])]), "tools": json_column([text])})
    assert kept(canonical(table))[0]["tools"] == text


@given(
    st.lists(
        st.tuples(MAYBE, st.lists(st.sampled_from(["system", "user", "assistant"]), min_size=1, max_size=3)), max_size=6
    )
)
def test_the_system_prompt_is_put_before_conversations_without_one(
    rows: list[tuple[str | None, list[str]]],
) -> None:
    talks = [[{"role": role, "content": "x"} for role in [*roles, "assistant"]] for _, roles in rows]
    data = [{"messages": talk, "sys": system} for talk, (system, _) in zip(talks, rows, strict=True)]
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    roles = mapped({"messages": "messages", "system": "sys"})
    out = canonical(data, {"messages": kind, "sys": pa.string()}, **roles)
    expected = [
        [message("system", system or "")] * bool((system or "").strip() and talk[0]["role"] != "system")
        + [message(**turn) for turn in talk]
        for talk, (system, _) in zip(talks, rows, strict=True)
    ]
    assert [row["messages"] for row in kept(out)] == expected


# No line breaks at the ends: a transcript cannot distinguish its own from those of a turn.
SAID = st.text("ab: é\nHumanAsit", max_size=12).map(str.strip)
TURNS = st.lists(st.tuples(st.sampled_from(["Human", "Assistant"]), SAID), max_size=5)


@given(
    st.lists(st.one_of(st.none(), st.just("  "), st.text("ab\n:", max_size=5), TURNS), max_size=6),
    st.sampled_from([" ", ""]),
)
def test_transcripts_become_messages(rows: list[Any], gap: str) -> None:
    texts = ["".join(f"\n\n{who}:{gap}{said}" for who, said in row) if isinstance(row, list) else row for row in rows]
    out = canonical([{"talk": text} for text in texts], {"talk": pa.string()}, **mapped({"messages": "talk"}))
    expected, found = [], {}
    for index, (row, text) in enumerate(zip(rows, texts, strict=True)):
        if not (text or "").strip():
            found[2 * index + 1] = "no_messages"
        elif not isinstance(row, list):
            found[2 * index + 1] = "not_messages"
        else:
            turns = [
                (("user" if part[0] == "H" else "assistant"), part.split(":", 1)[1].strip())
                for part in re.split(r"\n\n(?=Human:|Assistant:)", "\n\n" + text.lstrip())[1:]
            ]
            if any(who == "assistant" and said for who, said in turns):
                expected.append([message(*turn) for turn in turns])
            else:
                found[2 * index + 1] = "empty_answer"
    assert codes(out) == found
    assert [row["messages"] for row in kept(out)] == expected


def test_a_system_turn_is_only_at_the_start_of_a_transcript() -> None:
    text = "System: be kind\n\nHuman: a\n\nSystem: Linux\n\nAssistant: b"
    (row,) = kept(canonical([{"talk": text}], **mapped({"messages": "talk"})))
    assert row["messages"] == [
        message("system", "be kind"),
        message("user", "a\n\nSystem: Linux"),
        message("assistant", "b"),
    ]


JSON_TALK = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "content": st.one_of(TEXT, st.just("2020-01-01"))}
    ),
    max_size=3,
)


@given(st.lists(st.one_of(JSON_TALK, st.sampled_from(["[", "[1]", '[{"role": 1, "content": []}]', "x"])), max_size=6))
@pytest.mark.parametrize("indent", [None, 1])
def test_json_text_becomes_messages_and_other_text_is_rejected(indent: int | None, rows: list[Any]) -> None:
    texts = [row if isinstance(row, str) else json.dumps(row, indent=indent) for row in rows]
    out = canonical([{"talk": text} for text in texts], {"talk": pa.string()}, **mapped({"messages": "talk"}))
    answered = [
        isinstance(row, list) and any(t["role"] == "assistant" and t["content"].strip() for t in row) for row in rows
    ]
    good = [row for row, ok in zip(rows, answered, strict=True) if ok]
    if '[{"role": 1, "content": []}]' not in rows:
        assert [row["messages"] for row in kept(out)] == [[message(**turn) for turn in row] for row in good]
    assert set(codes(out)) >= {2 * index + 1 for index, ok in enumerate(answered) if not ok}


@pytest.mark.parametrize("column", [[1, 2], [["a"], []], [{"a": 1}, None], [[[HI]], [[HO]]]])
def test_a_column_other_than_conversations_in_one_chunk_is_rejected(column: list[Any]) -> None:
    mapping = ColumnMapping("messages", {"messages": "talk"})
    out = to_canonical(table_of([{"talk": value} for value in column]), mapping)
    validate(STAGE, out.table)
    assert set(codes(out).values()) <= {"not_messages", "no_messages", "unknown_role"}
    assert out.rejects.num_rows == len(column)


def test_a_rejected_conversation_shows_its_unknown_roles() -> None:
    talk = [("robot", "a"), ("gpt", "b"), ("Narrator", "c")]
    rows = [{"conversations": [{"from": who, "value": said} for who, said in part]} for part in ([talk[1]], talk)]
    out = canonical(rows)
    assert out.rejects["excerpt"].to_pylist() == ["robot, narrator"]


CALL_PART = {"type": "tool_use", "id": "1", "name": "find", "input": {"q": 1.0}}
RESULT_PART = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "found"}]}
THOUGHT, SAYS = {"type": "reasoning", "text": "hm"}, {"type": "text", "text": "so"}
CALLED = {"role": "assistant", "tool_calls": [call("find", {"q": 1.0}, "1")]}
FOUND_IT = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "found"}]}


@pytest.mark.parametrize(
    ("role", "parts", "expected"),
    [
        ("assistant", [THOUGHT, SAYS], [{"role": "assistant", "reasoning_content": "hm", "content": "so"}]),
        ("assistant", [{"type": "thinking", "thinking": "hm"}, SAYS],
         [{"role": "assistant", "reasoning_content": "hm", "content": "so"}]),
        ("assistant", [SAYS, CALL_PART], [{**CALLED, "content": "so"}]),
        ("assistant", [{"type": "tool_call", "tool_call": CALL}], [{"role": "assistant", "tool_calls": [CALL]}]),
        ("assistant", [CALL_PART, SAYS], [CALLED, {"role": "assistant", "content": "so"}]),
        ("assistant", [CALL_PART, RESULT_PART, SAYS], [CALLED, FOUND_IT, {"role": "assistant", "content": "so"}]),
        ("user", [RESULT_PART, SAYS], [FOUND_IT, {"role": "user", "content": "so"}]),
        ("user", [{**RESULT_PART, "content": {"a": None}}], [{**FOUND_IT, "content": {"a": None}}]),
        ("assistant", [{"type": "reasoning", "text": None}, SAYS], "not_text"),
        ("assistant", [THOUGHT, {"type": "image"}], "not_text"),
        ("assistant", [{"type": "tool_call", "name": ""}], "invalid_tool_call"),
        ("user", [{"type": "image_url", "image_url": {"url": "x"}}, SAYS], "not_text"),
    ],
)  # fmt: skip
def test_parts_with_reasoning_calls_and_results_are_the_messages_that_they_stand_for(
    role: str, parts: list[Row], expected: Any
) -> None:
    out = canonical(as_json(*rows_of([HI, {"role": role, "content": parts}, HO])))
    if isinstance(expected, str):
        assert codes(out) == {1: expected}
        return
    same = canonical(as_json(*rows_of([HI, *expected, HO])))

    def read(found: ChunkOutput) -> list[Row]:
        (row,) = kept(found)
        return [{**turn, "fields": json.loads(turn["fields"] or "{}")} for turn in row["messages"]]

    assert read(out) == read(same)


ODD = st.sampled_from(
    [
        {**HI, "name": "Ann"},
        {**HI, "id": 1},
        {**HI, "id": 1.5},
        {**HI, "id": "1"},
        {**HI, "meta": {"a": None}},
        {**HI, "meta": [1, "a"]},
        {"role": "developer", "content": "x"},
        {"role": "user", "content": [SAYS]},
        {"role": "tool", "content": {"a": 1}},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [{"name": "g", "arguments": {"q": 2}}]},
        {"role": "user", "content": None},
        {"role": "user", "content": 5},
        {"role": 5, "content": "x"},
        {**HO, "weight": 0.5},
        {**HO, "train": "no"},
        {"from": "human", "value": "x"},
        None,
        "text",
        [],
    ]
)
TALKS = st.one_of(
    st.lists(st.one_of(st.just(HI), st.just(HO), ODD), max_size=3).map(lambda turns: [*turns, HO]),
    st.sampled_from(["Human: a\n\nAssistant: b", json.dumps([HI, HO]), "plain", 7, True, None, HO, {"a": 1}, [[HI]]]),
)


@given(st.lists(TALKS, min_size=1, max_size=6))
def test_a_row_is_the_same_alone_and_among_any_neighbours(talks: list[Any]) -> None:
    together = canonical(as_json(*rows_of(*talks)))
    rows, rejects = iter(kept(together)), codes(together)
    for number, talk in enumerate(talks):
        alone = canonical(as_json({"messages": talk}))
        assert codes(alone).get(1) == rejects.get(2 * number + 1)
        assert kept(alone) == ([] if codes(alone) else [next(rows)])


@given(st.lists(st.lists(st.sampled_from([HI, HO, {**HI, "name": "Ann"}, {**HO, "n": 1}, {**HO, "n": 2}]), max_size=4)))
def test_typed_columns_and_json_give_the_same_messages(talks: list[list[Row]]) -> None:
    fields = [("role", pa.string()), ("content", pa.string()), ("name", pa.string()), ("n", pa.int64())]
    typed = pa.table({"messages": pa.array(talks, pa.large_list(pa.struct(fields)))})
    as_read, as_written = canonical(typed), canonical(as_json(*rows_of(*talks)) if talks else typed)
    assert (kept(as_read), codes(as_read)) == (kept(as_written), codes(as_written))


def test_null_fields_of_structs_are_omitted_from_typed_columns_unless_they_are_kept() -> None:
    turns = [{**HO, "tool_calls": [call("f", {"a": 1})]}, {**HO, "tool_calls": [call("f", {"b": [1.5]})], "name": "x"}]
    table = pa.Table.from_pylist(rows_of([HI, turns[0]], [HI, turns[1]]))
    for row, turn in zip(kept(canonical(table)), turns, strict=True):
        asked, answer = row["messages"]
        assert asked == message(**HI)
        assert field_of(answer, "tool_calls") == turn["tool_calls"]
    keeping = ColumnMapping("messages", {"messages": "messages"}, nulls=True)
    assert ColumnMapping.from_json(keeping.to_json()) == keeping
    out = to_canonical(table.append_column("_row", pa.array([0, 1], pa.int32())), keeping).table
    for row, read in zip(out["messages"].to_pylist(), table.to_pylist(), strict=True):
        assert field_of(row[1], "tool_calls") == read["messages"][1]["tool_calls"]


def test_conversations_that_are_json_text_in_a_column_of_texts() -> None:
    texts = [
        json.dumps([HI, {**HO, "tool_calls": [CALL], "n": 1.0}], indent=1),
        json.dumps([HI, HO]),
        '[{"role": "user',
    ]
    out = canonical(pa.table({"messages": texts}))
    called, plain = (row["messages"] for row in kept(out))
    assert plain == [message(**HI), message(**HO)]
    assert str(json.loads(called[1]["fields"])["n"]) == "1.0"
    assert codes(out) == {5: "invalid_json"}
