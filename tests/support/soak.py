"""Which cases a run takes. No other file of the tests reads `TOKENLOOM_SOAK` or `TOKENLOOM_REAL_DATA`.

- A case without a mark runs in `make test`.
- `machine` starts something and waits for it: it runs in `make test-machines`. Of each kind, one case is `smoke`, too,
  and runs in `make test`.
- `sweep` is one of many of its kind, or takes minutes: it runs in `make soak`.
- Cases on real data, which have the fixture `real_data`, are sweeps. Those that are not marked so themselves are also
  `smoke`, and run in `make test-real`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal

import pytest

SOAK = os.environ.get("TOKENLOOM_SOAK") == "1"
"""Whether this is a soak, which has time for every case."""

REAL_DATA = Path(os.environ["TOKENLOOM_REAL_DATA"]) if os.environ.get("TOKENLOOM_REAL_DATA") else None
"""The folder of real datasets, tokenizers and chat templates, if there is one."""

NO_REAL_DATA = "set TOKENLOOM_REAL_DATA to the folder with real datasets, tokenizers and chat templates"

Kind = Literal[
    "cluster", "daemon", "browser", "database", "ranks", "wheels", "hub", "bucket", "trainer", "kills", "programs"
]

smoke = pytest.mark.smoke
"""A case that stays where others of its kind go: one per kind of machine."""

sweep = pytest.mark.sweep
"""A case for `make soak`: one of many of its kind, or one that takes minutes."""


def machine(kind: Kind) -> pytest.MarkDecorator:
    """Mark cases that start a machine of this kind and wait for it; one case of each kind is also marked `smoke`."""
    return pytest.mark.machine(kind)


def some(cases: Iterable[Any], step: int) -> list[Any]:
    """Return all cases in a soak, else the first of every `step` cases, for cases that take seconds each."""
    return [*cases][:: 1 if SOAK else step]


def pairs(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return all combinations of one value per axis in a soak, else a few of them that hold each pair of values.

    Greedy all-pairs testing: each next case is the one with the most pairs that no earlier case has.
    """
    values = [list(axis) for axis in axes]
    everything = list(product(*values))
    return everything if SOAK else _cover([tuple(range(len(axis))) for axis in values], everything)


def each(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return all combinations of one value per axis in a soak, else as few as hold each value of each axis.

    Greedy, too: each next case is the one whose values, and then whose pairs of values, occur in the fewest before it.
    """
    values = [list(axis) for axis in axes]
    everything = list(product(*values))
    if SOAK:
        return everything
    cases = [list(enumerate(case)) for case in product(*(range(len(axis)) for axis in values))]
    seen = Counter[Any]()
    chosen: list[int] = []
    for _ in range(max(map(len, values))):
        best = min(
            range(len(cases)),
            key=lambda case: [
                sum(seen[value] for value in cases[case]),
                sum(seen[pair] for pair in combinations(cases[case], 2)),
            ],
        )
        seen.update([*cases[best], *combinations(cases[best], 2)])
        chosen.append(best)
    return [everything[case] for case in sorted(chosen)]


def _cover(places: Sequence[Sequence[int]], everything: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    cases = [
        set(combinations(enumerate(case), 2)) or {(place,) for place in enumerate(case)} for case in product(*places)
    ]
    open_pairs = set().union(*cases)
    chosen: list[int] = []
    while open_pairs:
        best = max(range(len(cases)), key=lambda case: len(cases[case] & open_pairs))
        open_pairs -= cases[best]
        chosen.append(best)
    return [everything[case] for case in sorted(chosen)]
