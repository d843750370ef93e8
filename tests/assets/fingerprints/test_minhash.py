"""Signatures and bands against the theory of MinHash, and n-grams of rows against a loop."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.assets.fingerprints import minhash
from tokenloom.assets.fingerprints.minhash import band_keys, bands_of, permutations, recall, shingles, signatures
from tokenloom.resources.tables.hashes import Words
from tokenloom.resources.tables.ragged import offsets_of

TEXTS = st.lists(st.lists(st.sampled_from("abcdef"), max_size=7).map(" ".join), min_size=1, max_size=3)
PAIRS = 3000


def pairs_of(similarity: float, size: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """`PAIRS` pairs of sets of random hashes, one after the other, their sizes, and their true similarity."""
    random = np.random.default_rng(seed)
    shared = round(2 * size * similarity / (1 + similarity))
    both = random.integers(0, 2**63, (PAIRS, shared), np.uint64) << np.uint64(1)
    own = random.integers(0, 2**63, (PAIRS, 2, size - shared), np.uint64) << np.uint64(1)
    sets = [np.concatenate([both, own[:, side]], axis=1) for side in (0, 1)]
    return np.stack(sets, axis=1).ravel(), np.full(2 * PAIRS, size), shared / (2 * size - shared)


@pytest.mark.parametrize("size", [12, 60, 700])
@pytest.mark.parametrize("similarity", [0.3, 0.5, 0.7, 0.8, 0.9])
def test_pairs_share_bands_as_often_as_theory_says(similarity: float, size: int) -> None:
    hashes, sizes, true = pairs_of(similarity, size, seed=size)
    for bands, rows in [(18, 7), (25, 5), (42, 3)]:
        found = signatures(hashes, offsets_of(sizes), bands * rows)
        equal = (found[:, 0::2] == found[:, 1::2]).mean()
        assert abs(equal - true) < 5 * math.sqrt(true * (1 - true) / (PAIRS * bands * rows)) + 0.003
        shared = np.zeros(PAIRS, bool)
        for keys in band_keys(found, bands, rows):
            shared |= keys[0::2] == keys[1::2]
        expected = recall(true, bands, rows)
        assert abs(shared.mean() - expected) < 4 * math.sqrt(max(expected * (1 - expected), 1e-4) / PAIRS)


def test_the_number_of_bands_follows_from_the_threshold() -> None:
    assert [bands_of(threshold, 128) for threshold in (0.5, 0.7, 0.8, 0.9, 1.0)] == [
        (42, 3), (25, 5), (18, 7), (10, 12), (1, 128),
    ]  # fmt: skip
    assert all(recall(t / 100, *bands_of(t / 100, 128)) >= 0.95 for t in range(50, 101))


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=9), min_size=1, max_size=30))
def test_signatures_are_the_smallest_permuted_hashes(rows: list[list[int]]) -> None:
    hashes = np.array([value for row in rows for value in row], np.uint64)
    found = signatures(hashes, offsets_of(np.array([len(row) for row in rows])), 20)
    factors = permutations(20).tolist()
    assert len(set(factors)) == 20
    for number, row in enumerate(rows):
        least = [min((value >> 32) * factor % 2**32 for value in row) for factor in factors]
        assert found[:, number].tolist() == least


def test_long_rows_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(4)
    sizes = np.array([3, 500, 1, 64, 65, 128, 700, 2])
    hashes = random.integers(0, 2**63, sizes.sum(), np.uint64) << np.uint64(1)
    whole = signatures(hashes, offsets_of(sizes), 20)
    monkeypatch.setattr(minhash, "_CELLS", 64)
    assert np.array_equal(signatures(hashes, offsets_of(sizes), 20), whole)


@given(st.lists(TEXTS, min_size=1, max_size=5), st.integers(1, 4))
def test_shingles_are_those_of_a_loop_over_words(rows: list[list[str]], size: int) -> None:
    texts = pa.array([text for row in rows for text in row], pa.string())
    words = Words.of(texts)
    row_of_text = np.repeat(np.arange(len(rows)), [*map(len, rows)])
    hashes, offsets = shingles(words, row_of_text, len(rows), size)
    known: dict[tuple[str, ...], int] = {}
    for number, row in enumerate(rows):
        said = " ".join(row).split()
        grams = [tuple(said[at : at + size]) for at in range(len(said) - size + 1)] or ([tuple(said)] if said else [])
        found = hashes[offsets[number] : offsets[number + 1]].tolist()
        assert len(found) == len(grams)
        for gram, value in zip(grams, found, strict=True):
            assert known.setdefault(gram, value) == value
    assert len(set(known.values())) == len(known)
