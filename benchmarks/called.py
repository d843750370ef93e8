"""Chats with tool calls, results and reasoning in OpenAI's form: ids, arguments, tools and contents are made distinct.

They are those of Glaive if $TOKENLOOM_REAL_DATA is set, else questions and answers with a call in between.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Turns = list[tuple[str, str]]


def template() -> str:
    """Return Qwen3's chat template, which TRL ships, or the name of a built-in one."""
    spec = find_spec("trl")
    path = Path(spec.origin).parent / "chat_templates" / "qwen3.jinja" if spec and spec.origin else Path()
    return path.read_text(encoding="utf-8") if path.is_file() else "chatml"


def write_called(path: Path, rows: list[dict[str, str]], count: int) -> None:
    """Write `count` chats as JSONL; the outputs of `rows` are what the assistant thinks."""
    talks = _glaive() or [_called(row) for row in rows[:200]]
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            turns, tools = talks[number % len(talks)]
            _, more = talks[(31 * number + 7 * (number // len(talks)) + 1) % len(talks)]
            listed = [{"type": "function", "function": tool} for tool in [*tools, *more[: number % 3]]]
            thoughts = [rows[(3 * number + at) % len(rows)]["output"] for at in range(len(turns))]
            chat = {"messages": _messages(turns, thoughts, number), "tools": listed}
            file.write(json.dumps(chat, ensure_ascii=False) + "\n")


def _glaive() -> list[tuple[Turns, list[Any]]]:
    """Return the chats of Glaive with a call, each with its tools."""
    real = os.environ.get("TOKENLOOM_REAL_DATA")
    if not real:
        return []
    found = []
    for row in json.loads((Path(real) / "chat" / "glaive_toolcall_en_demo.json").read_text(encoding="utf-8")):
        turns = [(turn["from"], turn["value"]) for turn in row["conversations"]]
        if any(speaker == "function_call" for speaker, _ in turns):
            found.append((turns, json.loads(row["tools"])))
    return found


def _called(row: dict[str, str]) -> tuple[Turns, list[Any]]:
    call = {"name": "look_up", "arguments": {"query": row["instruction"], "limit": len(row["output"])}}
    parameters = {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}}
    result = json.dumps({"found": row["output"]})
    turns = [("human", row["instruction"]), ("function_call", json.dumps(call)), ("observation", result)]
    return [*turns, ("gpt", row["output"])], [{"name": "look_up", "description": "Search", "parameters": parameters}]


def _messages(turns: Turns, thoughts: list[str], number: int) -> list[dict[str, Any]]:
    """Return turns as messages: of four chats, one has arguments that are objects; of eight, one has content parts."""
    messages: list[dict[str, Any]] = []
    for at, (speaker, text) in enumerate(turns):
        said: dict[str, Any] = {"role": "assistant", "content": text, "reasoning_content": thoughts[at]}
        if speaker == "human":
            text = text if at else f"{number}. {text}"
            said = {"role": "user", "content": [{"type": "text", "text": text}] if number % 8 == 5 else text}
        elif speaker == "function_call":
            call = json.loads(text)
            arguments = _varied(call["arguments"], number)
            written = arguments if number % 4 == 3 else json.dumps(arguments, ensure_ascii=False)
            function = {"name": call["name"], "arguments": written}
            call = {"id": f"call_{number:07}_{at}", "type": "function", "function": function}
            said |= {"content": "", "tool_calls": [call]}
        elif speaker == "observation":
            said = {"role": "tool", "tool_call_id": f"call_{number:07}_{at - 1}", "content": text}
        messages.append(said)
    return messages


def _varied(value: Any, number: int) -> Any:
    """Return a value with other texts and numbers."""
    if isinstance(value, dict):
        return {name: _varied(inner, number) for name, inner in value.items()}
    if isinstance(value, list):
        return [_varied(inner, number) for inner in value]
    if isinstance(value, str):
        return f"{value} {number}"
    return value + number if type(value) is int or type(value) is float else value
