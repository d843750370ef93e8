"""Raw rows: record bounds, parsing, rejects, encodings, validation split and limit, compared with oracles."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from support.raw_rows import SUFFIXES, TEXT, Row, read, read_split, write_table
from tokenloom.assets.building.build import Build
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, SourceError, TokenloomError
from tokenloom.resources.store import ArtifactStore

TABLE = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.fixed_dictionaries({f"c{index}": TEXT for index in range(width)}), min_size=1, max_size=8)
)


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(rows=TABLE)
@example(rows=[{"c0": "2020-01-01"}, {"c0": "2021-12-31 10:00:00"}])
@example(rows=[{"c0": "\0"}, {"c0": "000\x1f\x1f"}, {"c0": "\0"}, {"c0": "0000\x1f"}])
def test_a_table_of_strings_round_trips(suffix: str, rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rows{suffix}"
        write_table(path, rows)
        assert read(path) == (rows, [], 0)
        assert read(path, ChunkSize(64, 256))[0] == rows


@pytest.mark.parametrize(
    ("mode", "expected"), [("line", ["a", "b", "c", "d"]), ("paragraph", ["a\nb", "c\nd"]), ("file", ["a\nb\n\nc\nd"])]
)
def test_text_is_read_by_lines_paragraphs_or_files(tmp_path: Path, mode: str, expected: list[str]) -> None:
    (tmp_path / "rows.txt").write_text("a\nb\n\nc\nd\n")
    assert [row["text"] for row in read(tmp_path / "rows.txt", reader={"lines_per_row": mode})[0]] == expected


CHECKED = zstandard.ZstdCompressor(write_checksum=True)


COMPRESSORS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": CHECKED.compress}


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_compressed_files_are_read_and_damaged_ones_named(tmp_path: Path, suffix: str) -> None:
    noise = random.Random(0)
    rows = [{"q": "".join(noise.choices("abcdefgh 1234567", k=200))} for _ in range(2000)]
    data = COMPRESSORS[suffix]("".join(json.dumps(row) + "\n" for row in rows).encode())
    path = tmp_path / f"rows.jsonl{suffix}"
    path.write_bytes(data)
    assert read(path) == (rows, [], 0)
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0xFF
    for damaged in (data[: len(data) // 2], data[:-3], bytes(flipped), b"not an archive at all"):
        path.write_bytes(damaged)
        with pytest.raises(SourceError, match=re.escape(path.name)):
            read(path)


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".txt"])
def test_val_split_puts_every_row_in_one_split_and_never_moves_it(tmp_path: Path, suffix: str) -> None:
    name = "text" if suffix == ".txt" else "a"
    values = [f"row number {index} {'x' * (index % 40)}" for index in range(3000)]
    found = []
    for part in (values[:2000], values, ["a new first row", *values[500:]]):
        path = tmp_path / f"rows{suffix}"
        write_table(path, [{name: value} for value in part])
        if suffix == ".txt":
            path.write_text("\n".join(part))
        splits = {s: [row[name] for row in read_split(path, s, val_split=0.2)] for s in ("train", "validation")}
        assert Counter(splits["train"] + splits["validation"]) == Counter(part)
        assert [value for value in part if value in set(splits["train"])] == splits["train"]
        assert 0.16 < len(splits["validation"]) / len(part) < 0.24
        found.append(set(splits["validation"]))
    assert found[0] == found[1] & set(values[:2000])
    assert found[1] & set(values[500:]) == found[2] - {"a new first row"}


def test_only_the_columns_listed_are_kept(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        write_table(tmp_path / f"rows{suffix}", [{"a": "1", "b": "2", "c": "3"}])
        rows, _, _ = read(tmp_path / f"rows{suffix}", columns=["c", "a"])
        assert rows == [{"c": "3", "a": "1"}]


def test_a_column_with_the_reserved_name_is_a_clear_error(tmp_path: Path) -> None:
    write_table(tmp_path / "rows.jsonl", [{ROW: "mine", "a": "1"}, {ROW: "too", "a": "2"}])
    config = PipelineConfig.from_mapping({"dataset": {"name": str(tmp_path / "rows.jsonl")}})
    try:
        build = Build(config, ArtifactStore(tmp_path / "store"))
        build.run("raw")
        build.run("schema")
    except TokenloomError as error:
        assert ROW in str(error)
    else:
        table = build.store.objects.get(build.manifest("raw").chunks[0].output)
        assert table["a"].to_pylist() == ["1", "2"]


@pytest.mark.parametrize("limit", [1, 7, 100, 999, 1000, 5000])
def test_limit_takes_the_first_rows_of_each_split(tmp_path: Path, limit: int) -> None:
    write_table(tmp_path / "rows.jsonl", [{"a": f"row {index}"} for index in range(1000)])
    config = PipelineConfig.from_mapping({"dataset": {"name": str(tmp_path / "rows.jsonl"), "val_split": 0.25}})
    store, size = ArtifactStore(tmp_path / "store"), ChunkSize(2048, 8192)
    found = []
    for build in (Build(config, store, chunk_size=size), Build(config, store, limit=limit, chunk_size=size)):
        report = build.run("raw")
        assert report.rows_in == report.rows_out + report.rejected + report.filtered
        tables = [(chunk.split, store.objects.get(chunk.output)) for chunk in build.manifest("raw").chunks]
        found.append(
            {
                split: [v for s, t in tables if s == split for v in t["a"].to_pylist()]
                for split in ("train", "validation")
            }
        )
    whole, limited = found
    assert limited == {split: rows[:limit] for split, rows in whole.items()}
    assert Build(config, store, limit=limit).name == f"dataset@{limit}"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_filters_drop_and_count_rows_in_every_format(tmp_path: Path, suffix: str) -> None:
    rows = [{"a": f"{index}" * (index % 3), "b": str(index)} for index in range(60)]
    write_table(tmp_path / f"rows{suffix}", rows)
    found, rejects, filtered = read(tmp_path / f"rows{suffix}", filters=["len(a) > 0", 'b != "4"'], columns=["a"])
    kept = [{"a": row["a"]} for row in rows if row["a"] and row["b"] != "4"]
    assert (found, rejects, filtered) == (kept, [], 60 - len(kept))


@pytest.mark.parametrize(
    ("condition", "message"), [("len(aa) > 0", "did you mean a"), ("a >", "condition"), ("a > 1", "a > 1")]
)
def test_a_filter_error_has_its_line(tmp_path: Path, condition: str, message: str) -> None:
    write_table(tmp_path / "rows.jsonl", [{"a": "x"}] * 5)
    (tmp_path / "data.yaml").write_text(f"dataset:\n  name: rows.jsonl\n  filters: ['{condition}']\n")
    build = Build(PipelineConfig.from_file(tmp_path / "data.yaml"), ArtifactStore(tmp_path / "store"))
    with pytest.raises(ConfigError, match=message) as raised:
        build.run("raw")
    assert raised.value.faults[0].place.endswith("data.yaml:3")


def test_val_split_moves_no_row_when_a_field_is_added(tmp_path: Path) -> None:
    def article(number: int, **more: Any) -> Row:
        return {"title": f"t{number}", "ps": [{"a": f"{number} {index}", "n": index, **more} for index in range(10)]}

    found = []
    for articles in ([article(n) for n in range(20)], [*(article(n) for n in range(20)), article(20, new="x")]):
        (tmp_path / "rows.json").write_text(json.dumps({"data": articles}))
        found.append({row["a"] for row in read_split(tmp_path / "rows.json", "validation", val_split=0.3)})
    assert found[0] == {a for a in found[1] if not a.startswith("20 ")} and len(found[0]) > 30


def test_a_file_named_in_capitals_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "ROWS.JSONL.GZ").write_bytes(gzip.compress(b'{"a": 1}\n'))
    assert read(tmp_path / "ROWS.JSONL.GZ") == ([{"a": 1}], [], 0)
