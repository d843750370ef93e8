"""The work for one row grows as its size does: counted in calls of functions, of Python and of C, at n, 4n and 16n."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.soak import SOAK, sweep
from tokenloom.assets.building.build import Build
from tokenloom.assets.prompts import exact
from tokenloom.assets.raw.sessions.claude_code import read_session
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore

USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}
THOUGHT = {**ANSWER, "reasoning_content": "hm"}
CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
TOKENIZER: dict[str, Any] = {
    "train": {"vocab_size": 300, "min_frequency": 1},
    "max_length": 64,
    "chat_template": "chatml",
    "special_tokens": {"eos": "<|im_end|>", "pad": "<|endoftext|>"},
}
AHEAD = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content and loop.last %}"
    "{{ m.reasoning_content }}\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MOST = 6
"""The ratio of the differences is 4 if the work is linear, 16 if it is quadratic."""


def calls(run: Callable[[], Any]) -> int:
    count = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def growth(of: Callable[[int], Callable[[], Any]], size: int) -> float:
    of(size)()  # what is done once
    small, middle, large = (calls(of(size * factor)) for factor in (1, 4, 16))
    return (large - middle) / (middle - small)


def building(folder: Path, rows: list[Any], template: str = "chatml", **sections: Any) -> Build:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, [*[{"messages": [USER, ANSWER]}] * 3, *rows])))
    content = {
        "dataset": {"name": "rows.jsonl"},
        "tokenizer": {**TOKENIZER, "chat_template": template},
        "validation": {"max_reject_fraction": 1.0},
        "compute": {"workers": 1},
        **sections,
    }
    (folder / "rows.yaml").write_text(yaml.safe_dump(content))
    return Build(PipelineConfig.from_file(folder / "rows.yaml"), ArtifactStore(folder / "store"))


ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    "messages": lambda n: {"messages": [USER, ANSWER] * n},
    "answers": lambda n: {"messages": [USER] + [ANSWER] * n},
    "thoughts": lambda n: {"messages": [USER, THOUGHT] * n},
    "calls": lambda n: {"messages": [USER, {**ANSWER, "tool_calls": [CALL] * n}]},
    "results": lambda n: {
        "messages": [
            USER,
            {**ANSWER, "content": "", "tool_calls": [{**CALL, "id": f"c{number}"} for number in range(n)]},
            *({"role": "tool", "tool_call_id": f"c{number}", "content": "r"} for number in reversed(range(n))),
            ANSWER,
        ]
    },
    "tools": lambda n: {
        "messages": [USER, ANSWER],
        "tools": [{"type": "function", "function": {"name": f"f{number}", "parameters": {}}} for number in range(n)],
    },
    "parts": lambda n: {"messages": [{**USER, "content": [{"type": "text", "text": "a"}] * n}, ANSWER]},
    "variables": lambda n: {"messages": [USER, ANSWER], "chat_template_kwargs": {f"v{i}": 1 for i in range(n)}},
}


@pytest.mark.parametrize("name", [*ROWS] if SOAK else [*ROWS][:4])
def test_conversations(tmp_path: Path, name: str) -> None:
    check_conversations(tmp_path, name)


@sweep
@pytest.mark.parametrize("setting", [{"length": {"packing": "tree"}}, {"prompt_template": {"turns": "exact"}}], ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_conversations_with_settings(tmp_path: Path, name: str, setting: dict[str, Any]) -> None:
    check_conversations(tmp_path, name, **setting)


def check_conversations(folder: Path, name: str, **sections: Any) -> None:
    def of(size: int) -> Callable[[], Any]:
        build = building(folder / f"{size}", [ROWS[name](size)], **sections)
        return lambda: [*build.run_all()]

    assert growth(of, 8) < MOST


def event(number: int, kind: str, parent: int | None, content: Any, **more: Any) -> tuple[int, dict[str, Any]]:
    message = {"role": kind, "content": content, "id": more.pop("id", None), "model": "m"}
    above = None if parent is None else f"u{parent}"
    return number, {
        "type": kind,
        "uuid": f"u{number}",
        "parentUuid": above,
        "sessionId": "s",
        "message": message,
        **more,
    }


def text(value: str = "a") -> list[Any]:
    return [{"type": "text", "text": value}]


SESSIONS: dict[str, Callable[[int], list[tuple[int, Any]]]] = {
    "side chains": lambda n: [
        each
        for number in range(0, 2 * n, 2)
        for each in (
            event(number, "user", None, "q", isSidechain=number > 0),
            event(number + 1, "assistant", number, text(), isSidechain=number > 0),
        )
    ],
    "branches": lambda n: [
        event(0, "user", None, "q"),
        *(event(number, "assistant", 0, text()) for number in range(1, n)),
    ],
    "lines of a message": lambda n: [
        event(0, "user", None, "q"),
        *(event(number, "assistant", number - 1, text(f"{number}"), id="m") for number in range(1, n)),
    ],
    "results": lambda n: [
        event(0, "user", None, "q"),
        event(1, "assistant", 0, [{"type": "tool_use", "id": f"c{i}", "name": "f", "input": {}} for i in range(n)]),
        *(event(i + 2, "user", 1, [{"type": "tool_result", "tool_use_id": f"c{i}", "content": "r"}]) for i in range(n)),
    ],
}


@pytest.mark.parametrize("name", SESSIONS)
def test_sessions(name: str) -> None:
    def of(size: int) -> Callable[[], Any]:
        events = SESSIONS[name](size)
        return lambda: read_session(events)

    assert growth(of, 60) < MOST


def test_the_parts_of_an_answer_are_joined_once() -> None:
    """20,000 lines of 1,000 characters: adding each to the text before it would copy 200 GB."""
    events = [event(0, "user", None, "q")]
    events += [event(i, "assistant", i - 1, text(f"{i:1000}"), id="m") for i in range(1, 20_000)]
    (row,) = read_session(events).rows
    assert row.columns["messages"][1]["content"] == "".join(f"{i:1000}" for i in range(1, 20_000))


def test_texts_of_exact_turns_have_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that looks ahead is rendered for each turn of each text: without a limit, by the cube of the turns."""
    monkeypatch.setattr(exact, "MOST_RENDERED", 20_000)
    monkeypatch.setattr(exact, "MOST_OF_TEXTS", 80_000)
    settings = {"prompt_template": {"turns": "exact"}}
    for turns, rejected in ((10, 0), (100, 1)):
        build = building(tmp_path / f"{turns}", [ROWS["thoughts"](turns)], AHEAD, **settings)
        found = {report.name: report.rejected for report in build.run_all()}
        assert found["prompts"] == rejected
        assert not rejected or "too_many_turns" in build.reject_reasons("prompts")
