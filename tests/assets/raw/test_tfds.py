"""Datasets prepared by tensorflow_datasets: read if the package is installed, else a clear error."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from support.raw_rows import read
from tokenloom.errors import ConfigError

INSTALLED = importlib.util.find_spec("tensorflow_datasets") is not None


@pytest.mark.skipif(INSTALLED, reason="tensorflow_datasets is installed")
@pytest.mark.parametrize("name", ["tfds://gsm8k", "FOLDER"])
def test_a_missing_package_is_named(tmp_path: Path, name: str) -> None:
    for mark in ("dataset_info.json", "features.json"):
        (tmp_path / mark).write_text("{}")
    with pytest.raises(ConfigError, match=r"needs the package tensorflow_datasets"):
        read(str(tmp_path) if name == "FOLDER" else name)


@pytest.mark.skipif(not INSTALLED, reason="tensorflow_datasets is not installed")
@pytest.mark.parametrize("file_format", ["array_record", "tfrecord"])
def test_a_prepared_dataset_has_all_its_rows(tmp_path: Path, file_format: str) -> None:
    import numpy as np
    import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]

    rows = [{"question": f"q {index} é", "number": index, "tags": ["x", "y"][: index % 3]} for index in range(50)]
    text = tfds.features.Text()
    tfds.dataset_builders.store_as_tfds_dataset(
        name="tiny",
        version="1.0.0",
        features=tfds.features.FeaturesDict(
            {"question": text, "number": np.int64, "tags": tfds.features.Sequence(text)}
        ),
        split_datasets={"train": list(enumerate(rows))},
        data_dir=str(tmp_path),
        file_format=file_format,
        disable_shuffling=True,
    )
    found, rejects, filtered = read(tmp_path / "tiny" / "1.0.0")
    assert sorted(found, key=lambda row: row["number"]) == rows
    assert (rejects, filtered) == ([], 0)


class Prepared:
    """A dataset as the package opens it, which shuffles its files if it is asked to."""

    info = SimpleNamespace(splits=["train"], file_format=SimpleNamespace(value="tfrecord"))
    rows = tuple({"number": number} for number in range(9))

    def as_dataset(self, split: str, shuffle_files: bool = False) -> list[dict[str, Any]]:
        return [*(reversed(self.rows) if shuffle_files else self.rows)]


def test_rows_are_in_the_order_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mark in ("dataset_info.json", "features.json"):
        (tmp_path / mark).write_text("{}")
    package = ModuleType("tensorflow_datasets")
    vars(package).update(builder_from_directory=lambda folder: Prepared(), as_numpy=iter)
    monkeypatch.setitem(sys.modules, package.__name__, package)
    assert read(tmp_path) == ([*Prepared.rows], [], 0)
