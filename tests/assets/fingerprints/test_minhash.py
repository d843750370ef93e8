"""Signatures and bands against the theory of MinHash, and n-grams of rows against a loop."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.assets.dedup.decision import Rows, decide
from tokenloom.assets.fingerprints import minhash
from tokenloom.assets.fingerprints.minhash import band_keys, bands_of, permutations, recall, shingles, signatures
from tokenloom.assets.fingerprints.stage import Compared, fingerprints
from tokenloom.resources.tables.hashes import LongWords, Words
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


PIECES = st.lists(st.text("ab Éß=\n漢字かタไท\u0301\U0001f30a7", max_size=60), min_size=1, max_size=4)


@given(PIECES, st.integers(1, 5), st.sampled_from([8, 16, 60]))
def test_long_rows_have_the_words_and_n_grams_of_short_ones(texts: list[str], size: int, piece: int) -> None:
    array, row = pa.array(texts), np.zeros(len(texts), np.int64)
    whole = Words.of(array)
    expected, offsets = shingles(whole, row, 1, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenloom.resources.tables.hashes.LONG", piece)
        patch.setattr("tokenloom.resources.tables.hashes._PIECE", 8)
        longer = LongWords(array)
        found, bounds = shingles(longer, row, 1, size)
    every = np.zeros(1, np.int64), np.array([len(whole)])
    assert longer.offsets[-1] == len(whole)
    assert np.array_equal(longer.hashes(*every), whole.hashes(*every))
    assert np.array_equal(found, expected) and np.array_equal(bounds, offsets)


def test_a_long_row_has_the_fingerprint_and_the_similarity_of_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(4)
    texts = [" ".join(map(str, random.integers(0, 5000, 3000))) for _ in range(2)]
    texts += [f"{texts[0]} été", f"{texts[1]} 漢字", "short"]
    compared = Compared("text", ngram_size=5, bands=18, band_rows=7)
    found = []
    for long in (1 << 22, 1 << 10):
        monkeypatch.setattr("tokenloom.resources.tables.hashes.LONG", long)
        monkeypatch.setattr("tokenloom.assets.columns.row_texts.BLOCK_BYTES", 1 << 10)
        tables = [pa.table({"_row": pa.array(range(5), pa.int32()), "text": texts})]
        prints = [fingerprints(tables[0], compared).table]
        decision = decide(Rows([5], prints.__getitem__, tables.__getitem__, [compared]), True, 0.8)
        found.append((prints[0], decision.rows.tolist(), decision.similarities.tolist()))
    assert found[0] == found[1]
    assert found[0][1] == [2, 3]
