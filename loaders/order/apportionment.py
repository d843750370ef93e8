"""How weighted sources take turns: integer shares of a repeating period, and the source at each place of it.

Row n of a source is due at time (n + 1/2) / share. Rows are ordered by due time, and ties go to the earlier source.
Every prefix is then the Sainte-Laguë apportionment of its length: with f the fraction of each source, no other counts
have a smaller sum of (count - length × f)² / f. In any window, a source's count differs from its exact fraction by at
most 1 + f × (sources - 2) rows, and by less than 1 with two sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from tokenloom.resources.tables.ragged import Ints, ranges, row_of

LONGEST_PERIOD = 1 << 16
"""Longest period in rows. Rates that need a longer one are rounded by largest remainders."""


def shares_of(rates: Sequence[Fraction]) -> tuple[int, ...]:
    """Return each source's rows per period, in proportion to `rates`; 0 for a rate too small for one row."""
    denominator = math.lcm(*(rate.denominator for rate in rates))
    whole = [int(rate * denominator) for rate in rates]
    common = math.gcd(*whole)
    total = sum(whole) // common
    if total <= LONGEST_PERIOD:
        return tuple(number // common for number in whole)
    quotas = [divmod(number * LONGEST_PERIOD, total * common) for number in whole]
    shares = [quota for quota, _ in quotas]
    largest = sorted(range(len(rates)), key=lambda source: -quotas[source][1])
    for source in largest[: LONGEST_PERIOD - sum(shares)]:
        shares[source] += 1
    return tuple(shares)


@lru_cache(maxsize=16)
def period_of(shares: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Return, for each place of the period, the source and the number of its row within the period.

    Both are int64 [period].
    """
    each = np.array(shares, np.int64)
    source, row = row_of(each), ranges(np.zeros(len(each), np.int64), each)
    order = np.argsort((2 * row + 1) / each[source], kind="stable")  # equal fractions are equal floats
    return source[order], row[order]


def counts_before_row(shares: Sequence[int], source: int, row: int) -> list[int]:
    """Return how many rows of each source come before row `row` of `source`, counted from the first period."""
    due = [(2 * row + 1) * share for share in shares]
    half = shares[source]
    whole = 2 * half
    return [-((half - time) // whole) if other >= source else (time + half) // whole for other, time in enumerate(due)]


def counts_before_place(shares: tuple[int, ...], place: int) -> list[int]:
    """Return how many rows of each source come before a place, counted from the first period."""
    periods, rest = divmod(place, sum(shares))
    partial = np.bincount(period_of(shares)[0][:rest], minlength=len(shares)).tolist()
    return [periods * share + more for share, more in zip(shares, partial, strict=True)]
