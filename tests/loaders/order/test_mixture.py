"""Mixtures: turns compared with a plain oracle; fractions over every window, limits, and changes of weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.loaders.order.mixture import (
    LONGEST_PERIOD,
    Mixture,
    MixtureOrder,
    Source,
    counts_before_place,
    counts_before_row,
    shares_of,
    window_of,
)
from tokenloom.loaders.order.row_order import RowOrder

KNOWN = [[0, 2, 0, 0, 0, 2, 0, 0, 2, 0, 1, 0], [0, 0, 1, 2, 3, 1, 4, 5, 2, 6, 0, 7]]
KNOWN_DIGEST = "8e815e105d6cf7b7a4281379652e444f5eba68ea66011b3b86f84a238be4abf1"

WEIGHTS = st.integers(1, 40).map(lambda tenths: tenths / 10)


def walk(mixture: list[dict[str, Any]], length: int) -> list[tuple[int, int]]:
    """Choose sources position by position: the largest share for its next half row, counted from the last event.

    `mixture` holds what is true from `at` on: the weights, and how many rows each source has to give at most.
    """
    given: dict[int, int] = {}
    found, since, before = [], dict[int, int](), None
    for position in range(length):
        now = [change for change in mixture if change["at"] <= position][-1]
        limits = now["limits"]
        left = {
            source: weight
            for source, weight in now["weights"].items()
            if limits.get(source) is None or given.get(source, 0) < limits[source]
        }
        if not left:
            return found
        if (now["at"], set(left)) != before:
            since, before = {}, (now["at"], set(left))
        best = max(left, key=lambda source: (Fraction(left[source]) / (2 * since.get(source, 0) + 1), -source))
        found.append((best, given.get(best, 0)))
        given[best], since[best] = given.get(best, 0) + 1, since.get(best, 0) + 1
    return found


def places(mixture: Mixture, begin: int, end: int) -> list[tuple[int, int]]:
    return [(source, row) for source, row in mixture.places(range(begin, end)).T.tolist()]


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[Mixture, list[dict[str, Any]]]:
    """A mixture with limits and changes, and the same as input for the oracle."""
    sources: list[Source] = []
    mixture, told = None, list[dict[str, Any]]()
    for _ in range(draw(st.integers(1, 4))):
        new = []
        for _ in range(draw(st.integers(0 if sources else 1, 3))):
            epochs = draw(st.one_of(st.none(), st.sampled_from([0.5, 1, 1.7, 3])))
            new.append(Source(f"s{len(sources) + len(new)}", draw(st.integers(2, 60)), None, epochs))
        every = [*sources, *new]
        going = {source.name for source in new} | set(draw(st.lists(st.sampled_from([s.name for s in every]))))
        weights = {source.name: draw(WEIGHTS) for source in every if source.name in going or not sources}
        at = 0 if mixture is None else told[-1]["at"] + draw(st.integers(1, 80))
        try:
            mixture = Mixture(new, weights, "rows") if mixture is None else mixture.change(at, weights, new)
        except ValueError:
            if mixture is None:
                raise
            break  # nothing is left to mix there
        sources = every
        told.append(
            {
                "at": at,
                "weights": {n: Fraction(str(weights[s.name])) for n, s in enumerate(every) if s.name in weights},
                "limits": {n: int(Fraction(str(s.epochs)) * s.rows) for n, s in enumerate(every) if s.epochs},
            }
        )
    assert mixture is not None
    return mixture, told


@given(mixtures())
def test_turns_are_those_of_the_oracle(made: tuple[Mixture, list[dict[str, Any]]]) -> None:
    """With limits, changes and new sources; each source's rows follow each other without a gap."""
    mixture, told = made
    found = walk(told, 400)
    assert mixture.end == len(found) if len(found) < 400 else mixture.end is None or mixture.end >= 400
    assert places(mixture, 0, len(found)) == found
    for number in range(len(mixture.sources)):
        rows = [row for source, row in found if source == number]
        assert rows == list(range(len(rows)))


@given(mixtures(), st.data())
def test_to_begin_anywhere_is_to_walk_there(made: tuple[Mixture, list[dict[str, Any]]], data: st.DataObject) -> None:
    mixture, _ = made
    end = 300 if mixture.end is None else mixture.end
    begin = data.draw(st.integers(0, end))
    walked = places(mixture, 0, end)
    assert places(mixture, begin, end) == walked[begin:]
    counts = [sum(source == number for source, _ in walked[:begin]) for number in range(len(mixture.sources))]
    assert mixture.given(begin) == counts
    shuffled = data.draw(st.permutations(range(end)))
    assert mixture.places(shuffled).T.tolist() == [list(walked[position]) for position in shuffled]


