"""The order of one source: every epoch has every row once, for any start and number of rows read at once."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.chi_square import bucket, combined, deviation, deviations, pairs, sampled
from tokenloom.loaders.order.permutation import Permutation, key_of
from tokenloom.loaders.order.row_order import RowOrder, Shuffle

SHUFFLES = get_args(Shuffle)
SOAK = os.environ.get("TOKENLOOM_SOAK") == "1"
BLOCKS = [(1, 1), (1, 4), (3, 2), (10, 1), (7, 5), (256, 64)]

KNOWN: dict[tuple[int, Shuffle], list[int]] = {
    (5, "full"): [2, 4, 3, 0, 1, 0],
    (5, "block"): [0, 3, 2, 4, 1, 2],
    (1_000, "full"): [44, 357, 585, 488, 762, 227],
    (1_000, "block"): [68, 215, 543, 382, 736, 342],
    (1_000_000, "full"): [652435, 690984, 98709, 185859, 131808, 924180],
    (1_000_000, "block"): [416515, 765036, 58378, 910582, 58533, 910729],
    (1_000_000_000_000, "full"): [807942922834, 560792223066, 535720610142, 688910352259, 343855314182, 619794973793],
    (1_000_000_000_000, "block"): [560859479680, 68595080617, 104334351751, 671338842931, 104334351906, 671338843078],
}


def by_hand(order: RowOrder, position: int) -> int:
    """Compute docs/train/order.md in plain integers."""
    rows = len(order)
    epoch, place = position // rows, position % rows

    def key(purpose: str, number: int = 0) -> int:
        return key_of("order", order.seed, order.digest, epoch, purpose, number)

    if order.shuffle == "none":
        return place
    if order.shuffle == "full":
        return int(Permutation(rows, key("rows"))(place))
    window_rows = order.block_rows * order.window_blocks
    window = place // window_rows
    begin, end = window * window_rows, min((window + 1) * window_rows, rows)
    slot = begin + int(Permutation(end - begin, key("window", window))(place - begin))
    block, within = slot // order.block_rows, slot % order.block_rows
    if block < rows // order.block_rows:
        block = int(Permutation(rows // order.block_rows, key("blocks"))(block))
    rotation = key("rotation") * rows // 2**128
    return (rotation + block * order.block_rows + within) % rows


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_an_order_is_what_the_documentation_says(shuffle: Shuffle) -> None:
    for rows, (block_rows, window_blocks) in product((1, 2, 23, 100, 70_001, 10**12), BLOCKS):
        order = RowOrder(rows, "digest", 5, shuffle, block_rows, window_blocks)
        places = sorted({0, 1, rows - 1, rows, 2 * rows + rows // 2, 7 * rows - 1})
        assert order.take(places).tolist() == [by_hand(order, place) for place in places]


def test_the_order_does_not_change_between_versions() -> None:
    for (rows, shuffle), expected in KNOWN.items():
        assert RowOrder(rows, "digest", 1, shuffle).span(2 * rows, 2 * rows + 6).tolist() == expected


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_every_epoch_has_every_row_once(shuffle: Shuffle) -> None:
    sizes = range(1, 300) if SOAK else [*range(1, 60), *range(61, 300, 17)]
    for rows, (block_rows, window_blocks) in product(sizes, BLOCKS if shuffle == "block" else BLOCKS[:1]):
        order = RowOrder(rows, "digest", rows, shuffle, block_rows, window_blocks)
        for epoch in (0, 1, 1000):
            counts = np.bincount(order.span(epoch * rows, (epoch + 1) * rows), minlength=rows)
            assert (counts == 1).all(), (rows, block_rows, window_blocks)


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
    order = RowOrder(rows, "digest", 1, shuffle, 16, 8)
    for length in lengths:
        end = begin + length
        fresh = RowOrder(rows, "digest", 1, shuffle, 16, 8)
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
    assert len(pickle.dumps(order)) < 1000
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
    for wrong in ({"rows": 0}, {"shuffle": "some"}, {"block_rows": 0}, {"window_blocks": 0}):
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


@pytest.mark.parametrize("size", [10**6, 10**12])
def test_windows_look_like_chance_within(size: int) -> None:
    """The shuffle of `block` within a window of blocks."""
    found = []
    for seed in range(8):
        order = RowOrder(size, "digest", seed, "block", 256, 1024)
        window = 256 * 1024
        shuffled = Permutation(window, key_of("order", seed, "digest", 0, "window", 0))
        assert len(np.unique(order.rows(0, np.arange(window)))) == window
        found.append(list(deviations(shuffled, window).values()))
    assert all(abs(combined(list(column))) < 4 for column in zip(*found, strict=True))


@pytest.mark.parametrize(("block_rows", "window_blocks"), BLOCKS)
@pytest.mark.parametrize("rows", [1, 23, 200, 20_000, 50_001])
def test_a_window_reads_few_runs_of_rows(rows: int, block_rows: int, window_blocks: int) -> None:
    """One run per block, and one more if the window wraps around from the last row to the first."""
    order = RowOrder(rows, "digest", 1, "block", block_rows, window_blocks)
    window = block_rows * window_blocks
    for begin in range(0, min(rows, 50 * window), window):
        found = np.sort(order.rows(3, np.arange(begin, min(begin + window, rows))))
        assert 1 + np.count_nonzero(np.diff(found) > 1) <= window_blocks + 1


def test_windows_come_from_everywhere() -> None:
    rows = 10**6
    found = []
    for seed in range(20):
        first = np.sort(RowOrder(rows, "digest", seed, "block", 16, 64).rows(0, np.arange(1024)))
        blocks = first[1:][np.diff(first) > 1]
        found.append(deviation(np.bincount(bucket(blocks, rows, 8), minlength=8), len(blocks) / 8))
    assert abs(combined(found)) < 4


@pytest.mark.parametrize(("rows", "block_rows", "window_blocks"), [(23, 5, 1), (23, 5, 2), (11, 4, 1), (7, 7, 1)])
def test_every_row_stands_everywhere_as_often(rows: int, block_rows: int, window_blocks: int) -> None:
    """Including the rows of the incomplete block, which would always be last without the rotation."""
    order = RowOrder(rows, "digest", 1, "block", block_rows, window_blocks)
    epochs = 4000
    counts, unrotated = np.zeros((rows, rows)), np.zeros((rows, rows))
    for epoch in range(epochs):
        read = order.rows(epoch, np.arange(rows))
        rotation = key_of("order", 1, "digest", epoch, "rotation", 0) * rows >> 128
        counts[np.arange(rows), read] += 1
        unrotated[np.arange(rows), (read - rotation) % rows] += 1
    assert deviation(counts, epochs / rows, (rows - 1) ** 2) < 4
    assert rows % block_rows == 0 or deviation(unrotated, epochs / rows, (rows - 1) ** 2) > 50
