"""A keyed shuffle that is computed, not stored: maps each position to a row and back.

Up to `TABLE_SIZE` rows it is a table, sorted by random words. Above that it is a generalized Feistel network over two
digits of different bases, with cycle walking for the few values beyond `size` (Black and Rogaway, Ciphers with
Arbitrary Finite Domains, CT-RSA 2002). docs/train/order.md has the formulas.
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
"""Up to this many rows a table of 2 bytes per row is kept: Feistel rounds shuffle the smallest sizes badly."""

MAXIMUM_SIZE = 1 << 48
"""With digits below 2^24, a digit times 40 bits of a mix fits into 64 bits."""

ROUNDS = 6

Words = npt.NDArray[np.uint64]


def key_of(*parts: Any) -> int:
    """Return a 128-bit key: the first half of the BLAKE3 of the canonical JSON of the list of `parts`."""
    return int(digest_json(list(parts))[:32], 16)


class Permutation:
    """A bijection of [0, size) chosen by `key`, in O(1) memory for any size.

    `permutation(positions)` returns int64 rows in the shape of `positions`; `inverse(rows)` returns the positions.

    Args:
        size: 1 to `MAXIMUM_SIZE`.
        key: 128 bits, from `key_of`.
        rounds: rounds of the Feistel network; fewer than `ROUNDS` shuffle measurably worse.

    Raises:
        ValueError: `size` is out of range.
        IndexError: when called with a number outside [0, size).
    """

    def __init__(self, size: int, key: int, rounds: int = ROUNDS):
        if not 1 <= size <= MAXIMUM_SIZE:
            raise ValueError(f"a permutation needs 1 to {MAXIMUM_SIZE} rows, got {size}")
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
        """Return the positions of `rows`, int64."""
        if self.size <= TABLE_SIZE:
            return self._inverse_table[self._checked(rows)].astype(np.int64)
        return self._walk(self._checked(rows), inverse=True)

    def _checked(self, numbers: npt.ArrayLike) -> Words:
        """Return the numbers as uint64; negative ones become too large and fail the check."""
        words = np.asarray(numbers, np.int64, order="C").view(np.uint64)
        if words.size and int(words.max()) >= self.size:
            raise IndexError(f"a number is outside the permutation's {self.size} rows")
        return words

    def _words(self, count: int) -> Words:
        """Return the first `count` 64-bit words of the key's BLAKE3 stream."""
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
        """Apply the network again to every value beyond `size`, until it is in range."""
        moved = self._once(numbers, inverse)
        if self._high * self._low > self.size:
            flat = moved.reshape(-1)
            beyond = np.flatnonzero(flat >= self.size)
            while len(beyond):
                flat[beyond] = self._once(flat[beyond], inverse)
                beyond = beyond[flat[beyond] >= self.size]
        return moved.view(np.int64)

    def _once(self, numbers: Words, inverse: bool) -> Words:
        """Apply all rounds: alternately shift the low and the high digit, modulo its base, by a mix of the other."""
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
            np.minimum(changed, fold, out=changed)  # values below 0 wrap around to large ones
        high *= np.uint64(self._low)
        high += low
        return high

    def _digits(self, numbers: Words) -> tuple[Words, Words]:
        high = np.asarray(numbers // np.uint64(self._low))
        return high, np.asarray(numbers - high * np.uint64(self._low))


def _mix(digit: Words, keys: tuple[np.uint64, ...], base: int, mixed: Words, fold: Words) -> Words:
    """Write a number below `base` for each digit to `mixed`; multiply and shift replace the slower modulo."""
    add, first, second = keys
    np.add(digit, add, out=mixed)
    mixed *= first
    mixed ^= np.right_shift(mixed, np.uint64(32), out=fold)
    mixed *= second
    mixed >>= np.uint64(24)
    mixed *= np.uint64(base)
    mixed >>= np.uint64(40)
    return mixed
