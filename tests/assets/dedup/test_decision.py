"""Which rows are dropped, against plain loops over rows, sets of n-grams, and buckets."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.assets.dedup import candidates, decision
from tokenloom.assets.dedup.candidates import buckets, pairs_with_firsts, sharing, survivors
from tokenloom.assets.dedup.decision import FEWEST, SHARED, Decision, NgramSets, Rows, decide
from tokenloom.assets.fingerprints.stage import Compared, fingerprints

COMPARED = Compared("text", ngram_size=2, bands=128, band_rows=1)
"""With bands of one permutation, all similar rows are compared, so that a loop over all rows finds the same."""

WORDS = st.lists(st.sampled_from("abcdefgh"), max_size=9).map(" ".join)
KEYS = st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=40)


def rows_of(chunks: list[list[str]], compared: Compared = COMPARED) -> Rows:
    tables = [
        pa.table({"_row": pa.array(range(len(texts)), pa.int32()), "text": pa.array(texts, pa.string())})
        for texts in chunks
    ]
    found = [fingerprints(table, compared).table for table in tables]
    return Rows([*map(len, chunks)], found.__getitem__, tables.__getitem__, [compared] * len(tables))


def ngrams(text: str, size: int = 2) -> set[tuple[str, ...]]:
    words = text.split()
    found = {tuple(words[at : at + size]) for at in range(len(words) - size + 1)}
    return found or ({tuple(words)} if words else set())


Set = set[tuple[str, ...]]


def jaccard(one: str, other: str, common: Set = frozenset()) -> float:  # type: ignore[assignment]
    """The similarity of all n-grams, or of those that are not common, if that is less."""
    found = []
    for left_out in (set(), common):
        both = ngrams(one) - left_out or ngrams(one), ngrams(other) - left_out or ngrams(other)
        found.append(float(np.float32(len(both[0] & both[1]) / max(len(both[0] | both[1]), 1))))
    return min(found)


def common_ngrams(texts: list[str], exact: bool) -> Set:
    """Those of nearly all rows; of the same rows, the first counts."""
    sets = [ngrams(text) for text in ({text.strip(): text for text in texts} if exact else texts) if text.split()]
    times = Counter(gram for own in sets for gram in own)
    return {gram for gram, count in times.items() if count >= SHARED * len(sets) and len(sets) >= FEWEST}


def by_loop(texts: list[str], exact: bool, threshold: float | None) -> set[int]:
    kept: list[int] = []
    dropped = set()
    first: dict[str, int] = {}
    common = common_ngrams(texts, exact)
    for row, text in enumerate(texts):
        same = exact and text.split() and first.setdefault(text.strip(), row) != row
        near = threshold is not None and any(
            jaccard(text, texts[other], common) >= threshold for other in kept if text.split()
        )
        if same or near:
            dropped.add(row)
        else:
            kept.append(row)
    return dropped


CHUNKS = st.lists(st.lists(WORDS, max_size=8), min_size=1, max_size=4)
PREFIXED = CHUNKS.map(lambda chunks: [[f"x y z x z y {text}" for text in chunk] for chunk in chunks])
"""Rows that all start alike."""


def check(chunks: list[list[str]], exact: bool, threshold: float | None) -> Decision:
    texts = [text for chunk in chunks for text in chunk]
    found = decide(rows_of(chunks), exact, threshold)
    assert set(found.rows.tolist()) == by_loop(texts, exact, threshold)
    kept = {*range(len(texts))} - set(found.rows.tolist())
    common = common_ngrams(texts, exact)
    for row, survivor, similarity, same in zip(
        found.rows.tolist(), found.survivors.tolist(), found.similarities.tolist(), found.exact.tolist(), strict=True
    ):
        assert survivor in kept and survivor < row
        if same:
            assert texts[row].strip() == texts[survivor].strip() and similarity == 1
        else:
            assert threshold is not None and similarity == jaccard(texts[row], texts[survivor], common) >= threshold
    return found


@given(CHUNKS | PREFIXED, st.booleans(), st.sampled_from([None, 0.5, 0.7, 0.9, 1.0]))
def test_dropped_rows_are_those_of_a_loop(chunks: list[list[str]], exact: bool, threshold: float | None) -> None:
    check(chunks, exact, threshold)


@pytest.mark.parametrize("at_once", [4, 1 << 22])
@given(CHUNKS | PREFIXED, st.booleans(), st.sampled_from([0.5, 0.7, 0.9, 1.0]))
def test_rows_that_are_compared_in_parts_are_those_of_a_loop(
    at_once: int, chunks: list[list[str]], exact: bool, threshold: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "_LEAF", 3)
        patch.setattr(candidates, "_AT_ONCE", at_once)
        check(chunks, exact, threshold)


def test_texts_that_differ_in_form_or_white_space_are_the_same() -> None:
    rows = rows_of([["caf\u00e9 au lait", " cafe\u0301 au lait\n", "Cafe au lait", "", "", "...", "..."]])
    found = decide(rows, exact=True, threshold=None)
    assert (found.rows.tolist(), found.survivors.tolist()) == ([1], [0])
    assert decide(rows, exact=False, threshold=1.0).rows.tolist() == [1, 2]


@given(KEYS, st.integers(1, 3))
def test_pairs_are_those_of_a_loop_over_buckets(keys: list[list[int]], step: int) -> None:
    rows = np.arange(0, len(keys), step)
    columns = [np.array(column, np.uint64) << np.uint64(50) for column in zip(*keys, strict=True)]
    together, leaders, not_first = set(), set(), set()
    for column in columns:
        by_key = defaultdict(list)
        for row in rows.tolist():
            by_key[int(column[row])].append(row)
        shared = {row for bucket in by_key.values() if len(bucket) > 1 for row in bucket}
        assert set(buckets(column, rows)[0].tolist()) == shared
        together |= shared
        for bucket in by_key.values():
            leaders |= {(row, bucket[0]) for row in bucket[1:]}
            not_first |= set(bucket[1:])
    assert {*np.flatnonzero(sharing(lambda: columns, rows, len(keys))).tolist()} == together
    later, leader, certain = pairs_with_firsts(lambda: columns, rows, len(keys))
    assert list(zip(later.tolist(), leader.tolist(), strict=True)) == sorted(leaders)
    assert {*rows.tolist()} - set(np.flatnonzero(certain).tolist()) == not_first


PAIRS = st.integers(2, 30).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[1] < pair[0])),
    )
)


@given(PAIRS)
def test_survivors_are_those_of_a_loop(found: tuple[int, set[tuple[int, int]]]) -> None:
    count, similar = found
    later, earlier = (np.array(side, np.int64) for side in zip(*similar, strict=True)) if similar else ([], [])
    result = survivors(np.asarray(later, np.int64), np.asarray(earlier, np.int64), count).tolist()
    expected: list[int] = []
    for row in range(count):
        before = [other for other in range(row) if (row, other) in similar and expected[other] < 0]
        expected.append(min(before, default=-1))
    assert result == expected


def test_the_threshold_itself_is_similar_enough() -> None:
    texts = ["c d x y", "a b c d", "a b c e"]  # the second is not the first of all its buckets
    assert (jaccard(texts[1], texts[2]), jaccard(texts[0], texts[1])) == (0.5, float(np.float32(0.2)))
    found = decide(rows_of([texts]), exact=True, threshold=0.5)
    assert (found.rows.tolist(), found.survivors.tolist()) == ([2], [1])
    assert decide(rows_of([texts[1:]]), exact=True, threshold=0.5).rows.tolist() == [1]


def test_a_chain_of_similar_rows_is_not_one_group() -> None:
    words = [f"w{number}" for number in range(60)]
    chain = [" ".join(words[start : start + 40]) for start in range(0, 16, 4)]
    assert jaccard(chain[0], chain[1]) > 0.8 > jaccard(chain[0], chain[2])
    found = decide(rows_of([[*chain, "quite another row"]]), exact=True, threshold=0.8)
    assert (found.rows.tolist(), found.survivors.tolist()) == ([1, 3], [0, 2])


@pytest.mark.parametrize(("most", "ngrams"), [(1, 1 << 22), (7, 100), (4096, 1), (4096, 1 << 22)])
def test_similarities_do_not_depend_on_how_many_are_computed_at_once(most: int, ngrams: int, monkeypatch: Any) -> None:
    random = np.random.default_rng(3)
    texts = [" ".join(random.choice(list("abcdefgh"), random.integers(0, 30))) for _ in range(60)]
    later, earlier = np.array([(row, other) for row in range(60) for other in range(row)]).T
    monkeypatch.setattr(decision, "_PAIRS", most)
    monkeypatch.setattr(decision, "_NGRAMS", ngrams)
    chunks = [texts[:10], [], texts[10:35], texts[35:]]
    found = NgramSets(rows_of(chunks), np.arange(60), np.zeros(0, np.uint64)).similarities(later, earlier).tolist()
    assert found == [jaccard(texts[row], texts[other]) for row, other in zip(later, earlier, strict=True)]
