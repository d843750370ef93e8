"""Datasets prepared by tensorflow_datasets, read with that package, which is optional."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.config import PipelineConfig
from tokenloom.errors import SourceError, install_command
from tokenloom.resources.exceptions import first_line

PROTOCOL = "tfds://"
MARKS = ("dataset_info.json", "features.json")
"""Files that every folder prepared by tensorflow_datasets contains."""

BATCH_ROWS = 10_000


@dataclass(frozen=True)
class TfdsDataset:
    """A prepared dataset: a name such as `gsm8k` or `imdb_reviews/plain_text:1.0.0`, and its folder if the YAML names
    one."""

    name: str
    folder: Path | None = None


def is_tfds_folder(path: Path) -> bool:
    """Return whether a folder contains a prepared dataset."""
    return all((path / mark).is_file() for mark in MARKS)


def open_tfds(config: PipelineConfig, source: TfdsDataset) -> dict[str, Iterator[pa.Table]]:
    """Open a prepared dataset: its splits by name, each as tables of up to BATCH_ROWS rows.

    Raises:
        ConfigError: the package is not installed, or the dataset is unknown or not prepared.
    """
    try:
        import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        command = install_command("tensorflow_datasets")
        message = f"{source.name} needs the package tensorflow_datasets: {error}; run: {command}"
        raise config.fault("dataset.name", message) from error
    try:
        builder: Any = tfds.builder_from_directory(source.folder) if source.folder else tfds.builder(source.name)
        splits = list(builder.info.splits)
    except Exception as error:
        message = f"tensorflow_datasets cannot open {source.name}: {first_line(error)}"
        raise config.fault("dataset.name", message) from error
    if not splits:
        raise config.fault("dataset.name", f"{source.name} is not prepared; run `tfds build {source.name}`")
    return {split: _tables(builder, split, source.name) for split in splits}


def _tables(builder: Any, split: str, name: str) -> Iterator[pa.Table]:
    try:
        rows = iter(_rows(builder, split))
        while block := [_plain(row) for row in islice(rows, BATCH_ROWS)]:
            yield pa.Table.from_pylist(block)
    except (OSError, NotImplementedError, ImportError, ValueError) as error:
        raise SourceError(f"{name}: tensorflow_datasets cannot read it: {first_line(error)}") from error


def _rows(builder: Any, split: str) -> Any:
    """Return an iterable of rows. Only formats other than array_record need TensorFlow."""
    if getattr(builder.info.file_format, "value", "") == "array_record":
        return builder.as_data_source(split=split)
    import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]

    return tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False))


def _plain(value: Any) -> Any:
    """Convert a feature's value to plain Python types; bytes that are valid UTF-8 become str."""
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
