"""Sessions of agents become conversations: every word of the assistant once, and nothing of others is trained."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import agent_sessions
from support.agent_sessions import Made
from support.columns_stage import config_of, described, table_of
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.raw.formats.parsed_chunk import ParsedChunk
from tokenloom.assets.raw.formats.sessions import READERS, detected, parse_sessions
from tokenloom.assets.raw.sessions.conversation import NOT_MODEL_TEXT, WITHOUT_RESULT
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.assets.stage.rejects import ABANDONED, NO_CONTEXT, ROW, count_rejected
from tokenloom.config import DatasetConfig, PipelineConfig
from tokenloom.resources.store.manifest_chunks import source_place
from tokenloom.resources.tables.json_text import python_values

MADE: dict[str, Callable[[int], Made]] = {
    "claude_code": agent_sessions.claude_code,
    "codex": agent_sessions.codex,
    "atif": agent_sessions.atif,
    "swe_agent": agent_sessions.swe_agent,
}
ENDING = {"claude_code": ".jsonl", "codex": ".jsonl", "atif": ".json", "swe_agent": ".traj"}


def parsed(content: bytes, kind: str) -> ParsedChunk:
    return parse_sessions(np.frombuffer(content, np.uint8), np.array([0, len(content)]), kind)


def rows_of(chunk: ParsedChunk) -> list[dict[str, Any]]:
    columns = {name: python_values(chunk.table[name]) for name in chunk.table.column_names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def codes(chunk: ParsedChunk) -> dict[str, int]:
    return Counter(chunk.rejects["code"].to_pylist())


def lines(*events: Any) -> bytes:
    return b"\n".join(event if isinstance(event, bytes) else json.dumps(event).encode() for event in events) + b"\n"


def event(uuid: str, parent: str | None, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content, **({"id": f"msg_{uuid}"} if kind == "assistant" else {})}
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "message": message, **more}


def item(**payload: Any) -> dict[str, Any]:
    return {"timestamp": "t", "type": "response_item", "payload": payload}


def said(role: str, text: str) -> dict[str, Any]:
    return item(type="message", role=role, content=[{"type": "output_text", "text": text}])


META = {"timestamp": "t", "type": "session_meta", "payload": {"id": "thread"}}


@pytest.mark.parametrize("kind", MADE)
def test_made_sessions_become_their_messages(kind: str) -> None:
    for seed in range(200):
        made = MADE[kind](seed)
        chunk = parsed(made.content, kind)
        rows = rows_of(chunk)
        assert sorted(json.dumps(row["messages"]) for row in rows) == sorted(json.dumps(row) for _, row in made.rows)
        assert codes(chunk) == ({ABANDONED: made.branches} if made.branches else {})
        assert chunk.filtered == made.branches
        place = {json.dumps(messages): at for at, (_, messages) in enumerate(made.rows)}
        ids = {place[json.dumps(row["messages"])]: row["id"] for row in rows}
        if kind != "swe_agent":
            assert len({*ids.values()}) == len(ids)
            for row in rows:
                parent = made.rows[place[json.dumps(row["messages"])]][0]
                known = row.get("parent") in ids.values()
                assert (ids[parent] == row["parent"]) if parent is not None else not known
        text = json.dumps([row["messages"] for row in rows], ensure_ascii=False)
        assert not [word for word in made.dropped if word in text]


@pytest.mark.parametrize("kind", MADE)
def test_files_of_sessions_are_detected_and_other_files_are_not(kind: str, tmp_path: Path) -> None:
    for seed in range(20):
        (tmp_path / f"{seed}{ENDING[kind]}").write_bytes(MADE[kind](seed).content)
    for settings in ({}, {"format": kind}):
        config = PipelineConfig(dataset=DatasetConfig.model_validate({"name": str(tmp_path), **settings}))
        outputs = [chunk.load() for chunk in source_chunks(config)]
        assert sum(output.table.num_rows for output in outputs) == sum(len(MADE[kind](seed).rows) for seed in range(20))


@pytest.mark.parametrize(
    "content",
    [
        b'{"type": "user", "message": "hi", "parentUuid": null}\n',
        b'{"payload": {"a": 1}, "type": "order"}\n{"payload": {}, "type": "event_msg"}\n',
        b'{"trajectory": {"schema_version": "ATIF-v1.8", "steps": []}}\n',
        b'[1, {"schema_version": "ATIF-v1.8"}]',
        b'{"text": "about \\"parentUuid\\" and {\\"payload\\": {}}"}\n',
        b'{"parentUuid": 1',
        b"",
    ],
)
def test_ordinary_json_is_not_taken_for_sessions(content: bytes) -> None:
    assert detected(content, "jsonl") is None
    assert detected(content, "json") is None


def test_counts_add_up_and_rows_keep_their_file_and_line_in_shared_chunks(tmp_path: Path) -> None:
    made = [agent_sessions.claude_code(seed) for seed in range(60)]
    for at, session in enumerate(made):
        (tmp_path / f"{at:03d}.jsonl").write_bytes(session.content)
    (tmp_path / "900.jsonl").write_bytes(lines(event("a", None, "user", "hi"), {"type": "mode"}))
    config = PipelineConfig(dataset=DatasetConfig(name=str(tmp_path), format="claude_code"))
    chunks = list(source_chunks(config, ChunkSize(100_000, 400_000)))
    assert 3 < len(chunks) < 40  # of 61 files
    rows_in = out = rejected = filtered = 0
    places: list[str] = []
    for chunk in chunks:
        output = chunk.load()
        rows_in, out = rows_in + output.rows_in, out + output.table.num_rows
        rejected, filtered = rejected + count_rejected(output.rejects), filtered + output.filtered
        at = output.table[ROW].to_pylist()
        assert at == sorted({*at})
        places += [source_place(chunk.runs, chunk.unit, row) for row in at]
    branches = sum(session.branches for session in made)
    assert (out, rejected, filtered) == (sum(len(session.rows) for session in made), 0, branches + 1)
    assert rows_in == out + rejected + filtered
    by_file = Counter(place.rpartition(":")[0] for place in places)
    assert by_file == {f"{at:03d}.jsonl": len(session.rows) for at, session in enumerate(made)}
    file, _, line = places[-1].rpartition(":")
    assert json.loads((tmp_path / file).read_bytes().split(b"\n")[int(line) - 1])["type"] == "user"


def test_an_appended_session_changes_few_chunks(tmp_path: Path) -> None:
    for at in range(80):
        (tmp_path / f"{at:03d}.jsonl").write_bytes(agent_sessions.claude_code(at).content)
    config = PipelineConfig(dataset=DatasetConfig(name=str(tmp_path)))
    before = {chunk.digest for chunk in source_chunks(config, ChunkSize(10_000, 40_000))}
    path = tmp_path / "040.jsonl"
    path.write_bytes(path.read_bytes().rpartition(b"\n")[0] + b"\n" + lines({"type": "mode", "mode": "normal"}))
    after = {chunk.digest for chunk in source_chunks(config, ChunkSize(10_000, 40_000))}
    assert len(before) > 20
    assert len(after - before) <= 2


def test_a_session_above_the_limit_is_rejected_alone(tmp_path: Path) -> None:
    for at in range(3):
        words = "word " * (40_000 if at == 1 else 5)
        content = lines(
            event("u", None, "user", words), event("a", "u", "assistant", [{"type": "text", "text": "yes"}])
        )
        (tmp_path / f"{at}.jsonl").write_bytes(content)
    settings = {"name": str(tmp_path), "reader": {"max_record_bytes": 100_000}}
    outputs = [chunk.load() for chunk in source_chunks(PipelineConfig(dataset=DatasetConfig.model_validate(settings)))]
    assert sum(output.table.num_rows for output in outputs) == 2
    assert [code for output in outputs for code in output.rejects["code"].to_pylist()] == ["too_large"]


def test_sub_agents_of_one_line_have_places_of_their_own(tmp_path: Path) -> None:
    made = [agent_sessions.atif(seed) for seed in range(30)]
    for at, session in enumerate(made):
        (tmp_path / f"{at:02d}.json").write_bytes(session.content)
    for chunk in source_chunks(PipelineConfig(dataset=DatasetConfig(name=str(tmp_path)))):
        at = chunk.load().table[ROW].to_pylist()
        assert at == sorted({*at})


class TestReasoning:
    def test_signed_and_redacted_reasoning_is_counted_and_not_used(self) -> None:
        parts = [{"type": "thinking", "thinking": "no", "signature": "x"}, {"type": "redacted_thinking", "data": "no"}]
        answer = [*parts, {"type": "text", "text": "Yes."}]
        chunk = parsed(lines(event("u", None, "user", "Q"), event("a", "u", "assistant", answer)), "claude_code")
        assert rows_of(chunk)[0]["messages"][1] == {"role": "assistant", "content": "Yes."}
        assert chunk.counters[NOT_MODEL_TEXT] == 2

    def test_raw_reasoning_next_to_encrypted_reasoning_is_not_used(self) -> None:
        content = [{"type": "reasoning_text", "text": "no"}]
        thought = item(type="reasoning", summary=[], content=content, encrypted_content="gAAA")
        chunk = parsed(lines(META, said("user", "Q"), thought, said("assistant", "A")), "codex")
        assert "no" not in json.dumps(rows_of(chunk)[0]["messages"][1])
        assert chunk.counters[NOT_MODEL_TEXT] == 1

    def test_reasoning_that_a_converter_copied_is_not_used(self) -> None:
        steps = [{"source": "user", "message": "Q"}, {"source": "agent", "message": "A", "reasoning_content": "no"}]
        document = {"schema_version": "ATIF-v1.6", "agent": {"name": "claude-code"}, "steps": steps}
        chunk = parsed(lines(document), "atif")
        assert rows_of(chunk)[0]["messages"][1] == {"role": "assistant", "content": "A"}
        assert chunk.counters[NOT_MODEL_TEXT] == 1


class TestPairs:
    def test_a_call_without_result_stays_and_is_counted(self) -> None:
        call = item(type="function_call", name="f", call_id="c", arguments="{}")
        chunk = parsed(lines(META, said("user", "Q"), call), "codex")
        assert rows_of(chunk)[0]["messages"][-1]["tool_calls"][0]["function"]["name"] == "f"
        assert chunk.counters[WITHOUT_RESULT] == 1

    @pytest.mark.parametrize("repeated", [False, True])
    def test_a_result_without_call_rejects_the_row(self, repeated: bool) -> None:
        call = item(type="function_call", name="f", call_id="c", arguments="{}")
        output = item(type="function_call_output", call_id="c", output="o")
        before = [call, output] if repeated else []
        chunk = parsed(lines(META, said("user", "Q"), *before, output, said("assistant", "A")), "codex")
        assert codes(chunk) == {"result_without_call": 1}
        assert f"line {5 if repeated else 3}" in chunk.rejects["message"][0].as_py()

    def test_repeated_ids_pair_in_order(self) -> None:
        call = item(type="function_call", name="f", call_id="c", arguments="{}")
        outputs = [item(type="function_call_output", call_id="c", output=text) for text in ("one", "two")]
        chunk = parsed(lines(META, said("user", "Q"), call, outputs[0], call, outputs[1]), "codex")
        assert [m["content"] for m in rows_of(chunk)[0]["messages"] if m["role"] == "tool"] == ["one", "two"]

    def test_other_calls_of_codex_have_their_name_and_input(self) -> None:
        shell = item(type="local_shell_call", call_id="a", action={"type": "exec", "command": ["ls"], "env": None})
        patch = item(type="custom_tool_call", call_id="b", name="apply_patch", input="*** Begin")
        outputs = [item(type="function_call_output", call_id="a", output={"content": "x", "success": False})]
        outputs.append(item(type="custom_tool_call_output", call_id="b", output="done"))
        chunk = parsed(lines(META, said("user", "Q"), shell, patch, *outputs), "codex")
        _, answer, *results = rows_of(chunk)[0]["messages"]
        assert [call["function"] for call in answer["tool_calls"]] == [
            {"name": "local_shell", "arguments": {"command": ["ls"]}},
            {"name": "apply_patch", "arguments": {"input": "*** Begin"}},
        ]
        assert [(found["name"], found["content"]) for found in results] == [
            ("local_shell", "x"),
            ("apply_patch", "done"),
        ]


def test_what_replaces_encrypted_messages_is_dropped_with_its_place() -> None:
    compacted = {
        "timestamp": "t",
        "type": "compacted",
        "payload": {"message": "", "replacement_history": [{"type": "compaction", "encrypted_content": "gAAA"}]},
    }
    content = lines(META, said("user", "Q"), said("assistant", "A"), compacted, said("assistant", "B"))
    chunk = parsed(content, "codex").positioned(np.zeros(1, np.int64), "x")
    assert chunk.rejects.select([ROW, "code"]).to_pylist() == [{ROW: 3, "code": NO_CONTEXT}]
    assert [row["messages"][-1]["content"] for row in rows_of(chunk)] == ["A"]


def test_instructions_of_codex_and_of_the_developer_are_one_message_of_the_system() -> None:
    meta = {**META, "payload": {"id": "thread", "base_instructions": {"text": "Rules."}}}
    before = [said("developer", "More."), said("user", "Q"), said("assistant", "A")]
    ((first, *others),) = [row["messages"] for row in rows_of(parsed(lines(meta, *before), "codex"))]
    assert first == {"role": "system", "content": "Rules.\n\nMore."}
    assert [message["role"] for message in others] == ["user", "assistant"]


def test_early_rollouts_without_payloads_are_read() -> None:
    first = {"id": "old", "timestamp": "t", "instructions": None}
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Q"}]}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]}
    content = lines(first, {"record_type": "state"}, message, answer)
    assert detected(content, "jsonl") == "codex"
    assert [message["content"] for message in rows_of(parsed(content, "codex"))[0]["messages"]] == ["Q", "A"]


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def use(identity: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "Bash", "input": given}


def thought(said: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": said}


SNAPSHOTS: dict[str, tuple[list[list[Any]], str, list[Any], str | None]] = {
    "cumulative": ([[text("I look.")], [text("I look."), use("1", c="ls")]], "I look.", ["ls"], None),
    "the same again": ([[text("42.")], [text("42.")]], "42.", [], None),
    "the start, then the whole": ([[text("The answer")], [text("The answer is 42.")]], "The answer is 42.", [], None),
    "a call that grows": ([[use("1")], [use("1", c="ls")]], "", ["ls"], None),
    "three snapshots": (
        [[thought("Hm")], [thought("Hm."), text("I")], [thought("Hm."), text("I look."), use("1", c="ls")]],
        "I look.", ["ls"], "Hm.",
    ),
    "a text before the one that grows": ([[text("The answer")], [text("First."), text("The answer is 42.")]],
                                         "First.The answer is 42.", [], None),
    "block by block": ([[thought("Hm.")], [text("I look.")], [use("1", c="ls")], [use("2", c="cd")]],
                       "I look.", ["ls", "cd"], "Hm."),
    "the same text around a call": ([[text("Ok.")], [use("1", c="ls")], [text("Ok.")]], "Ok.Ok.", ["ls"], None),
    "the same text twice in a line": ([[text("Ok."), text("Ok.")]], "Ok.Ok.", [], None),
    "equal calls with ids of their own": ([[use("1", c="ls")], [use("2", c="ls")]], "", ["ls", "ls"], None),
}  # fmt: skip
"""The lines of one API message, and its text, commands and reasoning."""


@pytest.mark.parametrize("case", SNAPSHOTS)
def test_each_part_of_a_message_is_there_once(case: str) -> None:
    parts, said, commands, reasoning = SNAPSHOTS[case]
    path = [event("u", None, "user", "Q")]
    for number, content in enumerate(parts):
        path.append(event(f"a{number}", path[-1]["uuid"], "assistant", content))
        path[-1]["message"]["id"] = "msg"
    path.append(event("w", path[-1]["uuid"], "user", "Thanks"))
    path.append(event("b", "w", "assistant", [text("Bye.")]))
    (row,) = rows_of(parsed(lines(*path), "claude_code"))
    answer = row["messages"][1]
    assert (answer.get("content") or "", answer.get("reasoning_content")) == (said, reasoning)
    given = [call["function"]["arguments"] for call in answer.get("tool_calls") or ()]
    assert [(json.loads(each) if isinstance(each, str) else each).get("c") for each in given] == commands


def test_lines_that_a_fork_repeats_are_not_trained() -> None:
    fork = {"forkedFrom": {"sessionId": "first", "messageUuid": "a"}}
    old = [event("u", None, "user", "Q", **fork), event("a", "u", "assistant", [{"type": "text", "text": "A"}], **fork)]
    new = [event("v", "a", "user", "R"), event("b", "v", "assistant", [{"type": "text", "text": "B"}])]
    (row,) = rows_of(parsed(lines(*old, *new), "claude_code"))
    assert [message.get("train", True) for message in row["messages"] if message["role"] == "assistant"] == [
        False,
        True,
    ]
    assert row["parent"] == "first"


A, B, C = ([{"type": "text", "text": said}] for said in "ABC")
SHARED: dict[str, list[tuple[str, str | None, str, Any]]] = {
    "another question": [("u", None, "user", "Q"), ("a", "u", "assistant", A), ("u", "a", "user", "R"),
                         ("b", "u", "assistant", B)],
    "the same question": [("u", None, "user", "go on"), ("a", "u", "assistant", A), ("u", "a", "user", "go on"),
                          ("b", "u", "assistant", B)],
    "an answer": [("u", None, "user", "Q"), ("a", "u", "assistant", A), ("v", "a", "user", "R"),
                  ("a", "v", "assistant", B), ("w", "a", "user", "S"), ("c", "w", "assistant", C)],
    "three times": [("u", None, "user", "Q"), ("a", "u", "assistant", A), ("u", "a", "user", "R"),
                    ("b", "u", "assistant", B), ("u", "b", "user", "S"), ("c", "u", "assistant", C)],
    "an event that links": [("u", None, "user", "Q"), ("x", "u", "system", None), ("a", "x", "assistant", A),
                            ("v", "a", "user", "R"), ("x", "v", "system", None), ("b", "x", "assistant", B)],
}  # fmt: skip
"""Lines of which several share a uuid, each after the one before it; see anthropics/claude-code #36583 and #24304."""


