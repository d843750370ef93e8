"""Rows of sessions have the ids of `apply_chat_template`, and train the words of the assistant, each once."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from support import agent_sessions
from support.agent_sessions import Made
from support.soak import SOAK
from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

WORD = re.compile(r"[a-z]+_\d{7}")
ENDING = {"claude_code": "jsonl", "codex": "jsonl", "atif": "json", "swe_agent": "traj"}

SESSIONS = 200 if SOAK else 30


def with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as transformers needs it: arguments as objects."""
    message = json.loads(json.dumps(message))
    for call in message.get("tool_calls", ()):
        given = call["function"]["arguments"]
        call["function"]["arguments"] = json.loads(given) if isinstance(given, str) else given
    return message


@pytest.mark.parametrize("kind", ENDING)
def test_ids_are_those_of_apply_chat_template(kind: str, real_data: Path, tmp_path: Path) -> None:
    template = real_data / "chat_templates" / "qwen2.5-instruct.jinja"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(real_data / "tokenizers" / "phi-2" / "tokenizer.json"), chat_template=template.read_text()
    )
    made: list[Made] = [getattr(agent_sessions, kind)(seed, own=False) for seed in range(SESSIONS)]
    rows = tmp_path / "rows"
    rows.mkdir()
    for at, one in enumerate(made):
        (rows / f"{at:03d}.{ENDING[kind]}").write_bytes(one.content)
    named = {"name_or_path": str(real_data / "tokenizers" / "phi-2"), "chat_template": str(template)}
    config = PipelineConfig.from_mapping(
        {
            "dataset": {"name": str(rows)},
            "tokenizer": {**named, "max_length": 100_000},
            "prompt_template": {"format_type": "chat"},
            "length": {"strategy": "drop"},
            "validation": {"max_reject_fraction": 0},
        }
    )
    build = Build(config, ArtifactStore(tmp_path / "store"), ComputeEngine(1))
    for _ in build.run_all():
        pass
    tools = [agent_sessions.TOOL] if kind == "atif" else None
    known, said = Counter[tuple[int, ...]](), Counter[str]()
    for messages in (messages for one in made for _, messages in one.rows):
        answers = [message for message in messages if message["role"] == "assistant" and message.get("train", True)]
        for message in answers:
            said.update(WORD.findall(message["content"] + json.dumps(message.get("tool_calls", ()))))
        if answers:  # rows that train nothing are filtered
            written = [with_objects(message) for message in messages]
            known[tuple(tokenizer.apply_chat_template(written, tools=tools, return_dict=False))] += 1  # pyright: ignore[reportArgumentType]
    found, trained = Counter[tuple[int, ...]](), Counter[str]()
    for chunk in build.manifest("sequences").chunks:
        for row in build.store.objects.get(chunk.output).to_pylist():
            found[tuple(row["input_ids"])] += 1
            kept = [token if flag else -1 for token, flag in zip(row["input_ids"], row["trained"], strict=True)]
            spans = [[*group] for flag, group in groupby(kept, lambda token: token >= 0) if flag]
            trained.update(WORD.findall("\n".join(str(tokenizer.decode(span)) for span in spans)))
    assert found == known
    assert trained == Counter({word: count for word, count in said.items() if not word.startswith("call_")})
    assert {*trained.values()} == {1}
    assert {word.partition("_")[0] for word in trained} == {"said", "argued"}
