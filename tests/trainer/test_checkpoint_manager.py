"""Checkpoints of a loop of one's own: what is saved is loaded, complete or not at all, and no pickle is read."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tokenloom.errors import StoreError
from tokenloom.trainer import CheckpointManager


class Loop:
    """A small model and its training."""

    def __init__(self, seed: int):
        torch.manual_seed(seed)
        last = nn.Linear(8, 4, bias=False)
        last.weight = nn.Parameter(last.weight.detach().T.contiguous().T)  # not contiguous
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), last)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10)

    def step(self, number: int) -> float:
        loss = self.model(torch.ones(2, 4) * number).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return float(loss.detach())


def test_a_loop_goes_on_from_what_is_loaded(tmp_path: Path) -> None:
    one, manager = Loop(0), CheckpointManager(tmp_path / "run")
    for number in range(3):
        one.step(number)
    custom = {
        "place": {"epoch": 1, "rows": [3, 4]},
        "random": random.getstate(),
        "mean": torch.arange(3.0),
        "none": None,
    }
    path = manager.save(one.model, one.optimizer, one.scheduler, 1, {"loss": 0.5}, custom)
    found = manager.load(path)
    other = Loop(1)
    other.model.load_state_dict(found["model"])
    other.optimizer.load_state_dict(found["optimizer"])
    other.scheduler.load_state_dict(found["scheduler"])
    assert [one.step(number) for number in range(5)] == [other.step(number) for number in range(5)]
    assert (found["epoch"], found["metrics"]) == (1, {"loss": 0.5})
    assert found["custom_state"]["place"] == custom["place"] and found["custom_state"]["random"] == custom["random"]
    assert torch.equal(found["custom_state"]["mean"], custom["mean"])
    assert {file.suffix for file in path.iterdir()} == {".safetensors", ".json"}


def test_the_latest_is_the_last_that_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, manager = Loop(0), CheckpointManager(tmp_path)
    assert manager.latest() is None
    saved = [manager.save(loop.model, epoch=epoch) for epoch in (1, 2, 10, 10)]
    assert len(set(saved)) == 4 and manager.latest() == saved[-1]

    def fails(*paths: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space"):
        manager.save(loop.model, epoch=11)
    monkeypatch.undo()
    assert manager.latest() == saved[-1]
    assert manager.load(saved[-1])["optimizer"] is None


def test_damage_is_found_and_what_is_no_data_is_refused(tmp_path: Path) -> None:
    loop, manager = Loop(0), CheckpointManager(tmp_path)
    path = manager.save(loop.model, loop.optimizer)
    for name in ("model.safetensors", "state.json"):
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[:-3] + b"###")
        with pytest.raises(StoreError, match=rf"{name} is missing or has other bytes"):
            manager.load(path)
        (path / name).write_bytes(content)
    manager.load(path)
    (path / "sealed.json").unlink()
    with pytest.raises(StoreError, match="not a complete checkpoint"):
        manager.load(path)
    with pytest.raises(TypeError, match=r"custom_state\.loop: a checkpoint cannot contain Loop"):
        manager.save(loop.model, custom_state={"loop": loop})
