"""Permutations: bijective, invertible, computed as documented, and statistically random."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from support.chi_square import combined, deviation, deviations, pairs, repeated_gaps, sampled
from support.soak import SOAK
from tokenloom.loaders.order.row_order import MAXIMUM_SIZE, TABLE_SIZE, Permutation, key_of

KEYS = 40 if SOAK else 8
ROUNDED = [TABLE_SIZE + 1, 100_003, 10**6, 10**9, 10**12]
"""Sizes that rounds shuffle."""


KNOWN_KEY = 0xD63CBE22EDCD3D3B710B30D124C0A264
KNOWN_ROWS = {
    1: [0],
    2: [1, 0],
    5: [0, 1, 4, 3, 2],
    20: [19, 13, 7, 14, 10, 1, 2, 17],
    65_536: [28914, 10706, 45857, 25205, 22335, 1629, 63458, 10564],
    65_537: [22200, 20242, 20558, 17802, 30199, 37066, 25320, 55153],
    1_000_000: [846627, 404466, 751603, 95087, 322946, 271690, 275092, 849487],
    1_000_000_000: [855222693, 57338973, 901087264, 754804045, 999316915, 307768105, 398450261, 817645534],
    1_000_000_000_000: [
        50485722070,
        44002163508,
        794880969456,
        46177714745,
        462268888330,
        164946836874,
        932491725258,
        538188378042,
    ],
}


def words(key: int, count: int) -> list[int]:
    stream = blake3(key.to_bytes(16, "little")).digest(8 * count)
    return [int.from_bytes(stream[8 * at : 8 * at + 8], "little") for at in range(count)]


def by_hand(size: int, key: int, position: int) -> int:
    """Compute docs/train/order.md in plain integers."""
    if size <= 65536:
        return sorted((word >> 16, row) for row, word in enumerate(words(key, size)))[position][1]
    high_base = math.isqrt(size)
    high_base += high_base**2 < size
    low_base = -(-size // high_base)
    keys = words(key, 18)
    while True:
        high, low = divmod(position, low_base)
        for number in range(6):
            add, first, second = keys[3 * number : 3 * number + 3]

            def mix(digit: int, base: int, add: int = add, first: int = first, second: int = second) -> int:
                mixed = (digit + add) * (first | 1) % 2**64
                mixed = (mixed ^ (mixed >> 32)) * (second | 1) % 2**64
                return (mixed >> 24) * base >> 40

            if number % 2 == 0:
                low = (low + mix(high, low_base)) % low_base
            else:
                high = (high + mix(low, high_base)) % high_base
        position = high * low_base + low
        if position < size:
            return position


@pytest.mark.parametrize(
    "size", [1, 2, 3, 20, 300, 65537, 65792, 65793, 100_003, 10**6, 10**9 + 7, 10**12, MAXIMUM_SIZE]
)
def test_a_permutation_is_what_the_documentation_says(size: int) -> None:
    key = key_of("by hand", size)
    places = sorted({0, size // 3, size // 2, size - 1} | set(range(min(size, 40))))
    assert Permutation(size, key)(places).tolist() == [by_hand(size, key, place) for place in places]


def test_the_order_does_not_change_between_versions() -> None:
    assert key_of("seed", 7, "digest", 3) == KNOWN_KEY
    for size, rows in KNOWN_ROWS.items():
        assert Permutation(size, key_of("known", size))(np.arange(min(size, 8))).tolist() == rows


def test_every_size_is_a_bijection_with_an_inverse() -> None:
    chance = np.random.default_rng(0)
    larger = [*range(65530, 65545), 257 * 256, 257 * 257, 257 * 257 + 1, *chance.integers(300, 400_000, 20).tolist()]
    for size in [*range(1, 300), *larger]:
        permutation = Permutation(size, key_of(size))
        rows = permutation(np.arange(size))
        assert rows.dtype == np.int64
        assert (np.bincount(rows, minlength=size) == 1).all(), size
        assert (permutation.inverse(rows) == np.arange(size)).all(), size
        assert (permutation(permutation.inverse(np.arange(size))) == np.arange(size)).all(), size


@given(st.integers(1, MAXIMUM_SIZE), st.integers(0, 2**128 - 1), st.data())
def test_sizes_that_no_memory_holds_go_there_and_back(size: int, key: int, data: st.DataObject) -> None:
    permutation = Permutation(size, key)
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=50)), np.int64)
    rows = permutation(places)
    assert ((rows >= 0) & (rows < size)).all()
    assert (permutation.inverse(rows) == places).all()
    assert [int(permutation(place)) for place in places] == rows.tolist()


@pytest.mark.parametrize("size", [20, 10**7])
def test_results_have_the_shape_of_what_was_asked(size: int) -> None:
    permutation = Permutation(size, 1)
    grid = np.arange(20).reshape(4, 5)
    assert (permutation(grid.T) == permutation(grid).T).all()
    assert (permutation.inverse(permutation(grid.T)) == grid.T).all()
    assert permutation(3).shape == () and permutation([]).shape == (0,)
    assert (permutation(np.arange(20)[::2]) == permutation(np.arange(20))[::2]).all()


def test_what_is_outside_is_refused() -> None:
    for size in (20, 10**7):
        permutation = Permutation(size, 1)
        for number in (-1, size, -(2**63), 2**63 - 1):
            with pytest.raises(IndexError, match=f"the permutation's {size} rows"):
                permutation([0, number])
            with pytest.raises(IndexError, match=f"the permutation's {size} rows"):
                permutation.inverse(number)
    for size in (0, -1, MAXIMUM_SIZE + 1):
        with pytest.raises(ValueError, match="a permutation needs"):
            Permutation(size, 1)


def test_keys_hold_every_part_apart() -> None:
    parts = [(), (1,), (1, 1), (11,), ("1",), (1, 2), (2, 1), ("1", "2"), ("12",), (None,), ("",), (["a"],), ("a",)]
    keys = [key_of(*part) for part in parts]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**128 for key in keys)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_small_sizes_have_every_order_as_often(size: int) -> None:
    counts = Counter(tuple(Permutation(size, key_of(size, draw))(np.arange(size)).tolist()) for draw in range(6000))
    every = list(permutations(range(size)))
    assert abs(deviation([counts[order] for order in every], 6000 / len(every))) < 4


def test_every_ordered_pair_opens_twenty_rows_as_often() -> None:
    first = np.array([Permutation(20, key_of("pair", draw))([0, 1]) for draw in range(20_000)])
    counts = np.bincount(first[:, 0] * 20 + first[:, 1], minlength=400).reshape(20, 20)
    assert not counts.diagonal().any()
    assert abs(deviation(counts[~np.eye(20, dtype=bool)], 20_000 / 380)) < 4
    assert abs(deviation(counts.sum(1), 1000)) < 4


@pytest.mark.parametrize("size", [TABLE_SIZE, *ROUNDED])
def test_rows_look_like_chance(size: int) -> None:
    found = [deviations(Permutation(size, key_of("chance", draw)), size) for draw in range(KEYS)]
    for name in found[0]:
        assert abs(combined([each[name] for each in found])) < 4, name


@pytest.mark.parametrize("size", [10**9, 10**12])
def test_gaps_repeat_as_chance_has_them(size: int) -> None:
    found = [repeated_gaps(Permutation(size, key_of("square", draw)), size) for draw in range(KEYS)]
    assert abs(combined(found)) < 4


@pytest.mark.parametrize("size", ROUNDED)
def test_these_tests_see_three_rounds(size: int) -> None:
    found = []
    for draw in range(4):
        weak = Permutation(size, key_of("chance", draw), rounds=3)
        found.append([*deviations(weak, size).values(), *([repeated_gaps(weak, size)] if size >= 10**9 else [])])
    assert max(combined(list(column)) for column in zip(*found, strict=True)) > 12


@pytest.mark.parametrize("size", [TABLE_SIZE, *ROUNDED])
def test_keys_do_not_know_each_other(size: int) -> None:
    places, found = sampled(size), []
    for draw in range(KEYS):
        one, other = (Permutation(size, key_of("keys", number))(places) for number in (draw, draw + 1))
        high = pairs(one * 16 // size, other * 16 // size, 16)
        found.append((high, pairs(one % 16, other % 16, 16)))
    for column in zip(*found, strict=True):
        assert abs(combined(list(column))) < 4


def test_keys_of_one_bit_between_them_do_not_know_each_other() -> None:
    size, key, found = 10**6, key_of("bit"), []
    one = Permutation(size, key)(sampled(size))
    for bit in range(0, 128, 7):
        other = Permutation(size, key ^ (1 << bit))(sampled(size))
        found.append(pairs(one * 16 // size, other * 16 // size, 16))
    assert abs(combined(found)) < 4
