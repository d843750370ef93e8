"""The order of one source: every epoch has every row once, for any start and number of rows read at once."""

from __future__ import annotations

import math
import pickle
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations, product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.chi_square import bucket, combined, deviation, deviations, pairs, sampled
from support.soak import SOAK
from tokenloom.loaders.order import row_order
from tokenloom.loaders.order.row_order import Permutation, RowOrder, Shuffle, key_of

SHUFFLES = get_args(Shuffle)
WINDOWS = [(1, 1), (4, 1), (1, 3), (1000, 2), (1 << 16, 8)]
"""Rows and blocks that a window has at least."""

KNOWN: dict[tuple[int, Shuffle], list[int]] = {
    (5, "full"): [2, 4, 3, 0, 1, 0],
    (5, "block"): [3, 1, 0, 2, 4, 3],
    (1_000, "full"): [44, 357, 585, 488, 762, 227],
    (1_000, "block"): [282, 429, 757, 596, 182, 556],
    (1_000_000, "full"): [652435, 690984, 98709, 185859, 131808, 924180],
    (1_000_000, "block"): [27884, 317564, 742588, 379595, 545516, 504792],
    (1_000_000_000_000, "full"): [807942922834, 560792223066, 535720610142, 688910352259, 343855314182, 619794973793],
    (1_000_000_000_000, "block"): [750428595243, 947449991266, 42992800751, 43006399710, 947450435145, 777131430221],
}
KNOWN_OF_CHUNKS = [538493, 1003119, 470726, 638576, 631913, 537136]


