"""Datasets that are sent to other processes: few bytes for any number of chunks, and the rows of the same version."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.store_files import latest, object_path
from support.stored_sequences import write_numbered, write_sequences
from tokenloom import open_dataset
from tokenloom.errors import StoreError
from tokenloom.loaders import MixedDataset, TokenDataset, TokenLoader, batch_digest
from tokenloom.resources.store import ArtifactStore

MOST_BYTES = 3000


def sent(dataset: Any) -> Any:
    """Return the copy that another process would have; check its size."""
    content = pickle.dumps(dataset)
    assert len(content) < MOST_BYTES
    return pickle.loads(content)


def digests(dataset: Any, **arguments: Any) -> list[str]:
    return [batch_digest(batch) for batch in TokenLoader(dataset, padding="longest", **arguments)]


def both(folder: Path) -> MixedDataset:
    return MixedDataset({name: open_dataset(name, store=folder) for name in "ab"}, {"a": 1.0, "b": 2.0}, by="rows")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sent")
    for name, count in (("a", 200), ("b", 3)):
        write_numbered(folder, name, [5] * count, 12, first=3 if name == "a" else 30_000)
    return folder


@pytest.mark.parametrize("arguments", [{"batch_size": 7}, {"token_budget": 60}])
@pytest.mark.parametrize("read", [False, True])
def test_a_sent_dataset_has_the_same_batches(store: Path, arguments: dict[str, Any], read: bool) -> None:
    for opened in (lambda: open_dataset("a", store=store), lambda: both(store)):
        dataset = opened()
        expected = digests(opened(), **arguments)
        if read:  # what it has open is not sent
            assert digests(dataset, **arguments) == expected
        copy = sent(dataset)
        assert digests(copy, **arguments) == expected
        assert digests(sent(copy), **arguments) == expected
        assert (copy.digest, copy.versions, len(copy)) == (dataset.digest, dataset.versions, len(dataset))
        assert copy.trace(7) == dataset.trace(7)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_started_workers_read_the_version_that_was_opened(store: Path, tmp_path: Path, context: str) -> None:
    write_sequences(tmp_path, "c", [3000, 3000], mean=50)
    dataset = open_dataset("c", store=tmp_path)
    expected = digests(dataset)
    write_sequences(tmp_path, "c", [4000], mean=50, seed=1)  # a later version
    loader = TokenLoader(dataset, padding="longest", num_workers=1)
    loader.multiprocessing_context = context
    assert [batch_digest(batch) for batch in loader] == expected
    assert digests(open_dataset("c", store=tmp_path)) != expected


def test_a_version_that_is_gone_is_one_sentence(store: Path, tmp_path: Path) -> None:
    write_sequences(tmp_path, "gone", [3000], mean=50)
    opened = open_dataset("gone", store=tmp_path)
    path = object_path(tmp_path, latest(tmp_path, "gone")["sequences"])
    message = f"^dataset 'gone': version {opened.version[:16]} cannot be opened: object {path.stem} is "
    copies = [sent(opened) for _ in range(2)]
    path.write_bytes(path.read_bytes()[:-9] + b"\0" * 9)
    with pytest.raises(StoreError, match=f"{message}damaged"):
        copies[0].lengths(np.arange(3))
    path.unlink()
    with pytest.raises(StoreError, match=f"{message}missing"):
        copies[1].reader.batch(np.arange(3), copies[1].padding("longest"))
    assert opened[0]["input_ids"].tolist()  # its manifest stays mapped


def test_a_dataset_of_a_manifest_that_is_not_stored_is_sent_whole(store: Path) -> None:
    opened = ArtifactStore(store)
    manifest = replace(opened.manifest("a"), dataset="never stored")
    dataset = TokenDataset(opened, manifest, "train")
    copy = pickle.loads(pickle.dumps(dataset))
    assert digests(copy) == digests(dataset) == digests(open_dataset("a", store=store))
