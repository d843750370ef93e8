"""StreamingPreprocessedDataset: every row once over ranks and workers, shuffled locally, and skipped rows listed."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from datasets import Dataset, IterableDataset, concatenate_datasets, interleave_datasets
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, get_worker_info

from support.gloo_ranks import on_ranks
from support.on_the_fly_rows import Again, LengthEngine, engine_of, good_rows, numbers, plain, rows_with_bad
from support.processes import DEADLINE
from support.soak import each
from tokenloom.errors import ConfigError, DataValidationError, LoaderStateError
from tokenloom.loaders import (
    PreprocessedDataset,
    SkippedRow,
    StreamingPreprocessedDataset,
    create_preprocessed_dataset,
)

COUNT = 301


def generated(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        yield from numbers(COUNT)[shard::7]


def stream(shards: int, rows: list[dict[str, Any]] | None = None) -> IterableDataset:
    return Dataset.from_list(rows or numbers(COUNT)).to_iterable_dataset(num_shards=shards)


SOURCES: dict[str, Any] = {
    "list": lambda: numbers(COUNT),
    "iterable": lambda: Again(numbers(COUNT)),
    "arrow": lambda: pa.Table.from_pylist(numbers(COUNT)),
    "dataset": lambda: Dataset.from_list(numbers(COUNT)),
    "one shard": lambda: stream(1),
    "three shards": lambda: stream(3),
    "many shards": lambda: stream(9),
    "generator": lambda: IterableDataset.from_generator(generated, gen_kwargs={"shards": list(range(7))}),
    "shuffled": lambda: stream(5).shuffle(seed=3, buffer_size=20),
    "mapped": lambda: stream(5).map(lambda row: {**row, "more": 1}),
    "concatenated": lambda: concatenate_datasets([stream(3, numbers(COUNT)[:100]), stream(4, numbers(COUNT)[100:])]),
    "interleaved": lambda: interleave_datasets(
        [stream(5, numbers(COUNT)[:100]), stream(5, numbers(COUNT)[100:])],
        stopping_strategy="all_exhausted_without_replacement",
    ),
    "taken": lambda: stream(6, numbers(COUNT + 50)).take(COUNT),
    "not skipped": lambda: stream(6, [{"n": 0, "times": 1}] * 9 + numbers(COUNT)).skip(9),
    "filtered": lambda: stream(5, numbers(2 * COUNT)).filter(lambda row: row["n"] < COUNT),
    "filled by position": lambda: stream(5).map(lambda row, n: {**row, "n": n}, with_indices=True),
    "later epoch": lambda: _at(stream(5)),
}


def _at(found: IterableDataset) -> IterableDataset:
    found.set_epoch(3)
    return found


def ids(rows: Any) -> list[int]:
    return [int(row["input_ids"][0]) for row in rows]


def in_arrays(row: Any) -> Any:
    """Return a row, or what `WithStates` yields, with arrays: worker processes send each tensor through a file."""
    if isinstance(row, tuple):
        return in_arrays(row[0]), *row[1:]
    return {name: value.numpy() for name, value in row.items()}


def in_tensors(row: Any) -> Any:
    if isinstance(row, tuple):
        return in_tensors(row[0]), *row[1:]
    return {name: torch.from_numpy(value) for name, value in row.items()}


def loaded(dataset: Any, workers: int, **options: Any) -> list[Any]:
    loader = DataLoader(
        dataset, None, num_workers=workers, collate_fn=in_arrays, timeout=DEADLINE if workers else 0, **options
    )
    return [*map(in_tensors, loader)]


@pytest.mark.parametrize(("workers", "source"), each([0, 2], SOURCES))
def test_every_row_once_over_ranks_and_workers(source: str, workers: int) -> None:
    found = []
    for rank in range(2):
        dataset = StreamingPreprocessedDataset(
            SOURCES[source](), LengthEngine(), buffer_size=50, rank=rank, world_size=2
        )
        mine = loaded(dataset, workers)
        assert len(mine) > 40
        assert all(set(row["input_ids"].tolist()) == {int(row["input_ids"][0])} for row in mine)
        found += ids(mine)
    assert Counter(found) == Counter(range(COUNT))


def test_workers_that_inherit_no_memory_too(tokenizer_folder: Path) -> None:
    raw = stream(4, rows_with_bad(COUNT, {5, 290}))
    engine = engine_of(tokenizer_folder)
    dataset = StreamingPreprocessedDataset(raw, engine, 50, skip_errors=True)
    found = list(DataLoader(dataset, None, num_workers=2, multiprocessing_context="forkserver", timeout=DEADLINE))
    whole = PreprocessedDataset(good_rows(COUNT), engine)
    expected = [plain(whole[number]) for number in range(COUNT) if number not in (5, 290)]
    assert Counter(map(plain, found)) == Counter(expected)
    assert len(dataset.skipped) == 2


def test_ranks_of_torch_distributed_share_the_rows_without_being_told() -> None:
    def mine() -> list[int]:
        return ids(loaded(StreamingPreprocessedDataset(numbers(COUNT), LengthEngine()), 2))

    ranks = on_ranks(2, mine)
    assert Counter(n for rank in ranks for n in rank) == Counter(range(COUNT))
    assert all(ranks)


def test_a_stream_that_is_divided_already_is_not_divided_again() -> None:
    for shards in (1, 6):
        parts = [split_dataset_by_node(stream(shards), rank, 2) for rank in range(2)]
        found = [
            ids(loaded(StreamingPreprocessedDataset(part, LengthEngine(), rank=rank, world_size=2), 2))
            for rank, part in enumerate(parts)
        ]
        assert Counter(found[0] + found[1]) == Counter(range(COUNT))


def test_without_a_buffer_the_order_is_that_of_the_stream() -> None:
    for buffer_size in (0, 1):
        for source in ("list", "one shard", "many shards", "generator"):
            dataset = StreamingPreprocessedDataset(SOURCES[source](), LengthEngine(), buffer_size)
            expected = [row["n"] for row in generated(list(range(7)))] if source == "generator" else list(range(COUNT))
            assert ids(dataset) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffling_is_local_and_chosen_by_seed_and_epoch(workers: int) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        dataset = StreamingPreprocessedDataset(numbers(COUNT), LengthEngine(), buffer_size=40, seed=seed)
        dataset.set_epoch(epoch)
        return ids(loaded(dataset, workers))

    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({*map(tuple, orders)}) == 4
    assert order(1, 1) == orders[3]
    if not workers:
        for found in orders:
            assert {place // 40 == n // 40 for place, n in enumerate(found)} == {True}
            assert found != sorted(found)


def test_persistent_workers_follow_set_epoch() -> None:
    dataset = StreamingPreprocessedDataset(numbers(COUNT), LengthEngine(), buffer_size=100)
    loader = DataLoader(dataset, None, num_workers=2, persistent_workers=True, collate_fn=in_arrays, timeout=DEADLINE)
    epochs = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        epochs.append(ids(loader))
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] == epochs[2] != epochs[1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shards", [None, 8])
def test_skipped_rows_are_all_named(tokenizer_folder: Path, workers: int, shards: int | None) -> None:
    bad = {0, 1, 77, 299, 300}
    rows = rows_with_bad(COUNT, bad)
    skipped: list[SkippedRow] = []
    found, mine = [], []
    for rank in range(2):
        raw = rows if shards is None else stream(shards, rows)
        dataset = StreamingPreprocessedDataset(
            raw, engine_of(tokenizer_folder), 50, skip_errors=True, rank=rank, world_size=2
        )
        for epoch in range(2):  # only those of the latest epoch
            dataset.set_epoch(epoch)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                mine = loaded(dataset, workers)
            # Each worker warns on its own stderr. What other libraries of this process say of forks is not ours.
            counted = [text for text in map(str, (warning.message for warning in told)) if "rows were skipped" in text]
            assert len(counted) == (0 if workers else 1)
        found += mine
        skipped += dataset.skipped
    assert len(found) == COUNT - len(bad)
    numbered = [list(range(COUNT))]
    if shards is not None:
        raw = stream(shards, [{"n": n} for n in range(COUNT)])
        numbered = [[row["n"] for row in raw.shard(shards, shard)] for shard in range(shards)]
    assert sorted(numbered[row.shard or 0][row.row] for row in skipped) == sorted(bad)
    assert {(row.shard is None) for row in skipped} == {shards is None}
    assert {row.code for row in skipped} == {"empty_answer"}
    assert all("a" in row.message for row in skipped)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_bad_row_raises_with_its_identity(tokenizer_folder: Path, workers: int) -> None:
    engine = engine_of(tokenizer_folder)
    dataset = StreamingPreprocessedDataset(rows_with_bad(COUNT, {280, 290, 300}), engine, buffer_size=0)
    with pytest.raises(DataValidationError, match=r"row 280: empty_answer: .*skip_errors=True"):
        loaded(dataset, workers)
    dataset = StreamingPreprocessedDataset(stream(4, numbers(COUNT, {299})), LengthEngine())
    with pytest.raises(DataValidationError, match=r"row 73 of shard 3: ValueError: a negative number"):
        loaded(dataset, workers)


def test_what_is_no_mapping_or_fits_no_column_is_a_bad_row_of_its_own() -> None:
    rows: list[Any] = numbers(20)
    rows[3], rows[11], rows[15] = "text", None, {"n": "nan", "times": 1}
    dataset = StreamingPreprocessedDataset(rows, LengthEngine(), skip_errors=True)
    with pytest.warns(UserWarning, match="3 rows were skipped: 3 × TypeError"):
        assert sorted(ids(dataset)) == [n for n in range(20) if n not in (3, 11, 15)]
    assert [(row.row, row.code) for row in dataset.skipped] == [(n, "TypeError") for n in (3, 11, 15)]


def test_rows_that_settings_drop_raise_nothing_but_are_named(tokenizer_folder: Path) -> None:
    raw = [*good_rows(4), {"q": "q", "a": "long " * 200}]
    dataset = StreamingPreprocessedDataset(raw, engine_of(tokenizer_folder, length={"strategy": "drop"}))
    with pytest.warns(UserWarning, match="1 × filtered"):
        assert len(list(dataset)) == 4
    assert [(row.row, row.code) for row in dataset.skipped] == [(4, "filtered")]


@pytest.mark.parametrize("workers", [0, 2])
def test_long_rows_are_split_and_short_ones_packed(tokenizer_folder: Path, workers: int) -> None:
    raw = [{"q": f"q {n}", "a": f"word {n} " * (1 + n % 60)} for n in range(60)]
    split = engine_of(tokenizer_folder, length={"strategy": "split"})
    expected = split.encode(pa.Table.from_pylist(raw))["input_ids"].to_pylist()
    found = loaded(StreamingPreprocessedDataset(raw, split), workers)
    assert len(expected) > len(raw)
    assert Counter(tuple(row["input_ids"].tolist()) for row in found) == Counter(map(tuple, expected))
    packed = engine_of(tokenizer_folder, length={"packing": "best_fit"})
    table = packed.encode(pa.Table.from_pylist(raw))
    assert Counter(row for rows in table["rows"].to_pylist() for row in rows) == Counter(range(60))
    found = loaded(StreamingPreprocessedDataset(raw, packed, buffer_size=20), workers)
    assert len(found) < len(raw)
    for row in found:
        starts = (row["position_ids"] == 0).nonzero().flatten().tolist()
        assert starts[0] == 0
        assert set(row["labels"][starts].tolist()) == {-100}
    documents = sum(int((row["position_ids"] == 0).sum()) for row in found)
    assert documents == 60


def resumed_at(dataset: StreamingPreprocessedDataset, state: dict[str, Any]) -> StreamingPreprocessedDataset:
    dataset.load_state_dict(state)
    return dataset


class WithStates(StreamingPreprocessedDataset):
    """Yields each row with its worker's number and the worker's state after the row."""

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        for row in super().__iter__():
            yield row, worker.id if worker else -1, self.state_dict()


def test_each_worker_resumes_from_its_own_state() -> None:
    dataset = WithStates(numbers(COUNT), LengthEngine(), buffer_size=40)
    whole = loaded(dataset, 2)
    for stop in (10, 151, 290):
        states = {worker: state for _, worker, state in whole[:stop]}

        def load(worker: int, states: dict[int, Any] = states) -> None:
            info: Any = get_worker_info()
            info.dataset.load_state_dict(states[worker])

        rest = loaded(dataset, 2, worker_init_fn=load)
        for worker in range(2):
            expected = ids(row for row, made_by, _ in whole[stop:] if made_by == worker)
            assert ids(row for row, made_by, _ in rest if made_by == worker) == expected


def test_a_state_goes_on_at_the_next_row() -> None:
    def made() -> StreamingPreprocessedDataset:
        return StreamingPreprocessedDataset(numbers(COUNT, {50, 120}), LengthEngine(), 40, skip_errors=True, seed=5)

    dataset = made()
    dataset.set_epoch(2)
    with pytest.warns(UserWarning, match="skipped"):
        whole = ids(dataset)
    for stop in (0, 1, 39, 40, 41, 200, len(whole)):
        rows = iter(dataset)
        for _ in range(stop):
            next(rows)
        state = pickle.loads(pickle.dumps(dataset.state_dict()))
        resumed = made()
        resumed.load_state_dict(state)
        resumed.set_epoch(2)  # like training loops do
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert ids(resumed) == whole[stop:]
            assert ids(resumed) == whole
    with pytest.raises(LoaderStateError, match="seed is 5 in the state, 6 here"):
        StreamingPreprocessedDataset(numbers(9), LengthEngine(), 40, seed=6).load_state_dict(state)
    with pytest.raises(LoaderStateError, match="no version"):
        made().load_state_dict({})
    with pytest.raises(LoaderStateError, match="share 0 of 1, but this process reads share 0 of 2"):
        loaded(resumed_at(made(), state), 2)
    dataset = StreamingPreprocessedDataset(numbers(9), LengthEngine())
    loaded(dataset, 2)
    with pytest.raises(LoaderStateError, match="worker processes"):
        dataset.state_dict()


def test_what_is_no_stream_is_refused(tokenizer_folder: Path) -> None:
    engine = engine_of(tokenizer_folder)
    with pytest.raises(ValueError, match="read only once"):
        StreamingPreprocessedDataset(iter(good_rows(3)), engine)
    with pytest.raises(ValueError, match="pass one of 'train'"):
        StreamingPreprocessedDataset({"train": stream(1)}, engine)
    with pytest.raises(ValueError, match="got a int"):
        StreamingPreprocessedDataset(7, engine)
    with pytest.raises(ValueError, match=r"buffer_size must be .* got -1"):
        StreamingPreprocessedDataset(good_rows(3), engine, buffer_size=-1)
    with pytest.raises(ConfigError, match="a"):
        StreamingPreprocessedDataset([{"q": "x", "b": "y"}], engine)
    assert list(StreamingPreprocessedDataset([], engine)) == []


def test_the_factory_chooses_by_what_the_dataset_can(tokenizer_folder: Path) -> None:
    engine = engine_of(tokenizer_folder)
    rows = good_rows(5)
    assert isinstance(create_preprocessed_dataset(rows, engine), PreprocessedDataset)
    for dataset, streaming in ((Dataset.from_list(rows), True), (stream(2, rows), False), (Again(rows), False)):
        made = create_preprocessed_dataset(dataset, engine, streaming=streaming, buffer_size=0)
        assert isinstance(made, StreamingPreprocessedDataset)
        assert len(list(made)) == 5


def test_reports_leave_nothing_behind_and_outlive_forked_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dataset = StreamingPreprocessedDataset(numbers(9, {4}), LengthEngine(), skip_errors=True)

    def child() -> None:
        nonlocal dataset
        del dataset
        gc.collect()

    process = multiprocessing.get_context("fork").Process(target=child, daemon=True)
    process.start()
    process.join(DEADLINE)
    assert process.exitcode == 0
    loaded(dataset, 2)
    assert [row.row for row in dataset.skipped] == [4]
    assert [*tmp_path.iterdir()]
    del dataset
    gc.collect()
    assert not [*tmp_path.iterdir()]
