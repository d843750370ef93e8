"""Several iterations of one loader: each has its own place, and the loader's state is that of the one that counts."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from support.foreign_datasets import Numbers, as_list
from support.on_the_fly_rows import engine_of, good_rows, plain
from support.soak import some
from support.stored_sequences import write_numbered
from tokenloom import open_dataset
from tokenloom.errors import ConfigError, LoaderStateError
from tokenloom.loaders import (
    ArrayDataLoader,
    DataLoaderBuilder,
    MapLoader,
    MixedDataset,
    StreamingDataset,
    StreamingLoader,
    StreamingPreprocessedDataset,
    TokenLoader,
)

ROWS, BATCH = 37, 4
STEPS = -(-ROWS // BATCH)

Make = Callable[[], Any]


class Rows:
    """An encoder of numbered rows for a `StreamingDataset`, of one token each."""

    def encode(self, table: Any) -> Any:
        import pyarrow as pa

        numbers = table["n"].to_pylist()
        ids = pa.array([[number + 3] for number in numbers], pa.list_(pa.uint32()))
        trained = pa.array([[1]] * len(numbers), pa.list_(pa.uint8()))
        lengths = pa.array([[1]] * len(numbers), pa.list_(pa.int32()))
        return pa.table({"input_ids": ids, "trained": trained, "document_lengths": lengths})


@pytest.fixture(scope="module")
def makers(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> dict[str, Make]:
    folder = tmp_path_factory.mktemp("iterations")
    write_numbered(folder, "data", [20, 17], 9, first=3)
    dataset = open_dataset("data", store=folder)
    samples = list(range(ROWS))
    engine = engine_of(tokenizer_folder)

    def token(**options: Any) -> TokenLoader:
        return TokenLoader(dataset, **{"batch_size": BATCH, "padding": "longest", **options})

    return {
        "token": token,
        "token, 2 workers": lambda: token(num_workers=2),
        "token, new workers": lambda: token(num_workers=2, persistent_workers=False),
        "token, read ahead": lambda: token(prefetch_factor=3),
        "token budget": lambda: token(token_budget=24),
        "array": lambda: ArrayDataLoader(dataset_name=dataset, batch_size=BATCH),
        "map": lambda: MapLoader(Numbers(ROWS), BATCH, collate_fn=as_list),
        "map, 2 workers": lambda: MapLoader(Numbers(ROWS), BATCH, collate_fn=as_list, num_workers=2),
        "builder": lambda: DataLoaderBuilder().with_dataset(samples).with_batch_size(BATCH).with_workers(2).build(),
        "transform": lambda: DataLoaderBuilder().with_dataset(dataset).with_transform(dict).with_batch_size(4).build(),
        "rows": lambda: StreamingPreprocessedDataset(good_rows(ROWS), engine, buffer_size=8),
    }


KINDS = [
    *("token", "token, 2 workers", "token, new workers", "token, read ahead", "token budget", "array"),
    *("map", "map, 2 workers", "builder", "transform", "rows"),
]
FEW = some(KINDS, 3)


def key(batch: Any) -> Any:
    """Return a batch in a form that can be compared."""
    if not isinstance(batch, dict):
        return batch if isinstance(batch, list) else batch.tolist()
    return plain(batch) if "input_ids" in batch and batch["input_ids"].ndim == 1 else batch["input_ids"].tolist()


def read(loader: Any, count: int | None = None) -> list[Any]:
    return [key(batch) for batch in islice(loader, count)]


def epoch_of(make: Make, epoch: int) -> list[Any]:
    loader = make()
    loader.set_epoch(epoch)
    return read(loader)


@pytest.mark.parametrize("kind", KINDS)
def test_iterations_do_not_disturb_each_other(makers: dict[str, Make], kind: str) -> None:
    noise, loader, expected = random.Random(kind), makers[kind](), epoch_of(makers[kind], 0)
    running: list[tuple[Iterator[Any], list[Any]]] = []
    for _ in range(24):
        if len(running) < 3 and noise.random() < 0.3:
            iterator = iter(loader)
            running.append((iterator, [key(next(iterator))]))  # it begins with its first batch
        elif running:
            iterator, seen = noise.choice(running)
            seen += [key(batch) for batch in islice(iterator, min(noise.randrange(3), len(expected) - 1 - len(seen)))]
    assert len(running) > 1
    for iterator, seen in running:
        assert seen + [key(batch) for batch in iterator] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_look_in_a_loop_changes_neither_the_loop_nor_the_state(makers: dict[str, Make], kind: str) -> None:
    loader, expected, seen = makers[kind](), epoch_of(makers[kind], 0), []
    for batch in loader:
        seen.append(key(batch))
        if len(seen) in (2, 5):
            before = loader.state_dict()
            assert read(loader, 2) == expected[:2]
            assert loader.state_dict() == before
            resumed = makers[kind]()
            resumed.load_state_dict(before)
            assert read(resumed) == expected[len(seen) :]
        if len(seen) == 3:
            assert read(loader) == expected  # such as an evaluation on the training data
    assert seen == expected
    if kind != "rows":  # a dataset stays in its epoch
        assert loader.state_dict()["epoch"] == 1 and read(loader) == epoch_of(makers[kind], 1)


@pytest.mark.parametrize("kind", FEW)
def test_a_state_of_two_running_iterations_is_refused(makers: dict[str, Make], kind: str) -> None:
    loader, expected = makers[kind](), epoch_of(makers[kind], 0)
    first, second = iter(loader), iter(loader)
    seen = [key(batch) for batch in islice(first, 3)]
    next(second)
    with pytest.raises(LoaderStateError, match="2 iterations of this loader are running") as refused:
        loader.state_dict()
    assert "close" in str(refused.value) and "\n" not in str(refused.value)
    seen.append(key(next(first)))  # the second was a look
    assert_resumes(makers[kind], loader.state_dict(), expected[len(seen) :])
    next(second)
    del second
    assert_resumes(makers[kind], loader.state_dict(), expected[len(seen) :])


def assert_resumes(make: Make, state: Any, expected: list[Any]) -> None:
    resumed = make()
    resumed.load_state_dict(state)
    assert read(resumed) == expected


@pytest.mark.parametrize("kind", FEW)
def test_an_interrupted_iteration_starts_again_and_a_loaded_state_stays(makers: dict[str, Make], kind: str) -> None:
    loader, expected = makers[kind](), epoch_of(makers[kind], 0)
    assert read(loader, 3) == expected[:3]
    state = loader.state_dict()
    assert read(loader, 3) == expected[:3]
    loader.load_state_dict(state)
    for _ in range(2):  # a look at the first batch does not use the state up
        assert read(loader, 2) == expected[3:5]
    assert read(loader) == expected[3:]


@pytest.mark.parametrize("kind", FEW)
def test_a_state_that_is_loaded_in_a_loop_is_for_the_next_one(makers: dict[str, Make], kind: str) -> None:
    loader, expected = makers[kind](), epoch_of(makers[kind], 0)
    assert read(loader, 6) == expected[:6]
    state = loader.state_dict()
    iterator = iter(loader)
    seen = [key(batch) for batch in islice(iterator, 2)]
    loader.load_state_dict(state)
    assert seen + [key(batch) for batch in iterator] == expected
    assert loader.state_dict() == state
    assert read(loader) == expected[6:]


@pytest.mark.parametrize("kind", FEW)
def test_a_loaded_state_goes_before_the_epoch_that_a_framework_counts(makers: dict[str, Make], kind: str) -> None:
    loader, make = makers[kind](), makers[kind]
    loader.set_epoch(2)
    read(loader, 3)
    state = loader.state_dict()
    counted = make()
    counted.load_state_dict(state)
    sampler = getattr(counted, "sampler", counted)
    (sampler if hasattr(sampler, "set_epoch") else counted).set_epoch(0)
    assert read(counted) == epoch_of(make, 2)[3:]
    counted.set_epoch(1)
    assert read(counted) == epoch_of(make, 1)
    if kind != "rows":
        asked = make()
        asked.load_state_dict(state)
        with pytest.warns(UserWarning, match=r"set_epoch\(5\) has no effect: the loader resumes in epoch 2"):
            asked.set_epoch(5)


@pytest.mark.parametrize("kind", FEW)
def test_an_epoch_that_is_chosen_in_a_loop_is_the_next_one(makers: dict[str, Make], kind: str) -> None:
    loader, seen = makers[kind](), []
    for batch in loader:
        seen.append(key(batch))
        if len(seen) == 3:
            loader.set_epoch(4)
            assert loader.state_dict()["epoch"] == 0
    assert seen == epoch_of(makers[kind], 0)
    assert read(loader) == epoch_of(makers[kind], 4)


@pytest.mark.parametrize("kind", ["token", "map", "array"])
def test_all_batches_of_an_epoch_finish_it_also_beside_a_look(makers: dict[str, Make], kind: str) -> None:
    loader = makers[kind]()
    count, first = len(loader), read(loader, 1)
    assert read(loader, count) == epoch_of(makers[kind], 0) and first == epoch_of(makers[kind], 0)[:1]
    assert read(loader, count) == epoch_of(makers[kind], 1)
    assert copy.deepcopy(loader).state_dict() == loader.state_dict()


@pytest.mark.parametrize("kind", ["token", "map", "array", "token budget"])
def test_a_state_at_the_end_of_an_epoch_goes_on_with_the_next_one(makers: dict[str, Make], kind: str) -> None:
    loader, make = makers[kind](), makers[kind]
    read(loader, len(loader))
    state = loader.state_dict()
    for count in (None, 1):  # a framework may count the next epoch, or not
        resumed = make()
        resumed.load_state_dict(state)
        if count:
            resumed.sampler.set_epoch(count)
        else:
            assert read(resumed) == []
        assert read(resumed) == epoch_of(make, 1)


def test_pairs_of_one_loader_are_equal(makers: dict[str, Make]) -> None:
    for kind in ("token", "token, 2 workers", "map, 2 workers"):
        loader = makers[kind]()
        equal = [key(one) == key(other) for one, other in zip(loader, loader, strict=True)]
        assert equal == [True] * STEPS
        assert loader.state_dict()["epoch"] == 1


def test_a_stream_of_batches_too() -> None:
    import pyarrow as pa

    from tokenloom.loaders import PaddingPolicy

    tables = [pa.table({"n": list(range(begin, begin + 10))}) for begin in (0, 10, 20)]

    def make() -> StreamingLoader:
        policy = PaddingPolicy(0, "longest", "right", 8, False)
        return StreamingLoader(StreamingDataset(lambda: iter(tables), Rows(), policy, BATCH, shuffle=True))

    loader, expected, seen, before = make(), epoch_of(make, 0), [], {}
    for batch in loader:
        seen.append(key(batch))
        if len(seen) == 3:
            before = loader.state_dict()
            loader.set_epoch(1)
            assert read(loader, 2) == epoch_of(make, 1)[:2]
            assert loader.state_dict() == before
    assert seen == expected and sorted(row for batch in expected for row in batch) == [[n + 3] for n in range(30)]
    assert_resumes(make, before, expected[3:])
    counted: Any = make()
    counted.load_state_dict(before)
    counted.dataset.set_epoch(7)
    assert read(counted) == expected[3:]


def test_what_people_try_on_datasets(makers: dict[str, Make]) -> None:
    from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

    dataset: Any = makers["token"]().dataset.dataset
    rows = [dataset[row]["input_ids"].tolist() for row in range(len(dataset))]
    assert [row["input_ids"].tolist() for row in dataset[2:9:3]] == rows[2:9:3] and dataset[5:2] == []
    assert [row["input_ids"].tolist() for row in dataset] == rows
    assert [row["input_ids"].tolist() for row in Subset(dataset, [3, 1])] == [rows[3], rows[1]]
    one, other = random_split(dataset, [0.7, 0.3])
    assert sorted(row["input_ids"].tolist() for part in (one, other) for row in part) == sorted(rows)
    joined: Any = ConcatDataset([dataset, dataset])
    assert joined[len(dataset) + 4]["input_ids"].tolist() == rows[4]
    seen = [row["input_ids"].tolist() for batch in DataLoader(joined, 4, collate_fn=list) for row in batch]
    assert seen == rows * 2
    with pytest.raises(TypeError, match=r"^rows are chosen by an integer or a slice, got a list; .*Subset"):
        dataset[[1, 2]]
    with pytest.raises(IndexError, match=f"row {ROWS} of {ROWS}"):
        dataset[ROWS]
    refused: list[tuple[Any, str]] = [
        ("data", r"got the name 'data'; open it: TokenLoader\(open_dataset\('data'\)\)"),
        (Subset(dataset, [1]), "a Subset is not a built dataset; for its rows, use DataLoaderBuilder"),
        (joined, "a ConcatDataset is not a built dataset"),
        (None, "a NoneType is not a built dataset"),
    ]
    for given, told in refused:
        with pytest.raises(ConfigError, match=told):
            TokenLoader(given)
    padded = DataLoaderBuilder().with_dataset(Subset(dataset, [*range(9)])).with_batch_size(4).build()
    assert sum(len(batch["input_ids"]) for batch in padded) == 9
    mixed = MixedDataset({"data": dataset}, {"data": 1}, "rows")
    with pytest.raises(ValueError, match="a MixedDataset lacks them"):
        MapLoader(mixed)
