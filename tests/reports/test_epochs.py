"""Public reports of epochs that are short, long or repeated: each is rebuilt with every loader that it can concern.

The docstring of each test names its source, what went wrong there, and what must hold here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from datasets import Dataset, IterableDataset, concatenate_datasets
from torch.utils.data import DataLoader, get_worker_info

from support.numbered_loaders import LOADERS, ROWS, TOKEN_LOADERS, WITH_WORKERS, NumberedLoaders, flat
from support.on_the_fly_rows import LengthEngine, numbers
from support.processes import DEADLINE
from support.soak import each
from tokenloom.errors import SourceError
from tokenloom.loaders import StreamingPreprocessedDataset, TokenLoader

COUNT = 150


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> NumberedLoaders:
    return NumberedLoaders(tmp_path_factory.mktemp("numbered"))


@pytest.mark.parametrize("name", LOADERS)
def test_epochs_differ_without_set_epoch(loaders: NumberedLoaders, name: str) -> None:
    """pytorch/pytorch#31771: `DistributedSampler` repeats one order in each epoch, unless the loop calls `set_epoch`.

    Each epoch must have another order on each rank, with every row, without a call.
    """
    ranks = [loaders.make(name, rank=rank, world_size=2) for rank in range(2)]
    epochs = [[loaders.epoch(name, loader) for loader in ranks] for _ in range(3)]
    for epoch in epochs:
        assert {number for batches in epoch for number in flat(batches)} == set(range(loaders.rows(name)))
    for rank in range(2):
        assert len({str(epoch[rank]) for epoch in epochs}) == 3


DROPPING = [name for name in WITH_WORKERS if name not in ("budget", "windows", "stream")]


@pytest.mark.parametrize(
    ("name", "workers"),
    [*each(DROPPING, [0, 2]), ("stream", 0)],
)
def test_only_the_last_batch_is_dropped(loaders: NumberedLoaders, name: str, workers: int) -> None:
    """pytorch/pytorch#33413: with `drop_last`, each worker of an iterable dataset drops a last batch of its own, so
    that more workers lose more rows.

    An epoch must lose fewer rows than one batch has, with any number of workers; those of a stream drop one batch each.
    """
    batches = loaders.epoch(name, loaders.make(name, batch_size=7, num_workers=workers, drop_last=True))
    assert {len(batch) for batch in batches} == {7}
    assert len(set(flat(batches))) == 7 * len(batches) == loaders.rows(name) // 7 * 7


@pytest.mark.parametrize("name", LOADERS)
def test_the_length_of_an_epoch_does_not_grow_with_workers(loaders: NumberedLoaders, name: str) -> None:
    """webdataset/webdataset#303: an epoch has as many times the declared steps as there are workers.

    An epoch must have each row once with any number of workers, and as many steps as `len` says.
    """
    for workers in (0, 2) if name in WITH_WORKERS else (0,):
        loader = loaders.make(name, num_workers=workers)
        batches = loaders.epoch(name, loader)
        assert sorted(flat(batches)) == list(range(loaders.rows(name)))
        if name != "stream":  # the number of its batches is not known before they are encoded
            assert len(loader) == len(batches)


@pytest.mark.parametrize("name", [name for name in LOADERS if name != "stream"])
def test_asking_for_the_length_changes_nothing(loaders: NumberedLoaders, name: str) -> None:
    """Lightning-AI/litData#310: `len(loader)` overwrites the dataset's number of workers, and with it the length and
    the rows of what is read next.

    A loader that is asked for its length before, in and between epochs must yield the batches of one that is not.
    """
    quiet, asked = loaders.make(name), loaders.make(name)
    expected = [loaders.epoch(name, quiet), loaders.epoch(name, quiet)]
    found = list[list[list[int]]]()
    for _ in range(2):
        before, batches = len(asked), list[list[int]]()
        for batch in asked:
            batches.append(loaders.read(name, batch))
            assert len(asked) == before
        found.append(batches)
    assert found == expected


@pytest.mark.parametrize("name", LOADERS)
def test_more_ranks_than_rows_read_each_row(loaders: NumberedLoaders, name: str) -> None:
    """mosaicml/streaming#460: if there are fewer samples than parts to divide them into, parts get the same samples or
    none that exist, and the loader's length is wrong.

    Every row must be read on one of the ranks, and no other row, in as many steps on each rank. A loader that drops
    what does not fill a step must refuse.
    """
    world = ROWS + 20
    if name == "windows":
        with pytest.raises(SourceError, match="do not fill a batch of 4 on every rank"):
            loaders.make(name, world_size=world)
        return
    found = [loaders.epoch(name, loaders.make(name, rank=rank, world_size=world)) for rank in range(world)]
    read = [number for batches in found for number in flat(batches)]
    assert set(read) == set(range(loaders.rows(name)))
    if name in TOKEN_LOADERS or name == "stream":
        assert len(read) == len(set(read))
    if name != "stream":
        assert {len(batches) for batches in found} == {1}


class WithWorkers(StreamingPreprocessedDataset):
    """Yields the number of each row and the worker that read it."""

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        info = get_worker_info()
        yield from ((int(row["input_ids"][0]), info.id if info else -1) for row in super().__iter__())


def sharded(shards: int, begin: int, end: int) -> IterableDataset:
    return Dataset.from_list(numbers(COUNT)[begin:end]).to_iterable_dataset(num_shards=shards)


def read_by_workers(source: IterableDataset, workers: int, world: int) -> dict[int, list[tuple[int, int]]]:
    """Return, for each row, the ranks and workers that read it."""
    found: dict[int, list[tuple[int, int]]] = {}
    for rank in range(world):
        dataset = WithWorkers(source, LengthEngine(), 16, rank=rank, world_size=world)
        for number, worker in DataLoader(dataset, None, num_workers=workers, timeout=DEADLINE):
            found.setdefault(number, []).append((rank, worker))
    return found


def test_streams_of_several_sizes_lose_no_rows_to_workers() -> None:
    """huggingface/datasets#7792: of streams that are concatenated, workers read as many shards as the smallest has; of
    1,450 rows, 705 are read.

    Every row must be read once.
    """
    source = concatenate_datasets([sharded(4, 0, 100), sharded(1, 100, 115), sharded(2, 115, COUNT)])
    found = read_by_workers(source, 2, 2)
    assert sorted(found) == list(range(COUNT))
    assert {len(readers) for readers in found.values()} == {1}


def test_a_shuffled_stream_has_rows_for_every_worker() -> None:
    """huggingface/datasets#8669: since datasets 5.0, a shuffled stream reports one shard, so that all workers and ranks
    but the first have no rows.

    Every worker of every rank must have rows, and every row must be read once.
    """
    found = read_by_workers(sharded(12, 0, COUNT).shuffle(seed=3, buffer_size=20), 2, 2)
    assert sorted(found) == list(range(COUNT))
    assert {len(readers) for readers in found.values()} == {1}
    assert len({readers[0] for readers in found.values()}) == 2 * 2


def test_rows_of_a_mixture_meet_others_in_the_next_epoch(loaders: NumberedLoaders) -> None:
    """hiyouga/LlamaFactory#10672: interleaved datasets are mixed once, so that every epoch has the same batches.

    Each epoch of a mixture must have each row once, and other rows together in its batches.
    """
    loader = TokenLoader(loaders.dataset("mixture"), 4, padding="longest")
    epochs = [loaders.epoch("mixture", loader) for _ in range(4)]
    assert all(sorted(flat(epoch)) == list(range(loaders.rows("mixture"))) for epoch in epochs)
    groups = [frozenset(batch) for epoch in epochs for batch in epoch]
    assert len(set(groups)) == len(groups)


WITH_PADDING_ROWS = [*TOKEN_LOADERS, "stream"]


@pytest.mark.parametrize("name", [*WITH_PADDING_ROWS, "builder"])
def test_a_metric_over_ranks_counts_each_row_once(loaders: NumberedLoaders, name: str) -> None:
    """pytorch/pytorch#25162: `DistributedSampler` repeats the first rows until the ranks have as many each, so that the
    accuracy of a validation depends on the number of ranks.

    The mean over all rows, summed on the ranks, must be that of one rank, for any number of ranks.
    """
    count = loaders.rows(name)
    for world in (1, 2, 3, 5, 7):
        found = [loaders.epoch(name, loaders.make(name, rank=rank, world_size=world)) for rank in range(world)]
        sums = [(sum(flat(batches)), len(flat(batches))) for batches in found]
        assert (sum(total for total, _ in sums), sum(rows for _, rows in sums)) == (count * (count - 1) // 2, count)


@pytest.mark.parametrize(("name", "drop_last"), each([name for name in LOADERS if name != "stream"], [False, True]))
def test_all_ranks_have_as_many_batches(loaders: NumberedLoaders, name: str, drop_last: bool) -> None:
    """Lightning-AI/pytorch-lightning#9851: a rank that has one batch more than the others waits for them forever at the
    end of the epoch.

    In each epoch, all ranks must have as many batches, and as many as `len` says.
    """
    options = {"drop_last": True} if drop_last and name not in ("budget", "windows") else {}
    for world in (2, 3, 5):
        ranks = [loaders.make(name, batch_size=2, rank=rank, world_size=world, **options) for rank in range(world)]
        for _ in range(2):
            expected = {len(loader) for loader in ranks}
            assert {sum(1 for _ in loader) for loader in ranks} == expected and len(expected) == 1
