"""Rows that TRL's SFTTrainer prepared are read as pre-tokenized rows: the ids and labels of its collator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from transformers import PreTrainedTokenizerFast

from support.trl_cases import SHIPPED, save_tokenizer
from support.trl_rows import Texts, sample_texts
from support.trl_trainers import prepared
from tokenloom import open_dataset
from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

COUNT = 20


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "made", None)


def rows_of(kind: str, texts: Texts) -> list[dict[str, Any]]:
    if kind == "messages":
        return [{"messages": chat} for chat in texts.chats]
    if kind == "completions":
        return [{"prompt": f"{question} ", "completion": answer} for question, answer in texts.answered]
    return [{"text": text} for text in texts.plain]


CASES: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "text": ("text", {}, set()),
    "completion masks": ("completions", {"completion_only_loss": True}, {"labels"}),
    "assistant masks": ("messages", {"assistant_only_loss": True}, {"labels"}),
    "packed": ("completions", {"packing": True, "max_length": 256}, {"labels", "seq_lengths"}),
}


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
@pytest.mark.parametrize("case", CASES)
def test_prepared_rows_have_the_labels_of_trl(case: str, ending: str, tokenizer: Path, tmp_path: Path) -> None:
    kind, options, columns = CASES[case]
    loaded = PreTrainedTokenizerFast.from_pretrained(tokenizer)
    loaded.chat_template = (SHIPPED / "qwen2_5_training.jinja").read_text()
    rows, expected = prepared(rows_of(kind, sample_texts(COUNT))[:COUNT], loaded, tmp_path / "trl", **options)
    assert columns <= {*rows.column_names}, rows.column_names
    file = tmp_path / f"rows.{ending}"
    rows.to_parquet(file) if ending == "parquet" else rows.to_json(file)
    settings: dict[str, Any] = {
        "name": "made",
        "dataset": {"name": str(file)},
        "tokenizer": {"name_or_path": str(tokenizer)},
        "prompt_template": {"format_type": "tokens"},
    }
    for _ in Build(
        PipelineConfig.from_mapping(settings), ArtifactStore(tmp_path / "store"), ComputeEngine(1)
    ).run_all():
        pass
    found = [
        (row["input_ids"].tolist(), row["labels"].tolist()) for row in open_dataset("made", store=tmp_path / "store")
    ]
    if "seq_lengths" in columns:
        expected = documents(expected, rows["seq_lengths"])
        found = [(ids, [-100, *labels[1:]]) for ids, labels in found]  # TRL masks the first token of each document
        expected = [(ids, [-100, *labels[1:]]) for ids, labels in expected]
    assert len(found) == len(expected) > 1
    assert json.dumps(found) == json.dumps(expected)


def documents(packed: list[Any], lengths: list[list[int]]) -> list[tuple[list[int], list[int]]]:
    """The documents of packed rows."""
    found = []
    for (ids, labels), sizes in zip(packed, lengths, strict=True):
        start = 0
        for size in sizes:
            found.append((ids[start : start + size], labels[start : start + size]))
            start += size
    return found
