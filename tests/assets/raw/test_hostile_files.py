"""Files that crash parsers or exhaust memory, read in child processes with limits on memory and time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from support.hostile_files import MIB, HostileFile, deep_files, endless_files, other_files, sparse_files, tiny_records
from support.raw_rows import chunks_of, places, read, write_table
from support.reading_child import read_in_children
from support.soak import SOAK
from tokenloom.assets.building.build import Build
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import SKETCH, sketch
from tokenloom.config import PipelineConfig
from tokenloom.errors import SourceError
from tokenloom.resources.store import ArtifactStore


def assert_read_as_expected(folder: Path, files: Iterable[HostileFile], memory: int) -> None:
    files = list(files)
    for file in files:
        file.write(folder / file.name)
    outcomes = read_in_children([{"name": str(folder / file.name), **file.dataset} for file in files])
    for file, outcome in zip(files, outcomes, strict=True):
        assert file.is_met(outcome), (file.name, outcome)
        assert outcome.peak < memory, (file.name, outcome)


def test_deep_json_is_rejected_or_refused_by_name(tmp_path: Path) -> None:
    files = list(deep_files())
    assert_read_as_expected(tmp_path, files if SOAK else files[::3], 1 << 30)


def test_records_without_end_are_skipped_in_bounded_memory(tmp_path: Path) -> None:
    files = endless_files() if SOAK else endless_files(6 * MIB, 4 * MIB)
    assert_read_as_expected(tmp_path, files, (600 if SOAK else 400) * MIB)


def test_other_hostile_files_are_read_or_refused(tmp_path: Path) -> None:
    quick = ("keys.jsonl", "many_keys.jsonl", "columns.csv", "deep.arrow", "json_text.parquet")
    files = [file for file in other_files() if SOAK or file.name in quick or file.name.startswith("short.")]
    assert_read_as_expected(tmp_path, files, 1600 * MIB)


@pytest.mark.skipif(SOAK, reason="the other hostile files include these, in full size")
def test_tiny_records_and_sparse_rows_are_read_or_refused(tmp_path: Path) -> None:
    files = [*tiny_records(5 * MIB), *sparse_files(20_000)]
    assert_read_as_expected(tmp_path, files, 600 * MIB)


def test_columns_are_counted_over_all_chunks() -> None:
    dataset, column = sketch(pa.table({"a": ["x"]})).to_pylist()
    columns = [{**column, "steps": [f"column{number}"]} for number in range(10_001)]
    parts = [pa.Table.from_pylist([dataset, *part], SKETCH) for part in (columns[:6000], columns[5000:-1])]
    assert len(merge(parts)) == 10_000
    with pytest.raises(SourceError, match="more than 10,000 columns"):
        merge([*parts, pa.Table.from_pylist([dataset, *columns[-1:]], SKETCH)])


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".txt", ".parquet"])
def test_only_larger_rows_are_rejected_and_lines_are_still_counted(tmp_path: Path, suffix: str) -> None:
    rows = [{"a": "xyz"[index % 3] * (10 + 90 * (index % 5 == 3)) + str(index)} for index in range(40)]
    path = tmp_path / f"rows{suffix}"
    if suffix == ".txt":
        path.write_text("\n".join(row["a"] for row in rows))
    else:
        write_table(path, rows)
    kept, rejects, _ = read(path, reader={"max_record_bytes": 80})
    column = "text" if suffix == ".txt" else "a"
    assert [row[column] for row in kept] == [row["a"] for row in rows if len(row["a"]) < 80]
    assert [reject["code"] for reject in rejects] == ["too_large"] * 8
    assert read(path)[0] == [{column: row["a"]} for row in rows]
    if suffix == ".csv":
        found = places(path, tmp_path / "store", reader={"max_record_bytes": 80})
        assert found[rows[-1]["a"]] == "rows.csv:41"


def test_the_limit_is_part_of_a_key_only_where_it_has_an_effect(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "x"}\n' * 9 + '{"a": "%s"}\n' % ("y" * 50))
    digests = [
        [chunk.digest for chunk in chunks_of(path, reader={"max_record_bytes": size})] for size in (1 << 20, 1000)
    ]
    assert digests[0] == digests[1]
    assert [chunk.digest for chunk in chunks_of(path, reader={"max_record_bytes": 40})] != digests[0]
    with pytest.raises(SourceError, match="max_record_bytes"):
        chunks_of(path.rename(tmp_path / "rows.csv"), reader={"max_record_bytes": 5})


def test_names_that_are_not_utf8_are_read_and_shown_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / os.fsdecode(b"caf\xe9.jsonl")).write_bytes(b'{"a": "x"}\nbad\n')
    for name in (str(folder), str(folder / r"caf\xe9.jsonl"), str(folder / "*.jsonl")):
        dataset = {"dataset": {"name": name}, "validation": {"max_reject_fraction": 1.0}}
        build = Build(PipelineConfig.from_mapping(dataset), ArtifactStore(tmp_path / "store"))
        build.run("raw")
        assert [chunk.place(0) for chunk in build.manifest("raw").chunks] == [r"caf\xe9.jsonl:1"]
    with pytest.raises(SourceError, match=r"caf\\xe9\.parquet: cannot be read"):
        (folder / os.fsdecode(b"caf\xe9.jsonl")).rename(folder / os.fsdecode(b"caf\xe9.parquet"))
        read(folder)


def test_deep_json_in_a_text_column_ends_no_process(tmp_path: Path) -> None:
    deep = "[" * 50_000 + "]" * 50_000
    good = json.dumps([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])
    rows = [{"messages": text, "tools": tools} for text, tools in ((good, "[]"), (deep, "[]"), (good, deep))]
    datasets = []
    for suffix in (".csv", ".parquet", ".jsonl") if SOAK else (".csv",):
        write_table(tmp_path / f"rows{suffix}", rows)
        mapping = {"messages": "messages", "tools": "tools"}
        datasets.append({"name": str(tmp_path / f"rows{suffix}"), "column_mapping": mapping})
    for outcome in read_in_children(datasets, last_stage="columns"):
        assert (outcome.signal, outcome.error, outcome.traceback, outcome.rows) == (0, "", "", 3)
