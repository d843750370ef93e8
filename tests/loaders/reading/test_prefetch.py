"""Prefetched batches and their states equal those without prefetching."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from support.stored_sequences import write_sequences
from tokenloom import open_dataset
from tokenloom.loaders import TokenDataset, TokenLoader, batch_digest
from tokenloom.loaders.reading.ahead import pinned


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    folder = tmp_path_factory.mktemp("ahead")
    write_sequences(folder, "data", [400, 900, 300], mean=20)
    return open_dataset("data", store=folder)


def loader(dataset: TokenDataset, **arguments: Any) -> TokenLoader:
    return TokenLoader(dataset, batch_size=3, seed=2, padding="longest", **arguments)


def threads() -> list[str]:
    """Return the threads that read ahead; those that open images or watch deadlines stay as long as a process."""
    return [thread.name for thread in threading.enumerate() if thread.name == "tokenloom-read-ahead"]


@pytest.mark.parametrize("arguments", [{}, {"token_budget": 90}, {"shuffle": "none", "rank": 1, "world_size": 2}])
def test_batches_and_states_are_the_same(dataset: TokenDataset, arguments: dict[str, Any]) -> None:
    arguments = {"batch_size": 3, "seed": 2, "padding": "longest", **arguments}
    plain, ahead = TokenLoader(dataset, **arguments), TokenLoader(dataset, prefetch_factor=3, **arguments)
    seen = 0
    for one, other in zip(plain, ahead, strict=True):
        assert batch_digest(one) == batch_digest(other)
        assert plain.state_dict() == ahead.state_dict()
        seen += 1
    assert seen > 4
    assert plain.state_dict() == ahead.state_dict()
    assert not threads()


def test_a_pinned_batch_has_the_values_of_the_batch() -> None:
    """Only tensors are pinned, which needs a GPU."""
    has_gpu = torch.cuda.is_available()
    values = {"max_seqlen": 7, "text": ["one", "two"]}
    tensors = {"input_ids": torch.arange(6).reshape(2, 3)} if has_gpu else {}
    found = pinned({**tensors, **values}, 0 if has_gpu else -1)
    assert {name: found[name] for name in found.keys() - tensors.keys()} == values
    assert all(found[name].is_pinned() and torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_state_says_what_was_given_not_what_was_made(dataset: TokenDataset) -> None:
    whole = [batch_digest(batch) for batch in loader(dataset)]
    ahead = loader(dataset, prefetch_factor=4)
    for count, _ in enumerate(ahead, 1):
        time.sleep(0.01)  # the thread runs ahead
        if count == 3:
            break
    resumed = loader(dataset, prefetch_factor=4)
    resumed.load_state_dict(ahead.state_dict())
    assert [batch_digest(batch) for batch in resumed] == whole[3:]
    assert not threads()


def test_only_a_gpu_is_moved_to(dataset: TokenDataset) -> None:
    with pytest.raises(ValueError, match="CUDA device"):
        loader(dataset, prefetch_to_device="cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_arrive_on_a_gpu_as_they_were_made(dataset: TokenDataset, workers: int) -> None:
    plain, moved = loader(dataset), loader(dataset, num_workers=workers, prefetch_to_device="cuda")
    for one, other in zip(plain, moved, strict=True):
        assert all(value.is_cuda for value in other.values() if isinstance(value, torch.Tensor))
        assert batch_digest(one) == batch_digest(other)
        assert plain.state_dict() == moved.state_dict()
