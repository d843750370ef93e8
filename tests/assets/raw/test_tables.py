"""Tables of any types round-trip; damage rejects rows or is an error."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv as csv_writer

from support.raw_rows import TEXT, chunks_of, read, write_table
from tokenloom.assets.building.build import Build
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.raw.formats import tables as table_files
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import SourceError, TokenloomError
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.objects import encode_table

KINDS = st.recursive(
    st.sampled_from(
        [
            *(
                pa.string(),
                pa.large_string(),
                pa.binary(),
                pa.bool_(),
                pa.int8(),
                pa.uint64(),
                pa.float64(),
                pa.date32(),
            ),
            *(pa.timestamp("us"), pa.decimal128(10, 2), pa.dictionary(pa.int8(), pa.string()), pa.null()),
        ]
    ),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.dictionaries(st.sampled_from("xyz"), inner, min_size=1, max_size=2).map(
            lambda fields: pa.struct(list(fields.items()))
        ),
    ),
    max_leaves=4,
)


BY_KIND: dict[str, st.SearchStrategy[Any]] = {
    "binary": st.binary(max_size=4),
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "uint64": st.integers(0, 2**64 - 1),
    "double": st.floats(allow_nan=False),
    "date32[day]": st.dates(),
    "timestamp[us]": st.datetimes(),
    "decimal128(10, 2)": st.decimals(-1000, 1000, places=2),
    "null": st.none(),
}


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Generate values of an Arrow type, including null."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return st.one_of(st.none(), st.lists(values(kind.value_type), max_size=2))
    if pa.types.is_struct(kind):
        return st.one_of(st.none(), st.fixed_dictionaries({field.name: values(field.type) for field in kind}))
    return st.one_of(st.none(), BY_KIND.get(str(kind), TEXT))


@st.composite
def tables(draw: st.DrawFn, kinds: st.SearchStrategy[pa.DataType] = KINDS) -> pa.Table:
    """Generate a table of some rows and columns of any types."""
    rows = draw(st.integers(1, 9))
    columns = {}
    for name in draw(st.lists(st.sampled_from(["a", "b c", "d.e", "f[]"]), min_size=1, max_size=3, unique=True)):
        kind = draw(kinds)
        columns[name] = pa.array(draw(st.lists(values(kind), min_size=rows, max_size=rows)), kind)
    return pa.table(columns)


@given(tables(), st.integers(1, 4))
def test_any_table_written_as_parquet_or_arrow_comes_back_equal(table: pa.Table, group: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pq.write_table(table, folder / "rows.parquet", row_group_size=group)
        with pa.OSFile(str(folder / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=group)
        with pa.OSFile(str(folder / "stream.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=group)
        for path in folder.iterdir():
            for size in (ChunkSize(), ChunkSize(32, 128)):
                assert read(path, size) == (table.to_pylist(), [], 0)


@given(tables(st.sampled_from([pa.string(), pa.bool_(), pa.int8(), pa.list_(pa.string())])), st.integers(1, 4))
def test_any_table_written_as_lines_or_records_comes_back_equal(table: pa.Table, group: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), table.to_pylist()
        write_table(folder / "rows.jsonl", rows)
        write_table(folder / "rows.json", rows)
        for path in folder.iterdir():
            found, rejects, filtered = read(path)
            assert (found, rejects, filtered) == (rows, [], 0)
        flat = [name for name in table.column_names if not pa.types.is_nested(table.schema.field(name).type)]
        texts = table.select(flat).cast(pa.schema([(name, pa.string()) for name in flat]))
        texts = pa.table({name: texts[name].fill_null("") for name in flat} | {"z": ["x"] * table.num_rows})
        csv_writer.write_csv(texts, folder / "rows.csv")
        assert read(folder / "rows.csv") == (texts.to_pylist(), [], 0)


def write_arrow(path: Path, table: pa.Table, group: int | None = None) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=group)
    return path


def stored_bytes(table: pa.Table) -> bytes:
    return encode_table(table, compressed=False).to_pybytes()


@given(tables(), st.integers(1, 9))
def test_the_bytes_of_a_chunk_are_those_of_its_rows_alone(table: pa.Table, group: int) -> None:
    """Whatever rows are around it in the file, and however they are stored there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pq.write_table(table, folder / "rows.parquet", row_group_size=group)
        write_arrow(folder / "rows.arrow", table, group)
        for path in (folder / "rows.parquet", folder / "rows.arrow"):
            for chunk in chunks_of(path, ChunkSize(16, 64)):
                found = chunk.load().table
                rows = found.drop_columns([ROW])
                columns = {field.name: pa.array(rows[field.name].to_pylist(), field.type) for field in rows.schema}
                alone = write_arrow(folder / "alone", pa.table(columns)).rename(folder / "alone.arrow")
                (same,) = chunks_of(alone, ChunkSize())
                assert (stored_bytes(found), chunk.digest) == (stored_bytes(same.load().table), same.digest)


