"""Public reports of loaders that resume at a wrong place: each is rebuilt with every loader that it can concern.

The docstring of each test names its source, what went wrong there, and what must hold here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from datasets import Dataset
from datasets.distributed import split_dataset_by_node

from support.numbered_loaders import LOADERS, ROWS, TOKEN_LOADERS, WITH_WORKERS, NumberedLoaders, flat
from support.on_the_fly_rows import LengthEngine, numbers
from tokenloom.errors import LoaderStateError, TokenloomError
from tokenloom.loaders import MapLoader, MixedDataset, StreamingPreprocessedDataset, TokenLoader, UniversalDataModule

BATCHES = 6
"""In an epoch of most of the loaders."""


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> NumberedLoaders:
    return NumberedLoaders(tmp_path_factory.mktemp("numbered"))


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def taken(loaders: NumberedLoaders, name: str, loader: Any, count: int) -> list[list[int]]:
    """Return the numbers in the next batches, from epoch to epoch, and leave the loader after the last of them."""
    return [loaders.read(name, batch) for batch in islice(endless(loader), count)]


def saved(loader: Any) -> Any:
    return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_that_is_resumed_again_and_again_loses_no_row(loaders: NumberedLoaders, name: str) -> None:
    """KempnerInstitute/KempnerForge#57: the state counts batches since the last resume, so that the second resume
    within an epoch goes back.

    Loaders that are each stopped after two batches, and continue from the state of the one before, must yield the
    batches of one loader.
    """
    count = 3 * BATCHES
    expected = taken(loaders, name, loaders.make(name), count)
    found, state = list[list[int]](), None
    while len(found) < count:
        loader = loaders.make(name)
        if state is not None:
            loader.load_state_dict(state)
        found += taken(loaders, name, loader, 2)
        state = saved(loader)
    assert found == expected


@pytest.mark.parametrize("name", WITH_WORKERS)
def test_epochs_after_a_resume_are_whole(loaders: NumberedLoaders, name: str) -> None:
    """huggingface/datasets#7447: with persistent workers, all epochs after a resume have only the rows that were left
    of the epoch in which it was.

    The epochs after a resumed one must be those of a loader that was not stopped.
    """
    whole = loaders.make(name, num_workers=2)
    expected = [loaders.epoch(name, whole) for _ in range(3)]
    stopped = loaders.make(name, num_workers=2)
    taken(loaders, name, stopped, 4)
    resumed = loaders.make(name, num_workers=2)
    resumed.load_state_dict(saved(stopped))
    assert [loaders.epoch(name, resumed) for _ in range(3)] == [expected[0][4:], *expected[1:]]


@pytest.mark.parametrize("name", [name for name in TOKEN_LOADERS if name != "budget"])
def test_skipped_batches_are_skipped_once(loaders: NumberedLoaders, name: str) -> None:
    """huggingface/accelerate#1451: batches that are skipped in the resumed epoch are skipped in all later epochs.

    A skip must concern the steps that it names, and no others, also after a resume in a later epoch.
    """
    plain, skipping = loaders.make(name), loaders.make(name)
    skipping.skip(1, 3)
    expected = [loaders.epoch(name, plain) for _ in range(3)]
    assert loaders.epoch(name, skipping) == [expected[0][0], *expected[0][3:]]
    assert loaders.epoch(name, skipping) == expected[1]
    taken(loaders, name, skipping, 2)
    resumed = loaders.make(name)
    resumed.load_state_dict(saved(skipping))
    assert loaders.epoch(name, resumed) == expected[2][2:]


@pytest.mark.parametrize("name", LOADERS)
def test_a_later_epoch_resumes_with_its_own_order(loaders: NumberedLoaders, name: str) -> None:
    """huggingface/transformers#40691: a run that is resumed in the second epoch or later skips batches of the order of
    the first epoch, so that rows are repeated and others are lost.

    A state of the third epoch must continue with the rest of its order, whether or not the loop calls `set_epoch`.
    """
    whole = loaders.make(name)
    third = [loaders.epoch(name, whole) for _ in range(3)][2]
    stopped = loaders.make(name)
    for _ in range(2):
        loaders.epoch(name, stopped)
    assert taken(loaders, name, stopped, 2) == third[:2]
    for calls in (False, True):
        resumed = loaders.make(name)
        resumed.load_state_dict(saved(stopped))
        if calls:
            resumed.set_epoch(2)
        assert loaders.epoch(name, resumed) == third[2:]


@pytest.mark.parametrize("name", [name for name in LOADERS if name not in ("budget", "stream")])
def test_a_loader_that_is_made_again_keeps_the_epoch(loaders: NumberedLoaders, name: str) -> None:
    """modelscope/ms-swift#10050: a resume makes the sampler again and loses its epoch, so that rows of the first
    epoch's order follow, which were trained already.

    Loaders with another batch size on another number of ranks must read the rest of the epoch, and then the next one.
    """
    whole = loaders.make(name)
    loaders.epoch(name, whole)
    begun = taken(loaders, name, whole, 2)
    state = saved(whole)
    ranks = [loaders.make(name, batch_size=2, rank=rank, world_size=2) for rank in range(2)]
    for loader in ranks:
        loader.load_state_dict(state)
    everything = set(range(loaders.rows(name)))
    rest = [flat(loaders.epoch(name, loader)) for loader in ranks]
    left = everything - set(flat(begun))
    repeated = {*rest[0], *rest[1]} - left
    assert {*rest[0], *rest[1]} >= left
    assert not repeated if name in TOKEN_LOADERS else len(repeated) < len(ranks)  # they fill the last step
    following = [flat(loaders.epoch(name, loader)) for loader in ranks]
    assert {*following[0], *following[1]} == everything


def test_a_mixture_with_repeated_rows_resumes_after_its_first_epoch(loaders: NumberedLoaders) -> None:
    """mosaicml/streaming#869: with streams that are chosen from or repeated, a state of the second epoch cannot be
    resumed: the dataset claims to be at the end of the first.

    A mixture that repeats one dataset and takes a part of another must resume in any epoch.
    """
    parts = loaders.dataset("mixture").datasets

    def made() -> TokenLoader:
        return TokenLoader(MixedDataset(parts, {"a": 1, "b": 3}, "rows", {"a": 0.5}), 4, seed=3, padding="longest")

    steps = len(made())
    whole = taken(loaders, "mixture", made(), 4 * steps)
    counted = [flat(whole[:steps]).count(number) for number in range(loaders.rows("mixture"))]
    assert 0 in counted and max(counted) > 1  # chosen from, and repeated
    for stop in (steps - 1, steps, steps + 1, 2 * steps, 3 * steps - 2):
        stopped, resumed = made(), made()
        taken(loaders, "mixture", stopped, stop)
        resumed.load_state_dict(saved(stopped))
        assert taken(loaders, "mixture", resumed, 4 * steps - stop) == whole[stop:]


@pytest.mark.parametrize("name", WITH_WORKERS)
def test_a_state_goes_from_workers_to_none_and_back(loaders: NumberedLoaders, name: str) -> None:
    """Lightning-AI/litData#24: a state that was saved with workers cannot be loaded with `num_workers=0`.

    It must load for any number of workers, or be refused in a sentence that names the setting.
    """
    expected = loaders.epoch(name, loaders.make(name))
    for before, after in ((2, 0), (0, 2)):
        stopped, resumed = (loaders.make(name, num_workers=workers) for workers in (before, after))
        taken(loaders, name, stopped, 3)
        if name == "stream":
            with pytest.raises(LoaderStateError, match=f"num_workers is {before} in the state, {after} here"):
                resumed.load_state_dict(saved(stopped))
        else:
            resumed.load_state_dict(saved(stopped))
            assert loaders.epoch(name, resumed) == expected[3:]


@pytest.mark.parametrize("name", LOADERS)
def test_a_state_counts_batches_that_were_given(loaders: NumberedLoaders, name: str) -> None:
    """ByteDance-Seed/VeOmni#789: a thread that reads ahead starts with the loader, so that a state that is saved before
    the first batch is one of a later batch.

    A state must be that of the batches that were given, from the first one on, with all that read ahead.
    """
    ahead = {"prefetch_factor": 4} if name in TOKEN_LOADERS else {}
    workers = 2 if name in WITH_WORKERS else 0
    for options in ({"num_workers": workers}, ahead):
        loader = loaders.make(name, **options)
        batches, found = iter(loader), list[list[int]]()
        for given in range(3):
            resumed = loaders.make(name, num_workers=options.get("num_workers", 0))
            resumed.load_state_dict(saved(loader))
            found.append(loaders.read(name, next(batches)))
            assert loaders.read(name, next(iter(resumed))) == found[given]


@pytest.mark.parametrize("name", LOADERS)
def test_a_state_that_comes_after_iter_is_not_lost(loaders: NumberedLoaders, name: str) -> None:
    """PrimeIntellect-ai/prime-rl#3299: the loop calls `iter` before it loads the state, and the workers have begun to
    read from the first row; the resumed run continues at a wrong place.

    The iterator must yield the batch after the state, or the state must be refused.
    """
    stopped = loaders.make(name)
    expected = taken(loaders, name, stopped, 5)
    for workers in (0, 2) if name in WITH_WORKERS and name != "stream" else (0,):
        late = loaders.make(name)
        taken(loaders, name, late, 3)
        resumed = loaders.make(name, num_workers=workers)
        batches = iter(resumed)
        try:
            resumed.load_state_dict(saved(late))
            found = loaders.read(name, next(batches))
        except TokenloomError:
            continue
        assert found == expected[3]


@pytest.mark.parametrize("name", [*TOKEN_LOADERS, "windows"])
def test_a_state_of_as_many_other_rows_is_refused(
    loaders: NumberedLoaders, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """NVIDIA-NeMo/RL#2519: a run that is resumed with another dataset skips as many of its rows as were read of the
    former one, without a word.

    The state must be refused, also if the other dataset has as many rows, and the loader must not have moved.
    """
    other = NumberedLoaders(tmp_path_factory.mktemp("other"), first=500)
    stopped, loader = other.make(name), loaders.make(name)
    taken(other, name, stopped, 2)
    with pytest.raises(LoaderStateError, match="from another run: data is "):
        loader.load_state_dict(saved(stopped))
    assert loaders.epoch(name, loader) == loaders.epoch(name, loaders.make(name))


def test_a_split_that_has_moved_is_refused() -> None:
    """TensorAuto/OpenTau#502: the dataset has grown since the checkpoint, so that the validation rows are drawn anew,
    and the resumed run trains on rows that it validated on.

    The state of a data module must be refused if the rows or the fraction of the split have changed.
    """

    def module(rows: int, fraction: float) -> UniversalDataModule:
        tensors = [torch.tensor([number, number]) for number in range(rows)]
        return UniversalDataModule(tensors, val_split=fraction, batch_size=4)

    before = module(50, 0.2)
    next(iter(before.train_dataloader()))
    held_out = [rows["input_ids"][:, 0].tolist() for rows in before.val_dataloader() or ()]
    for other in (module(51, 0.2), module(50, 0.22)):
        with pytest.raises(LoaderStateError, match="from another run: data is "):
            other.load_state_dict(saved(before))
    same = module(50, 0.2)
    same.load_state_dict(saved(before))
    assert [rows["input_ids"][:, 0].tolist() for rows in same.val_dataloader() or ()] == held_out
    trained = flat(rows["input_ids"][:, 0].tolist() for _ in range(2) for rows in same.train_dataloader())
    assert not set(trained) & set(flat(held_out)) and len(set(trained)) == 40


def streamed(source: Any) -> StreamingPreprocessedDataset:
    return StreamingPreprocessedDataset(source, LengthEngine(), buffer_size=10, seed=3)


def assert_resumes_at_every_row(source: Any) -> None:
    def ids(rows: Any) -> list[int]:
        return [int(row["input_ids"][0]) for row in rows]

    whole = ids(streamed(source))
    for stop in range(len(whole) + 1):
        stopped, resumed = streamed(source), streamed(source)
        found = ids(islice(stopped, stop)) if stop else []
        if stop:
            resumed.load_state_dict(saved(stopped))
        assert found + ids(resumed) == whole, stop


def test_a_divided_stream_resumes_in_the_middle_of_an_arrow_batch() -> None:
    """huggingface/datasets#7538: a stream that is read in Arrow batches counts a whole batch as read when its first row
    is given, so that a resume loses the others.

    A stream of a node's shards must resume at every row.
    """
    source = Dataset.from_list(numbers(28)).to_iterable_dataset(num_shards=4)
    for rank in range(2):
        assert_resumes_at_every_row(split_dataset_by_node(source, rank, 2))


def test_a_shuffled_stream_resumes_at_every_row() -> None:
    """huggingface/datasets#7901: a shuffled stream resumes correctly after its first two rows only.

    It must resume at every row.
    """
    for shards in (1, 4):
        source = Dataset.from_list(numbers(15)).to_iterable_dataset(num_shards=shards)
        assert_resumes_at_every_row(source.shuffle(seed=42, buffer_size=7))


def test_a_map_loader_without_rows_left_goes_on_with_the_next_epoch() -> None:
    """facebookresearch/fairseq2#1042: a job that is resumed at the end of an epoch takes the missing batch for the end
    of the data, and stops.

    The resumed epoch must end without a batch, and the next one must be whole.
    """
    loader = MapLoader(range(ROWS), 4, seed=5)
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    resumed = MapLoader(range(ROWS), 4, seed=5)
    resumed.load_state_dict(saved(loader))
    assert [*resumed] == []
    assert sorted(flat(batch.tolist() for batch in resumed)) == list(range(ROWS))
