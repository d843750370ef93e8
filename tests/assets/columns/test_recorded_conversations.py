"""Columns of Responses items, harmony and SWE-agent's messages: the same conversations as in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import agent_sessions
from support.agent_sessions import Made
from support.columns_stage import described, kept
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping, resolve
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.raw.sessions.conversation import NOT_MODEL_TEXT
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import count_rejected
from tokenloom.config import DatasetConfig, PipelineConfig

MADE: dict[str, tuple[str, Callable[[int], Made]]] = {
    "responses": ("items", agent_sessions.responses),
    "harmony": ("text", agent_sessions.harmony),
    "swe_agent": ("messages", agent_sessions.swe_smith),
}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "o"}
ASKED = {"role": "user", "content": "Q"}


def answer(text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


Read = Callable[[list[dict[str, Any]]], tuple[ColumnMapping, ChunkOutput]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a function that writes rows as JSON Lines, and converts them as a build without a mapping does."""

    def converted(rows: list[dict[str, Any]]) -> tuple[ColumnMapping, ChunkOutput]:
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = PipelineConfig(dataset=DatasetConfig(name=str(tmp_path / "rows.jsonl")))
        (chunk,) = source_chunks(config)
        table = chunk.load().table
        mapping = resolve(config, described(table))
        out = to_canonical(table, mapping)
        assert out.rows_in == len(rows) == out.table.num_rows + count_rejected(out.rejects) + out.filtered
        return mapping, out

    return converted


@pytest.mark.parametrize("dialect", MADE)
def test_made_rows_are_the_conversations_that_they_record(dialect: str, read: Read) -> None:
    column, make = MADE[dialect]
    made = [make(seed) for seed in range(200)]
    beside = {"traj_id": "t", "instance_id": "i"} if dialect == "swe_agent" else {}
    mapping, out = read([{column: one.content, **beside} for one in made])
    _, known = read([{"messages": one.rows[0][1]} for one in made])
    assert mapping.dialect == dialect
    assert kept(out) == kept(known)
    assert len(kept(out)) == 200
    text = json.dumps(kept(out), ensure_ascii=False)
    assert not [word for one in made for word in one.dropped if word in text]


def test_input_and_output_of_responses_are_a_prompt_and_its_answer(read: Read) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hidden"}]}
    rows = [
        {"input": "Q", "output": [summary, answer("A")], "instructions": "Be kind.", "tools": [tool]},
        {"input": [ASKED, CALL, OUTPUT], "output": [answer("B")], "instructions": None, "tools": []},
    ]
    _, out = read(rows)
    first, second = kept(out)
    said = [(message["role"], message["content"]) for message in first["prompt"] + first["completion"]]
    assert said == [("system", "Be kind."), ("user", "Q"), ("assistant", "A")]
    assert json.loads(first["tools"]) == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    ]
    assert [message["role"] for message in second["prompt"]] == ["user", "assistant", "tool"]
    assert out.counters[NOT_MODEL_TEXT] == 1


def test_tools_of_harmony_objects_are_the_tools_of_the_row(read: Read) -> None:
    tool = {"name": "f", "description": "", "parameters": {}}
    developer = {"type": "developer_content", "instructions": "Be kind.", "tools": {"functions": {"tools": [tool]}}}
    talk = [
        {"role": "developer", "content": [developer], "channel": None},
        ASKED,
        {"role": "assistant", "content": "A", "channel": "final"},
    ]
    (row,) = kept(read([{"messages": talk}])[1])
    assert json.loads(row["tools"]) == [{"type": "function", "function": tool}]
    assert [message["content"] for message in row["messages"]] == ["Be kind.", "Q", "A"]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ([ASKED, OUTPUT, answer("A")], "result_without_call"),
        ([ASKED, {"type": "item_reference", "id": "x"}, answer("A")], "missing_messages"),
        ([ASKED, {"type": "unheard_of"}, answer("A")], "unknown_item"),
        ([ASKED, {"type": "message", "role": "assistant", "content": [{"type": "output_audio"}]}], "unknown_part"),
        ([ASKED, "alone", answer("A")], "not_messages"),
        (["Q", "A"], "not_messages"),
        (7, "not_messages"),
    ],
)
def test_rows_that_are_not_understood_are_rejected_alone(value: Any, code: str, read: Read) -> None:
    good = [ASKED, CALL, OUTPUT, answer("A")]
    _, out = read([{"items": good}, {"items": value}, {"items": good}])
    assert out.rejects["code"].to_pylist() == [code]
    assert len(kept(out)) == 2


def test_signed_reasoning_in_messages_of_anthropic_is_not_used(read: Read) -> None:
    signed = {"type": "thinking", "thinking": "hidden", "signature": "x"}
    own = {"type": "thinking", "thinking": "own", "signature": ""}
    rows = [
        {"messages": [ASKED, {"role": "assistant", "content": [part, {"type": "text", "text": "A"}]}]}
        for part in (signed, own, {"type": "redacted_thinking", "data": "hidden"})
    ]
    _, out = read(rows)
    assert [row["messages"][1]["reasoning"] for row in kept(out)] == [None, "own", None]
    assert out.counters[NOT_MODEL_TEXT] == 2
    assert read([{"messages": [ASKED, {"role": "assistant", "content": "A"}]}])[1].counters == {}


def test_only_rows_in_a_dialect_have_another_mapping(read: Read) -> None:
    plain, _ = read([{"messages": [ASKED, {"role": "assistant", "content": "A"}]}])
    assert "dialect" not in plain.to_json()
    items, _ = read([{"items": [ASKED, CALL, OUTPUT, answer("A")]}])
    assert items.to_json()["dialect"] == "responses"
    assert ColumnMapping.from_json(items.to_json()) == items
