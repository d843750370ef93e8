"""Public reports of worker processes and random numbers: each is rebuilt with every loader that it can concern.

The docstring of each test names its source, what went wrong there, and what must hold here.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import threading
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from support.foreign_datasets import Noise, Numbers, Stream, as_list, noisy
from support.gloo_ranks import on_ranks
from support.numbered_loaders import LOADERS, ROWS, TOKEN_LOADERS, WITH_WORKERS, Integers, NumberedLoaders, flat
from support.on_the_fly_rows import LengthEngine, numbers
from support.processes import DEADLINE
from support.soak import machine
from support.waiting import until
from tokenloom.loaders import (
    DataLoaderBuilder,
    MapLoader,
    PreprocessedDataset,
    StreamingPreprocessedDataset,
    TransformerDataset,
)

pytestmark = machine("programs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tmp_path_factory.mktemp("numbered")


@pytest.fixture(scope="module")
def loaders(folder: Any) -> NumberedLoaders:
    return NumberedLoaders(folder)


def drawn(loader: Any) -> list[tuple[float, ...]]:
    """Return the random numbers in an epoch's samples of `Noise`."""
    return [sample[1:] for batch in loader for sample in batch]


def test_workers_draw_different_numbers() -> None:
    """pytorch/pytorch#5059: all workers inherit one state of `numpy.random`, and draw the same numbers in each epoch.

    No two samples of two epochs must have a number in common, and they must be those of a loader without workers.
    """
    alone, shared = (MapLoader(Noise(ROWS), 4, collate_fn=as_list, num_workers=workers) for workers in (0, 2))
    found = [*drawn(shared), *drawn(shared)]
    for numbers_of_one in zip(*found, strict=True):
        assert len(set(numbers_of_one)) == 2 * ROWS
    assert found == [*drawn(alone), *drawn(alone)]


def test_workers_of_different_ranks_draw_different_numbers() -> None:
    """meta-pytorch/torchtune#177: the workers of all ranks are seeded alike, so that worker 3 of each rank transforms
    its rows with the same numbers.

    Transforms must draw different numbers for all rows on all ranks.
    """

    def made(rank: int) -> Any:
        builder = DataLoaderBuilder().with_dataset(range(ROWS)).with_transform(noisy).with_batch_size(2)
        return builder.with_workers(2).with_collate(as_list).with_distributed(rank, 3).build()

    found = [number for rank in range(3) for batch in made(rank) for _, number in batch]
    assert len(set(found)) == len(found) == ROWS


@pytest.mark.parametrize("seed", [19_525_198 * 220, (1 << 64) + 1, -1])
@pytest.mark.parametrize("name", LOADERS)
def test_any_integer_is_a_seed(loaders: NumberedLoaders, name: str, seed: int) -> None:
    """ecmwf/anemoi-core#1217: a seed that is multiplied by the rank exceeds 32 bits on many ranks; one rank fails in
    NumPy, and the others wait for it.

    Each integer must be a seed of its own, on any rank, and in a state.
    """
    loader = loaders.make(name, seed=seed)
    first = loaders.epoch(name, loader)
    assert sorted(flat(first)) == list(range(loaders.rows(name)))
    assert first != loaders.epoch(name, loaders.make(name, seed=seed % (1 << 32)))
    resumed = loaders.make(name, seed=seed)
    resumed.load_state_dict(loader.state_dict())
    assert loaders.epoch(name, resumed) == loaders.epoch(name, loader)
    noise = MapLoader(Noise(ROWS), 4, collate_fn=as_list, seed=seed, rank=511, world_size=512)
    assert len(drawn(noise)) == 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", [*LOADERS, "iterable"])
def test_reading_validation_rows_changes_no_training(loaders: NumberedLoaders, name: str, workers: int) -> None:
    """pytorch/pytorch#80119: iterating over the validation loader draws from the global generator, so that the order of
    the training rows, and dropout, depend on how often one validates.

    Reading an epoch must leave all global generators as they were.
    """
    workers = workers if name in WITH_WORKERS or name == "iterable" else 0
    if name == "iterable":
        loader: Any = DataLoaderBuilder().with_dataset(Stream([*range(9)])).with_workers(workers).build()
    else:
        loader = loaders.make(name, num_workers=workers)

    def drawn_after(epochs: int) -> list[float]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        for _ in range(epochs):
            assert [*loader]
        return [random.random(), np.random.rand(), torch.rand(()).item()]

    assert drawn_after(1) == drawn_after(2) == drawn_after(0)


@pytest.mark.parametrize("name", [*WITH_WORKERS, "row stream"])
def test_persistent_workers_repeat_a_run(loaders: NumberedLoaders, name: str) -> None:
    """pytorch/pytorch#73603: with persistent workers, the batches of an iterable dataset come in another order in each
    run from the second epoch on.

    Two loaders must yield the same batches in all epochs, however long each row takes.
    """
    runs = []
    for _ in range(2):
        if name == "row stream":
            dataset = StreamingPreprocessedDataset(numbers(ROWS), LengthEngine(), buffer_size=4)
            loader: Any = DataLoader(
                dataset, 3, num_workers=2, persistent_workers=True, collate_fn=_first_ids, timeout=DEADLINE
            )
            runs.append([[*loader] for _ in range(3)])
        else:
            loader = loaders.make(name, num_workers=2)
            runs.append([loaders.epoch(name, loader) for _ in range(3)])
    assert runs[0] == runs[1]


