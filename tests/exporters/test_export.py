"""Exports hold the rows that loaders give, in order, and other libraries read them; they appear whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from subprocess import PIPE
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from support.array_rows import Row, rows_of
from support.canonical_tables import build_canonical
from support.datasets_on_disk import write_dataset
from support.masked_platform import needs_file_locks
from support.object_service import object_service
from support.pair_rows import config, tables_of
from support.processes import DEADLINE, Process, next_line, started
from support.soak import machine
from support.stored_sequences import write_numbered, write_sequences
from tokenloom import DataPipeline
from tokenloom.cli import main
from tokenloom.errors import ConfigError
from tokenloom.exporters import export_folder
from tokenloom.exporters.export_folder import layout_class, new_folder
from tokenloom.exporters.layouts import ExportedSplit, write_split
from tokenloom.loaders import MixedDataset, TokenDataset, TokenLoader, open_dataset
from tokenloom.loaders.datasets import mixed_dataset
from tokenloom.resources.store import ArtifactStore

LONGEST = 12


@pytest.fixture(scope="module", params=["plain", "packed", "weighted", "preference", "kto", "mixed"])
def dataset(
    request: pytest.FixtureRequest, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> TokenDataset | MixedDataset:
    """One of each kind of rows, in several chunks."""
    kind, folder = request.param, tmp_path_factory.mktemp("export")
    if kind == "weighted":
        write_sequences(folder, "made", [300, 500, 200], mean=20)
    elif kind in ("preference", "kto"):
        store = ArtifactStore(folder)
        build, _ = build_canonical(config(tokenizer_folder), store, kind, tables_of(kind))
        return open_dataset(build.name, store=folder)
    else:
        write_numbered(folder, "made", [20, 1, 0, 16], LONGEST, kind == "packed")
    opened = open_dataset("made", store=folder)
    return MixedDataset({"a": opened, "b": opened}, {"a": 1, "b": 2}, "rows") if kind == "mixed" else opened


def rows_of_loader(dataset: TokenDataset | MixedDataset) -> list[dict[str, Any]]:
    """Each row of a loader's epoch without shuffling, column by column, where its mask is 1."""
    found = []
    for batch in TokenLoader(dataset, batch_size=5, shuffle=False, padding="longest"):
        for row in range(len(next(value for value in batch.values() if not isinstance(value, int)))):
            columns = {}
            for name, values in batch.items():
                if name == "label":
                    columns[name] = bool(values[row])
                elif not isinstance(values, int) and values.ndim == 2:
                    side = next((side for side in ("chosen_", "rejected_") if name.startswith(side)), "")
                    columns[name] = values[row][batch[f"{side}attention_mask"][row] == 1].tolist()
            found.append(columns)
    return found


def export(name: Any, dataset: TokenDataset | MixedDataset, folder: Path, **arguments: Any) -> list[Path]:
    """One split, as the command writes it."""
    layout, source = layout_class(name)(), ExportedSplit("made", "0" * 64, "train", dataset.digest)
    with new_folder(folder, False) as (writing, shards):
        tables = partial(mixed_dataset.row_tables, dataset)
        written = write_split(layout, writing / "train", source, tables, finished=shards, **arguments)
        layout.finish(writing, ["train"])
    return [folder / "train" / name for shard in written for name in shard.files]