@given(mixtures(), st.integers(1, 200), st.data())
def test_a_change_leaves_what_was_before(
    made: tuple[Mixture, list[dict[str, Any]]], later: int, data: st.DataObject
) -> None:
    mixture, told = made
    at = told[-1]["at"] + later
    if mixture.end is not None:
        at = max(told[-1]["at"] + 1, min(at, mixture.end))
        if at > mixture.end:
            return
    before = places(mixture, 0, at)
    kept = json.dumps(mixture.to_json())
    changed = mixture.change(at, {"new": data.draw(WEIGHTS)} | {"s0": data.draw(WEIGHTS)}, [Source("new", 10)])
    assert places(changed, 0, at) == before
    assert changed.given(at)[: len(mixture.sources)] == mixture.given(at)
    assert json.dumps(mixture.to_json()) == kept and (mixture.end is None or len(before) <= mixture.end)
    first = next(row for source, row in places(changed, at, at + 200) if source == len(mixture.sources))
    assert first == 0


@given(mixtures())
def test_a_mixture_is_made_again_from_its_json(made: tuple[Mixture, list[dict[str, Any]]]) -> None:
    mixture, _ = made
    again = Mixture.from_json(json.loads(json.dumps(mixture.to_json())))
    assert again.to_json() == mixture.to_json() and again.digest == mixture.digest
    assert (again.end, len(again), again.sources) == (mixture.end, len(mixture), mixture.sources)
    end = 300 if mixture.end is None else mixture.end
    assert places(again, 0, end) == places(mixture, 0, end)


def test_the_json_of_some_sources_and_changes_is_small() -> None:
    sources = [Source(f"pretraining-source-{n}", 10**9 + n, 10**12 + n, 2.5) for n in range(5)]
    mixture = Mixture(sources, {source.name: 0.1 + n / 30 for n, source in enumerate(sources)})
    mixture = mixture.change(10**7, {sources[0].name: 0.25, sources[1].name: 0.75})
    mixture = mixture.change(10**8, {"late": 1, sources[0].name: 0.5}, [Source("late", 10**9, 10**12)])
    assert len(json.dumps(mixture.to_json())) < 800


shares = st.lists(st.integers(1, 60), min_size=1, max_size=7)


@given(shares)
def test_every_window_has_its_shares(parts: list[int]) -> None:
    """Windows of all positions and lengths: whole periods add their exact counts."""
    each = tuple(parts)
    total, k = sum(each), len(each)
    source, _, _ = window_of(each)
    assert np.bincount(source, minlength=k).tolist() == list(each)
    for number, share in enumerate(each):
        counts = np.concatenate([[0], np.cumsum(source == number)])
        ahead = counts * total - np.arange(total + 1) * share
        widest = Fraction(int(ahead.max() - ahead.min()), total)
        assert widest <= 1 + Fraction(share, total) * (k - 2)
        assert k != 2 or widest < 1


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4))
def test_no_other_counts_come_nearer(parts: list[int]) -> None:
    """Every prefix of a period, compared with all counts of its length."""
    total = sum(parts)
    source, _, _ = window_of(tuple(parts))

    def distance(counts: tuple[int, ...]) -> Fraction:
        length = sum(counts)
        off = [count - Fraction(length * part, total) for count, part in zip(counts, parts, strict=True)]
        return sum((gap**2 / part for gap, part in zip(off, parts, strict=True)), Fraction(0))

    for length in range(total + 1):
        found = tuple(np.bincount(source[:length], minlength=len(parts)).tolist())
        others = (
            (*rest, length - sum(rest))
            for rest in product(range(length + 1), repeat=len(parts) - 1)
            if sum(rest) <= length and all(abs(c - length * p / total) < 3 for c, p in zip(rest, parts, strict=False))
        )
        assert distance(found) == min(map(distance, others))


@pytest.mark.parametrize("weight", [0.5, 0.7, 0.01, 0.123, 1 / 3])
def test_of_two_sources_the_one_with_the_larger_deficit_has_its_turn(weight: float) -> None:
    mixture = Mixture([Source("a", 10), Source("b", 10)], {"a": weight, "b": 1 - weight}, "rows")
    first, second = shares_of([Fraction(str(weight)), Fraction(str(1 - weight))])
    share, had, expected = Fraction(first, first + second), [0, 0], []
    for position in range(1000):
        deficits = [(position + 1) * share - had[0], (position + 1) * (1 - share) - had[1]]
        turn = 0 if deficits[0] >= deficits[1] else 1
        expected.append((turn, had[turn]))
        had[turn] += 1
    assert places(mixture, 0, 1000) == expected


