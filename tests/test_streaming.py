"""Streaming: the rows and, unshuffled, the order of the built dataset, over ranks, workers and processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from loaded_rows import LONGEST, Row, rows_of, settings, write_rows

from tokenloom import DataPipeline
from tokenloom.errors import ConfigError, DatasetNotFoundError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, write_config: Callable[..., Path], tokenizer_folder: Path) -> Path:
    """A YAML over a folder of several files."""
    path = tmp_path_factory.mktemp("streaming")
    (path / "files").mkdir()
    for number in range(5):
        write_rows(path / "files" / f"{number}.jsonl", 40 + number, seed=number)
    dataset = {"name": "files", "val_split": 0.2}
    return write_config(path, "streamed", dataset=dataset, dataloader={"batch_size": 4}, **settings(tokenizer_folder))


def changed(source: Path, name: str, **changes: Any) -> Path:
    """A copy of a YAML with other settings, beside it."""
    sections = yaml.safe_load(source.read_text(encoding="utf-8"))
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    path = source.with_name(f"{name}.yaml")
    path.write_text(yaml.safe_dump(sections, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def stream(source: Path, split: str = "train", rank: int = 0, world: int = 1) -> list[Row]:
    """All rows of one rank of a loader with `streaming: true`."""
    dataset = {**yaml.safe_load(source.read_text(encoding="utf-8"))["dataset"], "streaming": True}
    pipeline = DataPipeline.from_config(
        changed(source, "streaming", dataset=dataset), store=source.parent / "unused"
    ).unwrap()
    found = rows_of(pipeline.get_dataloader(split, rank=rank, world_size=world).unwrap())
    assert not (source.parent / "unused").exists()
    return found


def built(source: Path, split: str = "train") -> list[Row]:
    pipeline = DataPipeline.from_config(source, store=source.parent / "store").unwrap()
    return rows_of(pipeline.get_dataloader(split, shuffle=False).unwrap())


@pytest.mark.parametrize("packing", ["none", "concat"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2])
def test_streaming_yields_the_rows_of_the_built_dataset(source: Path, workers: int, world: int, packing: str) -> None:
    config = changed(source, "both", dataloader={"num_workers": workers}, length={"packing": packing})
    found = [stream(config, rank=rank, world=world) for rank in range(world)]
    assert Counter(row for rows in found for row in rows) == Counter(built(config))
    assert all(found)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_streaming_without_shuffling_keeps_the_order(source: Path, split: str) -> None:
    config = changed(source, "ordered", dataloader={"shuffle": "none"})
    assert stream(config, split) == built(config, split)


def test_streaming_reads_a_column_that_only_later_files_have(
    tmp_path: Path, write_config: Callable[..., Path], tokenizer_folder: Path
) -> None:
    (tmp_path / "files").mkdir()
    rows = [{"q": "no more here", "a": "fine"}, {"q": "hello", "a": "there", "more": "m"}]
    for number, row in enumerate(rows):
        (tmp_path / "files" / f"{number}.jsonl").write_text(json.dumps(row), encoding="utf-8")
    config = write_config(
        tmp_path,
        dataset={"name": "files"},
        tokenizer={"name_or_path": str(tokenizer_folder), "max_length": LONGEST},
        prompt_template={"template": "{q} {more}\n{a}", "label_column": "a"},
    )
    assert Counter(stream(config)) == Counter(built(config))


def test_streaming_a_split_that_is_not_there_or_a_trained_tokenizer_is_refused(source: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="test"):
        stream(source, "test")
    train = {"name_or_path": None, "train": {"vocab_size": 300}, "special_tokens": {"eos": "</s>"}}
    with pytest.raises(ConfigError, match="train"):
        stream(changed(source, "trained", tokenizer=train))


RANK = """
import json, sys
import torch.distributed as dist
from tokenloom import DataPipeline
rank, meeting, store, *configs = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
for config in configs:
    loader = DataPipeline.from_config(config, store=store).unwrap().get_dataloader("train").unwrap()
    rows = [row for batch in loader for row in zip(batch["input_ids"], batch["attention_mask"])]
    print(json.dumps([ids[mask == 1].tolist() for ids, mask in rows]))
"""


def test_ranks_of_torch_distributed_share_the_rows_without_being_told(source: Path, tmp_path: Path) -> None:
    expected = Counter(ids for ids, _ in built(source))
    dataset = yaml.safe_load(source.read_text(encoding="utf-8"))["dataset"]
    configs = [source, changed(source, "streamed_by_rank", dataset={**dataset, "streaming": True})]
    common = [str(tmp_path / "meeting"), str(source.parent / "store"), *map(str, configs)]
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), *common], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    printed = [rank.communicate(timeout=120)[0].splitlines() for rank in ranks]
    for number, config in enumerate(configs):
        found = [tuple(ids) for lines in printed for ids in json.loads(lines[number]) if ids]
        assert Counter(found) == expected, config.name


@pytest.mark.parametrize("workers", [0, 2])
def test_a_finished_epoch_moves_on_to_another_order_of_the_same_rows(source: Path, workers: int) -> None:
    dataset = {**yaml.safe_load(source.read_text(encoding="utf-8"))["dataset"], "streaming": True}
    config = changed(source, "epochs", dataset=dataset, dataloader={"num_workers": workers})
    loader: Any = DataPipeline.from_config(config, store=source.parent / "unused").unwrap().get_dataloader().unwrap()
    first, second = rows_of(loader), rows_of(loader)
    loader.set_epoch(0)
    assert first != second
    assert sorted(first) == sorted(second)
    assert rows_of(loader) == first
