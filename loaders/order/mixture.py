"""Several sources in one sequence: which source stands at a position, and which of its rows in turn."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokenloom.loaders.order.apportionment import (
    LONGEST_PERIOD,
    counts_before_place,
    counts_before_row,
    period_of,
    shares_of,
)
from tokenloom.loaders.order.blockwise import groups
from tokenloom.resources.digest import digest_json
from tokenloom.resources.tables.ragged import Ints

By = Literal["rows", "tokens"]


@dataclass(frozen=True)
class Source:
    """One source of a mixture.

    Args:
        name: what weights call it.
        rows: how many it has.
        tokens: how many they hold together; needed where weights count tokens.
        epochs: it gives at most floor(epochs × rows) rows; None: no limit.

    Raises:
        ValueError: no rows, or a limit below one row.
    """

    name: str
    rows: int
    tokens: int | None = None
    epochs: float | None = None

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"source {self.name!r} has {self.rows} rows: there must be at least 1")
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(f"source {self.name!r} has {self.tokens} tokens: there must be at least 1")
        if self.limit is not None and self.limit < 1:
            raise ValueError(
                f"{self.epochs} epochs of source {self.name!r}, of {self.rows} rows, are less than one row"
            )

    @property
    def limit(self) -> int | None:
        """How many rows it gives at most."""
        return None if self.epochs is None else math.floor(_exact(self.epochs, "epochs") * self.rows)

    def rows_for(self, weight: float, by: By) -> Fraction:
        """How many rows a weight means, relative to other sources."""
        exact = _exact(weight, "weight")
        if by == "rows":
            return exact
        if self.tokens is None:
            raise ValueError(f"weights count tokens, but source {self.name!r} does not say how many it has")
        return exact * self.rows / self.tokens


@dataclass(frozen=True)
class _Change:
    """From position `at` on, sources have these weights; None: the source rests."""

    at: int
    sources: tuple[Source, ...]
    weights: tuple[float | None, ...]


@dataclass(frozen=True)
class _Segment:
    """From `begin` on, `members` (numbers of sources) take turns by `shares`; `given`: each source's rows before."""

    begin: int
    members: tuple[int, ...]
    shares: tuple[int, ...]
    given: tuple[int, ...]

    def given_after(self, rows: Sequence[int]) -> tuple[int, ...]:
        """Each source's rows, when members have given so many more."""
        given = list(self.given)
        for member, more in zip(self.members, rows, strict=True):
            given[member] += more
        return tuple(given)


