"""A keyed shuffle that is computed rather than stored: which of `size` rows stands at a position, and back.

Up to `TABLE_SIZE` rows it is a table, sorted by random words. Above, a generalized Feistel network over digits of two
bases (Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002), whose few values beyond `size` walk on
along their cycle. docs/train/order.md has the formulas.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from tokenloom.resources.digest import digest_json
from tokenloom.resources.tables.ragged import Ints

TABLE_SIZE = 1 << 16
"""Up to so many rows, 2 bytes a row are kept: rounds alone shuffle the smallest sizes badly."""

MAXIMUM_SIZE = 1 << 48
"""Digits below 2^24 times 40 bits of a mix fit into 64 bits."""

ROUNDS = 6

Words = npt.NDArray[np.uint64]


def key_of(*parts: Any) -> int:
    """128 bits: the first half of the BLAKE3 of the canonical JSON of `parts`, as a list."""
    return int(digest_json(list(parts))[:32], 16)


class Permutation:
    """A bijection of [0, size), chosen by `key`; O(1) memory whatever the size.

    `permutation(positions)` is int64, of the shape of `positions`; `inverse(rows)` gives the positions back.

    Args:
        size: 1 to `MAXIMUM_SIZE`.
        key: 128 bits, from `key_of`.
        rounds: of the Feistel network; fewer than `ROUNDS` shuffle visibly worse.

    Raises:
        ValueError: no such size.
        IndexError: when called with a number outside [0, size).
    """

    def __init__(self, size: int, key: int, rounds: int = ROUNDS):
        if not 1 <= size <= MAXIMUM_SIZE:
            raise ValueError(f"a permutation of {size} rows: there are 1 to {MAXIMUM_SIZE}")
        self.size, self.key = size, key
        self._high = math.isqrt(size - 1) + 1
        self._low = -(-size // self._high)
        words = self._words(3 * rounds).reshape(rounds, 3)
        self._rounds = [(add, first | np.uint64(1), second | np.uint64(1)) for add, first, second in words]

    def __call__(self, positions: npt.ArrayLike) -> Ints:
        if self.size <= TABLE_SIZE:
            return self._table[self._checked(positions)].astype(np.int64)
        return self._walk(self._checked(positions), inverse=False)

    def inverse(self, rows: npt.ArrayLike) -> Ints:
        """int64: the positions of `rows`."""
        if self.size <= TABLE_SIZE:
            return self._inverse_table[self._checked(rows)].astype(np.int64)
        return self._walk(self._checked(rows), inverse=True)

    def _checked(self, numbers: npt.ArrayLike) -> Words:
        """Negative numbers become large ones."""
        found = np.asarray(numbers, np.int64, order="C").view(np.uint64)
        if found.size and int(found.max()) >= self.size:
            raise IndexError(f"a number outside of the {self.size} rows of a permutation")
        return found

    def _words(self, count: int) -> Words:
        """The first `count` words of 64 bits of the BLAKE3 stream of the key."""
        return np.frombuffer(blake3(self.key.to_bytes(16, "little")).digest(8 * count), "<u8")

    @cached_property
    def _table(self) -> npt.NDArray[np.uint16]:
        places = np.arange(self.size, dtype=np.uint64)
        return np.sort(self._words(self.size) & ~np.uint64(0xFFFF) | places).astype(np.uint16)

    @cached_property
    def _inverse_table(self) -> npt.NDArray[np.uint16]:
        inverse = np.empty_like(self._table)
        inverse[self._table] = np.arange(self.size, dtype=np.uint16)
        return inverse

    def _walk(self, numbers: Words, inverse: bool) -> Ints:
        found = self._once(numbers, inverse)
        if self._high * self._low > self.size:
            flat = found.reshape(-1)
            beyond = np.flatnonzero(flat >= self.size)
            while len(beyond):
                flat[beyond] = self._once(flat[beyond], inverse)
                beyond = beyond[flat[beyond] >= self.size]
        return found.view(np.int64)

    def _once(self, numbers: Words, inverse: bool) -> Words:
        """All rounds: in turn the low and the high digit is moved, around its base, by a mix of the other."""
        high, low = self._digits(numbers)
        mixed, fold = np.empty_like(numbers), np.empty_like(numbers)
        rounds = list(enumerate(self._rounds))
        for number, keys in reversed(rounds) if inverse else rounds:
            changed, by, base = (high, low, self._high) if number % 2 else (low, high, self._low)
            mixed = _mix(by, keys, base, mixed, fold)
            if inverse:
                changed -= mixed
                np.add(changed, np.uint64(base), out=fold)
            else:
                changed += mixed
                np.subtract(changed, np.uint64(base), out=fold)
            np.minimum(changed, fold, out=changed)  # what is below 0 wraps around to a large number
        high *= np.uint64(self._low)
        high += low
        return high

    def _digits(self, numbers: Words) -> tuple[Words, Words]:
        high = np.asarray(numbers // np.uint64(self._low))
        return high, np.asarray(numbers - high * np.uint64(self._low))


def _mix(digit: Words, keys: tuple[np.uint64, ...], base: int, mixed: Words, fold: Words) -> Words:
    """A number below `base` for each digit, in `mixed`; multiplying and shifting stands for the slower modulo."""
    add, first, second = keys
    np.add(digit, add, out=mixed)
    mixed *= first
    mixed ^= np.right_shift(mixed, np.uint64(32), out=fold)
    mixed *= second
    mixed >>= np.uint64(24)
    mixed *= np.uint64(base)
    mixed >>= np.uint64(40)
    return mixed