@pytest.mark.parametrize("case", SHARED)
def test_lines_that_share_a_uuid_lose_nothing_before_them(case: str) -> None:
    chunk = parsed(lines(*(event(*line) for line in SHARED[case])), "claude_code")
    (row,) = rows_of(chunk)
    written = [content if isinstance(content, str) else content[0]["text"] for *_, content in SHARED[case] if content]
    assert [message["content"] for message in row["messages"]] == written
    assert codes(chunk) == {}


def test_a_line_that_is_written_again_elsewhere_does_not_move_the_conversation() -> None:
    """A retry repeats a message with another parent (anthropics/claude-code #37437), a log its answers."""
    talk = [event("u", None, "user", "Q"), event("a", "u", "assistant", A), event("v", "a", "user", "R")]
    side = [event("x", None, "user", "other"), event("y", "x", "assistant", C)]
    retried = parsed(lines(*side, *talk, event("v", "y", "user", "R"), event("b", "v", "assistant", B)), "claude_code")
    assert ["Q", "A", "R", "B"] in [[said["content"] for said in row["messages"]] for row in rows_of(retried)]
    assert codes(retried) == {"repeated_uuid": 1}
    again = parsed(lines(*talk, event("a", "v", "assistant", A), event("b", "a", "assistant", B)), "claude_code")
    assert [said["content"] for said in rows_of(again)[0]["messages"]] == ["Q", "A", "R", "B"]