@given(shares, st.data())
def test_counts_before_a_row_are_those_of_the_period(parts: list[int], data: st.DataObject) -> None:
    each = tuple(parts)
    number = data.draw(st.integers(0, len(each) - 1))
    row = data.draw(st.integers(0, 5 * each[number]))
    source, within, _ = window_of(each)
    periods, rest = divmod(row, each[number])
    place = periods * sum(each) + int(np.flatnonzero((source == number) & (within == rest))[0])
    counts = counts_before_row(each, number, row)
    assert sum(counts) == place and counts == counts_before_place(each, place)


@given(st.lists(st.fractions(Fraction(1, 10**6), 10, max_denominator=10**6), min_size=1, max_size=8))
def test_shares_are_the_rates_as_near_as_a_period_has_them(rates: list[Fraction]) -> None:
    found, total = shares_of(rates), sum(rates)
    period = sum(found)
    assert period <= LONGEST_PERIOD
    if all(Fraction(share, period) == rate / total for share, rate in zip(found, rates, strict=True)):
        return
    assert period == LONGEST_PERIOD
    assert all(abs(share - rate / total * period) < 1 for share, rate in zip(found, rates, strict=True))
    exact = [rate / total for rate in rates]
    multiples = range(1, 200)
    assert not any(all((share * n).denominator == 1 for share in exact) for n in multiples)


