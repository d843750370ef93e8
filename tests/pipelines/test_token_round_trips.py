"""Datasets that are built, exported, and read back as pre-tokenized rows: the same ids, labels and weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.builds import SMALL
from support.soak import sweep
from tokenloom import open_dataset
from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.exporters.export_folder import export_splits
from tokenloom.loaders import MixedDataset, TokenDataset
from tokenloom.loaders.datasets.mixed_dataset import row_tables
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

WEIGHTS = {"content": 1, "reasoning": 0.5, "tool_calls": 2, "stop": 1}


def build(folder: Path, name: str, workers: int = 1, **settings: Any) -> TokenDataset:
    """A dataset built from its settings."""
    config = PipelineConfig.from_mapping({"name": name, **settings})
    made = Build(config, ArtifactStore(folder), ComputeEngine(workers), chunk_size=SMALL)
    for report in made.run_all():
        assert not report.rejected, made.reject_reasons(report.name)
    return open_dataset(name, store=folder)


def exported(dataset: TokenDataset, path: Path) -> pa.Table:
    """The rows as `tokenloom export --to parquet` writes them."""
    table = pa.concat_tables(row_tables(dataset))
    pq.write_table(table, path, row_group_size=100)
    return table


SHAPES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "completion": ("instruct/alpaca_data.json", {"tokenizer": {"chat_template": "alpaca"}}),
    "text": ("text/wikitext-2/valid.txt", {}),
    "tools": ("chat/glaive_toolcall_en_demo.json", {"tokenizer": {"chat_template": "chatml-eos"}}),
    "chat": ("chat/openai_sft_barelist.jsonl", {"tokenizer": {"chat_template": "chatml-eos"}}),
    "weighted": (
        "chat/glaive_toolcall_en_demo.json",
        {"tokenizer": {"chat_template": "chatml-eos"}, "prompt_template": {"train_on": WEIGHTS}},
    ),
    "all trained": (
        "math/gsm8k_test.jsonl",
        {"tokenizer": {"chat_template": "qa"}, "prompt_template": {"train_on": "all"}},
    ),
    "exact turns": (
        "chat/openai_sft_barelist.jsonl",
        {"tokenizer": {"chat_template": "chatml-eos"}, "prompt_template": {"turns": "exact"}},
    ),
    "packed": (
        "chat/openai_sft_barelist.jsonl",
        {"tokenizer": {"chat_template": "chatml-eos"}, "length": {"packing": "best_fit"}},
    ),
}
ROWS = 120


@pytest.fixture(params=SHAPES)
def original(request: pytest.FixtureRequest, real_data: Path, tmp_path: Path) -> TokenDataset:
    """The first rows of a public dataset, as sequences."""
    source, settings = SHAPES[request.param]
    tokenizer = {"name_or_path": str(real_data / "tokenizers" / "phi-2"), "max_length": 512}
    given = {"tokenizer": {}, **settings, "dataset": {"name": str(real_data / source)}}
    given["tokenizer"] = {**tokenizer, **given["tokenizer"]}
    config = PipelineConfig.from_mapping({"name": "made", "validation": {"max_reject_fraction": 1.0}, **given})
    for _ in Build(config, ArtifactStore(tmp_path), ComputeEngine(2), limit=ROWS).run_all():
        pass
    return open_dataset(f"made@{ROWS}", store=tmp_path)


def read_back(dataset: TokenDataset, path: Path, real_data: Path, workers: int = 1, **settings: Any) -> TokenDataset:
    """The dataset of an exported file, with the columns that are found in it."""
    tokenizer = {"name_or_path": str(real_data / "tokenizers" / "phi-2"), "max_length": 512}
    source = {"dataset": {"name": str(path)}, "tokenizer": tokenizer, "prompt_template": {"format_type": "tokens"}}
    return build(path.parent, "again", workers, **{**source, **settings})


@sweep
def test_an_export_reads_back_as_it_was(
    original: TokenDataset, real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = exported(original, tmp_path / "rows.parquet")
    monkeypatch.setattr("tokenloom.exporters.layouts.GROUP_BYTES", 2000)
    monkeypatch.setattr("tokenloom.loaders.datasets.mixed_dataset.TOKENS_AT_ONCE", 900)
    splits: dict[str, TokenDataset | MixedDataset] = {"train": original}
    export_splits(tmp_path / "shards", False, "mds", "made", splits, 9000, lambda split, dataset, tables: tables)
    assert len([*tmp_path.glob("shards/train/*.mds")]) > 1
    for name in ("rows.parquet", "shards"):
        again = pa.concat_tables(row_tables(read_back(original, tmp_path / name, real_data)))
        assert again.equals(documents(table) if original.packed else table)
        assert again.num_rows >= 100


def documents(packed: pa.Table) -> pa.Table:
    """The documents of packed rows, one a row."""
    sizes = np.concatenate(packed["seq_lengths"].to_numpy(zero_copy_only=False))
    offsets = pa.array(np.append(0, np.cumsum(sizes)), pa.int32())
    names = [name for name in packed.column_names if name not in ("seq_lengths", "position_ids")]
    flat = {name: packed[name].combine_chunks().values for name in names}
    return pa.table({name: pa.ListArray.from_arrays(offsets, values) for name, values in flat.items()})