def by_hand(order: RowOrder, position: int, chunks: Sequence[int] | None = None) -> int:
    """Compute docs/train/order.md in plain integers."""
    rows = len(order)
    epoch, place = position // rows, position % rows

    def key(purpose: str, number: int = 0) -> int:
        return key_of("order", order.seed, order.digest, epoch, purpose, number)

    if order.shuffle == "none":
        return place
    if order.shuffle == "full":
        return int(Permutation(rows, key("rows"))(place))
    blocks = runs_of(rows) if chunks is None else chunks
    at_least = max(row_order.WINDOW_BLOCKS, math.ceil(row_order.WINDOW_ROWS * len(blocks) / rows))
    windows = max(len(blocks) // at_least, 1)
    order_of_blocks = Permutation(len(blocks), key("blocks"))(np.arange(len(blocks))).tolist()
    before = 0
    for window in range(windows):
        numbers = order_of_blocks[window * len(blocks) // windows : (window + 1) * len(blocks) // windows]
        size = sum(blocks[number] for number in numbers)
        if place < before + size:
            slot = int(Permutation(size, key("window", window))(place - before))
            for number in numbers:
                if slot < blocks[number]:
                    return sum(blocks[:number]) + slot
                slot -= blocks[number]
        before += size
    raise AssertionError


def runs_of(rows: int) -> list[int]:
    """Return the blocks of rows that are not stored in chunks."""
    size = max(256, math.ceil(rows / 16_384))
    return [min(size, rows - begin) for begin in range(0, rows, size)]


@contextmanager
def windows_of(rows: int, blocks: int) -> Iterator[None]:
    """Make windows as small as this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_order, "WINDOW_ROWS", rows)
        patch.setattr(row_order, "WINDOW_BLOCKS", blocks)
        yield


def chunks_of(rows: int, number: int, seed: int) -> np.ndarray:
    """Divide rows into chunks of different sizes, some of them empty."""
    cuts = np.sort(np.random.default_rng(seed).integers(0, rows + 1, number - 1))
    return np.diff(cuts, prepend=0, append=rows)


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_an_order_is_what_the_documentation_says(shuffle: Shuffle) -> None:
    for rows in (1, 2, 23, 100, 70_001, 10**12):
        order = RowOrder(rows, "digest", 5, shuffle)
        places = sorted({0, 1, rows - 1, rows, 2 * rows + rows // 2, 7 * rows - 1})
        assert order.take(places).tolist() == [by_hand(order, place) for place in places]


@pytest.mark.parametrize("windows", WINDOWS)
def test_an_order_of_chunks_is_what_the_documentation_says(windows: tuple[int, int]) -> None:
    with windows_of(*windows):
        for rows, number in ((1, 1), (2, 3), (23, 4), (1000, 17), (70_001, 300)):
            chunks = chunks_of(rows, number, rows)
            order = RowOrder(rows, "digest", 5, "block", chunks)
            places = sorted({0, 1, rows - 1, rows, 2 * rows + rows // 2, 7 * rows - 1})
            assert order.take(places).tolist() == [by_hand(order, place, chunks.tolist()) for place in places]


def test_the_order_does_not_change_between_versions() -> None:
    for (rows, shuffle), expected in KNOWN.items():
        assert RowOrder(rows, "digest", 1, shuffle).span(2 * rows, 2 * rows + 6).tolist() == expected
    chunks = np.array([7, 0, 20_000, 1, 9_992] * 40)
    found = RowOrder(int(chunks.sum()), "digest", 1, "block", chunks).span(10**6, 10**6 + 6).tolist()
    assert found == KNOWN_OF_CHUNKS


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_every_epoch_has_every_row_once(shuffle: Shuffle) -> None:
    sizes = range(1, 300) if SOAK else [*range(1, 60), *range(61, 300, 17)]
    for rows, windows in product(sizes, WINDOWS if shuffle == "block" else WINDOWS[:1]):
        with windows_of(*windows):
            for chunks in (None, chunks_of(rows, 1 + rows // 3, rows)) if shuffle == "block" else (None,):
                order = RowOrder(rows, "digest", rows, shuffle, chunks)
                for epoch in (0, 1, 1000):
                    counts = np.bincount(order.span(epoch * rows, (epoch + 1) * rows), minlength=rows)
                    assert (counts == 1).all(), (rows, windows)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("rows", [8191, 8192, 65_537, 200_003])
def test_larger_epochs_have_every_row_once(shuffle: Shuffle, rows: int) -> None:
    order = RowOrder(rows, "digest", 3, shuffle)
    assert (np.bincount(order.span(rows, 2 * rows), minlength=rows) == 1).all()
    assert (np.bincount(order.rows(1, np.arange(rows)), minlength=rows) == 1).all()


@given(
    rows=st.one_of(st.integers(1, 100), st.integers(8100, 9000), st.integers(1, 10**12)),
    shuffle=st.sampled_from(SHUFFLES),
    begin=st.integers(0, 40_000),
    lengths=st.lists(st.integers(0, 300), max_size=20),
)
def test_spans_are_their_positions_one_by_one(rows: int, shuffle: Shuffle, begin: int, lengths: list[int]) -> None:
    """Also across blocks, windows and epochs; each span is compared with a new order."""
    order = RowOrder(rows, "digest", 1, shuffle)
    for length in lengths:
        end = begin + length
        fresh = RowOrder(rows, "digest", 1, shuffle)
        read = order.span(begin, end)
        assert read.dtype == np.int64 and read.shape == (length,)
        assert (read == fresh.take(np.arange(begin, end))).all()
        for position in {begin, begin + length // 2, end - 1} if length else ():
            assert order.rows(position // rows, [position % rows])[0] == read[position - begin]
        begin = end + length % 3


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_spans_far_apart_and_backwards_are_the_same(shuffle: Shuffle) -> None:
    order, chance = RowOrder(10**6, "digest", 1, shuffle), np.random.default_rng(1)
    begins = [*chance.integers(0, 10**7, 20), 8191, 8192, 8193, 10**6 - 1, 0, 10**15]
    for begin in map(int, begins):
        read = order.span(begin, begin + 10)
        assert (read == RowOrder(10**6, "digest", 1, shuffle).take(np.arange(begin, begin + 10))).all()


def test_an_order_may_be_pickled_and_shared() -> None:
    order = RowOrder(100_000, "digest", 1, "block")
    order.span(0, 20_000)
    assert len(pickle.dumps(order)) < 10_000
    again = pickle.loads(pickle.dumps(order))
    assert (again.span(7000, 9000) == order.span(7000, 9000)).all()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda begin: order.span(begin, begin + 100), [*range(0, 200_000, 1000)] * 3))
    for begin, read in zip([*range(0, 200_000, 1000)] * 3, found, strict=True):
        assert (read == again.take(np.arange(begin, begin + 100))).all()
    with pytest.raises(ValueError, match="read-only"):
        order.span(0, 8)[0] = 1


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_memory_does_not_grow_with_rows_nor_with_what_was_read(shuffle: Shuffle) -> None:
    tracemalloc.start()
    try:
        order = RowOrder(10**12, "digest", 1, shuffle)
        for begin in range(0, 2_000_000, 8192):
            order.span(begin, begin + 8)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_there_is_not_is_refused() -> None:
    for wrong in ({"rows": 0}, {"shuffle": "some"}, {"shuffle": "block", "chunks": [3, 8]}):
        with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
            RowOrder(**{"rows": 10, "digest": "digest", **wrong})  # type: ignore[arg-type]
    order = RowOrder(10, "digest")
    for places in ([10], [-1], [0, 10]):
        with pytest.raises(IndexError, match="the epoch's 10 rows"):
            order.rows(0, places)
    for begin, end in ((-1, 3), (5, 4)):
        with pytest.raises(IndexError, match=f"positions {begin} to {end}"):
            order.span(begin, end)
    with pytest.raises(IndexError, match="position"):
        order.take([-1])


@pytest.mark.parametrize("size", [1000, 10**6, 10**12])
def test_epochs_seeds_and_sources_do_not_know_each_other(size: int) -> None:
    """Including those whose numbers have equal sums."""
    kinds = list(product(("one", "other"), (0, 1, 2), (0, 1, 2)))
    places = np.arange(size) if size == 1000 else sampled(size)
    rows = [bucket(RowOrder(size, digest, seed).rows(epoch, places), size, 8) for digest, seed, epoch in kinds]
    found = [pairs(one, other, 8) for one, other in combinations(rows, 2)]
    assert max(map(abs, found)) < 5
    assert abs(combined(found)) < 4 or size == 1000  # whole epochs have equal marginal counts


@pytest.mark.parametrize("size", [10**5, 10**6])
def test_windows_look_like_chance_within(size: int) -> None:
    """The shuffle of `block` within a window, of 8 chunks."""
    found = []
    for seed in range(8):
        chunks = np.full(80, size // 8)
        order = RowOrder(10 * size, "digest", seed, "block", chunks)
        assert order.windows == 10
        rows = order.rows(0, np.arange(size))
        slots = np.unique(rows, return_inverse=True)[1]
        assert slots.max() + 1 == size
        found.append(list(deviations(slots.__getitem__, size).values()))
    assert all(abs(combined(list(column))) < 4 for column in zip(*found, strict=True))


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize(("rows", "number"), [(1, 1), (23, 5), (200, 90), (20_000, 400), (50_001, 33)])
def test_a_chunk_is_in_one_window(rows: int, number: int, windows: tuple[int, int]) -> None:
    """From the first read of a chunk until its last, as few rows are read as a window has at most."""
    chunks = chunks_of(rows, number, rows)
    with windows_of(*windows):
        order = RowOrder(rows, "digest", 1, "block", chunks)
        per_window = max(windows[1], math.ceil(windows[0] * number / rows))
    for epoch in (0, 3):
        read = np.repeat(np.arange(number), chunks)[order.rows(epoch, np.arange(rows))]
        places = [np.flatnonzero(read == chunk) for chunk in range(number)]
        spans = sorted((part[0], part[-1]) for part in places if len(part))
        opened, last = 1, spans[0][1]
        groups = []
        for first, end in spans[1:]:
            if first > last:  # all earlier chunks are finished
                groups.append(opened)
                opened = 0
            opened, last = opened + 1, max(last, end)
        assert max([*groups, opened]) < 2 * per_window or order.windows == 1
        assert order.windows == max(number // per_window, 1)


def test_windows_mix_chunks_from_everywhere() -> None:
    rows, chunks = 10**6, np.full(1000, 1000)
    found = []
    for seed in range(20):
        with windows_of(64_000, 8):
            order = RowOrder(rows, "digest", seed, "block", chunks)
        first = np.unique(order.rows(0, np.arange(64_000)) // 1000)
        assert 60 < len(first) < 70
        found.append(deviation(np.bincount(bucket(first, 1000, 8), minlength=8), len(first) / 8))
    assert abs(combined(found)) < 4


@pytest.mark.parametrize(("size", "number"), [(5, 5), (1, 23), (23, 1), (4, 6)])
def test_every_row_is_at_every_place_as_often(size: int, number: int) -> None:
    """With chunks of one size."""
    rows, epochs = size * number, 4000
    with windows_of(1, 2):
        order = RowOrder(rows, "digest", 1, "block", np.full(number, size))
    counts = np.zeros((rows, rows))
    for epoch in range(epochs):
        counts[np.arange(rows), order.rows(epoch, np.arange(rows))] += 1
    assert deviation(counts, epochs / rows, (rows - 1) ** 2) < 4


def test_a_million_chunks_take_little_memory() -> None:
    chunks = np.random.default_rng(0).integers(0, 2000, 10**6)
    tracemalloc.start()
    try:
        order = RowOrder(int(chunks.sum()), "digest", 1, "block", chunks)
        order.span(10**8, 10**8 + 8)
        assert tracemalloc.get_traced_memory()[1] < 128 << 20
    finally:
        tracemalloc.stop()