def test_decimal_weights_are_exact() -> None:
    sources = [Source(name, 10) for name in "abc"]
    mixture = Mixture(sources, {"a": 0.7, "b": 0.2, "c": 0.1}, "rows")
    far = 10**15
    assert mixture.given(far) == [far // 10 * 7, far // 10 * 2, far // 10]
    for begin in (0, 7, far):
        source = mixture.places(np.arange(begin, begin + 10))[0]
        assert sorted(np.bincount(source).tolist()) == [1, 2, 7]


def test_tokens_come_to_their_weights() -> None:
    """Sources of long and short rows, over a long range and over every window of 10,000 rows."""
    sources = [
        Source("long", 1000, 3_000_017),
        Source("short", 5000, 400_003),
        Source("middle", 10, 9_001),
    ]
    weights = {"long": 0.5, "short": 0.3, "middle": 0.2}
    mixture = Mixture(sources, weights, "tokens")
    for begin in (0, 12_345, 10**12):
        source = mixture.places(np.arange(begin, begin + 10_000))[0]
        tokens = np.array(
            [s.tokens / s.rows * np.count_nonzero(source == n) for n, s in enumerate(sources) if s.tokens]
        )
        assert np.abs(tokens / tokens.sum() - [*weights.values()]).max() < 0.002
    assert Mixture(sources, {name: 7 * weight for name, weight in weights.items()}).given(10**6) == mixture.given(10**6)


def test_limits_are_exact_to_the_row() -> None:
    sources = [Source("a", 100, epochs=1), Source("b", 50, epochs=2.5), Source("c", 7)]
    mixture = Mixture(sources, {"a": 0.5, "b": 0.3, "c": 0.2}, "rows")
    assert mixture.end is None
    found = places(mixture, 0, len(mixture) + 100)
    used_up = max(position for position, (source, _) in enumerate(found) if source != 2)
    assert len(mixture) == used_up + 1
    assert [sum(source == number for source, _ in found) for number in (0, 1)] == [100, 125]
    assert all(source == 2 for source, _ in found[len(mixture) :])
    first_drop = max(position for position, (source, _) in enumerate(found) if source == 0) + 1
    for begin, end in combinations(range(first_drop, len(mixture), 5), 2):
        count = sum(source == 1 for source, _ in found[begin:end])
        assert abs(count - (end - begin) * 0.6) < 1

    all_limited = Mixture([Source("a", 10**12, epochs=3), Source("b", 10**11, epochs=1)], {"a": 0.9, "b": 0.1}, "rows")
    assert all_limited.end is not None and all_limited.end == len(all_limited) == 3 * 10**12 + 10**11
    assert all_limited.given(all_limited.end) == [3 * 10**12, 10**11]
    with pytest.raises(IndexError, match="ends at"):
        all_limited.places([all_limited.end])
    assert len(Mixture([Source("a", 30), Source("b", 12)], {"a": 1, "b": 3}, "rows")) == 42


def test_a_mixture_may_go_on_after_its_end_with_new_sources() -> None:
    mixture = Mixture([Source("a", 10, epochs=1)], {"a": 1}, "rows")
    assert len(mixture) == 10
    longer = mixture.change(10, {"b": 1}, [Source("b", 5, epochs=2)])
    assert (longer.end, len(longer)) == (20, 20)
    assert places(longer, 8, 12) == [(0, 8), (0, 9), (1, 0), (1, 1)]


def test_a_source_may_be_used_up_right_at_a_change() -> None:
    mixture = Mixture([Source("a", 10, epochs=1), Source("b", 10)], {"a": 1, "b": 1}, "rows")
    used_up = len(mixture)
    changed = mixture.change(used_up, {"b": 1, "c": 1}, [Source("c", 10)])
    assert len(changed) == used_up and changed.given(used_up) == [10, used_up - 10, 0]


BASE = [Source("a", 100), Source("b", 10, epochs=1)]
REFUSED: list[tuple[Callable[[Mixture], object], str]] = [
    (lambda m: m.change(50, {"a": 1}), "position 50 must come after"),
    (lambda m: m.change(49, {"a": 1}), "position 49 must come after"),
    (lambda m: m.change(60, {"x": 1}), "unknown source 'x'; the sources are a, b"),
    (lambda m: m.change(60, {"a": 0}), "source 'a' must be above 0, got 0"),
    (lambda m: m.change(60, {"a": -0.5}), "source 'a' must be above 0, got -0.5"),
    (lambda m: m.change(60, {"a": float("nan")}), "source 'a' must be a number, got nan"),
    (lambda m: m.change(60, {"a": float("inf")}), "source 'a' must be a number, got inf"),
    (lambda m: m.change(60, {"a": "much"}), "source 'a' must be a number, got 'much'"),  # type: ignore[dict-item]
    (lambda m: m.change(60, {}), "no source has a weight from position 60 on"),
    (lambda m: m.change(60, {"b": 1}), "nothing is left to mix at position 60"),
    (lambda m: m.change(60, {"a": 1}, [Source("c", 1)]), "source 'c' has no weight"),
    (lambda m: m.change(60, {"a": 1}, [Source("a", 1)]), "two sources have the same name"),
    (lambda m: m.change(60, {"a": 1, "c": 1e-7}, [Source("c", 1)]), "source 'c' is too small"),
    (lambda m: Mixture(BASE, {"a": 1}, "rows"), "source 'b' has no weight"),
    (lambda m: Mixture(BASE, {"a": 1, "b": 1}, "bytes"), "got 'bytes'"),  # type: ignore[arg-type]
    (lambda m: Mixture(BASE, {"a": 1, "b": 1}), "source 'a' has no number of tokens"),
    (lambda m: Mixture([], {}), "no source has a weight"),
    (
        lambda m: Mixture([Source("a", 5, epochs=1)], {"a": 1}, "rows").change(6, {"a": 1}),
        "too late: .* ends at 5",
    ),
    (lambda m: Source("a", 0), "source 'a' has 0 rows"),
    (lambda m: Source("a", 1, 0), "source 'a' has 0 tokens"),
    (lambda m: Source("a", 9, epochs=0.1), "are less than one row"),
    (lambda m: Source("a", 9, epochs=-1), "are less than one row"),
    (lambda m: Mixture.from_json({"by": "rows", "changes": []}), "it has no changes"),
    (lambda m: Mixture.from_json({"changes": [{"at": 0}]}), "not a mixture's JSON description"),
    (
        lambda m: Mixture.from_json({"by": "rows", "changes": [{"at": 0, "sources": [1], "weights": [1]}]}),
        "not a mixture's",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_wrong_is_said_in_a_sentence(wrong: Callable[[Mixture], object], message: str) -> None:
    mixture = Mixture(BASE, {"a": 1, "b": 1}, "rows").change(50, {"a": 1})
    with pytest.raises(ValueError, match=message) as refused:
        wrong(mixture)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 150


def test_positions_that_there_are_not_are_refused() -> None:
    mixture = Mixture([Source("a", 5, epochs=1)], {"a": 1}, "rows")
    for position in (-1, 5):
        with pytest.raises(IndexError, match="ends at 5"):
            mixture.places([position])
    for position in (-1, 6):
        with pytest.raises(IndexError, match="ends at 5"):
            mixture.given(position)


def test_the_turns_do_not_change_between_versions() -> None:
    sources = [Source("a", 100, 1000), Source("b", 50, 4000), Source("c", 7, 70)]
    mixture = Mixture(sources, {"a": 0.5, "b": 0.3, "c": 0.2})
    assert mixture.places(range(12)).tolist() == KNOWN
    assert mixture.digest == KNOWN_DIGEST


@given(mixtures(), st.data())
def test_the_order_of_a_mixture_is_that_of_its_sources(
    made: tuple[Mixture, list[dict[str, Any]]], data: st.DataObject
) -> None:
    mixture, _ = made
    orders = [RowOrder(source.rows, source.name, 1) for source in mixture.sources]
    order = MixtureOrder(mixture, orders)
    end = 300 if mixture.end is None else mixture.end
    begin = data.draw(st.integers(0, end))
    expected = [[source, orders[source].take([place])[0]] for source, place in places(mixture, begin, end)]
    assert order.span(begin, end).tolist() == expected and order.take(range(begin, end)).tolist() == expected
    if mixture.end is not None:
        with pytest.raises(IndexError, match=f"ends at {end}"):
            order.span(begin, end + 1)


def test_an_order_for_other_rows_is_refused() -> None:
    mixture = Mixture([Source("a", 5)], {"a": 1}, "rows")
    for orders in ([], [RowOrder(6, "a")]):
        with pytest.raises(ValueError, match="but the sources have"):
            MixtureOrder(mixture, orders)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.integers(1, 40))
def test_windows_are_parts_of_the_whole_period(parts: list[int], places: int) -> None:
    """However short windows are, together they are the period that is laid out at once."""
    each = tuple(parts)
    source, row, _ = window_of(each)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenloom.loaders.order.mixture.LONGEST_PERIOD", places)
        windows = [window_of.__wrapped__(each, number) for number in range(-(-sum(each) // places))]
    assert np.concatenate([window[0] for window in windows]).tolist() == source.tolist()
    assert np.concatenate([window[1] for window in windows]).tolist() == row.tolist()
    for number, (_, _, before) in enumerate(windows):
        assert before.tolist() == np.bincount(source[: number * places], minlength=len(each)).tolist()


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.data())
def test_by_size_an_epoch_has_each_row_once(rows: list[int], data: st.DataObject) -> None:
    sources = [Source(str(number), count) for number, count in enumerate(rows)]
    mixture = Mixture(sources, dict.fromkeys(map(str, range(len(rows))), 1.0), "size")
    everything = [(source, row) for source, count in enumerate(rows) for row in range(count)]
    assert sorted(places(mixture, 0, len(mixture))) == everything
    assert mixture.given(len(mixture)) == rows
    told = [{"at": 0, "weights": dict(enumerate(rows)), "limits": {}}]
    length = data.draw(st.integers(0, 2 * sum(rows)))
    assert places(mixture, 0, length) == walk(told, length)
    assert Mixture.from_json(json.loads(json.dumps(mixture.to_json()))).digest == mixture.digest


def test_large_sizes_are_exact() -> None:
    """Periods longer than a window: each row once, and neighbours in the order have their exact fractions."""
    rows = [1_000_003, 700_001, 7, 1]
    mixture = Mixture([Source(str(n), count) for n, count in enumerate(rows)], dict.fromkeys("0123", 1.0), "size")
    found = mixture.places(np.arange(len(mixture)))
    for source, count in enumerate(rows):
        assert np.array_equal(found[1][found[0] == source], np.arange(count))
    assert mixture.given(1_234_567) == np.bincount(found[0][:1_234_567], minlength=4).tolist()
    later = np.arange(len(mixture) * 10**6, len(mixture) * 10**6 + 5)
    assert np.array_equal(mixture.places(later)[0], found[0][:5])
    counts = np.cumsum(found[0] == 0) - np.arange(1, len(mixture) + 1) * rows[0] / sum(rows)
    assert counts.max() - counts.min() <= 1 + rows[0] / sum(rows) * 2


def test_huge_sizes_stay_within_memory() -> None:
    rows = [3 * 10**9 + 1, 10**9, 1]
    mixture = Mixture([Source(str(n), count) for n, count in enumerate(rows)], dict.fromkeys("012", 1.0), "size")
    at = 2 * 10**9 + 12345
    source, row = mixture.places(np.arange(at, at + 100_000))
    before = mixture.given(at)
    assert sum(before) == at
    for number in range(3):
        mine = row[source == number]
        assert np.array_equal(mine, np.arange(before[number], before[number] + len(mine)))
