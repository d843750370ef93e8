"""How sources with weights take turns: integer shares of a period, and who stands where in it.

A source's row n is due at the time (n + 1/2) / share, and rows stand in the order in which they are due; of two due
at once, the earlier source's comes first. Every prefix is then Sainte-Laguë's apportionment of its length: no other
counts come nearer to the shares f, by the sum of (count - length × f)² / f. In any window a source's count differs from
its share by at most 1 + f × (sources - 2) rows, and by less than 1 where there are two sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from tokenloom.resources.tables.ragged import Ints, ranges, row_of

LONGEST_PERIOD = 1 << 16
"""Rates that need longer ones are rounded, by largest remainders."""


def shares_of(rates: Sequence[Fraction]) -> tuple[int, ...]:
    """How many rows of a period each source has: in proportion to `rates`, 0 where a rate is too small for one."""
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
    """Int64 [period] twice: which source stands at a place of the period, and which of its rows in the period."""
    each = np.array(shares, np.int64)
    source, row = row_of(each), ranges(np.zeros(len(each), np.int64), each)
    order = np.argsort((2 * row + 1) / each[source], kind="stable")  # equal fractions are equal floats
    return source[order], row[order]


def counts_before_row(shares: Sequence[int], source: int, row: int) -> list[int]:
    """How many rows of each source stand before row `row` of one of them, through all periods before."""
    due = [(2 * row + 1) * share for share in shares]
    own = 2 * shares[source]
    half = shares[source]
    return [-((half - time) // own) if other >= source else (time + half) // own for other, time in enumerate(due)]


def counts_before_place(shares: tuple[int, ...], place: int) -> list[int]:
    """How many rows of each source stand before a place, through all periods before."""
    periods, rest = divmod(place, sum(shares))
    begun = np.bincount(period_of(shares)[0][:rest], minlength=len(shares)).tolist()
    return [periods * share + more for share, more in zip(shares, begun, strict=True)]
