"""Each training framework resumes from its own checkpoint at the right batch: the examples, broken off and run again."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from loaded_rows import settings, write_rows
from torch import nn

from tokenloom.assets.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.loaders import TokenDataset, TokenLoader, batch_digest, open_dataset
from tokenloom.resources.store import ArtifactStore

EXAMPLES = Path(__file__).parent.parent / "examples"
ROWS, BATCH, EVERY = 29, 8, 2
EPOCH = -(-ROWS // BATCH)

Train = Callable[[Path, int], list[str]]
"""Trains up to a step with checkpoints in a folder; returns digests of what the model was given."""


class Broken(Exception):
    """Training ends in the middle of a step."""


@pytest.fixture(scope="module")
def dataset(
    tmp_path_factory: pytest.TempPathFactory, write_config: Callable[..., Path], tokenizer_folder: Path
) -> TokenDataset:
    path = tmp_path_factory.mktemp("frameworks")
    write_rows(path / "rows.jsonl", ROWS)
    config = write_config(path, "data", dataset={"name": "rows.jsonl"}, **settings(tokenizer_folder))
    list(Build(PipelineConfig.from_file(config), ArtifactStore(path / "store")).run_all())
    return open_dataset("data", store=path / "store")


def example(name: str) -> ModuleType:
    """A script of examples/."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def given_to(model: nn.Module, break_at: int | None) -> list[str]:
    """Digests of what a model is called with, as it is called; breaks off at call `break_at`."""
    seen: list[str] = []

    def note(_: nn.Module, __: Any, inputs: dict[str, Any]) -> None:
        if len(seen) == break_at:
            raise Broken
        seen.append(batch_digest({name: inputs[name] for name in ("input_ids", "labels")}))

    model.register_forward_pre_hook(note, with_kwargs=True)
    return seen


def of_epochs(dataset: TokenDataset, batches: int, batch_size: int) -> list[str]:
    """Digests of the loader's batches from the first on."""
    loader, seen = TokenLoader(dataset, batch_size=batch_size, seed=0, padding="longest"), []
    while len(seen) < batches:
        seen += [batch_digest({name: batch[name] for name in ("input_ids", "labels")}) for batch in loader]
    return seen[:batches]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums have one order then."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def single_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def resumes(
    script: ModuleType, dataset: TokenDataset, tmp_path: Path, batch_size: int, batches_a_step: int, **settings: Any
) -> None:
    """Broken off in the first epoch, right behind its end, and in the second one."""
    steps = 2 * EPOCH + 1
    right = of_epochs(dataset, steps * batches_a_step, batch_size)

    def run(folder: Path, break_at: int | None = None) -> tuple[list[str], dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        model = script.tiny_model(dataset)
        seen = given_to(model, None if break_at is None else break_at * batches_a_step)
        try:
            script.train(model, dataset, folder, steps, save_steps=EVERY, **settings)
            assert break_at is None
        except Broken:
            pass
        return seen, model.state_dict()

    undisturbed, weights = run(tmp_path / "undisturbed")
    assert undisturbed == right and len(set(right)) == len(right)
    for break_at in (3, EPOCH, EPOCH + 3):
        folder = tmp_path / f"broken at {break_at}"
        assert run(folder, break_at)[0] == right[: break_at * batches_a_step]
        resumed, same_weights = run(folder)
        assert resumed == right[(break_at - break_at % EVERY) * batches_a_step :], break_at
        for name, value in weights.items():
            torch.testing.assert_close(same_weights[name], value, rtol=0, atol=0)


def test_trainer(dataset: TokenDataset, tmp_path: Path) -> None:
    resumes(example("train_with_trainer"), dataset, tmp_path, batch_size=4, batches_a_step=2)


def test_trl(dataset: TokenDataset, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    resumes(example("train_with_trl"), dataset, tmp_path, batch_size=4, batches_a_step=2)


def test_accelerate(dataset: TokenDataset, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    resumes(example("train_with_accelerate"), dataset, tmp_path, BATCH, 1)


def test_lightning(dataset: TokenDataset, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    resumes(example("train_with_lightning"), dataset, tmp_path, BATCH, 1)


def test_a_mesh(dataset: TokenDataset, tmp_path: Path, single_rank: None) -> None:
    script = example("train_with_mesh")
    resumes(script, dataset, tmp_path, BATCH, 1, mesh=script.make_mesh(1, "cpu"))
