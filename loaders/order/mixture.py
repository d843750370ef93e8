"""The row order of a mixture: which source, and which of its rows, is at a position.

Row n of a source is due at time (n + 1/2) / share. Rows are ordered by due time, and ties go to the earlier source.
Every prefix is then the Sainte-Laguë apportionment of its length: with f the fraction of each source, no other counts
have a smaller sum of (count - length × f)² / f. In any window, a source's count differs from its exact fraction by at
most 1 + f × (sources - 2) rows, and by less than 1 with two sources.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokenloom.loaders.order.row_order import BlockwiseOrder, RowOrder, groups
from tokenloom.resources.digest import digest_json
from tokenloom.resources.tables.ragged import Ints, ranges, row_of

LONGEST_PERIOD = 1 << 16
"""Longest period in rows of weights by rows or tokens. Rates that need a longer one are rounded by largest remainders.
Sizes are never rounded: of a longer period, only windows of this many places are laid out."""


def shares_of(rates: Sequence[Fraction], exact: bool = False) -> tuple[int, ...]:
    """Return each source's rows per period, in proportion to `rates`; 0 for a rate too small for one row.

    Args:
        exact: allow periods longer than `LONGEST_PERIOD`.
    """
    # rates over one denominator, by their common divisor: the shortest period that is exact
    denominator = math.lcm(*(rate.denominator for rate in rates))
    whole = [int(rate * denominator) for rate in rates]
    common = math.gcd(*whole)
    total = sum(whole) // common
    if exact or total <= LONGEST_PERIOD:
        return tuple(number // common for number in whole)
    quotas = [divmod(number * LONGEST_PERIOD, total * common) for number in whole]
    shares = [quota for quota, _ in quotas]
    # largest remainders; ties go to the earlier source, as `sorted` is stable
    largest = sorted(range(len(rates)), key=lambda source: -quotas[source][1])
    for source in largest[: LONGEST_PERIOD - sum(shares)]:
        shares[source] += 1
    return tuple(shares)


@lru_cache(maxsize=16)
def window_of(shares: tuple[int, ...], number: int = 0) -> tuple[Ints, Ints, Ints]:
    """Lay out the places of a window of the period: `LONGEST_PERIOD` places, or those that are left.

    Args:
        shares: each source's rows per period.
        number: the window, counted from 0; a period of at most `LONGEST_PERIOD` places has one.

    Returns:
        The source and the number of its row within the period, int64 [places]; and how many rows of each source come
        before the window, int64 [sources].
    """
    total, begin = sum(shares), number * LONGEST_PERIOD
    end = min(begin + LONGEST_PERIOD, total)
    # before a place, a source has its exact fraction of the rows, give or take half a row for each source
    first = [max(begin * share // total - len(shares), 0) for share in shares]
    last = [min(-(-end * share // total) + len(shares), share) for share in shares]
    each, low = np.array(shares, np.int64), np.array(first, np.int64)
    # only rows that can be in the window are sorted: long periods cost no more than short ones
    counts = np.array(last, np.int64) - low
    source, row = row_of(counts), ranges(np.zeros(len(each), np.int64), counts)
    # due times, counted from the window's start, are small, so that different fractions are different floats
    shift = np.array([2 * (skip * total - begin * share) for skip, share in zip(first, shares, strict=True)], np.int64)
    order = np.argsort(((2 * row + 1) * total + shift[source]) / each[source], kind="stable")
    # `sum(first)` rows before the window were not sorted; the other `begin - sum(first)` come first
    earlier, places = np.split(order[: end - sum(first)], [begin - sum(first)])
    return source[places], (row + low[source])[places], low + np.bincount(source[earlier], minlength=len(shares))


def counts_before_row(shares: Sequence[int], source: int, row: int) -> list[int]:
    """Return how many rows of each source come before row `row` of `source`, counted from the first period."""
    # due times as integers, with both sides multiplied by the shares: no rounding
    due = [(2 * row + 1) * share for share in shares]
    half = shares[source]
    whole = 2 * half
    # rows that are due earlier; one due at the same time counts only if its source is earlier, as in `period_of`
    return [-((half - time) // whole) if other >= source else (time + half) // whole for other, time in enumerate(due)]


def counts_before_place(shares: tuple[int, ...], place: int) -> list[int]:
    """Return how many rows of each source come before a place, counted from the first period."""
    periods, rest = divmod(place, sum(shares))
    number, within = divmod(rest, LONGEST_PERIOD)
    source, _, before = window_of(shares, number)
    partial = (before + np.bincount(source[:within], minlength=len(shares))).tolist()
    return [periods * share + more for share, more in zip(shares, partial, strict=True)]


By = Literal["rows", "tokens", "size"]


@dataclass(frozen=True)
class Source:
    """One source of a mixture.

    Args:
        name: the name that weights refer to.
        rows: number of rows, at least 1.
        tokens: number of tokens in all rows; required if weights count tokens.
        epochs: limit of floor(epochs × rows) rows; None: no limit.

    Raises:
        ValueError: `rows` or `tokens` is below 1, or the limit is below one row.
    """

    name: str
    rows: int
    tokens: int | None = None
    epochs: float | None = None

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"source {self.name!r} has {self.rows} rows; it needs at least 1")
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(f"source {self.name!r} has {self.tokens} tokens; it needs at least 1")
        if self.limit is not None and self.limit < 1:
            raise ValueError(
                f"{self.epochs} epochs of source {self.name!r}, which has {self.rows} rows, are less than one row"
            )

    @property
    def limit(self) -> int | None:
        """Maximum number of rows that the source contributes, or None."""
        return None if self.epochs is None else math.floor(_exact(self.epochs, "epochs") * self.rows)

    def rows_for(self, weight: float, by: By) -> Fraction:
        """Return the rate of rows for a weight, relative to other sources."""
        exact = _exact(weight, "weight")
        if by == "rows":
            return exact
        if by == "size":
            return exact * self.rows
        if self.tokens is None:
            raise ValueError(f"weights count tokens, but source {self.name!r} has no number of tokens")
        return exact * self.rows / self.tokens


@dataclass(frozen=True)
class _Change:
    """New sources and the weights of all sources from position `at` on; None: the source is paused."""

    at: int
    sources: tuple[Source, ...]
    weights: tuple[float | None, ...]


@dataclass(frozen=True)
class _Segment:
    """From `begin` on, `members` (source numbers) take turns by `shares`; `given` counts each source's rows before."""

    begin: int
    members: tuple[int, ...]
    shares: tuple[int, ...]
    given: tuple[int, ...]

    def given_after(self, rows: Sequence[int]) -> tuple[int, ...]:
        given = list(self.given)
        for member, more in zip(self.members, rows, strict=True):
            given[member] += more
        return tuple(given)