class Mixture:
    """A sequence of sources' rows, each source's in turn: endless, or until all sources have given their `epochs`.

    Sources take turns by integer shares of a period, as apportionment.py says. One that has given its epochs
    drops out right there; the others share by their weights from then on. `change` makes a mixture that goes on with
    other weights or more sources from some position.

    Args:
        sources: what is mixed.
        weights: above 0, for each source's name.
        by: what weights count; `tokens` stand for rows by a source's mean.

    Attributes:
        sources: all that were ever mixed; results name them by their number here.
        end: the first position that there is not; None where there is no end.

    Raises:
        ValueError: with one sentence for what is wrong.
    """

    def __init__(self, sources: Sequence[Source], weights: Mapping[str, float], by: By = "tokens"):
        if by not in ("rows", "tokens"):
            raise ValueError(f"weights count 'rows' or 'tokens', not {by!r}")
        self.by: By = by
        self._follow((_change(0, (), sources, weights),))

    def change(self, at: int, weights: Mapping[str, float], sources: Sequence[Source] = ()) -> Mixture:
        """This mixture up to position `at`, and with other weights from there on.

        Each source goes on where it was. One that `weights` does not name rests.

        Args:
            at: after the last change, and not after the end.
            weights: above 0, for the name of each source that goes on.
            sources: new ones.

        Raises:
            ValueError: with one sentence for what is wrong.
        """
        last = self._changes[-1].at
        if at <= last:
            raise ValueError(f"a change at position {at} must come after {last}, where the last one was made")
        if self.end is not None and at > self.end:
            raise ValueError(f"a change at position {at} comes too late: the mixture ends at {self.end}")
        changed = Mixture.__new__(Mixture)
        changed.by = self.by
        changed._follow((*self._changes, _change(at, self.sources, sources, weights)))
        return changed

    def places(self, positions: npt.ArrayLike) -> Ints:
        """Int64 [2, m] for positions [m]: the source's number, and how many of its rows stand before.

        Raises:
            IndexError: a position below 0 or after the end.
        """
        asked = np.asarray(positions, np.int64)
        if asked.size and (asked.min() < 0 or (self.end is not None and asked.max() >= self.end)):
            raise IndexError(f"a position outside of a mixture that ends at {self.end}")
        found = np.empty((2, len(asked)), np.int64)
        for number, members in groups(np.searchsorted(self._begins, asked, side="right") - 1):
            segment = self._segments[number]
            shares = np.array(segment.shares)
            source, row = period_of(segment.shares)
            periods, place = np.divmod(asked[members] - segment.begin, shares.sum())
            turn = source[place]
            sources = np.array(segment.members)
            found[0, members] = sources[turn]
            found[1, members] = np.array(segment.given)[sources][turn] + periods * shares[turn] + row[place]
        return found

    def given(self, position: int) -> list[int]:
        """How many rows each source has given before a position."""
        if position < 0 or (self.end is not None and position > self.end):
            raise IndexError(f"position {position} of a mixture that ends at {self.end}")
        segment = self._segments[bisect_right(self._begins, position) - 1]
        return list(segment.given_after(counts_before_place(segment.shares, position - segment.begin)))

    def __len__(self) -> int:
        """Positions until the last source that has `epochs` is used up; where none has, the rows of all sources."""
        return self._used_up or sum(source.rows for source in self.sources)

    @property
    def digest(self) -> str:
        """Hex BLAKE3 of `to_json`: equal mixtures have equal ones."""
        return digest_json(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """What `from_json` makes this mixture from."""
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
        """The mixture that `to_json` described.

        Raises:
            ValueError: with one sentence for what is wrong.
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
            raise ValueError(f"this is not what a mixture is made from: {error!r}") from error
        if mixture is None:
            raise ValueError("this is not what a mixture is made from: there are no changes")
        return mixture

    def _follow(self, changes: tuple[_Change, ...]) -> None:
        """Lay out the segments between changes and sources that drop out."""
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
                if rows is None or (until is not None and begin + sum(rows) > until):
                    assert until is not None
                    rows = counts_before_place(segment.shares, until - begin)
                else:
                    self._used_up = begin + sum(rows)
                given, begin = segment.given_after(rows), begin + sum(rows)
        self._begins = [segment.begin for segment in self._segments]
        if self.end == changes[-1].at:
            raise ValueError(
                f"nothing is left to mix at position {self.end}: the sources named have given their epochs"
            )

    def _segment(self, change: _Change, begin: int, given: tuple[int, ...]) -> _Segment | None:
        """What begins at a position, or None where no source has a row left."""
        rates: dict[int, Fraction] = {}
        for number, weight in enumerate(change.weights):
            source = self.sources[number]
            if weight is not None and given[number] != source.limit:
                rates[number] = source.rows_for(weight, self.by)
        if not rates:
            return None
        shares = shares_of(list(rates.values()))
        for number, share in zip(rates, shares, strict=True):
            if not share:
                few = f"it would have no row among {LONGEST_PERIOD}"
                raise ValueError(f"the weight of source {self.sources[number].name!r} is too small: {few}")
        return _Segment(begin, tuple(rates), shares, given)

    def _rows_to_first_drop(self, segment: _Segment) -> list[int] | None:
        """Each member's rows until the first of them has given all it may; None where none has a limit."""
        drops: list[list[int]] = []
        for turn, member in enumerate(segment.members):
            limit = self.sources[member].limit
            if limit is not None:
                rows = counts_before_row(segment.shares, turn, limit - segment.given[member] - 1)
                rows[turn] += 1
                drops.append(rows)
        return min(drops, key=sum, default=None)


def _change(at: int, known: Sequence[Source], sources: Sequence[Source], weights: Mapping[str, float]) -> _Change:
    every = [*known, *sources]
    names = [source.name for source in every]
    if len(set(names)) < len(names):
        raise ValueError(f"two sources have one name: {', '.join(sorted(names))}")
    for name, weight in weights.items():
        if name not in names:
            raise ValueError(f"there is no source {name!r}; there are {', '.join(names)}")
        if not _exact(weight, f"the weight of source {name!r}") > 0:
            raise ValueError(f"the weight of source {name!r} is {weight}: it must be above 0")
    for source in sources:
        if source.name not in weights:
            raise ValueError(f"source {source.name!r} has no weight")
    if not weights:
        raise ValueError(f"no source has a weight from position {at} on")
    return _Change(at, tuple(sources), tuple(weights.get(name) for name in names))


def _exact(number: float, what: str) -> Fraction:
    """As it is written: 0.7 is 7/10."""
    try:
        return Fraction(str(number))
    except ValueError as error:
        raise ValueError(f"{what} is {number!r}, not a number") from error
