"""Datasets that `tensorflow_datasets` prepared, read through that package where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.config import PipelineConfig
from tokenloom.errors import SourceError

PROTOCOL = "tfds://"
MARKS = ("dataset_info.json", "features.json")
"""Files that a folder prepared by tensorflow_datasets holds."""

BATCH_ROWS = 10_000


@dataclass(frozen=True)
class TfdsDataset:
    """A prepared dataset: a name such as `gsm8k` or `imdb_reviews/plain_text:1.0.0`, or the folder that holds one."""

    name: str
    folder: Path | None = None


def is_tfds_folder(path: Path) -> bool:
    return all((path / mark).is_file() for mark in MARKS)


def open_tfds(config: PipelineConfig, source: TfdsDataset) -> dict[str, Iterator[pa.Table]]:
    """Splits by name, each as tables of blocks of rows.

    Raises:
        ConfigError: the package is not installed, or no such dataset is prepared.
    """
    try:
        import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        message = f"dataset.name: {source.name} needs the package tensorflow_datasets: {error}"
        raise config.fault("dataset.name", message) from error
    try:
        builder: Any = tfds.builder_from_directory(source.folder) if source.folder else tfds.builder(source.name)
        splits = list(builder.info.splits)
    except Exception as error:
        told = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise config.fault("dataset.name", f"dataset.name: tensorflow_datasets has no {source.name}: {told}") from error
    if not splits:
        raise config.fault(
            "dataset.name", f"dataset.name: {source.name} is not prepared; run `tfds build {source.name}`"
        )
    return {split: _tables(builder, split, source.name) for split in splits}


def _tables(builder: Any, split: str, name: str) -> Iterator[pa.Table]:
    try:
        rows = iter(_rows(builder, split))
        while block := [_plain(row) for row in islice(rows, BATCH_ROWS)]:
            yield pa.Table.from_pylist(block)
    except (OSError, NotImplementedError, ImportError, ValueError) as error:
        told = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise SourceError(f"{name}: tensorflow_datasets cannot read it: {told}") from error


def _rows(builder: Any, split: str) -> Any:
    """Rows without TensorFlow where the files are array_record, else with it."""
    if getattr(builder.info.file_format, "value", "") == "array_record":
        return builder.as_data_source(split=split)
    import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]

    return tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False))


def _plain(value: Any) -> Any:
    """A feature's value in plain types: text as str where its bytes are that."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
