"""The seed documents' samples on dataset wrappers, word for word except for import paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from support.on_the_fly_rows import engine_of, good_rows, plain
from tokenloom import PromptEngine
from tokenloom.loaders import PreprocessedDataset, StreamingPreprocessedDataset, create_preprocessed_dataset

PREPROCESSED = """
dataset = PreprocessedDataset(
    hf_dataset=raw_ds,
    prompt_engine=engine,
    cache_enabled=True
)
"""

STREAMING = """
from torch.utils.data import DataLoader

dataset = StreamingPreprocessedDataset(
    hf_iterable=streaming_ds,
    prompt_engine=engine,
    buffer_size=1000  # For local shuffling
)
loader = DataLoader(dataset, num_workers=4)  # Auto-shards across workers
"""

ROWS = good_rows(43)


@pytest.fixture(scope="module")
def engine(tokenizer_folder: Path) -> PromptEngine:
    return engine_of(tokenizer_folder)


def run(sample: str, **names: Any) -> dict[str, Any]:
    """Run a sample and return its names."""
    imported = {kind.__name__: kind for kind in (PreprocessedDataset, StreamingPreprocessedDataset)}
    found = {**imported, **names}
    exec(sample, found)
    return found


def test_preprocessed_dataset(engine: PromptEngine) -> None:
    dataset = run(PREPROCESSED, raw_ds=Dataset.from_list(ROWS), engine=engine)["dataset"]
    assert len(dataset) == 43
    assert len(dataset.select([3, 5])) == 2
    assert plain(dataset.select([3, 5])[1]) == plain(dataset[5])


def test_streaming_preprocessed_dataset(engine: PromptEngine) -> None:
    streaming_ds = Dataset.from_list(ROWS).to_iterable_dataset(num_shards=3)
    loader = run(STREAMING, streaming_ds=streaming_ds, engine=engine)["loader"]
    found = [{name: torch.squeeze(value, 0) for name, value in batch.items()} for batch in loader]
    whole = PreprocessedDataset(ROWS, engine)
    assert sorted(map(plain, found)) == sorted(plain(whole[number]) for number in range(43))


def test_factory_function(engine: PromptEngine) -> None:
    raw = Dataset.from_list(ROWS)
    assert isinstance(create_preprocessed_dataset(raw, engine), PreprocessedDataset)
    assert isinstance(create_preprocessed_dataset(raw, engine, streaming=True), StreamingPreprocessedDataset)