STOPPED, FOR_TOOL = "[Request interrupted by user]", "[Request interrupted by user for tool use]"
REJECTED = [{"type": "tool_result", "tool_use_id": "1", "content": "No.", "is_error": True}, text(FOR_TOOL)]
INTERRUPTED: dict[str, tuple[str, list[Any], list[bool]]] = {
    "an answer": ("claude_code", [event("u", None, "user", "Q"), event("a", "u", "assistant", [text("The")]),
                                  event("v", "a", "user", [text(STOPPED)]), event("w", "v", "user", "R"),
                                  event("b", "w", "assistant", B)], [False, True]),
    "an answer with a call": (
        "claude_code", [event("u", None, "user", "Q"), event("a", "u", "assistant", [text("I"), use("1", c="l")]),
                        event("v", "a", "user", STOPPED), event("b", "v", "assistant", B)], [False, True]),
    "a call that was refused": (
        "claude_code", [event("u", None, "user", "Q"), event("a", "u", "assistant", [use("1", c="ls")]),
                        event("v", "a", "user", REJECTED), event("b", "v", "assistant", B)], [True, True]),
    "before an answer": (
        "claude_code", [event("u", None, "user", "Q"), event("a", "u", "assistant", A), event("v", "a", "user", "R"),
                        event("w", "v", "user", STOPPED), event("b", "w", "assistant", B)], [True, True]),
    "a turn of Codex": ("codex", [META, said("user", "Q"), said("assistant", "I will"),
                                  {"timestamp": "t", "type": "event_msg", "payload": {"type": "turn_aborted"}},
                                  said("user", "R"), said("assistant", "B")], [False, True]),
    "a turn of Codex with a message": (
        "codex", [META, said("user", "Q"), said("assistant", "I will"), said("user", "<turn_aborted> …"),
                  {"timestamp": "t", "type": "event_msg", "payload": {"type": "turn_aborted"}},
                  said("user", "R"), said("assistant", "B")], [False, True]),
    "a call of Codex": ("codex", [META, said("user", "Q"), said("assistant", "A"), said("user", "R"),
                                  {"timestamp": "t", "type": "event_msg", "payload": {"type": "turn_aborted"}},
                                  said("assistant", "B")], [True, True]),
}  # fmt: skip
"""Sessions with an answer that the user stopped, and which answers are trained; see anthropics/claude-code #21477."""