@pytest.mark.parametrize("shard_bytes", [1, 900, 1 << 30])
def test_exports_hold_the_rows_of_a_loader(
    dataset: TokenDataset | MixedDataset, tmp_path: Path, shard_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any number of rows read at once, row groups and shards."""
    monkeypatch.setattr(mixed_dataset, "TOKENS_AT_ONCE", 100)
    monkeypatch.setattr("tokenloom.exporters.layouts.GROUP_BYTES", 700)
    expected = rows_of_loader(dataset)
    files = export("hf", dataset, tmp_path / "hf", shard_bytes=shard_bytes)
    loaded: Any = datasets.load_from_disk(tmp_path / "hf")
    found = loaded["train"].to_list()
    packed = [{name: row.pop(name) for name in list(row) if name.endswith("seq_lengths")} for row in found]
    assert found == expected
    assert (len(files) > 1) == (shard_bytes < 1 << 30)
    for row, lengths in zip(expected, packed, strict=True):
        positions = [position for length in lengths.get("seq_lengths", ()) for position in range(length)]
        assert positions == row.get("position_ids", [])
    shards = export("parquet", dataset, tmp_path / "parquet", shard_bytes=shard_bytes)
    assert len(shards) == len(files)
    table = pq.read_table(tmp_path / "parquet" / "train")
    assert table.to_pylist() == loaded["train"].to_list()
    frame: Any = pd.read_parquet(tmp_path / "parquet" / "train")
    assert [{name: as_python(value) for name, value in row.items()} for row in frame.to_dict("records")] == (
        table.to_pylist()
    )


def as_python(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else bool(value)


def test_rows_are_those_that_were_written(tmp_path: Path) -> None:
    """Against the documents themselves."""
    documents = write_numbered(tmp_path, "made", [9, 11], LONGEST, packed=True)
    export("hf", open_dataset("made", store=tmp_path), tmp_path / "hf")
    loaded: Any = datasets.load_from_disk(tmp_path / "hf")
    for row, written in zip(loaded["train"], documents, strict=True):
        ids = [token for document in written for token in document]
        first = {document[0] for document in written}
        assert row["input_ids"] == ids
        assert row["labels"] == [token if token % 3 and token not in first else -100 for token in ids]
        assert row["seq_lengths"] == [len(document) for document in written]
    columns = {"input_ids": "int32", "attention_mask": "int8", "labels": "int32", "position_ids": "int32"}
    assert {name: str(feature.feature.dtype) for name, feature in loaded["train"].features.items()} == {
        **columns,
        "seq_lengths": "int32",
    }


def test_what_is_read_at_once_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_numbered(tmp_path, "made", [200, 300], 60)
    dataset = open_dataset("made", store=tmp_path)
    monkeypatch.setattr(mixed_dataset, "TOKENS_AT_ONCE", 500)
    tables = list(mixed_dataset.row_tables(dataset))
    padded = [table.num_rows * max(map(len, table["input_ids"].to_pylist())) for table in tables]
    assert max(padded) <= 500 < min(sum(pair) for pair in pairwise(padded)) * 2
    assert sum(table.num_rows for table in tables) == 500
    monkeypatch.setattr(mixed_dataset, "TOKENS_AT_ONCE", 30)  # many rows are longer: they come alone
    tables = list(mixed_dataset.row_tables(dataset))
    longest = [max(map(len, table["input_ids"].to_pylist())) for table in tables]
    assert all(table.num_rows == 1 or table.num_rows * most <= 30 for table, most in zip(tables, longest, strict=True))
    assert max(longest) > 30 and sum(table.num_rows for table in tables) == 500


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two YAMLs and one that mixes them, and a store in which they are not built yet."""
    folder = tmp_path_factory.mktemp("command")
    for name, seed in (("a", 0), ("b", 1)):
        write_dataset(folder, 60, name, seed, dataset={"name": f"{name}.jsonl", "val_split": 0.2})
    tokenizer = DataPipeline.from_config(folder / "a.yaml", folder / "store").unwrap().get_dataset().unwrap()
    for name in ("a", "b"):
        text = json.dumps({"name_or_path": tokenizer.tokenizer_path, "max_length": 256})
        declared = {"tokenizer": json.loads(text), "dataset": {"name": f"{name}.jsonl", "val_split": 0.2}}
        write_dataset(folder, 60, name, 0 if name == "a" else 1, **declared)
    (folder / "mix.yaml").write_text(json.dumps({"mixture": [{"dataset": "a", "weight": 2}, {"dataset": "b"}]}))
    return folder


def run(folder: Path, *arguments: object) -> int:
    config, *others = arguments
    return main(["export", str(folder / str(config)), *map(str, others), "--store", str(folder / "store")])


def arrow_rows(path: Path) -> list[Row]:
    loaded: Any = datasets.load_from_disk(path)
    return list(zip(loaded["input_ids"], loaded["labels"], strict=True))


@pytest.mark.parametrize("name", ["a", "mix"])
def test_the_command_builds_and_writes_every_split(
    built: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(built, f"{name}.yaml", "--to", "hf", tmp_path / "hf", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["dataset"], told["format"], told["folder"]) == (name, "hf", str(tmp_path / "hf"))
    pipeline = DataPipeline.from_config(built / f"{name}.yaml", built / "store").unwrap()
    assert {split["split"] for split in told["splits"]} == {"train", "validation"}
    for split in told["splits"]:
        loader = pipeline.get_dataloader(split["split"], shuffle=False).unwrap()
        assert arrow_rows(tmp_path / "hf" / split["split"]) == [(ids, labels) for ids, labels in rows_of(loader)]
        files = [tmp_path / "hf" / file for file in split["files"]]
        assert sum(file.stat().st_size for file in files) == split["bytes"]
    assert run(built, f"{name}.yaml", "--to", "parquet", tmp_path / "parquet", "--split", "train") == 0
    assert "train: " in capsys.readouterr().out
    loaded = datasets.load_dataset(str(tmp_path / "parquet"), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["train"]
    assert loaded["train"].to_list() == datasets.Dataset.load_from_disk(tmp_path / "hf" / "train").to_list()


def test_equal_datasets_give_equal_files(built: Path, tmp_path: Path) -> None:
    for name in ("hf", "parquet"):
        for number in range(2):
            assert run(built, "a.yaml", "--to", name, tmp_path / f"{name}{number}") == 0
        first, second = (files_in(tmp_path / f"{name}{number}") for number in range(2))
        assert first == second and len(first) > 2


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_split_without_rows_has_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = {"name": {"train": "small.jsonl", "validation": "none.jsonl"}}
    write_dataset(tmp_path, 20, dataset=source, validation={"max_reject_fraction": 1})
    (tmp_path / "none.jsonl").write_text(json.dumps({"instruction": "Why?", "input": "", "output": ""}))
    assert run(tmp_path, "small.yaml", "--to", "hf", tmp_path / "hf", "--json") == 0
    train, validation = json.loads(capsys.readouterr().out)["splits"]
    assert (train["split"], train["rows"], len(train["files"])) == ("train", 20, 1)
    assert (validation["split"], validation["rows"], validation["files"]) == ("validation", 0, [])
    loaded: Any = datasets.load_from_disk(tmp_path / "hf")
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 20}


def test_a_limited_build_is_exported(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(built, "a.yaml", "--to", "hf", tmp_path / "hf", "--limit", 10, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["dataset"], sum(split["rows"] for split in told["splits"])) == ("a@10", 20)


@machine("bucket")
def test_from_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_dataset(tmp_path, 40)
    with object_service(tmp_path / "cache") as service:
        monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
        address = service.address()
        assert main(["export", str(config), "--to", "hf", str(tmp_path / "hf"), "--store", address]) == 0
        loader = TokenLoader(open_dataset("small", store=address), shuffle=False)
        assert arrow_rows(tmp_path / "hf" / "train") == list(rows_of(loader))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.yaml", "--to", "hf", "{full}"], "is not empty; name another folder, or add --overwrite"),
        (["a.yaml", "--to", "hf", "{full}", "--overwrite"], "is not an export, so --overwrite does not replace it"),
        (["a.yaml", "--to", "hf", "{full}/notes.txt"], "is a file; name a folder"),
        (["a.yaml", "--to", "hf", "{full}/notes.txt/below"], "DIR: cannot write"),
        (["a.yaml", "--to", "hf", "s3://bucket/place"], "'s3://bucket/place' is not a local folder"),
        (
            ["a.yaml", "--to", "hf", "{full}/new", "--split", "trian"],
            "--split: 'trian' is not one of train, validation",
        ),
        (["missing.yaml", "--to", "hf", "{full}/new"], "missing.yaml: no such file"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(
    built: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    assert run(built, *(argument.format(full=full) for argument in arguments)) == 2
    assert message in capsys.readouterr().err
    assert files_in(tmp_path) == {"full/notes.txt": b"mine"}


def test_an_export_is_replaced_only_when_told_to(built: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert run(built, "a.yaml", "--to", "hf", target) == 0
    before = files_in(target)
    assert run(built, "b.yaml", "--to", "parquet", target) == 2
    assert files_in(target) == before
    assert run(built, "b.yaml", "--to", "parquet", target, "--overwrite") == 0
    assert set(files_in(target)) == {
        ".export.json",
        "README.md",
        "train/train-00000-of-00001.parquet",
        "validation/validation-00000-of-00001.parquet",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_may_be_named(built: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert run(built, "a.yaml", "--to", "hf", tmp_path / "out") == 0
    assert len(arrow_rows(tmp_path / "out" / "train")) > 0


def test_a_failure_leaves_what_was_there(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    assert run(built, "a.yaml", "--to", "hf", target) == 0
    before = files_in(tmp_path)

    def full(folder: Path, below: bool = True) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_folder, "_sync", full)
    assert run(built, "b.yaml", "--to", "hf", target, "--overwrite") == 2
    assert files_in(tmp_path) == before


HALTING = """
import sys, time
from pathlib import Path
from tokenloom.exporters.export_folder import layout_class, new_folder
with new_folder(Path(sys.argv[1]), True) as (folder, _):
    (folder / "large").write_text("half")
    print("writing", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def halted(tmp_path: Path) -> Iterator[Process]:
    """A process in the midst of writing `out`."""
    with started([sys.executable, "-c", HALTING, tmp_path / "out"], stdout=PIPE) as process:
        assert next_line(process) == "writing\n"
        yield process


@needs_file_locks
def test_two_processes_do_not_write_one_folder(tmp_path: Path, halted: Process) -> None:
    with pytest.raises(ConfigError, match="another process is exporting"), new_folder(tmp_path / "out", False):
        pytest.fail("it is held")
    assert halted.poll() is None
    assert files_in(tmp_path) == {".out.part/lock": b"", ".out.part/written/large": b"half"}


@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_export_shows_nothing_and_the_next_one_clears_it(
    tmp_path: Path, halted: Process, signalled: signal.Signals
) -> None:
    os.kill(halted.pid, signalled)
    halted.wait(DEADLINE)
    assert not (tmp_path / "out").exists()
    with new_folder(tmp_path / "out", False) as (folder, _):
        (folder / "small").write_text("whole")
    assert files_in(tmp_path) == {"out/small": b"whole"}
