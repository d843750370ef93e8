"""Consecutive small files share chunks, and every row keeps its file and line."""

from __future__ import annotations

import csv
import io
import json
import os
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.builds import build, digests, frozen_tokenizer
from support.datasets_on_disk import write_dataset
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.raw.unchanged import UnchangedFiles
from tokenloom.assets.stage.definition import ChunkSize, InputChunk
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import DatasetConfig, PipelineConfig
from tokenloom.errors import SourceError
from tokenloom.resources.sources.source_file import SourceFile
from tokenloom.resources.store import ArtifactStore, known_files
from tokenloom.resources.store.known_files import KnownFiles
from tokenloom.resources.store.manifest_chunks import source_place
from tokenloom.resources.tables.json_text import is_json

SIZE = ChunkSize(2_000, 8_000)
Placed = list[tuple[str, Any]]
"""A place in the source with its row, or None for a rejected record."""


def config_of(folder: Path, **settings: Any) -> PipelineConfig:
    return PipelineConfig(dataset=DatasetConfig.model_validate({"name": str(folder), **settings}))


def placed(chunks: Iterator[InputChunk]) -> Placed:
    """Return the rows and rejects of chunks, in order, each with its place."""
    found: Placed = []
    for chunk in chunks:
        output = chunk.load()
        table = output.table
        texts = [name for name in table.column_names if is_json(table.schema.field(name).type)]
        rows: list[tuple[int, Any]] = []
        for row in table.to_pylist():
            at = row.pop(ROW)
            values = {
                name: json.loads(value) if name in texts and value is not None else value for name, value in row.items()
            }
            rows.append((at, {name: value for name, value in values.items() if value is not None}))
        rows += [(at, None) for at in output.rejects[ROW].to_pylist()]
        rows.sort(key=lambda row: row[0])
        found += [(source_place(chunk.runs, chunk.unit, at), row) for at, row in rows]
    return found


def json_file(pick: random.Random) -> bytes:
    lines = []
    for _ in range(pick.randrange(6)):
        row = {"n": pick.randrange(10**9), "s": "é " * pick.randrange(40), "t": pick.choice([1, "one", [1]])}
        line = json.dumps({name: row[name] for name in pick.sample(sorted(row), 2)}, ensure_ascii=False)
        lines.append(pick.choice([line] * 8 + ["", "  ", "{bad", '"text"']))
    text = "\n".join(lines) + pick.choice(["", "\n", "\n\n", "\r\n"])
    encoding = pick.choice(["utf-8"] * 6 + ["utf-8-sig", "utf-16"])
    return text.encode(encoding)


def json_rows(data: bytes) -> Iterator[tuple[int, Any]]:
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    for number, line in enumerate(data.decode(encoding).split("\n"), 1):
        try:
            row = json.loads(line) if line.strip() else ...
        except ValueError:
            row = None
        if row is not ...:
            yield number, row if isinstance(row, dict) else None


def csv_file(pick: random.Random) -> bytes:
    end = pick.choice(["\n", "\r\n", "\r"])
    header = pick.choice(["id,said"] * 5 + ["said,id", "id;said"])
    comma = ";" if ";" in header else ","
    good = [
        f'{pick.randrange(10**9)}{comma}"so ""x"",{end}{"é" * pick.randrange(60)}"' for _ in range(pick.randrange(6))
    ]
    rows = [pick.choice([row] * 8 + ["", "a,b;c,d;e"]) for row in good]
    return (end * pick.randrange(2) + end.join([header, *rows]) + pick.choice(["", end, end + end])).encode()


def csv_rows(data: bytes) -> Iterator[tuple[int, Any]]:
    text = data.decode()
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=";" if "id;said" in text else ",")
    names: list[str] = []
    line = 1
    for record in reader:
        if record and not names:
            names = record
        elif record:
            yield line, dict(zip(names, record, strict=True)) if len(record) == len(names) else None
        line = reader.line_num + 1


def text_file(pick: random.Random) -> bytes:
    lines = [
        pick.choice(["", f"{pick.randrange(10**9)} " + "é" * pick.randrange(60)]) for _ in range(pick.randrange(8))
    ]
    return ("\n".join(lines) + pick.choice(["", "\n"])).encode()


