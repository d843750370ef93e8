"""Row lengths are stored next to the chunks: token budgets and `len` of a loader open no chunk."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from support.canonical_tables import build_canonical, config_of, said, table_of
from support.store_files import flip, object_path
from support.stored_sequences import write_sequences
from tokenloom import open_dataset
from tokenloom.assets.sequences.lengths import put_lengths
from tokenloom.errors import StoreError
from tokenloom.loaders import MixedDataset, TokenLoader
from tokenloom.loaders.reading import batch as reading
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.manifest import LENGTHS


def budgeted(*names: str, store: Path) -> TokenLoader:
    parts = {name: open_dataset(name, store=store) for name in names}
    dataset = parts[names[0]] if len(parts) == 1 else MixedDataset(parts, dict.fromkeys(names, 1.0), by="rows")
    return TokenLoader(dataset, token_budget=20_000, padding="longest", seed=1)


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_a_token_budget_opens_no_chunk(tmp_path: Path, names: tuple[str, ...]) -> None:
    written = [write_sequences(tmp_path, name, [30_000, 20_000, 0, 40_000], mean=200, seed=ord(name)) for name in names]
    batches = list(budgeted(*names, store=tmp_path))
    for path in {path for one in written for path in one.objects()}:
        path.unlink()
    loader = budgeted(*names, store=tmp_path)
    assert len(loader) == len(batches)
    steps = list(loader.steps())
    assert [len(step.rows) for step in steps] == [len(batch["input_ids"]) for batch in batches]
    rows = np.concatenate([step.rows for step in steps])
    lengths = [len(ids) for one in written for ids, _, _ in one.rows]
    data: Any = loader.dataset
    assert data.dataset.lengths(rows).tolist() == [lengths[row] for row in rows]


def test_lengths_of_pairs_are_those_of_the_longer_side(tmp_path: Path, tokenizer_folder: Path) -> None:
    def row(number: int) -> dict[str, object]:
        yes, no = said("assistant", "yes " * (1 + number % 5)), said("assistant", "no " * (1 + number % 3))
        return {"prompt": [said("user", "which?")], "chosen": [yes], "rejected": [no]}

    rows = [row(number) for number in range(20)]
    config = config_of(tokenizer_folder, {"format_type": "preference", "add_eos": False})
    store = ArtifactStore(tmp_path)
    build, _ = build_canonical(config, store, "preference", [table_of("preference", rows)])
    dataset = open_dataset(build.name, store=tmp_path)
    longer = [
        max(len(row["chosen_input_ids"]), len(row["rejected_input_ids"])) for row in map(dataset.__getitem__, range(20))
    ]
    assert dataset.lengths(np.arange(20)).tolist() == longer


def joined_lengths(folder: Path, name: str) -> str:
    """Join the lengths of a dataset's chunks, as a build does; returns the digest of the last object."""
    store = ArtifactStore(folder)
    manifest = store.manifest(name)
    named = put_lengths(store, ComputeEngine(1), manifest)
    store.put_manifest(replace(manifest, notes={LENGTHS: named}))
    return store.manifest_at(named).chunks[-1].output


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("damage", ["damaged", "missing"])
def test_damaged_lengths_are_reported(tmp_path: Path, damage: str, joined: bool) -> None:
    write_sequences(tmp_path, "a", [3000, 3000], mean=50)
    digest = ArtifactStore(tmp_path).manifest("a").chunks[1].lengths
    assert digest is not None
    if joined:
        digest = joined_lengths(tmp_path, "a")
    path = object_path(tmp_path, digest)
    flip(path, path.stat().st_size // 2) if damage == "damaged" else path.unlink()
    loader = TokenLoader(open_dataset("a", store=tmp_path), token_budget=2000, padding="longest")
    with pytest.raises(StoreError, match=f"{digest} is {damage}"):
        next(iter(loader))
    assert len(list(TokenLoader(open_dataset("a", store=tmp_path), padding="longest"))) > 1


@pytest.mark.parametrize(("joined", "most"), [(False, 2), (False, 1000), (True, 1000)])
def test_every_length_is_right_and_every_flip_is_reported(
    tmp_path: Path, joined: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_FILES", most)  # fewer than there are, if the lengths are not joined
    monkeypatch.setattr(reading, "_ROWS", 1000)
    written = write_sequences(tmp_path, "a", [60_000, 10, 90_000], mean=3)
    expected = np.array([len(ids) for ids, _, _ in written.rows])
    draw, count = random.Random(0), len(written.rows)
    chunks = ArtifactStore(tmp_path).manifest("a").chunks
    digests = [joined_lengths(tmp_path, "a")] if joined else chunks.digests("lengths")
    dataset, some = open_dataset("a", store=tmp_path), np.arange(0, count, 500)
    assert dataset.lengths(np.arange(count)).tolist() == expected.tolist()
    for _ in range(20):
        rows = np.array([draw.randrange(count) for _ in range(draw.randrange(9))], np.int64)
        assert dataset.lengths(rows).tolist() == expected[rows].tolist()
    for digest in digests:
        path = object_path(tmp_path, digest)
        for _ in range(10):
            position = draw.randrange(path.stat().st_size)
            flip(path, position)
            with pytest.raises(StoreError, match=f"{digest} is damaged"):
                open_dataset("a", store=tmp_path).lengths(some)
            flip(path, position)
    assert open_dataset("a", store=tmp_path).lengths(some).tolist() == expected[some].tolist()


@pytest.mark.parametrize("side", ["left", "right"])
def test_prompts_have_no_labels(tmp_path: Path, side: Literal["left", "right"]) -> None:
    write_sequences(tmp_path, "a", [3000, 3000], mean=50)
    store = ArtifactStore(tmp_path)
    manifest = store.manifest("a")
    store.put_manifest(replace(manifest, dataset="prompts", facts={**manifest.facts, "kind": "prompt"}))
    dataset, trained = open_dataset("prompts", store=tmp_path), open_dataset("a", store=tmp_path)
    assert dataset.kind == "prompt"
    assert set(dataset[3]) == {"input_ids", "attention_mask"}
    loaders = [
        TokenLoader(each, padding="longest", padding_side=side, world_size=3, rank=2) for each in (dataset, trained)
    ]
    for batch, other in zip(*loaders, strict=True):
        assert batch.keys() == {"input_ids", "attention_mask"}
        assert all((batch[name] == other[name]).all() for name in batch)
    with pytest.raises(ValueError, match="a prompt"):
        MixedDataset({"prompts": dataset, "a": trained}, {"prompts": 1.0, "a": 1.0})
