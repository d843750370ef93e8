"""Lengths of many chunks in one object: right for every row, and an edit changes few of the objects."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builds import build
from support.datasets_on_disk import write_dataset
from support.store_files import snapshot
from tokenloom import open_dataset
from tokenloom.assets.sequences import lengths
from tokenloom.assets.sequences.lengths import MOST_CHUNKS, MOST_ROWS, groups_of
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.manifest import LENGTHS


def outputs(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [f"{draw.getrandbits(256):064x}" for _ in range(count)]


@given(st.integers(0, 20_000), st.integers(0, 1000), st.integers(0, 1 << 26))
@settings(max_examples=30, deadline=None)
def test_groups_are_consecutive_and_of_limited_size(count: int, seed: int, most: int) -> None:
    rows = np.random.default_rng(seed).integers(0, most + 1, count)
    bounds = list(groups_of(outputs(count, seed), rows))
    assert [begin for begin, _ in bounds] == [0, *(end for _, end in bounds)][: len(bounds)]
    assert (bounds[-1][1] if bounds else 0) == count
    for begin, end in bounds:
        assert 0 < end - begin <= MOST_CHUNKS
        assert end - begin == 1 or rows[begin:end].sum() <= MOST_ROWS


@given(st.integers(1, 20_000), st.integers(0, 1000), st.sampled_from(["replace", "insert", "delete"]), st.data())
@settings(max_examples=30, deadline=None)
def test_an_edit_changes_the_groups_around_it_alone(count: int, seed: int, edit: str, data: st.DataObject) -> None:
    before, at = outputs(count, seed), data.draw(st.integers(0, count - 1))
    after = [*before[:at], *([] if edit == "delete" else outputs(1, -1 - seed)), *before[at + (edit != "insert") :]]

    def groups(digests: list[str]) -> set[tuple[str, ...]]:
        return {tuple(digests[begin:end]) for begin, end in groups_of(digests, np.full(len(digests), 9))}

    old, new = groups(before), groups(after)
    shifted = max(map(len, old | new)) == MOST_CHUNKS  # without an end of its own, a group ends elsewhere
    assert len(new - old) <= 2 + 20 * shifted


def test_a_build_finds_the_groups_of_unchanged_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "MOST_CHUNKS", 2)
    config, store = write_dataset(tmp_path, 400), tmp_path / "store"
    build(config, store)

    def groups() -> tuple[str, list[str]]:
        opened = ArtifactStore(store)
        digest = opened.manifest("small").named[LENGTHS]
        return digest, opened.manifest_at(digest).chunks.digests("output")

    first, objects = groups()
    assert len(objects) > 1
    files = snapshot(store / "objects")
    build(config, store)
    assert groups() == (first, objects)
    assert snapshot(store / "objects") == files
    for split in ArtifactStore(store).manifest("small").splits:
        dataset = open_dataset("small", split, store=store)
        expected = [len(dataset[row]["input_ids"]) for row in range(len(dataset))]
        assert dataset.lengths(np.arange(len(dataset))).tolist() == expected
        draw = np.random.default_rng(0).integers(0, len(dataset), 1000)
        assert dataset.lengths(draw).tolist() == [expected[row] for row in draw]
        for wrong in (-1, len(dataset)):
            with pytest.raises(IndexError):
                dataset.lengths(np.array([0, wrong]))
