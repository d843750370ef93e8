"""Ranks × workers × order × batches × padding × mixtures × sizes × stops: each row once per epoch, also after a resume.

Configurations are drawn from all of these at random. The expected batches are those of `support.order_oracle`, which
knows the loaders only by their documentation. Each token of the data occurs in one row, so a batch identifies its rows.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from support.order_oracle import Budget, Place, Row, Source, Step, fixed_steps, length_of, rows_of
from support.soak import SOAK
from support.stored_sequences import write_numbered
from tokenloom.loaders import MixedDataset, TokenLoader, open_dataset
from tokenloom.loaders.order.row_order import BlockwiseOrder

PARTS = (
    [(part, 94, False) for part in range(10)] + [(part, 10, True) for part in range(10, 16)]
    if SOAK
    else [(0, 40, False)]
)
"""Seed, number of configurations, and whether they have spawned workers, of which each takes seconds to start."""
LONGEST, WINDOW, BLOCK = 12, 64, 100
CHUNKS = {"one": [1], "two": [2], "apart": [1, 0, 1], "few": [5], "a": [50, 46], "b": [77], "plain": [90, 0, 1, 82]}
PACKED = {"packed": [60, 113], "one packed": [1], "two packed": [1, 1]}
LONGEST_EPOCH = 700


@dataclass(frozen=True)
class Configuration:
    """A loader, where it is stopped, and what continues it.

    Attributes:
        sources: names of datasets with their weights and limits in epochs; a single one is read as it is.
        size: rows per batch; None: a token budget.
        stop: the fraction of the first epoch's steps after which the loader is stopped.
        workers: of the loader and of the one that continues it: none, a thread, or spawned processes.
        other: ranks and rows per batch of more loaders that continue it.
        aligned: whether its token budget is that of an earlier version's run.
    """

    sources: tuple[tuple[str, str, str | None], ...]
    by: Any
    shuffle: Any
    seed: int
    world: int
    size: int | None
    budget: int
    drop_last: bool
    padding: Any
    side: Any
    stop: Fraction
    workers: tuple[str, str]
    other: tuple[int, int]
    aligned: bool


def drawn(draw: random.Random, spawned: bool) -> Configuration:
    packed = draw.random() < 0.2
    names = draw.sample(sorted(PACKED if packed else CHUNKS), draw.choice((1, 1, 1, 2, 2, 3)))
    sources = tuple(
        (name, draw.choice(("1", "2", "3", "0.5", "0.7")), draw.choice((None, None, None, "1", "2.5")))
        for name in names
    )
    size = draw.choice((1, 2, 3, 7, 64, None, None))
    workers = draw.choice((("spawn", "none"), ("none", "spawn"), ("spawn", "spawn")))
    return Configuration(
        sources if len(names) > 1 else ((names[0], "1", None),),
        draw.choice(("rows", "tokens")),
        draw.choice(("full", "block", "none")),
        draw.randrange(1 << 40),
        draw.choice((1, 1, 1, 2) if spawned else (1, 1, 2, 3, 5, 8, 40)),
        size,
        draw.choice((16, 30, 100)),
        size is not None and draw.random() < 0.3,
        draw.choice(("longest", "max_length", 8)),
        draw.choice(("left", "right")),
        draw.choice((Fraction(0), Fraction(1, 7), Fraction(1, 2), Fraction(1))),
        workers if spawned else (draw.choice(("none", "thread")), draw.choice(("none", "thread"))),
        (draw.choice((1, 2, 3, 4, 8, 40)), draw.choice((1, 2, 5, 64))),
        size is None and draw.random() < 0.3,
    )


class Data:
    """The datasets, and the row of each of their tokens."""

    def __init__(self, folder: Path):
        self.rows: list[list[int]] = []
        self.trained: set[int] = set()
        self.datasets, self.sources = {}, dict[str, Source]()
        for name, chunks in {**CHUNKS, **PACKED}.items():
            first = self.rows[-1][-1] + 1 if self.rows else 3
            begin = len(self.rows)
            for documents in write_numbered(folder, name, chunks, LONGEST, name in PACKED, first):
                row = [token for document in documents for token in document]
                starts = {document[0] for document in documents} if name in PACKED else set()
                self.trained |= {token for token in row if token % 3} - starts
                self.rows.append(row)
            self.datasets[name] = open_dataset(name, store=folder)
            numbers = tuple(range(begin, len(self.rows)))
            lengths = tuple(len(self.rows[number]) for number in numbers)
            self.sources[name] = Source(self.datasets[name].digest, tuple(chunks), numbers, lengths)
        self.known = {tuple(row): number for number, row in enumerate(self.rows)}

    def read(self, batch: dict[str, torch.Tensor], width: int, side: str) -> list[Row]:
        """Return the rows of a batch; check that it has their tokens and labels, padded to a width, and no others."""
        found: list[Row] = []
        columns = (batch[name].tolist() for name in ("input_ids", "attention_mask", "labels"))
        for ids, mask, labels in zip(*columns, strict=True):
            length = sum(mask)
            padding = [0] * (width - length)
            begin = len(padding) if side == "left" else 0
            tokens = ids[begin : begin + length]
            targets = [token if token in self.trained else -100 for token in tokens]
            for values, own, pad in ((ids, tokens, 0), (mask, [1] * length, 0), (labels, targets, -100)):
                filled = [pad] * len(padding)
                assert values == (filled + own if side == "left" else own + filled)
            found.append(self.known[tuple(tokens)] if length else None)
        return found


class Case:
    """A configuration with its data, its loaders and its expected steps."""

    def __init__(self, data: Data, made: Configuration):
        self.data, self.made = data, made
        self.sources = [data.sources[name] for name, _, _ in made.sources]
        self.rates = [Fraction(weight) for _, weight, _ in made.sources]
        if made.by == "tokens" and len(self.sources) > 1:
            sizes = [Fraction(len(source.numbers), sum(source.lengths)) for source in self.sources]
            self.rates = [rate * size for rate, size in zip(self.rates, sizes, strict=True)]
        self.limits = [
            int(Fraction(epochs) * len(source.numbers)) if epochs else None
            for (_, _, epochs), source in zip(made.sources, self.sources, strict=True)
        ]

    @cached_property
    def dataset(self) -> Any:
        names = [name for name, _, _ in self.made.sources]
        if len(names) == 1:
            return self.data.datasets[names[0]]
        weights = {name: float(weight) for name, weight, _ in self.made.sources}
        epochs = {name: float(limit) for name, _, limit in self.made.sources if limit}
        return MixedDataset({name: self.data.datasets[name] for name in names}, weights, self.made.by, epochs)

    @cached_property
    def epochs(self) -> list[list[int]]:
        """The rows of two epochs, or of the only one."""
        return rows_of(self.sources, self.rates, self.limits, self.made.seed, self.made.shuffle, 2)

    def loader(self, workers: str, rank: int, world: int, size: int | None) -> TokenLoader:
        made = self.made
        limit: dict[str, Any] = {"drop_last": made.drop_last, "batch_size": size} if size else {}
        found = TokenLoader(
            self.dataset,
            shuffle=made.shuffle,
            seed=made.seed,
            padding=made.padding,
            padding_side=made.side,
            rank=rank,
            world_size=world,
            num_workers=(1 + (made.seed % 4 == 0)) if workers == "spawn" else 0,
            prefetch_factor=2 if workers != "none" else None,
            token_budget=None if size else made.budget,
            **limit,
        )
        if workers == "spawn":
            found.multiprocessing_context = "spawn"
        if made.aligned:
            found.load_state_dict({**found.state_dict(), "version": 2 if made.shuffle == "block" else 1})
        return found

    def width(self, longest: int) -> int:
        if self.made.padding == "max_length":
            return LONGEST
        return max(longest, 1) if self.made.padding == "longest" else -(-max(longest, 1) // 8) * 8

    def steps(self, epoch: int, world: int, size: int | None, place: Place = (0, 0)) -> list[tuple[Step, Place]]:
        """Return the expected steps from a place on, each with the place after it."""
        rows = self.epochs[epoch]
        if size is not None:
            found = fixed_steps(rows, world, size, self.made.drop_last, place[0])
            after = [min(place[0] + number * world * size, len(rows)) for number in range(1, len(found) + 1)]
            return [(step, (position, 0)) for step, position in zip(found, after, strict=True)]
        lengths = {row: len(self.data.rows[row]) for row in rows}
        key = ("batches", self.dataset.digest, self.made.seed)
        budget = Budget(self.made.budget, WINDOW, lengths, self.width, key)
        return budget.steps(rows, epoch, world, place, self.made.aligned)

    def read(self, batches: Any, expected: list[list[Row]]) -> list[list[Row]]:
        """Return the rows of batches, of as many as are expected or more; check their padding."""
        found = []
        for number, batch in enumerate(batches):
            assert number < len(expected)
            longest = max(len(self.data.rows[row]) if row is not None else 0 for row in expected[number])
            found.append(self.data.read(batch, self.width(longest), self.made.side))
        return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Data]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenloom.loaders.order.batch_plan.WINDOW_ROWS", WINDOW)
        patch.setattr(BlockwiseOrder.__init__, "__defaults__", (BLOCK,))  # epochs of mixtures have several blocks
        yield Data(tmp_path_factory.mktemp("exactly_once"))


def flat(steps: list[Step]) -> list[int]:
    return [row for step in steps for batch in step for row in batch if row is not None]


def check(case: Case) -> None:
    """Stop and continue each rank in another loader, into the next epoch; then continue with more or fewer ranks."""
    made = case.made
    world, size = made.world, made.size
    first = case.steps(0, world, size)
    following = [step for step, _ in case.steps(1, world, size)] if len(case.epochs) > 1 else []
    stop = int(made.stop * len(first))
    place = first[stop - 1][1] if stop else (0, 0)
    states, found = set[str](), list[tuple[list[list[Row]], list[list[Row]]]]()
    for rank in range(world):
        stopped, resumed = (case.loader(workers, rank, world, size) for workers in made.workers)
        assert len(stopped) == len(first)
        mine, later = [step[rank] for step, _ in first], [step[rank] for step in following]
        before = case.read(islice(stopped, stop), mine)
        states.add(json.dumps(stopped.state_dict()))
        resumed.load_state_dict(json.loads(min(states)))
        after = case.read(resumed, mine[stop:])
        found.append((before + after, case.read(resumed, later) if following else []))
        assert found[-1] == (mine, later)
        assert len(before) == stop
    assert len(states) == 1 and len(min(states)) < 1024
    for number, epoch in enumerate(case.epochs):
        every_row_once(case, flat([list(step) for step in zip(*(rank[number] for rank in found), strict=True)]), epoch)
    other, other_size = made.other[0], made.other[1] if size is not None else None
    expected = [step for step, _ in case.steps(0, other, other_size, place)]
    for rank in range(other):
        loader = case.loader("none", rank, other, other_size)
        loader.load_state_dict(json.loads(min(states)))
        mine = [step[rank] for step in expected]
        assert case.read(loader, mine) == mine
    if not made.drop_last:
        assert Counter(flat([step for step, _ in first[:stop]]) + flat(expected)) == Counter(case.epochs[0])


def every_row_once(case: Case, rows: list[int], expected: list[int]) -> None:
    """Check, by counts alone, that the ranks read each row of an epoch once, all but those of a dropped last step."""
    made, counts = case.made, Counter(rows)
    dropped = len(expected) % (made.world * (made.size or 1)) if made.drop_last else 0
    assert len(rows) == len(expected) - dropped
    if len(case.sources) == 1:
        assert max(counts.values(), default=1) == 1
        assert counts.keys() <= {*case.sources[0].numbers}
        assert len(expected) == len(case.sources[0].numbers)
    else:
        for source in case.sources:  # no row comes more than once more often than another
            of_source = [counts[number] for number in source.numbers]
            assert dropped or max(of_source) - min(of_source) <= 2


def usable(case: Case) -> bool:
    """Whether an epoch is short enough to read, and no source is limited to less than one row."""
    return 0 not in case.limits and length_of(case.sources, case.rates, case.limits) <= LONGEST_EPOCH


@pytest.mark.parametrize(("part", "count", "spawned"), PARTS)
def test_each_row_once_and_the_same_batches_after_a_resume(data: Data, part: int, count: int, spawned: bool) -> None:
    draw, done = random.Random(part), set[Configuration]()
    while len(done) < count:
        made = drawn(draw, spawned)
        case = Case(data, made)
        if replace(made, seed=0) in done or not usable(case):
            continue
        try:
            check(case)
        except Exception as error:
            error.add_note(f"in {made}")
            raise
        done.add(replace(made, seed=0))
    names = [name for made in done for name, _, _ in made.sources]
    small = [name for name in names if len(data.sources[name].numbers) <= 2]
    print(f"{count} configurations, {'with' if spawned else 'without'} spawned workers; number of each value:")
    print("datasets", counted(len(made.sources) for made in done), "of one or two rows", counted(small))
    for name in ("world", "shuffle", "size", "drop_last", "padding", "side", "stop", "workers", "aligned"):
        print(name, counted(getattr(made, name) for made in done))


def counted(values: Iterable[Any]) -> dict[str, int]:
    return dict(sorted(Counter(map(str, values)).items()))