def text_rows(data: bytes) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(data.decode().split("\n"), 1):
        if line.strip():
            yield number, {"text": line}


def whole_rows(data: bytes) -> Iterator[tuple[int, Any]]:
    if data.strip():
        yield 1, {"text": data.decode().rstrip("\r\n")}


def paragraph_rows(data: bytes) -> Iterator[tuple[int, Any]]:
    lines = data.decode().split("\n")
    solid = [False, *(bool(line.strip()) for line in lines)]
    starts = [at for at, (before, here) in enumerate(pairwise(solid)) if here and not before]
    for index, (start, end) in enumerate(pairwise([*starts, len(lines)])):
        first = start if index else 0
        yield first + 1, {"text": "\n".join(lines[first:end]).rstrip("\n")}


KINDS: dict[str, tuple[str, Any, Any, dict[str, Any]]] = {
    "jsonl": (".jsonl", json_file, json_rows, {}),
    "csv": (".csv", csv_file, csv_rows, {"reader": {"header": True}}),
    "text": (".txt", text_file, text_rows, {}),
    "files": (".txt", text_file, whole_rows, {"reader": {"lines_per_row": "file"}}),
    "paragraphs": (".txt", text_file, paragraph_rows, {"reader": {"lines_per_row": "paragraph"}}),
}

LARGE = {".jsonl": b'{"n": 1}\n', ".csv": b"id,said\n", ".txt": b"large\n"}
"""A record, or a header, of files that are read alone."""


def write_files(folder: Path, kind: str, pick: random.Random, count: int = 150) -> dict[str, bytes]:
    """Write files of a kind, some of which share no chunks, and return their contents by name."""
    ending, make, _, _ = KINDS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, bytes] = {}
    for number in range(count):
        data = make(pick)
        if number % 40 == 20:
            data = LARGE[ending] * 400
        name = b"f%04d%s" % (number, b"\xe9" * (number % 30 == 7)) + ending.encode()
        (folder / os.fsdecode(name)).write_bytes(data)
        written[name.decode(errors="backslashreplace")] = data
    return written