def _first_ids(rows: list[Any]) -> list[int]:
    return [int(row["input_ids"][0]) for row in rows]


def test_persistent_workers_draw_new_numbers_in_each_epoch() -> None:
    """starVLA/starVLA#470: persistent workers keep the epoch that they were started in, so that each row is augmented
    in the same way in all epochs.

    Each row must have other random numbers in each epoch.
    """
    loader = MapLoader(Noise(ROWS), 4, collate_fn=as_list, num_workers=2, persistent_workers=True)
    epochs = [{sample[0]: sample[1:] for batch in loader for sample in batch} for _ in range(4)]
    for row in range(ROWS):
        for numbers_of_one in zip(*(epoch[row] for epoch in epochs), strict=True):
            assert len(set(numbers_of_one)) == len(epochs)


def error_of_a_killed_worker(loaders: NumberedLoaders, name: str) -> str:
    """Kill a worker within an epoch, and return the error that ends the epoch, or the number of its batches."""
    batches = iter(loaders.make(name, batch_size=1, num_workers=2))
    next(batches)
    workers = [process.pid for process in multiprocessing.active_children() if process.pid is not None]
    assert len(workers) == 2
    try:
        os.kill(workers[0], signal.SIGKILL)
        return f"{len([*batches])} more batches"
    except Exception as error:  # torch's own, or that of a connection to the worker
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or torch's handler raises another one later
        return repr(error)


@pytest.mark.parametrize("name", WITH_WORKERS)
def test_a_killed_worker_is_an_error(loaders: NumberedLoaders, name: str) -> None:
    """pytorch/pytorch#21554: a worker that was killed, for example for its memory, makes the training wait forever.

    The loader must raise an error before it ends the epoch.
    """
    (error,) = on_ranks(1, error_of_a_killed_worker, loaders, name)  # in another process, which gets the signal
    assert error.endswith(")"), error


@pytest.mark.parametrize("name", LOADERS)
def test_abandoned_iterations_leave_no_thread_and_no_process(loaders: NumberedLoaders, name: str) -> None:
    """JDAI-CV/fast-reid#583: the thread that reads ahead goes on after its loader is gone, so that each new loader adds
    a thread.

    Threads and worker processes must end with their loader, also if its epoch was not read to the end.
    """
    gc.collect()
    threads, children = threading.active_count(), len(multiprocessing.active_children())
    for _ in range(3):
        for options in [{"prefetch_factor": 2}] * (name in TOKEN_LOADERS) + [{"num_workers": 2}] * (name != "array"):
            loader = loaders.make(name, batch_size=1, **options)
            next(iter(loader))
            del loader
    gc.collect()
    until(threading.active_count, lambda count: count <= threads)
    until(multiprocessing.active_children, lambda found: len(found) <= children)


def tensors_of(value: Any) -> list[Any]:
    return [each for each in value.values() if isinstance(each, torch.Tensor | np.ndarray)]


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in LOADERS if name not in ("map", "preprocessed")),
        "dataset",
        "preprocessed dataset",
        "windows dataset",
    ],
)
def test_writing_to_labels_changes_nothing_else(folder: Any, loaders: NumberedLoaders, name: str) -> None:
    """ServiceNow/Fast-LLM#253: labels are a view of the tokens, so that masking labels in place masks tokens.

    No two tensors of a batch or row must share memory, and what is written to them must not be read again.
    """
    if name.endswith("dataset"):
        source: Any = {
            "dataset": lambda: loaders.dataset("token"),
            "preprocessed dataset": lambda: PreprocessedDataset(numbers(ROWS), LengthEngine()),
            "windows dataset": lambda: TransformerDataset(folder / "stream.txt", Integers(), 2),
        }[name]()
        first, kept = [source[row] for row in range(9)], [source[row] for row in range(9)]
    else:
        source = loaders.make(name)
        first, kept = [*source], [*loaders.make(name)]
        source.set_epoch(0)
    for values in first:
        tensors = tensors_of(values)
        for one, other in combinations(tensors, 2):
            assert not np.shares_memory(np.asarray(one), np.asarray(other))
        for value in tensors:
            value[...] = 1
    again = [source[row] for row in range(9)] if name.endswith("dataset") else [*source]
    for found, own in zip(again, kept, strict=True):
        for value, expected in zip(tensors_of(found), tensors_of(own), strict=True):
            assert (np.asarray(value) == np.asarray(expected)).all()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("error", [IndexError, StopIteration])
def test_an_error_of_a_row_does_not_end_the_epoch(error: type[Exception], workers: int) -> None:
    """pytorch/pytorch#82732: an `IndexError` of a dataset's own code is taken for the end of the dataset, and the loop
    ends without a word.

    The error must be raised, with the row, after the batches before it.
    """
    dataset = Numbers(ROWS, {7: error("from the dataset")})
    for made in (
        MapLoader(dataset, 2, shuffle=False, num_workers=workers),
        DataLoaderBuilder().with_dataset(dataset).with_batch_size(2).with_shuffle(False).with_workers(workers).build(),
    ):
        found = []
        with pytest.raises((RuntimeError, IndexError), match="row 7"):
            found.extend(made)
        assert flat(batch.tolist() for batch in found) == list(range(6))