@pytest.mark.parametrize("taken", [{"filters": ["n < 3"]}, {"limit": 3}])
def test_the_bytes_of_the_rows_that_are_taken_hold_nothing_of_others(taken: dict[str, Any], tmp_path: Path) -> None:
    texts = pa.array([f"secret {number}" if number > 2 else f"text {number}" for number in range(20)])
    columns = {"n": range(20), "plain": texts, "coded": texts.dictionary_encode(), "lists": [[text] for text in texts]}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    settings = {"dataset": {"name": str(tmp_path / "rows.parquet"), "filters": taken.get("filters", [])}}
    (chunk,) = source_chunks(PipelineConfig.from_mapping(settings), limit=taken.get("limit"))
    stored = stored_bytes(chunk.load().table)
    assert b"text 2" in stored
    assert b"secret" not in stored


@pytest.mark.parametrize("make", [pa.table, lambda columns: pa.table(columns).slice(1)])
def test_parquet_keeps_every_type_it_holds(tmp_path: Path, make: Callable[..., pa.Table]) -> None:
    columns = {
        "text": ["a", None, "c"],
        "tags": [["x"], None, []],
        "vector": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
        "blob": [b"\xff", b"", None],
        "when": pa.array([0, 1, None], pa.timestamp("us")),
        "kind": pa.array(["p", "q", None]).dictionary_encode(),
        "nested": [{"a": {"b": [1]}}, None, {"a": None}],
    }
    pq.write_table(make(columns), tmp_path / "rows.parquet")
    rows, rejects, _ = read(tmp_path / "rows.parquet")
    assert rows == make(columns).to_pylist()
    assert rejects == []


def test_a_parquet_row_that_is_not_utf8_is_rejected_and_damage_is_an_error(tmp_path: Path) -> None:
    texts = pa.array([b"good", b"b\xffd", None, b"fine"], pa.binary())
    array = pa.Array.from_buffers(pa.string(), 4, texts.buffers())
    pq.write_table(pa.table({"a": array, "n": [1, 2, 3, 4]}), tmp_path / "rows.parquet")
    rows, rejects, _ = read(tmp_path / "rows.parquet")
    assert [row["n"] for row in rows] == [1, 3, 4]
    assert [(reject[ROW], reject["code"]) for reject in rejects] == [(1, "invalid_utf8")]
    pq.write_table(pa.Table.from_arrays([texts, texts], ["a", "a"]), tmp_path / "twice.parquet")
    with pytest.raises(SourceError, match=r"twice\.parquet: .*a"):
        read(tmp_path / "twice.parquet")


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("ns", "Foo/Bar"), pa.list_(pa.string_view()), pa.list_view(pa.int32()), pa.month_day_nano_interval()],
    ids=str,
)
def test_rare_arrow_types_are_read(tmp_path: Path, kind: pa.DataType) -> None:
    held = {"timestamp[ns, tz=Foo/Bar]": [1, 2], "month_day_nano_interval": [(1, 2, 3), None]}
    lists = [["a", "b"], None] if "string" in str(kind) else [[1, 2], None]
    table = pa.table({"a": pa.array(held.get(str(kind), lists), kind), "b": ["x", "y"]})
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    build = Build(
        PipelineConfig.from_mapping({"dataset": {"name": str(tmp_path / "rows.arrow")}}), ArtifactStore(tmp_path / "s")
    )
    assert build.run("raw").rows_out == 2
    assert build.run("schema").rows_out == 2


