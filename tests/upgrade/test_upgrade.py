"""Stores, loader states and YAMLs of earlier versions, kept in this folder: what opens them, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenloom import DataPipeline, open_dataset
from tokenloom.cli.main import main
from tokenloom.errors import LoaderStateError, StoreError
from tokenloom.loaders import TokenLoader, batch_digest
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.verify import verify

HERE = Path(__file__).parent
STORES = ["store3"]
"""Folders that `write_store.py` of an earlier version wrote."""


@pytest.fixture(params=STORES)
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / request.param, tmp_path / "earlier"))


def expected_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "expected.json").read_text())


def test_an_earlier_store_gives_the_same_batches_and_passes_verify(earlier: Path) -> None:
    expected, store = expected_in(earlier), earlier / "store"
    dataset = open_dataset("toy", store=store)
    assert (dataset.digest, dataset.version) == (expected["digest"], expected["version"])
    assert [dataset[row]["id"] for row in range(3)] == expected["ids"]
    loader = TokenLoader(dataset, batch_size=3, seed=5)
    assert [batch_digest(batch) for batch in loader] == expected["batches"]
    assert [list(row.places) for row in loader.trace(0)] == expected["traced"]
    every = np.arange(len(dataset))
    assert dataset.lengths(every).tolist() == [len(dataset[row]["input_ids"]) for row in every.tolist()]
    assert verify(ArtifactStore(store), remove=False).findings == []


def test_an_earlier_state_resumes_and_an_unknown_one_is_refused(earlier: Path) -> None:
    expected = expected_in(earlier)
    loader = TokenLoader(open_dataset("toy", store=earlier / "store"), batch_size=3, seed=5)
    loader.load_state_dict(expected["state"])
    assert [batch_digest(batch) for batch in loader] == expected["batches"][expected["stop"] :]
    with pytest.raises(LoaderStateError, match="state of version 1: it has version 0"):
        loader.load_state_dict({**expected["state"], "version": 0})
    with pytest.raises(LoaderStateError, match="names no version"):
        open_dataset("toy", store=earlier / "store", state={"version": 1})


def test_an_earlier_version_can_be_pinned_and_is_kept_beside_a_new_build(earlier: Path) -> None:
    expected, store = expected_in(earlier), earlier / "store"
    pinned = open_dataset("toy", store=store, pin="run")
    (earlier / "toy.jsonl").write_text((earlier / "toy.jsonl").read_text() + '{"id": 99, "q": "new", "a": "row"}\n')
    latest = DataPipeline.from_config(earlier / "toy.yaml", store).unwrap().get_dataset().unwrap()
    assert len(latest) == len(pinned) + 1
    assert open_dataset("toy", store=store, pin="run").digest == expected["digest"]


@pytest.mark.parametrize("found", ["tokenloom store 1", "tokenloom store 2", "tokenloom store 9"])
def test_a_store_of_another_format_is_refused_with_a_remedy_and_not_changed(
    earlier: Path, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = earlier / "store"
    (store / "FORMAT").write_text(f"{found}\n")
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    with pytest.raises(StoreError, match=f"format '{found}', written by .*build into another store"):
        open_dataset("toy", store=store)
    for arguments in (
        ["build", str(earlier / "toy.yaml")],
        ["gc", "--delete"],
        ["verify"],
        ["pin", "toy", "--as", "a"],
    ):
        assert main([*arguments, "--store", str(store)]) == 4
        assert found in capsys.readouterr().err
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