class Mixture:
    """The rows of several sources interleaved by weight: endless, or until all sources have reached their `epochs`.

    Sources take turns by integer shares of a period. A source that has reached its epochs drops out at that position,
    and the others continue by their weights. `change` returns a mixture that continues with other weights or more
    sources from a position on.

    Args:
        sources: the sources to mix.
        weights: a weight above 0 for each source's name.
        by: the unit of weights. `tokens` are converted to rows by each source's mean row length; `size` is the source
            itself, so that with weights of 1 an epoch has each row once.

    Attributes:
        sources: all sources that were ever mixed; results refer to them by their index in this tuple.
        end: number of positions; None if the mixture is endless.

    Raises:
        ValueError: the sources or weights are not valid.
    """

    def __init__(self, sources: Sequence[Source], weights: Mapping[str, float], by: By = "tokens"):
        if by not in ("rows", "tokens", "size"):
            raise ValueError(f"`by` must be 'rows', 'tokens' or 'size', got {by!r}")
        self.by: By = by
        self._follow((_change(0, (), sources, weights),))

    def change(self, at: int, weights: Mapping[str, float], sources: Sequence[Source] = ()) -> Mixture:
        """Return this mixture up to position `at`, continued with other weights.

        Each source continues at its own next row. Sources that `weights` does not name are paused.

        Args:
            at: the position of the change: after the previous change, and not after the end.
            weights: a weight above 0 for the name of each source that continues.
            sources: new sources.

        Raises:
            ValueError: the position, sources or weights are not valid.
        """
        last = self._changes[-1].at
        if at <= last:
            raise ValueError(f"a change at position {at} must come after the previous change, at position {last}")
        if self.end is not None and at > self.end:
            raise ValueError(f"a change at position {at} is too late: the mixture ends at {self.end}")
        changed = Mixture.__new__(Mixture)
        changed.by = self.by
        changed._follow((*self._changes, _change(at, self.sources, sources, weights)))
        return changed

    def places(self, positions: npt.ArrayLike) -> Ints:
        """Return the source and its count of earlier rows for each position: int64 [2, m] for [m].

        Raises:
            IndexError: a position is below 0 or after the end.
        """
        wanted = np.asarray(positions, np.int64)
        if wanted.size and (wanted.min() < 0 or (self.end is not None and wanted.max() >= self.end)):
            raise IndexError(f"a position is outside the mixture, which ends at {self.end}")
        result = np.empty((2, len(wanted)), np.int64)
        for number, members in groups(np.searchsorted(self._begins, wanted, side="right") - 1):
            segment = self._segments[number]
            shares, sources = np.array(segment.shares), np.array(segment.members)
            given = np.array(segment.given)[sources]
            # period, window of the period, place in the window: each is looked up once
            periods, rest = np.divmod(wanted[members] - segment.begin, shares.sum())
            windows, place = np.divmod(rest, LONGEST_PERIOD)
            for window, inside in groups(windows):
                source, row, _ = window_of(segment.shares, window)
                at, turn = members[inside], source[place[inside]]
                result[0, at] = sources[turn]
                result[1, at] = given[turn] + periods[inside] * shares[turn] + row[place[inside]]
        return result

    def given(self, position: int) -> list[int]:
        """Return how many rows each source has contributed before a position."""
        if position < 0 or (self.end is not None and position > self.end):
            raise IndexError(f"position {position} is outside the mixture, which ends at {self.end}")
        segment = self._segments[bisect_right(self._begins, position) - 1]
        return list(segment.given_after(counts_before_place(segment.shares, position - segment.begin)))

    def __len__(self) -> int:
        """Positions until the last source with `epochs` has reached them; without any, the rows of all sources."""
        return self._used_up or sum(source.rows for source in self.sources)

    @property
    def digest(self) -> str:
        """Hex BLAKE3 of `to_json`; equal for equal mixtures."""
        return digest_json(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the JSON description that `from_json` reads."""
        changes = [
            {
                "at": change.at,
                "sources": [[new.name, new.rows, new.tokens, new.epochs] for new in change.sources],
                "weights": list(change.weights),
            }
            for change in self._changes
        ]
        return {"by": self.by, "changes": changes}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Mixture:
        """Return the mixture that `to_json` described.

        Raises:
            ValueError: `value` does not describe a valid mixture.
        """
        mixture, names = None, []
        try:
            for change in value["changes"]:
                sources = [Source(*parts) for parts in change["sources"]]
                names += [source.name for source in sources]
                weights = {
                    name: weight for name, weight in zip(names, change["weights"], strict=True) if weight is not None
                }
                if mixture is None:
                    mixture = cls(sources, weights, value["by"])
                else:
                    mixture = mixture.change(change["at"], weights, sources)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a mixture's JSON description: {error!r}") from error
        if mixture is None:
            raise ValueError("not a mixture's JSON description: it has no changes")
        return mixture

    def _follow(self, changes: tuple[_Change, ...]) -> None:
        """Lay out the segments between changes and the positions where sources drop out."""
        self._changes = changes
        self.sources = tuple(source for change in changes for source in change.sources)
        self._segments: list[_Segment] = []
        self.end: int | None = None
        self._used_up: int | None = None
        given = (0,) * len(self.sources)
        for change, following in zip(changes, [*changes[1:], None], strict=True):
            begin, until = change.at, None if following is None else following.at
            while until is None or begin < until:
                segment = self._segment(change, begin, given)
                if segment is None:
                    self.end = begin
                    break
                self._segments.append(segment)
                rows = self._rows_to_first_drop(segment)
                if rows is None and until is None:
                    break
                # the change comes first: no source drops out before it
                if rows is None or (until is not None and begin + sum(rows) > until):
                    assert until is not None
                    rows = counts_before_place(segment.shares, until - begin)
                else:
                    self._used_up = begin + sum(rows)
                given, begin = segment.given_after(rows), begin + sum(rows)
        self._begins = [segment.begin for segment in self._segments]
        if self.end == changes[-1].at:
            raise ValueError(
                f"nothing is left to mix at position {self.end}: the named sources have reached their epochs"
            )

    def _segment(self, change: _Change, begin: int, given: tuple[int, ...]) -> _Segment | None:
        """Return the segment that begins at a position, or None if no source has a row left."""
        rates: dict[int, Fraction] = {}
        for number, weight in enumerate(change.weights):
            source = self.sources[number]
            # a source at its limit is left out, so that the others share its places by their weights
            if weight is not None and given[number] != source.limit:
                rates[number] = source.rows_for(weight, self.by)
        if not rates:
            return None
        shares = shares_of(list(rates.values()), exact=self.by == "size")
        for number, share in zip(rates, shares, strict=True):
            if not share:
                few = f"it gets no row out of {LONGEST_PERIOD}"
                raise ValueError(f"the weight of source {self.sources[number].name!r} is too small: {few}")
        return _Segment(begin, tuple(rates), shares, given)

    def _rows_to_first_drop(self, segment: _Segment) -> list[int] | None:
        """Return each member's rows until the first member reaches its limit, or None if none has a limit."""
        drops: list[list[int]] = []
        for turn, member in enumerate(segment.members):
            limit = self.sources[member].limit
            if limit is not None:
                rows = counts_before_row(segment.shares, turn, limit - segment.given[member] - 1)
                # up to and including its last row; the others as far as they are then
                rows[turn] += 1
                drops.append(rows)
        return min(drops, key=sum, default=None)


def _change(at: int, known: Sequence[Source], sources: Sequence[Source], weights: Mapping[str, float]) -> _Change:
    every = [*known, *sources]
    names = [source.name for source in every]
    if len(set(names)) < len(names):
        raise ValueError(f"two sources have the same name: {', '.join(sorted(names))}")
    for name, weight in weights.items():
        if name not in names:
            raise ValueError(f"unknown source {name!r}; the sources are {', '.join(names)}")
        if not _exact(weight, f"the weight of source {name!r}") > 0:
            raise ValueError(f"the weight of source {name!r} must be above 0, got {weight}")
    for source in sources:
        if source.name not in weights:
            raise ValueError(f"source {source.name!r} has no weight")
    if not weights:
        raise ValueError(f"no source has a weight from position {at} on")
    return _Change(at, tuple(sources), tuple(weights.get(name) for name in names))


def _exact(number: float, name: str) -> Fraction:
    """Return the exact decimal value: 0.7 is 7/10."""
    try:
        # from its decimal text: the float 0.7 is not exactly 7/10, and its period would be too long to be kept exact
        return Fraction(str(number))
    except ValueError as error:
        raise ValueError(f"{name} must be a number, got {number!r}") from error


class MixtureOrder(BlockwiseOrder):
    """The rows of a mixture's sources, interleaved: each source by its own `RowOrder`.

    Args:
        mixture: chooses the source at each position.
        orders: one order per source, with as many rows as the source.

    Raises:
        ValueError: orders and sources do not match.
    """

    def __init__(self, mixture: Mixture, orders: Sequence[RowOrder]):
        sizes = [source.rows for source in mixture.sources]
        if [len(order) for order in orders] != sizes:
            raise ValueError(f"orders have {[len(order) for order in orders]} rows, but the sources have {sizes}")
        super().__init__()
        self.mixture, self.orders, self.end = mixture, tuple(orders), mixture.end

    def take(self, positions: npt.ArrayLike) -> Ints:
        """Return the source's index in the mixture and its row for each position: int64 [m, 2] for [m]."""
        sources, places = self.mixture.places(positions)
        rows = np.stack([sources, places], axis=1)
        for source, members in groups(sources):
            rows[members, 1] = self.orders[source].take(places[members])
        return rows