def test_a_damaged_arrow_file_is_read_or_a_source_error(tmp_path: Path) -> None:
    noise = random.Random(2)
    table = pa.table(
        {"a": [f"some text {index}" for index in range(500)], "l": [["x"] * (index % 4) for index in range(500)]}
    )
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = (tmp_path / "rows.arrow").read_bytes()
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(noise.randrange(1, 6)):
            damaged[noise.randrange(len(data))] = noise.randrange(256)
        (tmp_path / "rows.arrow").write_bytes(damaged)
        try:
            read(tmp_path / "rows.arrow")
        except TokenloomError as error:
            assert "rows.arrow" in str(error)


def test_lists_of_nothing_but_nulls_are_read(tmp_path: Path) -> None:
    rows = [{"a": {"text": "x", "none": [None] * count}} for count in (2, 0, 1)]
    write_table(tmp_path / "rows.parquet", rows)
    assert read(tmp_path / "rows.parquet") == (rows, [], 0)


@pytest.mark.parametrize("rows", [1, 1000])
def test_lists_many_times_larger_than_their_file_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(table_files, "_MANY_VALUES", 1 << 16)
    monkeypatch.setattr(table_files, "_VALUES_PER_BYTE", 1 << 10)

    def written(lengths: list[int]) -> Path:
        bounds = pa.array([0, *accumulate(lengths)], pa.int32())
        flags = pa.ListArray.from_arrays(bounds, pa.array(bytes(sum(lengths)), pa.uint8()))
        pq.write_table(pa.table({"text": ["x"] * len(lengths), "flags": flags}), tmp_path / "rows.parquet")
        return tmp_path / "rows.parquet"

    equal = written([1000] * 1000)
    assert [len(row["flags"]) for row in read(equal)[0]] == [1000] * 1000
    bomb = written([1 << 18, *[0] * (rows - 1)])
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("was read"))
    with pytest.raises(SourceError, match=r"rows\.parquet: .*row group 0 holds 26[23],\d+ values of flags"):
        read(bomb)


def test_tables_of_absurd_shapes_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, value in (("_MANY_ROWS", 1000), ("_MANY_VALUES", 1000), ("_MAX_NAME_CHARACTERS", 5000)):
        monkeypatch.setattr(table_files, limit, value)
    overlapping = pa.ListViewArray.from_arrays(pa.array([0] * 99), pa.array([99] * 99), pa.array(range(99)))
    shapes: dict[str, tuple[pa.Table, str]] = {
        "names": (pa.table({"text": ["x"], "n" * 5001: ["y"]}), "names of columns and fields have 5,005 characters"),
        "fields": (pa.table({"a": [{f"k{n}": 1 for n in range(10_000)}]}), "10,001 columns and fields, but at most"),
        "nothing": (pa.table({"text": pa.nulls(2000)}), "2,000 rows in 0 bytes, too many to unpack"),
        "views": (pa.table({"v": overlapping}), "views of lists hold 9,801 values, but only 99 are stored"),
    }
    for name, (table, message) in shapes.items():
        path = tmp_path / f"{name}.arrow"
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
        with pytest.raises(SourceError, match=rf"{name}\.arrow: .*{message}"):
            read(path)
    pq.write_table(pa.table({"text": ["x"] * 100_000}), tmp_path / "equal.parquet")
    with pytest.raises(SourceError, match=r"equal\.parquet: .*100,000 rows in \d+ bytes, too many to unpack"):
        read(tmp_path / "equal.parquet")


def test_tiny_row_groups_are_read_together_with_the_same_rows(tmp_path: Path) -> None:
    rows = [{"text": f"row {number}", "tags": ["a"] * (number % 3)} for number in range(1500)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet", row_group_size=2)
    assert read(tmp_path / "rows.parquet") == (rows, [], 0)
