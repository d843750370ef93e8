"""MapLoader: every row once, seeded, resumed and sharded, and errors name the row."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from itertools import chain, islice
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, Subset

from support.foreign_datasets import (
    ManyNumbers,
    Noise,
    Numbers,
    TwoArguments,
    as_list,
    no_sevens,
)
from tokenloom.errors import ConfigError, LoaderStateError
from tokenloom.loaders import MapLoader

ROWS, BATCH = 53, 4


def epoch(loader: MapLoader) -> list[list[Any]]:
    return list(loader)


def flat(batches: list[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(batches))


def loader_of(dataset: Any = None, **options: Any) -> MapLoader:
    return MapLoader(
        Numbers(ROWS) if dataset is None else dataset, **{"batch_size": BATCH, "collate_fn": as_list, **options}
    )


@pytest.mark.parametrize("shuffle", ["full", "block", True])
def test_an_epoch_has_every_row_once_and_epochs_differ(shuffle: Any) -> None:
    loader = loader_of(shuffle=shuffle, seed=5)
    first, second = epoch(loader), epoch(loader)
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(ROWS))
    assert first != second != list(range(ROWS))
    loader.set_epoch(0)
    assert epoch(loader) == first
    assert epoch(loader_of(shuffle=shuffle, seed=5)) == first
    assert epoch(loader_of(shuffle=shuffle, seed=6)) != first


def test_without_shuffling_rows_come_in_order() -> None:
    assert flat(epoch(loader_of(shuffle=False))) == list(range(ROWS))


@given(st.integers(0, 70), st.integers(1, 6), st.integers(1, 9), st.booleans(), st.integers(0, 3))
def test_ranks_share_an_epoch(rows: int, ranks: int, batch_size: int, drop_last: bool, number: int) -> None:
    loaders = [
        loader_of(Numbers(rows), batch_size=batch_size, rank=rank, world_size=ranks, drop_last=drop_last)
        for rank in range(ranks)
    ]
    for loader in loaders:
        loader.set_epoch(number)
    found = [epoch(loader) for loader in loaders]
    assert {len(batches) for batches in found} == {len(loader) for loader in loaders} == {len(found[0])}
    counted = Counter(flat([flat(batches) for batches in found]))
    if drop_last:
        assert set(counted.values()) <= {1}
        assert len(counted) == rows // (ranks * batch_size) * ranks * batch_size
    else:
        assert set(counted) == set(range(rows))
        lacking = -rows % ranks if batch_size == 1 or rows < ranks else 0  # rows so that each rank has one at the end
        assert counted.total() - rows == lacking
    for loader, batches in zip(loaders, found, strict=True):
        loader.set_epoch(number)
        alone = list(loader.sampler)
        length = min(
            len(alone), len(flat(batches))
        )  # the sampler knows no batches, whose last row can be a repeated one
        assert alone[:length] == flat(batches)[:length] and len(flat(batches)) <= len(alone) + 1
        assert len(alone) == len(loader.sampler)  # pyright: ignore[reportArgumentType]


def test_global_batches_are_the_same_for_any_number_of_ranks() -> None:
    def steps(ranks: int, batch_size: int) -> list[list[int]]:
        loaders = [loader_of(Numbers(48), batch_size=batch_size, rank=r, world_size=ranks) for r in range(ranks)]
        return [sorted(flat(list(step))) for step in zip(*map(epoch, loaders), strict=True)]

    assert steps(1, 12) == steps(2, 6) == steps(3, 4) == steps(12, 1)


@pytest.mark.parametrize("through", ["loader", "sampler"])
def test_set_epoch_of_the_loader_and_of_its_distributed_sampler_is_heeded(through: str) -> None:
    loader = loader_of(rank=1, world_size=2)
    sampler = loader.sampler
    assert isinstance(sampler, DistributedSampler)
    made = []
    for number in (0, 1, 2, 1, 0):
        (loader if through == "loader" else sampler).set_epoch(number)
        made.append(flat(epoch(loader)))
    assert made[0] == made[4] != made[1] == made[3] != made[2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 7, 14, 17])
def test_a_resumed_loader_goes_on_at_the_next_batch_with_the_same_random_numbers(workers: int, stop: int) -> None:
    whole = loader_of(Noise(ROWS))
    expected = [*epoch(whole), *epoch(whole)]
    loader = loader_of(Noise(ROWS), num_workers=workers)
    begun = list(islice(chain(loader, loader), stop))
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = loader_of(Noise(ROWS), num_workers=0 if workers else 2)
    resumed.load_state_dict(state)
    rest = [*epoch(resumed), *epoch(resumed)]
    assert [*begun, *rest][: len(expected)] == expected


def test_a_state_goes_to_another_number_of_ranks_and_batch_size() -> None:
    before = [loader_of(Numbers(48), batch_size=3, rank=rank, world_size=4) for rank in range(4)]
    seen = [list(islice(loader, 2)) for loader in before]
    after = [loader_of(Numbers(48), batch_size=5, rank=rank, world_size=3) for rank in range(3)]
    for loader in after:
        loader.load_state_dict(before[0].state_dict())
    rest = [epoch(loader) for loader in after]
    assert sorted(flat([flat(batches) for batches in seen + rest])) == list(range(48))


@pytest.mark.parametrize("other", [{"seed": 1}, {"shuffle": False}, {"dataset": Numbers(ROWS + 1)}])
def test_a_state_of_another_order_is_refused_with_what_differs(other: dict[str, Any]) -> None:
    state = loader_of(**other).state_dict()
    named = {"seed": "seed is 1", "shuffle": "shuffle is none", "dataset": "data is 54 rows"}[next(iter(other))]
    with pytest.raises(LoaderStateError, match=named):
        loader_of().load_state_dict(state)


def test_loading_leaves_the_random_numbers_of_the_training_process_alone() -> None:
    def drawn(between: Any) -> list[float]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        between()
        return [random.random(), np.random.rand(), torch.rand(()).item()]

    loader = loader_of(Noise(ROWS))
    batches = iter(loader)
    assert drawn(lambda: next(batches)) == drawn(lambda: None)


def test_random_numbers_differ_between_batches_ranks_seeds_and_epochs() -> None:
    loaders = [loader_of(Noise(8), rank=rank, world_size=2, seed=seed) for rank in (0, 1) for seed in (0, 1)]
    drawn = [sample[1:] for loader in loaders for _ in range(2) for batch in loader for sample in batch]
    assert len(set(drawn)) == len(drawn) == 4 * 2 * 4


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_worker_processes_change_no_batch(context: str) -> None:
    shared = loader_of(Noise(ROWS), num_workers=2, multiprocessing_context=context)
    alone = loader_of(Noise(ROWS))
    for _ in range(2):
        assert epoch(shared) == epoch(alone)


def test_a_pickled_loader_is_the_same_loader() -> None:
    loader = loader_of()
    next(iter(loader))
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.state_dict() == loader.state_dict()
    assert epoch(copy) == epoch(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Numbers, ManyNumbers])
@pytest.mark.parametrize("error", [ValueError("bad"), KeyError("bad"), StopIteration(), TwoArguments(1, 2)])
def test_an_error_names_its_row(workers: int, kind: type[Numbers], error: Exception) -> None:
    kept = isinstance(error, ValueError | KeyError) or (workers == 0 and isinstance(error, TwoArguments))
    with pytest.raises(type(error) if kept else RuntimeError, match=r"in row 31 of the dataset"):
        epoch(loader_of(kind(ROWS, {31: error}), num_workers=workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_part_of_a_dataset_names_the_row_of_the_whole(workers: int) -> None:
    part = Subset(Subset(ManyNumbers(ROWS, {31: ValueError("bad")}), range(20, 50)), range(5, 25))
    with pytest.raises(ValueError, match=r"in row 31 of the dataset"):
        epoch(loader_of(part, num_workers=workers))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_collate_fn_names_the_batch(workers: int) -> None:
    with pytest.raises(ValueError, match=r"in the batch of rows 4, 5, 6, 7 of the dataset"):
        epoch(loader_of(shuffle=False, collate_fn=no_sevens, num_workers=workers))


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_what_cannot_be_sent_to_workers_is_named() -> None:
    loader = loader_of(collate_fn=lambda samples: samples, num_workers=1, multiprocessing_context="forkserver")
    with pytest.raises(ConfigError, match=r"collate_fn: cannot be pickled for worker processes"):
        epoch(loader)


def test_hugging_face_datasets_are_read_many_rows_at_once() -> None:
    data = datasets.Dataset.from_dict({"n": list(range(ROWS))})
    batches = list(MapLoader(data, BATCH, num_workers=2))
    assert sorted(flat([batch["n"].tolist() for batch in batches])) == list(range(ROWS))


def test_a_loader_shows_what_it_was_made_with() -> None:
    data = Numbers(ROWS)
    loader = loader_of(data, num_workers=1, prefetch_factor=3)
    assert (loader.dataset, loader.collate_fn, loader.batch_size) == (data, as_list, BATCH)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 3, True)
    alone = loader_of(data, prefetch_factor=3)
    assert (alone.prefetch_factor, alone.persistent_workers) == (None, False)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"rank": 2, "world_size": 2}, "rank must be .*, got 2"),
        ({"rank": 1}, "together"),
        ({"shuffle": "some"}, "'some'"),
        ({"dataset": object()}, "__len__"),
    ],
)
def test_wrong_arguments_are_told(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        loader_of(**options)
