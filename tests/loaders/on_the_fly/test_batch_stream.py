"""Streaming: the rows and, unshuffled, the order of the built dataset, over ranks, workers and processes."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.gloo_ranks import on_ranks
from support.loaded_rows import LONGEST, Row, rows_of, settings, write_rows
from support.soak import machine, pairs
from tokenloom import DataPipeline
from tokenloom.errors import ConfigError, DatasetNotFoundError, LoaderStateError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, write_config: Callable[..., Path], tokenizer_folder: Path) -> Path:
    """A YAML over a folder of several files, which share no chunks: every other one is compressed."""
    path = tmp_path_factory.mktemp("streaming")
    (path / "files").mkdir()
    for number in range(5):
        file = path / "files" / f"{number}.jsonl"
        write_rows(file, 40 + number, seed=number)
        if number % 2:
            file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
    dataset = {"name": "files", "val_split": 0.2}
    return write_config(path, "streamed", dataset=dataset, dataloader={"batch_size": 4}, **settings(tokenizer_folder))


def changed(source: Path, name: str, **changes: Any) -> Path:
    """Write a copy of a YAML with other settings next to it."""
    sections = yaml.safe_load(source.read_text(encoding="utf-8"))
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    path = source.with_name(f"{name}.yaml")
    path.write_text(yaml.safe_dump(sections, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def stream(source: Path, split: str = "train", rank: int = 0, world: int = 1) -> list[Row]:
    """Return all rows of one rank of a loader with `streaming: true`."""
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


@pytest.mark.parametrize(("packing", "workers", "world"), pairs(["none", "concat"], [0, 2], [1, 2]))
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


def test_ranks_of_torch_distributed_share_the_rows_without_being_told(source: Path) -> None:
    def rows(config: Path) -> list[Row]:
        pipeline = DataPipeline.from_config(config, store=source.parent / "store").unwrap()
        return rows_of(pipeline.get_dataloader("train").unwrap())

    expected = Counter(built(source))
    dataset = {**yaml.safe_load(source.read_text(encoding="utf-8"))["dataset"], "streaming": True}
    for config in (source, changed(source, "streamed_by_rank", dataset=dataset)):
        found = on_ranks(2, rows, config)
        assert Counter(row for each in found for row in each) == expected, config.name
        assert all(found)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory, write_config: Callable[..., Path], tokenizer_folder: Path) -> Path:
    """A YAML over three files of different lengths; in the largest, every other row has no answer."""
    path = tmp_path_factory.mktemp("uneven")
    (path / "files").mkdir()
    for number, count in enumerate((60, 3, 5)):
        rows = write_rows(path / "files" / f"{number}.jsonl", count, seed=number)
        for row in rows[:: 2 if count == 60 else count]:
            row["a"] = None  # pyright: ignore[reportArgumentType]
        (path / "files" / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    dataset, lenient = {"name": "files"}, {"max_reject_fraction": 1.0}
    loader = {"batch_size": 2}
    return write_config(
        path, "uneven", dataset=dataset, dataloader=loader, validation=lenient, **settings(tokenizer_folder)
    )


def steps_of_epochs(config: Path) -> list[tuple[list[tuple[int, int]], list[Row]]]:
    """Return, for two epochs on this rank, the rows and real rows of each batch, and the real rows."""
    loader = DataPipeline.from_config(config, store=config.parent / "unused").unwrap().get_dataloader("train").unwrap()
    epochs = [list(loader), list(loader)]
    sizes = [[(len(batch["labels"]), int(batch["attention_mask"].any(1).sum())) for batch in made] for made in epochs]
    return [(size, rows_of(made)) for size, made in zip(sizes, epochs, strict=True)]


@machine("ranks")
@pytest.mark.parametrize(("workers", "packing", "world"), pairs([0, 2], ["none", "concat"], [2, 4]))
def test_ranks_of_a_stream_make_the_same_number_of_steps(uneven: Path, workers: int, packing: str, world: int) -> None:
    """Also if a rank has no rows, as happens when rows of three files are packed for four ranks."""
    expected = built(changed(uneven, "whole", length={"packing": packing}))
    dataset = {**yaml.safe_load(uneven.read_text(encoding="utf-8"))["dataset"], "streaming": True}
    for drop_last in (False, True):
        loader = {"num_workers": workers, "drop_last": drop_last}
        config = changed(uneven, "stream", dataset=dataset, length={"packing": packing}, dataloader=loader)
        ranks = on_ranks(world, steps_of_epochs, config)
        for epoch in (0, 1):
            sizes, rows = zip(*(rank[epoch] for rank in ranks), strict=True)
            assert len({len(each) for each in sizes}) == 1
            assert {size for each in sizes for size, _ in each} == {2}
            found = Counter(row for each in rows for row in each)
            if drop_last:
                assert {real for each in sizes for _, real in each} <= {0, 2}
                assert found < Counter(expected)
            else:
                assert found == Counter(expected)
            assert len(sizes[0]) == max(sum(real > 0 for _, real in each) for each in sizes)


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


def streaming_loader(source: Path, workers: int, packing: str = "none", seed: int = 0) -> Any:
    dataset = {**yaml.safe_load(source.read_text(encoding="utf-8"))["dataset"], "streaming": True}
    loading = {"num_workers": workers, "batch_size": 4, "seed": seed}
    path = changed(source, "resumed", dataset=dataset, dataloader=loading, length={"packing": packing})
    return DataPipeline.from_config(path, store=source.parent / "unused").unwrap().get_dataloader().unwrap()


@pytest.mark.parametrize(("workers", "packing"), [(0, "none"), (2, "none"), (0, "best_fit")])
def test_a_stream_resumes_exactly(source: Path, workers: int, packing: str) -> None:
    whole = streaming_loader(source, workers, packing)
    epochs = [[batch["input_ids"].tolist() for batch in whole] for _ in range(2)]
    assert epochs[0] != epochs[1]
    for epoch, step in ((0, 1), (0, len(epochs[0])), (1, 3)):
        loader = streaming_loader(source, workers, packing)
        loader.set_epoch(epoch)
        for number, _ in enumerate(loader, 1):
            if number == step:
                break
        state = json.loads(json.dumps(loader.state_dict()))
        resumed = streaming_loader(source, workers, packing)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert [batch["input_ids"].tolist() for batch in resumed] == epochs[epoch][step:]
        if epoch == 0:
            assert [batch["input_ids"].tolist() for batch in resumed] == epochs[1]


def test_a_state_of_a_stream_that_changed_is_refused(source: Path) -> None:
    loader = streaming_loader(source, 0)
    next(iter(loader))
    state = loader.state_dict()
    for other, message in (
        ({**state, "last": "0:0"}, "batch 1 of epoch 0 is another one"),
        ({**state, "batches": 10_000}, "it is at batch 10000 of an epoch that now has"),
    ):
        resumed = streaming_loader(source, 0)
        resumed.load_state_dict(other)
        with pytest.raises(LoaderStateError, match=message):
            next(iter(resumed))
    for wrong, message in (({**state, "seed": 1}, "seed is 1 in the state, 0 here"), ({}, "no version")):
        with pytest.raises(LoaderStateError, match=message):
            streaming_loader(source, 0).load_state_dict(wrong)