def expected(kind: str, written: dict[str, bytes]) -> Placed:
    rows_of = KINDS[kind][2]
    return [(f"{name}:{line}", row) for name, data in sorted(written.items()) for line, row in rows_of(data)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_every_row_has_its_file_and_line(kind: str, seed: int, tmp_path: Path) -> None:
    written = write_files(tmp_path / "data", kind, random.Random(f"{kind} {seed}"))
    config = config_of(tmp_path / "data", **KINDS[kind][3])
    chunks = list(source_chunks(config, SIZE))
    assert placed(iter(chunks)) == expected(kind, written)
    assert max(len(chunk.runs) for chunk in chunks) > 1
    parts = config_of(tmp_path / "data", **KINDS[kind][3], val_split=0.3)
    assert sorted(placed(source_chunks(parts, SIZE)), key=str) == sorted(expected(kind, written), key=str)


def single_lines(folder: Path, count: int, pick: random.Random) -> list[Path]:
    """Write files of two rows, none of which ends with a newline."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"f{number:04}.jsonl" for number in range(count)]
    for path in paths:
        path.write_text(two_rows(pick), encoding="utf-8")
    return paths


def two_rows(pick: random.Random) -> str:
    return "\n".join(json.dumps({"n": pick.randrange(10**9), "s": "so " * pick.randrange(40)}) for _ in range(2))


def test_a_change_of_a_file_changes_few_chunks(tmp_path: Path) -> None:
    pick, size = random.Random(1), ChunkSize(4_000, 16_000)
    paths = single_lines(tmp_path, 800, pick)
    changed: list[int] = []
    before = [chunk.digest for chunk in source_chunks(config_of(tmp_path), size)]
    assert len(before) > 12
    for _ in range(30):
        path = pick.choice([path for path in paths if path.exists()])
        match pick.randrange(3):
            case 0:
                path.unlink()
            case 1:
                path.write_text(two_rows(pick), encoding="utf-8")
            case _:
                path.with_name(f"{path.stem}x{pick.randrange(10**6)}.jsonl").write_text(
                    two_rows(pick), encoding="utf-8"
                )
        after = [chunk.digest for chunk in source_chunks(config_of(tmp_path), size)]
        changed.append(len(set(after) - set(before)))
        before = after
    assert sum(changed) <= 1.3 * len(changed)
    assert max(changed) <= 3


def test_chunks_depend_on_no_file_name_and_are_those_of_one_file(tmp_path: Path) -> None:
    paths = single_lines(tmp_path / "a", 300, random.Random(2))
    (tmp_path / "b").mkdir()
    (tmp_path / "one").mkdir()
    for path in paths:
        (tmp_path / "b" / f"other-{path.name}").write_bytes(path.read_bytes())
    one = "".join(path.read_text(encoding="utf-8") + "\n" for path in paths)
    (tmp_path / "one" / "one.jsonl").write_text(one, encoding="utf-8")
    size = ChunkSize(200_000, 800_000)
    by_folder = {
        name: [chunk.digest for chunk in source_chunks(config_of(tmp_path / name), size)] for name in ("a", "b", "one")
    }
    assert by_folder["a"] == by_folder["b"] == by_folder["one"]


@pytest.mark.parametrize("border", [b"ab\n", b"\nab", b"a\n\nb", b"ab"])
def test_chunks_with_other_borders_between_files_differ(border: bytes, tmp_path: Path) -> None:
    found = set()
    for at in range(len(border) + 1):
        folder = tmp_path / str(at)
        folder.mkdir()
        (folder / "a.txt").write_bytes(b"x" + border[:at])
        (folder / "b.txt").write_bytes(border[at:] + b"y")
        (chunk,) = source_chunks(config_of(folder, reader={"lines_per_row": "file"}), SIZE)
        rows = tuple(chunk.load().table["text"].to_pylist())
        assert rows == ((b"x" + border[:at]).decode().rstrip("\n"), (border[at:] + b"y").decode())
        found.add((chunk.digest, rows))
    assert len({digest for digest, _ in found}) == len({rows for _, rows in found})


def test_a_record_that_is_too_large_is_rejected_in_its_own_file(tmp_path: Path) -> None:
    contents = ['{"n": 1}\n{"n": "%s"}', '{"n": "%s"}\n\n{"n": 2}\n', '{"n": 3}']
    for number, text in enumerate(contents):
        (tmp_path / f"{number}.jsonl").write_text(text.replace("%s", "x" * 600), encoding="utf-8")
    (chunk,) = source_chunks(config_of(tmp_path, reader={"max_record_bytes": 500}), SIZE)
    expected = [("0.jsonl:1", {"n": 1}), ("0.jsonl:2", None), ("1.jsonl:1", None), ("1.jsonl:3", {"n": 2})]
    assert placed(iter([chunk])) == [*expected, ("2.jsonl:1", {"n": 3})]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("b.csv", b'id,said\n1,"open\n2,x', "b.csv: the quote that opens a field on line 2 is never closed"),
        ("b.json", b'{"a": [1, ', "b.json: invalid JSON"),
        ("b.jsonl", b'{"_row": 1}\n', "b.jsonl: the column name _row is reserved"),
        ("b.csv", b"id,said\n1,2\n3,x\ry\n", "b.csv"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    other = {".csv": b"id,said\n1,2\n"}.get(Path(name).suffix, b'{"n": 1}\n{"n": 2}\n')
    for neighbour in ("a", "c"):
        (tmp_path / name).with_stem(neighbour).write_bytes(other)
    (tmp_path / name).write_bytes(data)
    try:
        rows = placed(source_chunks(config_of(tmp_path), SIZE))
    except SourceError as error:
        assert message in str(error)
    else:
        assert message == name and {place.partition(":")[0] for place, _ in rows} == {"a.csv", "b.csv", "c.csv"}


def test_large_files_and_datasets_of_one_file_are_read_alone(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"n": number}) + "\n" for number in range(60))
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.jsonl").write_text(rows * (5 if number == 2 else 1), encoding="utf-8")
    chunks = list(source_chunks(config_of(folder), SIZE))
    alone = list(source_chunks(config_of(folder / "2.jsonl"), SIZE))
    assert [chunk.digest for chunk in alone] == [
        chunk.digest for chunk in chunks if {run.source for run in chunk.runs} == {"2.jsonl"}
    ]
    assert all("2.jsonl" not in {run.source for run in chunk.runs} or len(chunk.runs) == 1 for chunk in chunks)


class Opened:
    """Counts the files that are opened and the entries that are written."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.files: list[str] = []
        self.entries = 0
        blocks, write = SourceFile.blocks, KnownFiles._write

        def opened(file: SourceFile) -> Iterator[bytes]:
            self.files.append(file.name)
            return blocks(file)

        def written(known: KnownFiles, name: str, entry: dict[str, Any]) -> None:
            self.entries += 1
            write(known, name, entry)

        patch.setattr(SourceFile, "blocks", opened)
        patch.setattr(KnownFiles, "_write", written)


@pytest.mark.parametrize("kind", KINDS)
def test_known_groups_give_the_chunks_of_a_cold_build(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any change, the chunks are those of a build that knows nothing; without one, nothing is read or written."""
    monkeypatch.setattr(known_files, "SETTLED_SECONDS", 0.0)
    opened, pick = Opened(monkeypatch), random.Random(kind)
    ending, make, _, settings = KINDS[kind]
    folder = tmp_path / "data"
    write_files(folder, kind, pick, 60)
    config = config_of(folder, **settings)
    stored: set[str] = set()

    def read(unchanged: UnchangedFiles | None) -> list[tuple[object, ...]]:
        chunks = list(source_chunks(config, SIZE, unchanged=unchanged))
        stored.update(chunk.digest for chunk in chunks)
        return [(chunk.digest, chunk.split, chunk.runs, chunk.unit) for chunk in chunks]

    unchanged = UnchangedFiles(KnownFiles(ArtifactStore(tmp_path / "store").blobs, [kind]), stored.__contains__)
    for _ in range(25):
        cold = read(None)
        assert read(unchanged) == cold
        opened.files.clear()
        opened.entries = 0
        assert read(unchanged) == cold
        assert not opened.entries
        assert not opened.files
        assert placed(source_chunks(config, SIZE, unchanged=unchanged)) == placed(source_chunks(config, SIZE))
        path = pick.choice(sorted(folder.iterdir()))
        match pick.randrange(4):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(make(pick))
            case 2:
                path.rename(path.with_name(f"r{pick.randrange(10**9)}{ending}"))
            case _:
                path.with_name(f"f00{pick.randrange(10**9)}{ending}").write_bytes(make(pick))


def test_files_that_were_just_written_are_always_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later change may leave their times as they are."""
    monkeypatch.setattr(known_files, "SETTLED_SECONDS", 1e6)
    write_files(tmp_path / "data", "jsonl", random.Random(0), 9)
    unchanged = UnchangedFiles(KnownFiles(ArtifactStore(tmp_path / "store").blobs, []), lambda digest: True)
    opened = Opened(monkeypatch)
    for _ in range(2):
        opened.files.clear()
        assert [*source_chunks(config_of(tmp_path / "data"), SIZE, unchanged=unchanged)]
        assert opened.files and not opened.entries


def test_an_unchanged_build_writes_nothing_and_shares_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = frozen_tokenizer(tmp_path)
    config = write_dataset(tmp_path / "data", 600, tokenizer=tokenizer)
    rows = (tmp_path / "data" / "small.jsonl").read_text(encoding="utf-8").splitlines()
    folder = tmp_path / "data" / "many"
    folder.mkdir()
    for number in range(0, 600, 2):
        (folder / f"{number:04}.jsonl").write_text("\n".join(rows[number : number + 2]), encoding="utf-8")
    config.write_text(config.read_text(encoding="utf-8").replace("name: small.jsonl", "name: many"), encoding="utf-8")
    monkeypatch.setattr(known_files, "SETTLED_SECONDS", 0.0)
    store = tmp_path / "store"
    cold = build(config, store)
    assert 1 < cold["raw"].chunks < 40
    assert len(list((store / "files").iterdir())) < 10
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}
    opened = Opened(monkeypatch)
    again = build(config, store)
    assert digests(again) == digests(cold)
    assert not opened.files
    assert {path for path in store.rglob("*") if path.is_file()} == set(before)
    (folder / "0301.jsonl").write_text(rows[7], encoding="utf-8")
    changed = build(config, store)
    assert all(changed[name].chunks - changed[name].chunks_reused <= 2 for name in ("raw", "columns", "sequences"))
    assert digests(changed) == digests(build(config, tmp_path / "cold"))
