"""Mixed datasets: exact fractions, each dataset in its own order, and changes that leave earlier rows alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.loaded_rows import Row, rows_of, settings, write_rows
from tokenloom import open_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.config import PipelineConfig
from tokenloom.errors import LoaderStateError
from tokenloom.loaders import MixedDataset, TokenDataset, TokenLoader
from tokenloom.resources.store import ArtifactStore


@pytest.fixture(scope="module")
def datasets(
    tmp_path_factory: pytest.TempPathFactory, write_config: Callable[..., Path], tokenizer_folder: Path
) -> dict[str, TokenDataset]:
    path = tmp_path_factory.mktemp("mixed")
    store = ArtifactStore(path / "store")
    for name, count, length in (("a", 100, {}), ("b", 60, {}), ("c", 30, {}), ("packed", 30, {"packing": "concat"})):
        write_rows(path / f"{name}.jsonl", count, seed=ord(name[0]))
        dataset = {"name": f"{name}.jsonl"}
        config = write_config(path, name, dataset=dataset, length=length, **settings(tokenizer_folder))
        list(Build(PipelineConfig.from_file(config), store, chunk_size=ChunkSize(1024, 4096)).run_all())
    return {name: open_dataset(name, store=store.address) for name in ("a", "b", "c", "packed")}


def pick(datasets: dict[str, TokenDataset], *names: str) -> dict[str, TokenDataset]:
    return {name: datasets[name] for name in names}


def loader(dataset: Any) -> TokenLoader:
    return TokenLoader(dataset, batch_size=10, seed=3, padding="longest", rank=0, world_size=1)


def sources_of(rows: list[Row], datasets: dict[str, TokenDataset]) -> list[str]:
    """Return the dataset of each row; all rows differ."""
    known = {row: name for name, each in datasets.items() for row in rows_of(loader(each))}
    return [known[row] for row in rows]


def test_every_window_has_its_shares_and_every_dataset_its_own_order(datasets: dict[str, TokenDataset]) -> None:
    chosen = pick(datasets, "a", "b")
    mixed = MixedDataset(chosen, {"a": 0.75, "b": 0.25}, by="rows")
    rows = rows_of(loader(mixed))
    assert len(rows) == len(mixed) == 160
    names = sources_of(rows, chosen)
    for begin in range(0, 160, 7):
        window = names[begin : begin + 40]
        assert abs(window.count("a") - 0.75 * len(window)) <= 1
    for name, each in chosen.items():
        own = [row for row, source in zip(rows, names, strict=True) if source == name]
        alone = loader(each)
        expected = rows_of(alone) + rows_of(alone)
        assert own == expected[: len(own)]


def test_weights_of_tokens_count_tokens(datasets: dict[str, TokenDataset]) -> None:
    chosen = pick(datasets, "a", "c")
    mixed = MixedDataset(chosen, {"a": 0.5, "c": 0.5})
    rows = rows_of(loader(mixed))
    tokens: Counter[str] = Counter()
    for row, name in zip(rows, sources_of(rows, chosen), strict=True):
        tokens[name] += len(row[0])
    assert 0.9 < tokens["a"] / tokens["c"] < 1.1


def test_epochs_cap_a_dataset(datasets: dict[str, TokenDataset]) -> None:
    chosen = pick(datasets, "a", "b", "c")
    epochs = {"a": 1, "b": 0.5, "c": 2}
    mixed = MixedDataset(chosen, dict.fromkeys(chosen, 1.0), by="rows", epochs=epochs)
    names = Counter(sources_of(rows_of(loader(mixed)), chosen))
    assert names == {"a": 100, "b": 30, "c": 60}


def test_a_change_later_on_leaves_the_past_and_its_states_alone(datasets: dict[str, TokenDataset]) -> None:
    mixed = MixedDataset(pick(datasets, "a", "b"), {"a": 1, "b": 1}, by="rows")
    changed = mixed.change(60, {"a": 1, "c": 3}, pick(datasets, "c"))
    before, after = rows_of(loader(mixed)), rows_of(loader(changed))
    assert after[:60] == before[:60]
    names = sources_of(after[60:100], pick(datasets, "a", "b", "c"))
    assert Counter(names) == {"a": 10, "c": 30}
    stopped = loader(mixed)
    batches = iter(stopped)
    for _ in range(6):
        next(batches)
    resumed = loader(changed)
    resumed.load_state_dict(stopped.state_dict())
    assert rows_of(resumed) == after[60:]
    for _ in range(2):
        next(batches)
    with pytest.raises(LoaderStateError, match="data is"):
        loader(changed).load_state_dict(stopped.state_dict())


def test_datasets_of_different_kinds_are_not_mixed(datasets: dict[str, TokenDataset]) -> None:
    with pytest.raises(ValueError, match="of a and packed, only packed is packed"):
        MixedDataset(pick(datasets, "a", "packed"), {"a": 1, "packed": 1})
    with pytest.raises(ValueError, match="weight"):
        MixedDataset(pick(datasets, "a", "b"), {"a": 1})
