"""States: their contents, and which are refused. test_product.py stops and resumes in all combinations."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from support.loaded_rows import Row, rows_of, settings, write_rows
from tokenloom import open_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.config import PipelineConfig
from tokenloom.errors import LoaderStateError
from tokenloom.loaders import TokenDataset, TokenLoader, batch_digest
from tokenloom.loaders.order.batch_plan import WINDOW_ROWS
from tokenloom.loaders.order.row_order import BLOCK, RowOrder, Shuffle
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.resources.store import ArtifactStore

SIZE = ChunkSize(target=2048, maximum=8192)
FAR = 10**12


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, write_config: Callable[..., Path], tokenizer_folder: Path) -> Path:
    """A store with `data`, `packed` and `other` (the rows of `data` and more)."""
    path = tmp_path_factory.mktemp("resume")
    store = ArtifactStore(path / "store")
    for name, count, length in (("data", 103, {}), ("packed", 103, {"packing": "concat"}), ("other", 140, {})):
        write_rows(path / f"{name}.jsonl", count)
        config = write_config(
            path, name, dataset={"name": f"{name}.jsonl"}, length=length, **settings(tokenizer_folder)
        )
        list(Build(PipelineConfig.from_file(config), store, chunk_size=SIZE).run_all())
    return path / "store"


def loaders(dataset: TokenDataset, world: int, **arguments: Any) -> list[TokenLoader]:
    return [
        TokenLoader(dataset, rank=rank, world_size=world, padding="longest", seed=5, **arguments)
        for rank in range(world)
    ]


def walked(running: list[TokenLoader]) -> list[Row]:
    """Return the remaining rows of the epoch, of all ranks together."""
    return [row for batches in zip(*running, strict=True) for row in rows_of(batches)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_state_tells_of_batches_given_not_of_those_prefetched(store: Path, workers: int) -> None:
    dataset = open_dataset("data", store=store)
    right = [batch_digest(batch) for batch in TokenLoader(dataset, batch_size=7, seed=5)]
    loader = TokenLoader(dataset, batch_size=7, seed=5, num_workers=workers, persistent_workers=False)
    batches = iter(loader)
    found = [batch_digest(next(batches)) for _ in range(3)]
    state = loader.state_dict()
    assert state["position"] == 21
    for resumed_workers in (0, workers):
        resumed = TokenLoader(dataset, batch_size=7, seed=5, num_workers=resumed_workers, persistent_workers=False)
        resumed.load_state_dict(state)
        assert found + [batch_digest(batch) for batch in resumed] == right


class Counted(RowOrder):
    """Counts the positions whose rows it computes."""

    computed = 0

    def take(self, positions: Any) -> Any:
        self.computed += len(positions)
        return super().take(positions)


class Repeated(TokenDataset):
    """A dataset that repeats its rows many times; `read` lists the rows of the batches."""

    def __init__(self, real: TokenDataset):
        self.__dict__.update(real.__dict__)
        reader, real_rows, self.read = SequenceReader.joined([real.reader]), len(real), list[int]()
        batches = reader.batches

        def batches_of(rows: Any, policy: Any, images: bool = True) -> Any:
            self.read += [row for some in rows for row in some.tolist()]
            return batches([some % real_rows for some in rows], policy, images)

        reader.batches, self.lengths = batches_of, lambda rows: real.lengths(rows % real_rows)
        self.__dict__["reader"] = reader

    def __len__(self) -> int:
        return FAR

    def order(self, seed: int, shuffle: Shuffle) -> Counted:
        self.counted = Counted(FAR, self.digest, seed, shuffle)
        return self.counted


@pytest.mark.parametrize("shuffle", ["full", "block", "none"])
@pytest.mark.parametrize("position", [0, 10**6, 10**9, FAR - 1])
@pytest.mark.parametrize("budget", [None, 256])
def test_going_on_far_in_takes_no_more_than_at_the_begin(
    store: Path, shuffle: Shuffle, position: int, budget: int | None
) -> None:
    position -= position % WINDOW_ROWS if budget else 0
    real = open_dataset("data", store=store)
    stored = walked(loaders(real, 1, batch_size=50, shuffle="none"))
    dataset = Repeated(real)
    (loader,) = loaders(dataset, 1, batch_size=8, shuffle=shuffle, token_budget=budget)
    state = {**loader.state_dict(), "epoch": 2, "position": position}
    tracemalloc.start()
    try:
        loader.load_state_dict(state)
        batch = next(iter(loader))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert dataset.counted.computed <= 2 * BLOCK
    places = np.arange(position, min(position + (WINDOW_ROWS if budget else 8), FAR))
    due = RowOrder(FAR, real.digest, 5, shuffle).rows(2, places).tolist()
    assert {*dataset.read} <= {*due} if budget else dataset.read == due
    assert rows_of([batch]) == [stored[row % len(real)] for row in dataset.read]


@pytest.mark.parametrize(("begin", "end"), [(2, 5), (0, 3)])
def test_skipped_steps_are_left_out_in_any_shape(store: Path, begin: int, end: int) -> None:
    dataset = open_dataset("data", store=store)
    whole = walked(loaders(dataset, 1, batch_size=8))
    left = whole[: 8 * begin] + whole[8 * end :]
    for world, batch in ((1, 8), (2, 4), (3, 5)):
        first = loaders(dataset, 1, batch_size=8)[0]
        first.skip(begin, end)
        resumed = loaders(dataset, world, batch_size=batch)
        for loader in resumed:
            loader.load_state_dict(first.state_dict())
        assert walked(resumed) == left
        assert Counter(walked(resumed)) == Counter(whole)


def test_breaking_off_begins_the_epoch_anew_and_a_state_goes_on(store: Path) -> None:
    dataset = open_dataset("data", store=store)
    loader = loaders(dataset, 1, batch_size=8)[0]
    first = batch_digest(next(iter(loader)))
    assert batch_digest(next(iter(loader))) == first
    state = loader.state_dict()
    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert batch_digest(next(iter(loader))) != first


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seed": 6}, "seed is 5 in the state, 6 here"),
        ({"shuffle": "none"}, "shuffle is full in the state, none here"),
        ({"token_budget": 99}, "it lacks token_budget"),
    ],
)
def test_a_state_of_another_run_is_refused(store: Path, change: dict[str, Any], told: str) -> None:
    dataset = open_dataset("data", store=store)
    state = loaders(dataset, 1)[0].state_dict()
    arguments = {"rank": 0, "world_size": 1, "padding": "longest", "seed": 5} | change
    with pytest.raises(LoaderStateError, match=told):
        TokenLoader(dataset, **arguments).load_state_dict(state)


def test_a_state_of_the_former_block_shuffle_is_refused(store: Path) -> None:
    (loader,) = loaders(open_dataset("data", store=store), 1, shuffle="block")
    state = loader.state_dict()
    loader.load_state_dict(state)
    with pytest.raises(LoaderStateError, match="block shuffle had another order: finish its epoch with"):
        loader.load_state_dict({**state, "version": 1})
    (full,) = loaders(open_dataset("data", store=store), 1)
    assert full.state_dict()["version"] == 1
    with pytest.raises(LoaderStateError, match="shuffle is block in the state, full here"):
        full.load_state_dict(state)


def test_a_state_of_other_data_is_refused(store: Path) -> None:
    state = loaders(open_dataset("other", store=store), 1)[0].state_dict()
    with pytest.raises(LoaderStateError, match="the state is from another run: data is"):
        loaders(open_dataset("data", store=store), 1)[0].load_state_dict(state)
    for damaged, told in (({}, "no version"), ({**state, "version": 9}, "version 9"), ({"version": 1}, "lacks data")):
        with pytest.raises(LoaderStateError, match=told):
            loaders(open_dataset("other", store=store), 1)[0].load_state_dict(damaged)
    with pytest.raises(LoaderStateError, match="damaged"):
        loaders(open_dataset("other", store=store), 1)[0].load_state_dict({**state, "position": -1})


def test_peers_get_identical_batches_and_other_ranks_get_others(store: Path) -> None:
    dataset = open_dataset("packed", store=store)
    one, same = ([batch_digest(b) for b in TokenLoader(dataset, rank=0, world_size=2)] for _ in range(2))
    other = [batch_digest(b) for b in TokenLoader(dataset, rank=1, world_size=2)]
    assert one == same
    assert not {*one} & {*other}


@pytest.mark.parametrize(("world", "batch"), [(1, 5), (2, 4)])
@pytest.mark.parametrize("name", ["data", "packed"])
def test_a_trace_names_the_raw_rows_of_a_batch(store: Path, name: str, world: int, batch: int) -> None:
    dataset = open_dataset(name, store=store)
    lines = [json.loads(line)["q"] for line in (store.parent / f"{name}.jsonl").read_text().splitlines()]
    tokenizer = transformers.AutoTokenizer.from_pretrained(dataset.tokenizer_path)
    running = loaders(dataset, world, batch_size=batch)
    for step, batches in enumerate(zip(*running, strict=True)):
        for rank, found in enumerate(batches):
            rows = [row for row, mask in zip(found["input_ids"], found["attention_mask"], strict=True) if mask.any()]
            traced = running[0].trace(step, rank)
            assert len(traced) == len(rows)
            for row, told in zip(rows, traced, strict=True):
                assert (told.dataset, told.split) == (name, "train")
                text = tokenizer.decode(row)
                for place in told.places:
                    file, _, line = place.rpartition(":")
                    assert file == f"{name}.jsonl"
                    if name == "data":
                        assert text.split()[0] == lines[int(line) - 1].split()[0]
    assert running[0].trace(len(running[0])) != running[0].trace(0)
