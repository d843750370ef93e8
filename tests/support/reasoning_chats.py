"""Datasets of chats whose template drops earlier reasoning, so that a conversation has several texts; with and without
trees."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import yaml

from support.paths import CHAT_TEMPLATES
from tokenloom import DataPipeline

_WORDS = ["red", "blue", "the answer", "is", "42", "because"]


def write_chats(path: Path, rows: int, seed: int = 0, weights: bool = True) -> None:
    """Write chats of one to four questions, whose answers have reasoning, and weights of their own."""
    draw = random.Random(seed)

    def words(most: int) -> str:
        return " ".join(draw.choices(_WORDS, k=draw.randrange(1, most)))

    lines = []
    for number in range(rows):
        messages: list[dict[str, Any]] = []
        for turn in range(draw.randrange(1, 5)):
            messages.append({"role": "user", "content": f"{number} {turn} {words(6)}"})
            answer = {"role": "assistant", "content": words(5), "reasoning_content": words(7)}
            messages.append(answer | ({"weight": draw.choice([0.5, 1.0, 3.0])} if weights else {}))
        lines.append(json.dumps({"messages": messages}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def built_chats(
    folder: Path, name: str, packing: str, tokenizer_folder: Path, rows: int = 12, weights: bool = True, **sections: Any
) -> Path:
    """Write the YAML of a dataset `<name>.yaml` and its rows, build it in `folder/store`, and return the YAML."""
    source = folder / f"{name}.jsonl"
    write_chats(source, rows, weights=weights)
    config: dict[str, Any] = {
        "name": name,
        "dataset": {"name": str(source)},
        "tokenizer": {
            "name_or_path": str(tokenizer_folder),
            "max_length": 1024,
            "chat_template": (CHAT_TEMPLATES / "thinking.jinja").read_text(),
        },
        "prompt_template": {"format_type": "chat", "turns": "exact"},
        "length": {"packing": packing},
    }
    for section, values in sections.items():
        config[section] = {**config.get(section, {}), **values}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    DataPipeline.from_config(path, folder / "store").unwrap().build().unwrap()
    return path