@pytest.mark.parametrize("case", INTERRUPTED)
def test_an_answer_that_was_interrupted_is_not_trained(case: str) -> None:
    kind, events, trained = INTERRUPTED[case]
    (row,) = rows_of(parsed(lines(*events), kind))
    assert [said.get("train", True) for said in row["messages"] if said["role"] == "assistant"] == trained


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
SHOWN = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
ASKS = item(type="message", role="user", content=[{"type": "input_text", "text": "q"}])
ILLUSTRATED: dict[str, tuple[str, list[Any]]] = {
    "a question": ("claude_code", [event("u", None, "user", [IMAGE, text("what?")]), event("a", "u", "assistant", A)]),
    "a result": (
        "claude_code", [event("u", None, "user", "q"), event("a", "u", "assistant", [use("1", c="ls")]),
                        event("r", "a", "user", [{"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}]),
                        event("b", "r", "assistant", B)]),
    "a question to Codex": (
        "codex", [META, item(type="message", role="user", content=[SHOWN]), said("assistant", "A")]),
    "a result of Codex": (
        "codex", [META, ASKS, item(type="function_call", name="view", call_id="1", arguments="{}"),
                  item(type="function_call_output", call_id="1", output=[SHOWN]), said("assistant", "A")]),
}  # fmt: skip


@pytest.mark.parametrize("case", ILLUSTRATED)
def test_images_without_a_processor_reject_their_session_with_the_remedy(case: str) -> None:
    kind, events = ILLUSTRATED[case]
    table = table_of(parsed(lines(*events), kind).table)
    out = to_canonical(table, resolve(config_of(), described(table)))
    assert out.rejects["code"].to_pylist() == ["not_text"]
    assert "set tokenizer.processor to train on images" in out.rejects["message"][0].as_py()


def hostile() -> Iterator[tuple[str, bytes, set[str]]]:
    answer = [{"type": "text", "text": "A"}]
    pair = [event("u", None, "user", "Q"), event("a", "u", "assistant", answer)]
    yield "cycle", lines(event("x", "y", "user", "Q"), event("y", "x", "assistant", answer)), {"parent_cycle"}
    yield "self", lines(*pair, event("x", "x", "user", "Q")), {"parent_cycle"}
    yield "missing", lines(event("x", "gone", "user", "Q"), event("y", "x", "assistant", answer)), {NO_CONTEXT}
    yield "repeated", lines(*pair, event("a", "u", "assistant", [{"type": "text", "text": "B"}])), {"repeated_uuid"}
    yield "answer first", lines(event("a", None, "assistant", answer)), {NO_CONTEXT}
    yield "broken line", lines(*pair, b'{"type": "user', {"type": "mode"}), {"invalid_json"}
    yield "NUL bytes", lines(*pair, b"\0\0\0", {"type": "mode"}), {"invalid_json"}
    yield "not UTF-8", lines(*pair, b'{"a": "\xff"}', {"type": "mode"}), {"invalid_utf8"}
    yield "deep", lines(*pair, b"[" * 100_000, {"type": "mode"}), {"nested_too_deeply"}
    yield (
        "surrogate",
        lines(pair[0], event("a", "u", "assistant", [{"type": "text", "text": "\ud800"}])),
        {"lone_surrogate"},
    )
    yield "unknown part", lines(pair[0], event("a", "u", "assistant", [{"type": "video"}])), {"unknown_part"}
    yield (
        "call without name",
        lines(pair[0], event("a", "u", "assistant", [{"type": "tool_use", "id": 7}])),
        {"unknown_part"},
    )


@pytest.mark.parametrize(("content", "found"), [case[1:] for case in hostile()], ids=[case[0] for case in hostile()])
def test_hostile_sessions_are_rejected_with_their_reason(content: bytes, found: set[str]) -> None:
    assert {*codes(parsed(content, "claude_code"))} == found


VALUES: list[Any] = [None, True, 7, 1e300, "", "text", [], [1], ["a", None], {}, {"type": "text"}, {"a": {"b": []}}]


@pytest.mark.parametrize("kind", MADE)
def test_wrong_types_anywhere_give_a_row_or_a_reject(kind: str) -> None:
    """Every value of a session is replaced by values of other types, one after the other."""
    is_lines = kind in ("claude_code", "codex")
    made = next(session for seed in range(50) if len((session := MADE[kind](seed)).content) < 6_000)
    found = made.content.splitlines() if is_lines else [made.content]
    documents = [json.loads(line) for line in found if line.endswith(b"}")]

    def places(value: Any) -> Iterator[tuple[Any, Any]]:
        for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            yield value, key
            yield from places(value[key])

    for at, (holder, key) in enumerate(list(places(documents))):
        before = holder[key]
        for value in (VALUES[at % len(VALUES)], VALUES[(at + 5) % len(VALUES)]):
            holder[key] = value
            chunk = parsed(lines(*documents), kind)
            assert chunk.table.num_rows + chunk.rejects.num_rows + chunk.filtered
            chunk.positioned(np.zeros(1, np.int64), "x")
        holder[key] = before


def test_a_session_cut_anywhere_is_read_or_rejected() -> None:
    for kind in ("claude_code", "codex"):
        content = MADE[kind](3).content
        whole = {json.dumps(row["messages"][:2]) for row in rows_of(parsed(content, kind))}
        for end in range(len(content) // 2, len(content), 37):
            chunk = parsed(content[:end], kind)
            assert "invalid_json" not in codes(chunk)
            assert any(json.dumps(row["messages"][:2]) in whole for row in rows_of(chunk))


def test_long_chains_and_many_ids_take_linear_work() -> None:
    count = 20_000
    chain = [event("n0", None, "user", "Q")]
    chain += [event(f"n{at}", f"n{at - 1}", "user" if at % 2 == 0 else "assistant", f"m{at}") for at in range(1, count)]
    chunk = parsed(lines(*chain), "claude_code")
    assert len(rows_of(chunk)[0]["messages"]) == count
    selves = parsed(lines(*(event(f"s{at}", f"s{at}", "user", "Q") for at in range(count))), "claude_code")
    assert codes(selves) == {"parent_cycle": count}
    kinds = parsed(lines(*({"type": f"kind{at}"} for at in range(count))), "claude_code")
    assert len(kinds.counters) < 100
    assert sum(kinds.counters.values()) == count


def test_every_format_has_a_reader() -> None:
    assert READERS.keys() == MADE.keys()
