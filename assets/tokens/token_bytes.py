"""The bytes of a chunk's tokens: their sum up to any token, and the token that reaches a byte position.

Sums are stored for every eight tokens. Within eight tokens, the lengths are the bytes of one 64-bit word, which are
added up with a few bit operations.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenloom.resources.tables.ragged import Ints

LONGEST = 0xFF
"""Length in bytes of the longest token that can be summed."""

_EVEN, _ONES = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0001000100010001)
_FIRST = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
"""Masks that keep the first 0 to 8 bytes of a word."""

Words = npt.NDArray[np.uint64]


class TokenBytes:
    """Sums of token lengths.

    Args:
        lengths: uint8 [tokens], the bytes of each token.
    """

    def __init__(self, lengths: npt.NDArray[np.uint8]):
        padded = np.zeros((len(lengths) // 8 + 1) * 8, np.uint8)
        padded[: len(lengths)] = lengths
        self._words = padded.view("<u8")
        self._sums = np.zeros(len(self._words) + 1, np.int64)
        np.cumsum(_sum_bytes(self._words), out=self._sums[1:])

    def before(self, tokens: Ints) -> Ints:
        """Return int64: the bytes of all tokens before each of `tokens`, which are from 0 to the number of tokens."""
        word = tokens >> 3
        return self._sums[word] + _sum_bytes(self._words[word] & _FIRST[tokens & 7])

    def reaching(self, places: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return the smallest number of tokens, from the first one, that have at least `places` bytes.

        Args:
            places: int64, byte positions.

        Returns:
            int64, the number of tokens; and bool, whether they end exactly at the position.
        """
        word = np.minimum(np.maximum(np.searchsorted(self._sums, places) - 1, 0), len(self._words) - 1)
        missing, lengths = places - self._sums[word], self._words[word]
        count = np.zeros(len(places), np.int64)
        for step in (4, 2, 1):
            further = count + step
            count = np.where(_sum_bytes(lengths & _FIRST[further]) < missing, further, count)
        count += missing > 0
        return 8 * word + count, _sum_bytes(lengths & _FIRST[count]) == missing


def _sum_bytes(words: Words) -> Ints:
    """Return int64: the sum of each word's eight bytes."""
    pairs = (words & _EVEN) + ((words >> np.uint64(8)) & _EVEN)
    return ((pairs * _ONES) >> np.uint64(48)).view(np.int64)
