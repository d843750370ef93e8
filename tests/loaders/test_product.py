"""World size × workers × batch × interrupt × kind of dataset × shuffle: one sequence of rows, each row once.

Each token of the data occurs in one row, so a batch identifies its rows. The expected batches are computed here in
plain Python from the sequence that a single rank reads row by row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from support.soak import pairs
from support.stored_sequences import write_numbered
from tokenloom.loaders import MixedDataset, TokenDataset, TokenLoader, open_dataset
from tokenloom.loaders.order.row_order import Permutation, Shuffle, key_of

LONGEST, WINDOW = 12, 64
CHUNKS = {"plain": [90, 0, 1, 82], "packed": [60, 113], "a": [50, 46], "b": [77]}
MIXED = {"a": 2, "b": 1}
ROWS = 173

Row = int | None
"""Number of a row, in the order of the store; None: a row of padding."""
Batch = list[Row]
Step = list[Batch]
"""A batch of each rank."""

WORLDS, WORKERS, BATCHES, STOPS = (1, 2, 3, 4, 8), (0, 2), (1, 4, 7), ("0", "1", "mid", "last")
KINDS, SHUFFLES = ("plain", "mixed", "packed", "token budget"), ("full", "block", "none")


class Data:
    """The datasets, and the row of each of their tokens."""

    def __init__(self, folder: Path):
        self.rows: list[list[int]] = []
        self.trained: set[int] = set()
        opened: dict[str, TokenDataset] = {}
        for name, chunks in CHUNKS.items():
            first = self.rows[-1][-1] + 1 if self.rows else 3
            packed = name == "packed"
            for documents in write_numbered(folder, name, chunks, LONGEST, packed, first):
                row = [token for document in documents for token in document]
                starts = {document[0] for document in documents} if packed else set()
                self.trained |= {token for token in row if token % 3} - starts
                self.rows.append(row)
            opened[name] = open_dataset(name, store=folder)
        mixed = MixedDataset({name: opened[name] for name in MIXED}, MIXED, by="rows")
        self.datasets = {**opened, "mixed": mixed, "token budget": opened["plain"]}
        self.known = {tuple(row): number for number, row in enumerate(self.rows)}
        self.references: dict[Any, list[Step]] = {}

    def numbers(self, name: str) -> list[int]:
        """Return the rows of a dataset in stored order."""
        begins = dict(zip(CHUNKS, range(len(CHUNKS)), strict=True))
        before = sum(sum(chunks) for chunks in list(CHUNKS.values())[: begins[name]])
        return list(range(before, before + sum(CHUNKS[name])))

    def loader(self, kind: str, shuffle: Shuffle, size: int, **arguments: Any) -> TokenLoader:
        """Return a loader of `size` rows per batch, or of the maximum number of tokens of as many rows."""
        limit = {"token_budget": size * LONGEST} if kind == "token budget" else {"batch_size": size}
        given = {"rank": 0, "world_size": 1, "padding": "longest", "seed": 5, **limit, **arguments}
        return TokenLoader(self.datasets[kind], shuffle=shuffle, **given)

    def read(self, batch: dict[str, torch.Tensor]) -> Batch:
        """Return the rows of a batch; check that it has exactly their tokens."""
        found: Batch = []
        columns = (batch[name].tolist() for name in ("input_ids", "attention_mask", "labels"))
        for ids, mask, labels in zip(*columns, strict=True):
            length = sum(mask)
            assert mask == [1] * length + [0] * (len(ids) - length)
            tokens = ids[:length]
            assert labels == [token if token in self.trained else -100 for token in tokens] + [-100] * mask.count(0)
            found.append(self.known[tuple(tokens)] if length else None)
        return found

    def reference(self, kind: str, shuffle: Shuffle, size: int) -> list[list[Batch]]:
        """Return what a single rank reads in two epochs: single rows, or batches of a token budget."""
        size = size if kind == "token budget" else 1
        if (kind, shuffle, size) not in self.references:
            loader = self.loader(kind, shuffle, size)
            self.references[kind, shuffle, size] = [[self.read(batch) for batch in loader] for _ in range(2)]
        return self.references[kind, shuffle, size]

    def expected(self, kind: str, shuffle: Shuffle, world: int, size: int) -> list[list[Step]]:
        """Return the expected steps of two epochs."""
        deal = dealt_by_budget if kind == "token budget" else dealt
        return [deal(batches, world, size) for batches in self.reference(kind, shuffle, size)]


def dealt(batches: list[Batch], world: int, size: int) -> list[Step]:
    """Deal out rows in order; several ranks pad their batches of the last step."""
    rows = flat([batches])
    steps = []
    for begin in range(0, len(rows), world * size):
        step = rows[begin : begin + world * size]
        ranks: Step = [list(step[rank * size : (rank + 1) * size]) for rank in range(world)]
        steps.append([batch + [None] * (size - len(batch)) for batch in ranks] if world > 1 else ranks)
    return steps


def dealt_by_budget(batches: list[Batch], world: int, size: int) -> list[Step]:
    """Deal out batches in order; ranks without one in the last step of an epoch get a padding row."""
    steps = []
    for begin in range(0, len(batches), world):
        step = batches[begin : begin + world]
        steps.append(step + [[None]] * (world - len(step)))
    return steps


def windows(batches: list[Batch]) -> Iterator[list[Batch]]:
    """Return the batches of each window of `WINDOW` rows."""
    window: list[Batch] = []
    for batch in batches:
        window.append(batch)
        if sum(map(len, window)) >= WINDOW:
            yield window
            window = []
    if window:
        yield window


def flat(steps: list[Step]) -> list[int]:
    """Return the rows of steps, without padding rows."""
    return [row for step in steps for batch in step for row in batch if row is not None]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Data]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenloom.loaders.order.batch_plan.WINDOW_ROWS", WINDOW)
        yield Data(tmp_path_factory.mktemp("product"))


@cache
def shapes() -> list[tuple[Any, ...]]:
    """(kind, shuffle, world, workers, batch, the steps to stop at): all, or a few cells in which every pair of values
    of two axes occurs."""
    stops: dict[tuple[Any, ...], tuple[str, ...]] = {}
    for *shape, stop in pairs(KINDS, SHUFFLES, WORLDS, WORKERS, BATCHES, STOPS):
        stops[tuple(shape)] = (*stops.get(tuple(shape), ()), stop)
    return [(*shape, at) for shape, at in stops.items()]


@pytest.mark.parametrize(("kind", "shuffle", "world", "workers", "size", "stops"), shapes())
def test_stopping_and_going_on_changes_nothing(
    data: Data, kind: str, shuffle: Shuffle, world: int, workers: int, size: int, stops: tuple[str, ...]
) -> None:
    """Stop each rank and continue it in another loader, after its next batches were prefetched; then load the state on
    other shapes."""
    steps, following = data.expected(kind, shuffle, world, size)
    at = {"0": 0, "1": 1, "mid": len(steps) // 2, "last": len(steps) - 1}
    states: dict[str, list[str]] = {stop: [] for stop in stops}
    for rank in range(world):
        arguments = {"rank": rank, "world_size": world, "num_workers": workers}
        stopped, resumed = (data.loader(kind, shuffle, size, **arguments) for _ in range(2))
        assert len(stopped) == len(steps)
        mine = [step[rank] for step in steps]
        for stop in stops:
            batches = iter(stopped)
            assert [data.read(batch) for batch in islice(batches, at[stop])] == mine[: at[stop]]
            states[stop].append(json.dumps(stopped.state_dict()))
            resumed.load_state_dict(json.loads(states[stop][-1]))
            assert [data.read(batch) for batch in resumed] == mine[at[stop] :]
            assert [data.read(batch) for batch in resumed] == [step[rank] for step in following]
    whole = flat([*steps, *following])
    assert whole == flat(data.reference(kind, shuffle, size))
    for stop, told in states.items():
        assert {*told} == {told[0]} and len(told[0]) < 1024
        before = flat(steps[: at[stop]])
        for other_world, other_size in {(1, 5), (3, 2), (8, 1)}:
            other_size = size if kind == "token budget" else other_size
            ranks = [data.loader(kind, shuffle, other_size, rank=n, world_size=other_world) for n in range(other_world)]
            for loader in ranks:
                loader.load_state_dict(json.loads(told[0]))
            epochs = [zip(*ranks, strict=True), zip(*ranks, strict=True)]
            after = [[data.read(batch) for batch in step] for epoch in epochs for step in epoch]
            assert before + flat(after) == whole


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_each_epoch_has_every_row_once(data: Data, kind: str, shuffle: Shuffle) -> None:
    first, second = (flat([batches]) for batches in data.reference(kind, shuffle, 1))
    stored = data.numbers(kind)
    assert len(stored) == ROWS
    assert sorted(first) == sorted(second) == stored
    if shuffle == "none":
        assert first == second == stored
    else:
        assert first != second and stored not in (first, second)


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_datasets_of_a_mixture_take_turns_and_each_of_their_epochs_has_every_row_once(
    data: Data, shuffle: Shuffle
) -> None:
    rows = flat(data.reference("mixed", shuffle, 1))
    assert len(rows) == 2 * ROWS
    own: dict[str, list[int]] = {name: [] for name in MIXED}
    for row in rows:
        due = {name: Fraction(2 * len(own[name]) + 1, share) for name, share in MIXED.items()}
        name = min(due, key=lambda name: due[name])
        assert row in data.numbers(name)
        own[name].append(row)
    for name, found in own.items():
        stored = data.numbers(name)
        epochs = [found[begin : begin + len(stored)] for begin in range(0, len(found), len(stored))]
        assert len(epochs) > 1
        assert all(max(Counter(epoch).values()) == 1 for epoch in epochs)
        assert all(sorted(epoch) == stored for epoch in epochs[:-1])
        assert (epochs[0][:20] == epochs[1][:20] == stored[:20]) == (shuffle == "none")


@pytest.mark.parametrize("size", BATCHES)
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_batches_of_a_token_budget_are_windows_of_the_order_by_length(data: Data, shuffle: Shuffle, size: int) -> None:
    digest = data.datasets["plain"].digest
    for epoch, batches in enumerate(data.reference("token budget", shuffle, size)):
        rows = flat([data.reference("plain", shuffle, 1)[epoch]])
        found = list(windows(batches))
        assert len(found) == -(-ROWS // WINDOW)
        for begin, window in zip(range(0, ROWS, WINDOW), found, strict=True):
            cut: list[Batch] = [[]]
            for row in sorted(rows[begin : begin + WINDOW], key=lambda row: len(data.rows[row])):
                if (len(cut[-1]) + 1) * len(data.rows[row]) > size * LONGEST:
                    cut.append([])
                cut[-1].append(row)
            shuffled = Permutation(len(cut), key_of("batches", digest, 5, epoch, begin))(range(len(cut)))
            assert window == [cut[number] for number in shuffled]


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("kind", ["plain", "mixed", "packed"])
def test_global_batches_are_the_same_where_world_times_batch_is(data: Data, kind: str, shuffle: Shuffle) -> None:
    """Compared as tensors; the ranks' counts add up to those of the rows."""
    found = {}
    for world, size in [(1, 8), (2, 4), (4, 2), (8, 1)]:
        ranks = [
            data.loader(kind, shuffle, size, rank=rank, world_size=world, padding="max_length") for rank in range(world)
        ]
        steps = []
        for step in zip(*ranks, strict=True):
            whole = {name: torch.cat([batch[name] for batch in step]) for name in ("input_ids", "labels")}
            mask = torch.cat([batch["attention_mask"] for batch in step]).any(1)
            assert bool((whole["labels"][~mask] == -100).all())
            steps.append({name: value[mask].tolist() for name, value in whole.items()})
        found[world] = steps
        rows = [data.rows[row] for row in flat(data.reference(kind, shuffle, 1)[:1])]
        tokens = sum(int(batch["attention_mask"].sum()) for rank in ranks for batch in again(rank))
        trained = sum(int((batch["labels"] != -100).sum()) for rank in ranks for batch in again(rank))
        assert tokens == sum(map(len, rows))
        assert trained == sum(token in data.trained for row in rows for token in row)
    assert found[1] == found[2] == found[4] == found[8]


def again(loader: TokenLoader) -> TokenLoader:
    loader.set_epoch(0)
    return loader
