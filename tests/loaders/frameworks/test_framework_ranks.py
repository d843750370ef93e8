"""Frameworks on two ranks: the loader shards the rows, and no framework shards them again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.example_scripts import example
from support.gloo_ranks import on_ranks
from support.loaded_rows import Row, rows_of, settings, write_rows
from support.soak import machine
from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.loaders import open_dataset
from tokenloom.resources.store import ArtifactStore

pytestmark = machine("ranks")

ROWS, STEPS = 29, 2
"""Steps of an epoch where each rank has 8 rows a step."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, write_config: Callable[..., Path], tokenizer_folder: Path) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    write_rows(path / "rows.jsonl", ROWS)
    config = write_config(path, "data", dataset={"name": "rows.jsonl"}, **settings(tokenizer_folder))
    list(Build(PipelineConfig.from_file(config), ArtifactStore(path / "store")).run_all())
    return path / "store"


def as_torchrun_starts_it() -> int:
    """Set the variables that torchrun sets; return the world size."""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999", "ACCELERATE_USE_CPU": "true"}
    if "accelerate" in sys.modules:  # a forked process inherits its parent's
        from accelerate.state import AcceleratorState, PartialState

        AcceleratorState._reset_state()
        PartialState._reset_state()
    return world


def rows_trained(name: str, store: Path, folder: Path) -> list[Row]:
    """Return the rows that this rank's model gets in an epoch."""
    world = as_torchrun_starts_it()
    script, dataset, more = example(name), open_dataset("data", store=store), dict[str, Any]()
    if name == "train_with_lightning":
        os.environ["TORCHELASTIC_RUN_ID"] = "test"
        more = {"accelerator": "cpu", "devices": world, "strategy": "ddp", "enable_progress_bar": False}
    if name == "train_with_mesh":
        more = {"mesh": script.make_mesh(world, "cpu")}
    torch.manual_seed(0)
    model, seen = script.tiny_model(dataset), []

    def note(_: nn.Module, __: Any, inputs: dict[str, Any]) -> None:
        seen.append({key: inputs[key].clone() for key in ("input_ids", "attention_mask", "labels")})

    model.register_forward_pre_hook(note, with_kwargs=True)
    script.train(model, dataset, folder, STEPS, save_steps=STEPS, **more)
    return rows_of(seen)


@pytest.mark.parametrize("name", ["trainer", "accelerate", "lightning", "mesh"])
def test_ranks_are_given_every_row_once(name: str, store: Path, tmp_path: Path) -> None:
    pytest.importorskip(name if name in ("accelerate", "lightning") else "transformers")
    parts = on_ranks(2, rows_trained, f"train_with_{name}", store, tmp_path)
    dataset = open_dataset("data", store=store)
    whole = [
        (tuple(row["input_ids"].tolist()), tuple(row["labels"].tolist()))
        for row in map(dataset.__getitem__, range(ROWS))
    ]
    assert all(parts)
    assert sorted([*parts[0], *parts[1]]) == sorted(whole)


def batches_prepared(store: Path) -> list[Row]:
    from accelerate import Accelerator

    from tokenloom.loaders import TokenLoader

    world, accelerator = as_torchrun_starts_it(), Accelerator()
    assert accelerator.num_processes == world
    return rows_of(accelerator.prepare(TokenLoader(open_dataset("data", store=store), batch_size=4)))


def test_accelerate_does_not_share_out_again_what_it_is_given_to_prepare(store: Path) -> None:
    pytest.importorskip("accelerate")
    parts = on_ranks(2, batches_prepared, store)
    assert sorted(map(len, parts)) == [13, 16] and len(set(parts[0]) | set(parts[1])) == ROWS
