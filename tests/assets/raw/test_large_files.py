"""Large files have the same chunks, rejects and errors for any number of readers, and any size of their parts."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.changed_files import Remembered, changes, described
from support.object_service import BUCKET, ObjectService, object_service
from support.pickling_engine import PicklingEngine
from support.soak import machine
from tokenloom.assets.raw.chunks import SourceNotes, source_chunks
from tokenloom.assets.raw.formats import record_file, tables
from tokenloom.assets.raw.unchanged import UnchangedFiles
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.config import PipelineConfig
from tokenloom.errors import SourceError, TokenloomError
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.sources import large_file, source_file
from tokenloom.resources.sources.large_file import LargeFile, Ranges
from tokenloom.resources.sources.source_file import SourceFile

ENGINES = [ComputeEngine(3), PicklingEngine(3)]
SMALL = ChunkSize(64, 256)


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the size of blocks and parts; no file is small then."""

    def set_size(size: int) -> None:
        for module in (source_file, large_file, record_file):
            monkeypatch.setattr(module, "BLOCK_BYTES", size)
        monkeypatch.setattr(large_file, "LARGE_BYTES", 1)
        monkeypatch.setattr(SourceFile.blocks, "__defaults__", (size,))
        monkeypatch.setattr(tables, "_PART_BYTES", size)

    return set_size


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the parts that were searched for lines."""
    found: list[int] = []
    parts = LargeFile.parts

    def seen(*arguments: Any, **options: Any) -> Iterator[Any]:
        for part in parts(*arguments, **options):
            if isinstance(part, record_file.LinePart):
                found.append(len(part.head) + sum(len(block.data) for block in part.blocks) + len(part.tail or b""))
            yield part

    monkeypatch.setattr(LargeFile, "parts", seen)
    return found


def outcome(name: str, engine: ComputeEngine, size: ChunkSize = SMALL, **dataset: Any) -> Any:
    """Return all that reading a source gives, or its error."""
    config = PipelineConfig.from_mapping({"dataset": {"name": name, **dataset}})
    notes = SourceNotes()
    try:
        return described(list(source_chunks(config, size, notes=notes, engine=engine))), notes.shown()
    except TokenloomError as error:
        return type(error), str(error)


LINES = st.sampled_from(
    [
        *(
            b'{"a": 1}',
            b'{"a": "two"}',
            b'{"a": [1, {"b": null}]}',
            b'{"a": "\xc3\xa9\\n"}',
            b'{"a": "%s"}' % (b"x" * 99),
        ),
        *(
            b"",
            b" ",
            b"\r",
            b"\xff\xfe",
            b"\0",
            b'{"a": "\0"}',
            b'"',
            b"[",
            b"]",
            b"{",
            b"null",
            b"a,b",
            b'"q""\r',
            b"\\",
        ),
        *(
            b"\xef\xbb\xbf",
            b'{"messages": []}',
            b"caf\xe9 d\xe9j\xe0 \xe9t\xe9 \xe0 No\xebl",
            b"y" * 70,
            b"1,2",
            b'3,"4',
        ),
    ]
)
FILES = st.sampled_from(
    [
        ("a.jsonl", {}),
        ("a.jsonl", {"val_split": 0.4}),
        ("a.jsonl", {"fraction": 0.5, "encoding": "utf-8"}),
        ("a.jsonl", {"max_rows": 5}),
        ("a.jsonl", {"reader": {"max_record_bytes": 20}}),
        ("a.jsonl", {"reader": {"root": "a[]"}}),
        ("a.json", {}),
        ("a.txt", {}),
        ("a.txt", {"encoding": "utf-8", "reader": {"max_record_bytes": 10}}),
        ("a.txt", {"encoding": "cp1252"}),
        ("a.txt", {"reader": {"lines_per_row": "paragraph"}}),
        ("a.txt", {"reader": {"lines_per_row": "file"}}),
        ("a.csv", {}),
        ("a.csv", {"reader": {"max_record_bytes": 30, "header": False}}),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(LINES, max_size=60),
    FILES,
    st.sampled_from([b"\n", b"\r\n", b"\n\n"]),
    st.sampled_from([b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf" * 2, b" \n"]),
    st.booleans(),
    st.sampled_from([1, 7, 40, 300]),
    st.sampled_from(ENGINES),
)
def test_any_file_is_read_as_by_one_reader(
    block: Any,
    tmp_path: Path,
    lines: list[bytes],
    file: tuple[str, dict[str, Any]],
    ending: bytes,
    start: bytes,
    final: bool,
    size: int,
    engine: ComputeEngine,
) -> None:
    block(size)
    path = tmp_path / file[0]
    path.write_bytes(start + ending.join([*lines, b""] if final else lines))
    assert outcome(str(path), engine, **file[1]) == outcome(str(path), ComputeEngine(1), **file[1])


@pytest.mark.parametrize("engine", ENGINES, ids=["threads", "tasks"])
def test_an_encoding_that_shows_late_is_detected(engine: ComputeEngine, block: Any, tmp_path: Path) -> None:
    block(1_000)
    path = tmp_path / "a.txt"
    path.write_bytes(b"plain\n" * 500 + "déjà vu, été à Noël, où l'élève naïf était\n".encode("cp1252") * 200)
    found = outcome(str(path), engine)
    assert found == outcome(str(path), ComputeEngine(1))
    assert found[1]["files"] == {"a.txt": {"encoding": "cp1252"}}


def json_lines(count: int, seed: int = 1) -> list[bytes]:
    pick = random.Random(seed)
    return [b'{"text": "%s"}\n' % (b"x%d " % pick.randrange(10**6) * pick.randrange(1, 30)) for _ in range(count)]


@pytest.mark.parametrize("engine", ENGINES, ids=["threads", "tasks"])
@pytest.mark.parametrize("long", [0, 5_000, 200_000])
def test_tasks_find_the_lines(engine: ComputeEngine, long: int, block: Any, parts: list[int], tmp_path: Path) -> None:
    block(1_000)
    lines = json_lines(500)
    lines[250] = b'{"text": "%s"}\n' % (b"y" * long)
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
    size, settings = ChunkSize(2_000, 8_000), {"reader": {"max_record_bytes": 100_000}}
    found = outcome(str(tmp_path / "a.jsonl"), engine, size, **settings)
    assert found == outcome(str(tmp_path / "a.jsonl"), ComputeEngine(1), size, **settings)
    assert sum(parts) == (tmp_path / "a.jsonl").stat().st_size
    assert max(parts) == 1_000


@pytest.mark.parametrize("engine", ENGINES, ids=["threads", "tasks"])
def test_what_follows_an_unchanged_start_is_read_by_all(
    engine: ComputeEngine, block: Any, parts: list[int], tmp_path: Path
) -> None:
    block(1_000)
    size, lines, path = ChunkSize(2_000, 8_000), json_lines(400), tmp_path / "a.jsonl"
    config = PipelineConfig.from_mapping({"dataset": {"name": str(path)}})
    pick = random.Random(2)
    for what, changed in changes(lines, lambda: json_lines(1, pick.randrange(99))[0], pick):
        unchanged = UnchangedFiles(Remembered(), lambda digest: True)
        path.write_bytes(b"".join(lines))
        list(source_chunks(config, size, unchanged=unchanged, engine=engine))
        path.write_bytes(b"".join(changed))
        parts.clear()
        found = described(list(source_chunks(config, size, unchanged=unchanged, engine=engine)))
        assert found == described(list(source_chunks(config, size))), what
        assert what != "appended" or 0 < sum(parts) < len(b"".join(lines)) / 2


def lines_of(file: SourceFile, engine: ComputeEngine) -> Iterator[bytes]:
    return LargeFile(file, engine).blocks()


@pytest.mark.parametrize("engine", ENGINES, ids=["threads", "tasks"])
@pytest.mark.parametrize("after", [b"", b"z" * 10, b"z" * 50_000])
def test_a_file_that_grows_or_shrinks_is_read_to_its_end(
    engine: ComputeEngine, after: bytes, block: Any, tmp_path: Path
) -> None:
    block(100)
    path = tmp_path / "a.txt"
    path.write_bytes(b"a" * 20_000)
    blocks = lines_of(SourceFile(str(path), "a.txt", "text"), engine)
    first = next(blocks)
    with path.open("r+b") as file:
        if after:
            file.seek(0, os.SEEK_END)
            file.write(after)
        else:
            file.truncate(15_050)
    assert first + b"".join(blocks) == path.read_bytes()


def test_tasks_do_not_read_another_file_of_the_same_name(block: Any, tmp_path: Path) -> None:
    path, seen = tmp_path / "a.jsonl", tmp_path / "elsewhere"
    path.write_bytes(b'{"a": 1}\n')
    file = SourceFile(str(path), "a.jsonl", "jsonl")
    stamp = large_file.stamp_of(file)
    assert stamp is not None
    ranges = Ranges(file, stamp)
    path.rename(seen)
    path.write_bytes(b'{"a": 2}\n')
    os.utime(path, ns=(1, 1))
    assert ranges.read(0) == b'{"a": 1}\n'
    copy = pickle.loads(pickle.dumps(ranges))
    with pytest.raises(SourceError, match="changed"):
        copy.read(0)
    ranges.close()


@pytest.mark.parametrize("hidden", [False, True], ids=["missing there", "with credentials"])
def test_what_tasks_cannot_read_this_process_reads(
    hidden: bool, block: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block(1_000)
    path, engine = tmp_path / "a.jsonl", PicklingEngine(3)
    path.write_bytes(b"".join(json_lines(300)))
    expected = outcome(str(path), ComputeEngine(1))
    tried: list[int] = []
    read = Ranges.read

    def fails(self: Ranges, start: int) -> bytes:
        if self._descriptor is None:
            tried.append(start)
            assert start < 7_000
        return read(self, start)

    monkeypatch.setattr(Ranges, "read", fails)
    if hidden:
        monkeypatch.setattr(large_file, "redacted_address", lambda path: f"{path}…")
    assert outcome(str(path), engine) == expected
    assert bool(tried) != hidden


GROUPS = [1, 3, 50]
ROWS = {
    "flat": [{"a": number, "b": "x" * (number % 7)} for number in range(300)],
    "nested": [{"a": [{"b": number % 3}] * (number % 4), "c": None} for number in range(300)],
    "none": [{"a": 1}][:0],
}


@pytest.mark.parametrize("engine", ENGINES, ids=["threads", "tasks"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("group", GROUPS)
def test_row_groups_are_read_as_by_one_reader(
    engine: ComputeEngine, rows: str, group: int, block: Any, tmp_path: Path
) -> None:
    block(100)
    schema = pa.schema([("a", pa.int64())]) if not ROWS[rows] else None
    pq.write_table(pa.Table.from_pylist(ROWS[rows], schema), tmp_path / "a.parquet", row_group_size=group)
    name = str(tmp_path / "a.parquet")
    assert outcome(name, engine) == outcome(name, ComputeEngine(1))
    assert outcome(name, engine, max_rows=20) == outcome(name, ComputeEngine(1), max_rows=20)


def test_categories_are_read_as_by_one_reader(block: Any, tmp_path: Path) -> None:
    block(100)
    column = pa.array([f"c{number % 17}" for number in range(500)]).dictionary_encode()
    pq.write_table(pa.table({"a": column}), tmp_path / "a.parquet", row_group_size=40)
    name = str(tmp_path / "a.parquet")
    assert outcome(name, ENGINES[1]) == outcome(name, ENGINES[0]) == outcome(name, ComputeEngine(1))


@pytest.mark.parametrize("engine", ENGINES, ids=["threads", "tasks"])
def test_row_groups_that_take_too_much_memory_are_read_alone(
    engine: ComputeEngine, block: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block(100)
    monkeypatch.setattr(tables, "_DECODED_BYTES", 10_000)
    values = ["y" * 5_000 if 60 <= number < 90 else f"{number}" for number in range(200)]
    pq.write_table(pa.table({"a": values}), tmp_path / "a.parquet", row_group_size=20)
    name, most, spread = str(tmp_path / "a.parquet"), [0], tables.spread

    def seen(*arguments: Any) -> Any:
        for found in spread(*arguments):
            most.append(sum(block.table.nbytes for block in found))
            yield found

    monkeypatch.setattr(tables, "spread", seen)
    assert outcome(name, engine) == outcome(name, ComputeEngine(1))
    assert 0 < max(most) <= 10_000


@pytest.mark.parametrize("engine", ENGINES, ids=["threads", "tasks"])
def test_a_damaged_row_group_is_reported_as_by_one_reader(engine: ComputeEngine, block: Any, tmp_path: Path) -> None:
    block(100)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS["flat"]), path, row_group_size=20, compression="zstd")
    data = bytearray(path.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 40] = b"\xff" * 40
    path.write_bytes(data)
    assert outcome(str(path), engine)[0] is SourceError
    assert outcome(str(path), engine) == outcome(str(path), ComputeEngine(1))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectService]:
    with object_service(tmp_path_factory.mktemp("cache")) as service:
        import fsspec

        fsspec.get_filesystem_class("s3").clear_instance_cache()
        yield service


@machine("bucket")
@pytest.mark.parametrize("engine", ENGINES, ids=["threads", "tasks"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_an_object_of_a_bucket_is_read_in_parts(
    engine: ComputeEngine, kind: str, block: Any, service: ObjectService, tmp_path: Path
) -> None:
    block(5_000)
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        path.write_bytes(b"".join(json_lines(300)))
    else:
        pq.write_table(pa.Table.from_pylist(ROWS["flat"]), path, row_group_size=40)
    service.client.put_object(Bucket=BUCKET, Key=f"source/a.{kind}", Body=path.read_bytes())
    found = outcome(f"s3://{BUCKET}/source/a.{kind}", engine, ChunkSize(2_000, 8_000))
    assert [chunk[0] for chunk in found[0]] == [
        chunk[0] for chunk in outcome(str(path), ComputeEngine(1), ChunkSize(2_000, 8_000))[0]
    ]


def test_an_object_that_is_replaced_while_it_is_read_fails(block: Any, service: ObjectService) -> None:
    block(1_000)
    for body in (b"a" * 500, b"a" * 20_000):
        service.client.put_object(Bucket=BUCKET, Key="b.txt", Body=b"a" * 20_000)
        blocks = lines_of(SourceFile(f"s3://{BUCKET}/b.txt", "b.txt", "text"), ComputeEngine(2))
        next(blocks)
        next(blocks)
        service.client.put_object(Bucket=BUCKET, Key="b.txt", Body=body[:-1] + b"b")
        with pytest.raises(SourceError, match=r"changed|cannot be read"):
            list(blocks)
