"""Ranks that are not known when a loader is created: they are read with the first batch, or it is refused."""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from support.framework_reads import OneToken
from support.gloo_ranks import on_ranks
from support.processes import DEADLINE
from support.soak import machine
from support.stored_sequences import write_numbered
from tokenloom import open_dataset
from tokenloom.errors import ConfigError
from tokenloom.loaders import (
    ArrayDataLoader,
    DataLoaderBuilder,
    DataLoaderConfig,
    DataLoaderFactory,
    MapLoader,
    StreamingPreprocessedDataset,
    TokenLoader,
    UniversalDataModule,
)
from tokenloom.loaders.order.ranks import LAUNCHERS

ROWS = 37


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    write_numbered(folder, "data", [20, 17], 9, first=3)
    return folder


def makers(store: Path) -> dict[str, Callable[[], Any]]:
    samples, dataset = list(range(ROWS)), open_dataset("data", store=store)
    numbered = [{"n": number} for number in range(1, ROWS + 1)]
    config = DataLoaderConfig(batch_size=4, seed=0, num_workers=0)
    return {
        "token": lambda: TokenLoader(dataset, 4, padding="longest"),
        "budget": lambda: TokenLoader(dataset, token_budget=24, padding="longest"),
        "array": lambda: ArrayDataLoader(dataset_name=dataset, batch_size=4),
        "map": lambda: MapLoader(samples, 4),
        "builder": lambda: DataLoaderBuilder().with_dataset(samples).with_distributed().build(),
        "factory": lambda: DataLoaderFactory().create_dataloader(samples, config),
        "module": lambda: UniversalDataModule(samples, val_split=0, batch_size=4).train_dataloader(),
        "rows": lambda: StreamingPreprocessedDataset(numbered, OneToken()),
    }


def values(batch: Any) -> list[Any]:
    """Return what tells the rows of a batch apart: the first token of each, or the row itself."""
    if not isinstance(batch, dict):
        return batch.tolist()
    return [int(row.reshape(-1)[0]) for row in batch["input_ids"].reshape(-1, batch["input_ids"].shape[-1])]


def read_late(store: Path, meeting: str) -> dict[str, list[Any]]:
    """Create all loaders without a process group, look at their first batch, and read them in one of two ranks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    made = {name: make() for name, make in makers(store).items()}
    assert all(next(iter(loader)) is not None for loader in made.values())
    dist.init_process_group("gloo", f"file://{meeting}", timedelta(seconds=DEADLINE), world_size=world, rank=rank)
    return {name: [value for batch in loader for value in values(batch) if value] for name, loader in made.items()}


@machine("ranks")
def test_ranks_are_read_with_the_first_batch_of_an_iteration(store: Path, tmp_path: Path) -> None:
    one, other = on_ranks(2, read_late, store, str(tmp_path / "meeting"))
    for name in one:
        alone = {value for batch in makers(store)[name]() for value in values(batch)}
        assert {*one[name], *other[name]} == alone - {0} | ({0} & {*one[name], *other[name]}), name
        assert len({*one[name]} & {*other[name]}) <= 1, name  # `MapLoader` repeats a row so that ranks are even
        assert one[name] and other[name]


def test_ranks_stay_known_without_the_process_group(store: Path) -> None:
    dataset = open_dataset("data", store=store)
    loader = TokenLoader(dataset, 4)
    assert (loader.rank, loader.world_size) == (0, 1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert (loader.rank, loader.world_size) == (0, 1)
    dist.destroy_process_group()
    assert loader.sharding.known() == (0, 1) and TokenLoader(dataset).sharding.known() is None


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_processes_that_have_not_joined_are_refused(
    launcher: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, size = LAUNCHERS[launcher]
    monkeypatch.setenv(rank, "1")
    monkeypatch.setenv(size, "2")
    for name, make in makers(store).items():
        loader = make()
        with pytest.raises(ValueError, match=f"^{launcher} started 2 processes, .*init_process_group") as refused:
            next(iter(loader))
        assert "\n" not in str(refused.value), name
    next(iter(TokenLoader(open_dataset("data", store=store), rank=0, world_size=1)))
    monkeypatch.setenv(size, "1")
    assert all(next(iter(make())) is not None for make in makers(store).values())


def test_a_seed_that_each_rank_draws_is_refused_on_several(store: Path) -> None:
    config = DataLoaderConfig(batch_size=4, rank=0, world_size=2, num_workers=0)
    for data in ([*range(ROWS)], open_dataset("data", store=store)):
        with pytest.raises(ConfigError, match="set the same seed on all ranks"):
            DataLoaderFactory().create_dataloader(data, config)
