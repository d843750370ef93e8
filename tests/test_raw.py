"""Raw rows: record bounds, parsing, rejects, encodings, validation split and limit, against oracles."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import csv as csv_writer
from raw_rows import SUFFIXES, Row, read, read_split, write_table

from tokenloom.assets.build import Build
from tokenloom.assets.raw.chunks import SourceNotes, source_chunks
from tokenloom.assets.raw.cut import ChunkSize
from tokenloom.assets.raw.json_elements import JsonElements
from tokenloom.assets.raw.records import Finder, Lines, Paragraphs, QuotedLines, record_blocks
from tokenloom.assets.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, SourceError, TokenloomError
from tokenloom.resources.store import ArtifactStore


def found_in(data: bytes, finder: Callable[[], Finder], step: int) -> list[bytes]:
    """The records that a finder finds in data that comes in blocks of `step` bytes."""
    blocks = (data[at : at + step] for at in range(0, len(data), step))
    return [
        block.data[begin:end].tobytes()
        for block in record_blocks(blocks, finder(), "x.json")
        for begin, end in pairwise(block.bounds)
    ]


STEPS = st.sampled_from([1, 2, 3, 5, 7, 1000])


WORDS = '2020-01-01 2020-01-01T00:00:00Z 12:30:00 007 1e5 null NaN NA true "" \\" [{ 👩‍👩‍👧 مرحبا =1+1'
AWKWARD = st.sampled_from(["", *"\"\r,\t\\\u2028\ufeff\x00#' ", *WORDS.split(), "a\nb", "a\r\nb"])
TEXT = st.one_of(st.text(max_size=12), AWKWARD, st.lists(AWKWARD, max_size=3).map("".join))
TABLE = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.fixed_dictionaries({f"c{index}": TEXT for index in range(width)}), min_size=1, max_size=8)
)


@given(st.text(st.sampled_from("ab \n\r\"'"), max_size=40), STEPS)
def test_lines_are_those_of_a_regular_expression(text: str, step: int) -> None:
    data = text.encode()
    assert found_in(data, Lines, step) == re.findall(rb"[^\n]*\n|[^\n]+", data)


@given(
    st.lists(st.lists(TEXT, min_size=2, max_size=3), max_size=6), st.sampled_from(["\n", "\r\n"]), st.booleans(), STEPS
)
def test_quoted_lines_keep_each_csv_record_whole(rows: list[list[str]], ending: str, final: bool, step: int) -> None:
    written = []
    for row in rows:
        sink = io.StringIO(newline="")
        quoting = csv.QUOTE_ALL if "\r" in "".join(row) else csv.QUOTE_MINIMAL
        csv.writer(sink, lineterminator=ending, quoting=quoting).writerow(row)
        written.append(sink.getvalue().encode())
    if written and not final:
        written[-1] = written[-1].removesuffix(ending.encode())
    data = b"".join(written)
    assert found_in(data, lambda: QuotedLines(",", "data.csv"), step) == written


@pytest.mark.parametrize("header", ["h", "h,i", "h\ti"])
@given(text=st.text(st.sampled_from('ab",\t\r\n'), max_size=40))
@example(text="a\n\na,b,c\n")
def test_any_quoting_reads_alike_in_chunks_of_any_size(header: str, text: str) -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("rows.tsv" if "\t" in header else "rows.csv")
        path.write_bytes(f"{header}\r\n{text}".encode())
        for size in (ChunkSize(), ChunkSize(4, 1, 8)):
            for share in (0.0, 0.5):
                try:
                    rows, rejects, _ = read(path, size, val_split=share)
                    found.append((Counter(map(str, rows)), Counter(reject["excerpt"] for reject in rejects)))
                except SourceError:
                    found.append(None)
    assert [other for other in found if other != found[0]] == []


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)


@given(
    st.lists(JSON, max_size=5), st.sampled_from([None, 0, 2]), st.booleans(), st.sampled_from(["", " ", "\r\n "]), STEPS
)
def test_json_elements_are_one_record_each(
    values: list[Any], indent: int | None, ascii_only: bool, pad: str, step: int
) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only) + pad
    found = found_in(text[1:].encode(), lambda: JsonElements((), 1, False, "x.json"), step)
    assert [json.loads(piece) for piece in found if piece.strip()] == values


@given(st.lists(JSON, max_size=4), JSON, st.sampled_from([None, 1]), STEPS)
def test_json_elements_end_where_their_array_does_whatever_follows(
    values: list[Any], other: Any, indent: int | None, step: int
) -> None:
    text = json.dumps({"data": {"rows": values, "more": other}, "last": other}, indent=indent)
    at = text.index("[") + 1
    found = found_in(text[at:].encode(), lambda: JsonElements(("data", "rows"), at, False, "x.json"), step)
    assert [json.loads(piece) for piece in found if piece.strip()] == values
    for cut in range(1, len(text[at:].rstrip()), 7):
        with pytest.raises(SourceError, match=r"x\.json.*byte"):
            found_in(
                text[at:].rstrip()[:-cut].encode(), lambda: JsonElements(("data", "rows"), at, False, "x.json"), step
            )


@given(st.text(st.sampled_from("ab \n"), max_size=40), STEPS)
def test_paragraphs_begin_where_text_follows_a_blank_line(text: str, step: int) -> None:
    found: list[str] = []
    blank, begun = False, False
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        solid = bool(line.strip())
        if not found or (solid and blank and begun):
            found.append("")
        found[-1] += line
        begun, blank = begun or solid, not solid
    assert found_in(text.encode(), Paragraphs, step) == [piece.encode() for piece in found]


@pytest.mark.parametrize(
    "broken",
    [
        '[{"a": "x"}',
        '[{"a": "x]',
        '[{"a": 1}] x',
        '[{"a": 1}]]',
        '[{"a": 1} {"a": 2}]',
        "{}",
        "3",
        '[{"a": 1}}',
        '[{"a": 1},,{"a": 2}]',
        '{"k": {"a": 1}]',
    ],
)
def test_broken_json_is_an_error_that_names_the_file(tmp_path: Path, broken: str) -> None:
    (tmp_path / "bad.json").write_text(broken)
    with pytest.raises(SourceError, match=r"bad\.json"):
        read(tmp_path / "bad.json")


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(rows=TABLE)
@example(rows=[{"c0": "2020-01-01"}, {"c0": "2021-12-31 10:00:00"}])
def test_a_table_of_strings_comes_back_as_it_was(suffix: str, rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rows{suffix}"
        write_table(path, rows)
        assert read(path) == (rows, [], 0)
        assert read(path, ChunkSize(64, 16, 256))[0] == rows


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "messages": st.lists(st.fixed_dictionaries({"role": TEXT, "content": TEXT}), max_size=3),
                "n": st.integers(-(2**53), 2**53),
                "x": st.floats(allow_nan=False, allow_infinity=False),
                "b": st.booleans(),
            }
        ),
        min_size=1,
        max_size=5,
    )
)
def test_nested_json_comes_back_as_it_was(rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path in (Path(folder) / "rows.json", Path(folder) / "rows.jsonl"):
            write_table(path, rows)
            assert read(path) == (rows, [], 0)


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
    """Values of an Arrow type, null among them."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return st.one_of(st.none(), st.lists(values(kind.value_type), max_size=2))
    if pa.types.is_struct(kind):
        return st.one_of(st.none(), st.fixed_dictionaries({field.name: values(field.type) for field in kind}))
    return st.one_of(st.none(), BY_KIND.get(str(kind), TEXT))


@st.composite
def tables(draw: st.DrawFn, kinds: st.SearchStrategy[pa.DataType] = KINDS) -> pa.Table:
    """A table of some rows and columns of any types."""
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
            for size in (ChunkSize(), ChunkSize(32, 8, 128)):
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


SHAPES = st.recursive(
    st.sampled_from(["text", "number", "flag"]),
    lambda inner: st.one_of(
        inner.map(lambda item: [item]), st.dictionaries(st.sampled_from("xyz"), inner, min_size=1, max_size=2)
    ),
    max_leaves=5,
)


def of_shape(shape: Any) -> st.SearchStrategy[Any]:
    """JSON values of one shape, with nulls at every level."""
    if isinstance(shape, list):
        found: st.SearchStrategy[Any] = st.lists(of_shape(shape[0]), max_size=3)
    elif isinstance(shape, dict):
        found = st.fixed_dictionaries({name: of_shape(item) for name, item in shape.items()})
    else:
        found = {"text": TEXT, "number": st.integers(-9, 9), "flag": st.booleans()}[shape]
    return st.one_of(st.none(), found)


@given(
    SHAPES.flatmap(
        lambda shape: st.lists(st.fixed_dictionaries({"a": of_shape(shape), "b": TEXT}), min_size=1, max_size=6)
    )
)
@example(rows=[{"a": [None, "x"], "b": ""}])
@example(rows=[{"a": [None, ["x"]], "b": ""}, {"a": [["y"], None, []], "b": "null"}])
@example(rows=[{"a": [None, {"x": "x"}], "b": ""}])
def test_nulls_anywhere_move_no_other_value(rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("rows.jsonl", "rows.json"):
            write_table(Path(folder) / name, rows)
            found, rejects, _ = read(Path(folder) / name)
            assert (found, rejects) == (rows, [])


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


GOOD = [{"q": f"question {index}", "tags": [str(index)], "n": index} for index in range(50)]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'{"q": "x", "n": }', "invalid_json"),
        (b'{"q": "x"} {"q": "y"}', "invalid_json"),
        (b'{"q": "\xff\xfe"}', "invalid_utf8"),
        (b"\x0c", "invalid_json"),
        (b'["a list"]', "not_an_object"),
        (b'"text"', "not_an_object"),
        (b"null", "not_an_object"),
        (b" null ", "not_an_object"),
        (b'{"q": "half \\ud800 pair"}', "lone_surrogate"),
        (b'{"q": ["a"], "n": 1}', "wrong_type"),
        (b'{"q": "x", "n": "seven"}', "wrong_type"),
        (b'{"q": "x", "tags": [7]}', None),
        (b'{"q": "x", "n": NaN}', None),
        (b'{"q": "x", "q": "y"}', None),
        (b'{"q": "x", "n": 123456789012345678901234567890}', None),
        (b'{"q": "x", "tags": ' + b"[" * 3000 + b"]" * 3000 + b"}", "nested_too_deeply"),
        (b'{"q": "x", "deep": ' + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}", "nested_too_deeply"),
    ],
)
def test_one_bad_line_is_set_aside_and_the_others_go_on(tmp_path: Path, line: bytes, code: str | None) -> None:
    lines = [json.dumps(row).encode() for row in GOOD]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join([*lines[:20], line, *lines[20:]]) + b"\n")
    rows, rejects, filtered = read(tmp_path / "rows.jsonl")
    assert [row["q"] for row in rows if row["q"] not in ("x", "y")] == [row["q"] for row in GOOD]
    assert len(rows) + len(rejects) + filtered == 51
    if code:
        assert [(reject[ROW], reject["stage"], reject["code"]) for reject in rejects] == [(20, "raw", code)]


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_null_is_no_row_wherever_it_stands(tmp_path: Path, suffix: str) -> None:
    for place in (0, 1, 50):
        rows: list[Any] = [*GOOD[:place], None, *GOOD[place:]]
        text = json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows))
        (tmp_path / f"rows{suffix}").write_text(text)
        found, rejects, _ = read(tmp_path / f"rows{suffix}")
        assert found == GOOD
        assert [(reject[ROW], reject["code"]) for reject in rejects] == [(place, "not_an_object")]
    keyed = {"a": GOOD[0], "b": None, "c": GOOD[1]}
    (tmp_path / "keyed.json").write_text(json.dumps(keyed))
    assert [row["key"] for row in read(tmp_path / "keyed.json")[0]] == ["a", "c"]


@pytest.mark.parametrize("blank", ["\n", "\n\n  \n", "\r\n"])
def test_blank_lines_before_a_header_are_no_records(tmp_path: Path, blank: str) -> None:
    (tmp_path / "rows.csv").write_bytes((blank + "a;b\n1;2\n").encode())
    assert read(tmp_path / "rows.csv") == ([{"a": "1", "b": "2"}], [], 0)
    assert list(places(tmp_path / "rows.csv", tmp_path / "store").values()) == [f"rows.csv:{blank.count(chr(10)) + 2}"]


def test_one_bad_element_of_a_json_array_is_set_aside(tmp_path: Path) -> None:
    values = [*GOOD[:20], ["x"], *GOOD[20:], {"q": "half \ud800 pair"}]
    (tmp_path / "rows.json").write_text(json.dumps(values))
    rows, rejects, _ = read(tmp_path / "rows.json")
    assert rows == GOOD
    assert [(reject[ROW], reject["code"]) for reject in rejects] == [(20, "not_an_object"), (51, "lone_surrogate")]


@pytest.mark.parametrize("blank", ["", "\n"])
def test_csv_records_with_another_number_of_fields_are_rejected(tmp_path: Path, blank: str) -> None:
    text = f'a,b\n1,2\n3\n{blank}4,5,6\n"7\n8",9\n10,11\n'
    (tmp_path / "rows.csv").write_text(text)
    rows, rejects, _ = read(tmp_path / "rows.csv")
    assert rows == [{"a": "1", "b": "2"}, {"a": "7\n8", "b": "9"}, {"a": "10", "b": "11"}]
    assert [(reject["code"], reject["excerpt"]) for reject in rejects] == [
        ("wrong_field_count", text) for text in ("3", "4,5,6")
    ]


def test_quotes_inside_unquoted_fields_are_text(tmp_path: Path) -> None:
    lines = [f'{index}\ta 5" pipe and {index}' for index in range(60)]
    (tmp_path / "rows.tsv").write_text("\n".join(["id\ttext", *lines]) + "\n")
    expected = [dict(zip(("id", "text"), line.split("\t"), strict=True)) for line in lines]
    assert read(tmp_path / "rows.tsv")[0] == expected
    both = [read_split(tmp_path / "rows.tsv", split, val_split=0.3) for split in ("train", "validation")]
    assert sorted(row["text"] for rows in both for row in rows) == sorted(row["text"] for row in expected)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".json", ".jsonl", ".txt"])
def test_a_byte_that_is_not_utf8_costs_its_row_alone(tmp_path: Path, suffix: str) -> None:
    write_table(tmp_path / "rows.csv", [{"a": f"é {index}"} for index in range(9)])
    lines = {".json": '{{"a": "é {}"}},', ".jsonl": '{{"a": "é {}"}}'}.get(suffix, "é {}")
    text = "\n".join(lines.format(index) for index in range(9))
    text = {".json": f"[{text.removesuffix(',')}]", ".csv": f"a\n{text}", ".tsv": f"a\n{text}"}.get(suffix, text)
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(text.encode().replace("é 4".encode(), b"\xc3( 4"))
    rows, rejects, _ = read(path)
    assert [next(iter(row.values())) for row in rows] == [f"é {index}" for index in range(9) if index != 4]
    assert [(reject["code"], reject[ROW]) for reject in rejects] == [("invalid_utf8", 4)]


def test_text_lines_that_are_not_utf8_or_blank_do_not_stop_others(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_bytes(b"first\r\n\n  \t\n\xff\xfebad\n last one \n\xc2\xa0\nno end")
    rows, rejects, filtered = read(tmp_path / "rows.txt")
    assert [row["text"] for row in rows] == ["first", " last one ", "no end"]
    assert [(reject[ROW], reject["code"]) for reject in rejects] == [(3, "invalid_utf8")]
    assert filtered == 3


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


LEGACY_TEXTS = {
    "latin-1": "Le café était très bon; où êtes-vous allés?",
    "cp1252": "Ça coûte 5 € — naïve “quotes” où l’été",
    "mac_roman": "Le café était très bon — “où êtes-vous allés?”",
    "cp1251": "Привет! Как дела сегодня? Всё хорошо.",
    "koi8-r": "Привет! Как дела сегодня? Всё хорошо.",
    "shift_jis": "今日はとても良い天気ですね。散歩に行きましょう。",
    "gb18030": "今天天气很好，我们去散步吧。",
}
ENCODINGS = [
    ("utf-8-sig", "auto"),
    ("utf-8-sig", "utf-8"),
    ("utf-16", "auto"),
    ("utf-16", "utf-16"),
    ("utf-16-le", "auto"),
    ("utf-16-be", "auto"),
    ("utf-32", "auto"),
    ("latin-1", "latin-1"),
    ("cp1252", "cp1252"),
]


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".csv", ".tsv", ".txt"])
@pytest.mark.parametrize(("encoding", "declared"), ENCODINGS)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_encodings_and_line_ends(tmp_path: Path, suffix: str, encoding: str, declared: str, ending: str) -> None:
    texts = {".json": '[{"a": "né"},\n{"a": "b"}]', ".jsonl": '{"a": "né"}\n{"a": "b"}\n', ".txt": "né\nb\n"}
    texts[".csv"] = texts[".tsv"] = "a\nné\nb\n"
    (tmp_path / f"rows{suffix}").write_bytes(texts[suffix].replace("\n", ending).encode(encoding))
    rows, rejects, _ = read(tmp_path / f"rows{suffix}", encoding=declared)
    assert rows == [{"text" if suffix == ".txt" else "a": value} for value in ("né", "b")]
    assert rejects == []


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt"])
@pytest.mark.parametrize("encoding", LEGACY_TEXTS)
def test_text_that_is_not_utf8_is_read_in_the_encoding_found(tmp_path: Path, suffix: str, encoding: str) -> None:
    lines = [f"{index} {LEGACY_TEXTS[encoding]}" for index in range(50)]
    ascii_first = ["plain ascii"] * 100_000
    (tmp_path / f"rows{suffix}").write_bytes("\n".join(["a", *ascii_first, *lines]).encode(encoding))
    rows, rejects, _ = read(tmp_path / f"rows{suffix}")
    assert [next(iter(row.values())) for row in rows][-50:] == lines
    assert rejects == []


@pytest.mark.parametrize("declared", ["ascii", "cp1252"])
def test_bytes_outside_of_a_declared_encoding_cost_their_rows_alone(tmp_path: Path, declared: str) -> None:
    (tmp_path / "rows.txt").write_bytes(b"one\nt\x81wo\nthree")
    rows, rejects, _ = read(tmp_path / "rows.txt", encoding=declared)
    assert [row["text"] for row in rows] == ["one", "three"]
    assert [(reject["code"], reject[ROW]) for reject in rejects] == [("invalid_utf8", 1)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "hex", "rot13"])
def test_a_declared_encoding_that_does_not_fit_is_an_error(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "rows.txt").write_bytes("né\nb".encode())
    with pytest.raises(TokenloomError, match=r"rows\.txt|encoding"):
        read(tmp_path / "rows.txt", encoding=encoding)


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


def test_blank_csv_lines_move_no_row_to_another_split(tmp_path: Path) -> None:
    lines = [f"row {index},{index}" for index in range(400)]
    found = []
    for text in ("\n".join(lines), "\n".join(line + "\n" * (index % 3) for index, line in enumerate(lines))):
        (tmp_path / "rows.csv").write_text("a,b\n" + text + "\n")
        found.append(read_split(tmp_path / "rows.csv", "validation", val_split=0.5))
    assert found[0] == found[1]


def test_columns_keeps_only_those_named(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        write_table(tmp_path / f"rows{suffix}", [{"a": "1", "b": "2", "c": "3"}])
        rows, _, _ = read(tmp_path / f"rows{suffix}", columns=["c", "a"])
        assert rows == [{"c": "3", "a": "1"}]


def test_a_column_of_the_name_that_positions_use_is_no_crash(tmp_path: Path) -> None:
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
    store, size = ArtifactStore(tmp_path / "store"), ChunkSize(2048, 512, 8192)
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


def places(path: Path, store: Path, **dataset: Any) -> dict[str, str]:
    """Where each row, and each reject's excerpt, of a built file stands: text to place."""
    config = PipelineConfig.from_mapping(
        {"dataset": {"name": str(path), **dataset}, "validation": {"max_reject_fraction": 1.0}}
    )
    build = Build(config, ArtifactStore(store), chunk_size=ChunkSize(256, 64, 1024))
    build.run("raw")
    found = {}
    for chunk in build.manifest("raw").chunks:
        table = build.store.objects.get(chunk.output)
        found |= {row["a"]: chunk.place(row[ROW]) for row in table.to_pylist()}
        rejects = build.store.objects.get(chunk.rejects).to_pylist() if chunk.rejects else []
        found |= {row["excerpt"]: chunk.place(row[ROW]) for row in rejects}
    return found


@pytest.mark.parametrize("val_split", [0.0, 0.3])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_every_row_and_reject_is_placed_at_its_line(tmp_path: Path, ending: str, val_split: float) -> None:
    noise = random.Random(4)
    values = [f"{index}" + noise.choice(["", "\nand more", '\n\n""quoted""']) for index in range(200)]
    records = [
        noise.choice(["", ending]) + (f'"{value}",x' if index % 9 else f"{index},x,y")
        for index, value in enumerate(values)
    ]
    path = tmp_path / "rows.csv"
    path.write_bytes(ending.join(["a,b", *records]).encode())
    lines = path.read_bytes().decode().replace(ending, "\n").split("\n")
    found = places(path, tmp_path / "store", val_split=val_split)
    assert len(found) == 200
    for value, place in found.items():
        name, _, line = place.rpartition(":")
        assert name == "rows.csv"
        assert lines[int(line) - 1].lstrip('"').split("\n")[0].startswith(value.split("\n")[0].split('"')[0])
        assert re.match(rf'"?{value.splitlines()[0].split(",")[0]}\b', lines[int(line) - 1])


def test_rows_of_lines_arrays_and_tables_are_placed_too(tmp_path: Path) -> None:
    rows = [{"a": f"row number {index}"} for index in range(100)]
    for suffix in (".json", ".jsonl", ".parquet"):
        write_table(tmp_path / f"rows{suffix}", rows)
        found = places(tmp_path / f"rows{suffix}", tmp_path / "store")
        mark, first = (":", 1) if suffix == ".jsonl" else (" row ", 0)
        assert found == {row["a"]: f"rows{suffix}{mark}{first + index}" for index, row in enumerate(rows)}


OTHER_SHAPES = {
    "keyed": (lambda rows: {f"id {index}": row for index, row in enumerate(rows)}, "key"),
    "nested": (lambda rows: {"version": "1", "data": rows, "n": [1, 2]}, ""),
    "deep": (lambda rows: {"data": [{"title": "t", "parts": [{"c": "x", "qas": rows}]}]}, "title c"),
}


@pytest.mark.parametrize("shape", OTHER_SHAPES)
@pytest.mark.parametrize("indent", [None, 1])
@given(rows=st.lists(st.fixed_dictionaries({"a": TEXT, "b": TEXT, "n": st.integers(0, 9)}), min_size=2, max_size=6))
def test_json_objects_hold_rows_too(shape: str, indent: int | None, rows: list[Row]) -> None:
    make, others = OTHER_SHAPES[shape]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        path.write_text(json.dumps(make(rows), indent=indent))
        for size in (ChunkSize(), ChunkSize(64, 16, 256)):
            found, rejects, _ = read(path, size)
            assert rejects == []
            assert [{name: row[name] for name in ("a", "b", "n")} for row in found] == rows
            if others == "key":
                assert [row["key"] for row in found] == [f"id {index}" for index in range(len(rows))]
            for name in others.split()[:2] if others != "key" else ():
                assert {row[name] for row in found} == {"t" if name == "title" else "x"}


@given(st.lists(st.lists(st.fixed_dictionaries({"role": TEXT, "content": TEXT}), min_size=1, max_size=3), min_size=1))
def test_bare_lists_become_one_column(rows: list[list[Row]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (
            ("rows.jsonl", "\n".join(map(json.dumps, rows))),
            ("rows.json", json.dumps(rows, indent=1)),
        ):
            (Path(folder) / name).write_text(text)
            assert read(Path(folder) / name) == ([{"items": row} for row in rows], [], 0)


NESTED = {"a": {"groups": [{"g": 1, "items": [{"x": "p"}, {"x": "q"}]}, {"g": 2, "items": []}, {"g": 3}]}, "z": 0}


def test_a_declared_root_leads_to_the_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(NESTED))
    assert read(tmp_path / "rows.json", reader={"root": "a.groups[].items[]"})[0] == [
        {"x": "p", "g": 1},
        {"x": "q", "g": 1},
    ]
    assert [row["g"] for row in read(tmp_path / "rows.json", reader={"root": "a.groups[]"})[0]] == [1, 2, 3]
    (tmp_path / "rows.jsonl").write_text("\n".join([json.dumps(NESTED["a"])] * 3))
    assert (
        read(tmp_path / "rows.jsonl", reader={"root": "groups[].items[]"})[0]
        == [{"x": "p", "g": 1}, {"x": "q", "g": 1}] * 3
    )


@given(st.lists(st.text("ab.[] {}\u00e9", min_size=1, max_size=4), min_size=1, max_size=3))
def test_a_found_root_can_be_declared(keys: list[str]) -> None:
    value: Any = [{"x": 1, "y": 2, "z": 3}, {"x": 4, "y": 5, "z": 6}]
    expected = list(value)
    for depth, key in reversed(list(enumerate(keys))):
        value = [{key: value}] if depth else {key: value}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        path.write_text(json.dumps(value))
        notes = SourceNotes()
        config = PipelineConfig.from_mapping({"dataset": {"name": str(path)}})
        assert [chunk.load().table.num_rows for chunk in source_chunks(config, notes=notes)] == [2]
        root = notes.files["rows.json"]["root"]
        assert read(path, reader={"root": root}) == (expected, [], 0)


@pytest.mark.parametrize(
    ("text", "root", "message"),
    [
        (json.dumps(NESTED), "b[]", "no b"),
        (json.dumps(NESTED), "a.g[]", "no a.g"),
        (json.dumps(NESTED), "a[]", "a.*is no list"),
        (json.dumps(NESTED), "z.groups[]", "z.*is no object"),
        (json.dumps(NESTED), "groups", "no path to rows"),
        ('{"train": [{"a": 1}], "test": [{"a": 2}]}', None, "more than one list of objects, train"),
        (json.dumps(NESTED)[:-3], "a.groups[]", "byte"),
        (json.dumps({"data": [{"a": 1}]})[:-1], None, "byte"),
        ('{"data": [{"a": 1}]} x', None, "byte 21"),
    ],
)
def test_a_root_that_is_not_there_is_told(tmp_path: Path, text: str, root: str | None, message: str) -> None:
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(TokenloomError, match=message):
        read(tmp_path / "rows.json", reader={"root": root})


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("name,age\nx,1\n", ["name", "age"]),
        ("x,1\ny,2\n", ["column_0", "column_1"]),
        ("who wrote this long sentence and why did they do so?,maybe\nb,c\n", ["column_0", "column_1"]),
        ("a;b\n1;2\n", ["a", "b"]),
        ("a|b,c\n", ["a|b", "c"]),
        ("a,a\n1,2\n", ["column_0", "column_1"]),
    ],
)
def test_headers_and_separators_are_found(tmp_path: Path, text: str, columns: list[str]) -> None:
    (tmp_path / "rows.csv").write_text(text * 2 if columns == ["a|b", "c"] else text)
    assert list(read(tmp_path / "rows.csv")[0][0]) == columns


def test_a_declared_header_wins_over_what_is_found(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1,2\n3,4\n")
    assert read(tmp_path / "rows.csv", reader={"header": True})[0] == [{"1": "3", "2": "4"}]
    (tmp_path / "rows.csv").write_text("a,b\n3,4\n")
    assert len(read(tmp_path / "rows.csv", reader={"header": False})[0]) == 2


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_filters_drop_and_count_whatever_the_format(tmp_path: Path, suffix: str) -> None:
    rows = [{"a": f"{index}" * (index % 3), "b": str(index)} for index in range(60)]
    write_table(tmp_path / f"rows{suffix}", rows)
    found, rejects, filtered = read(tmp_path / f"rows{suffix}", filters=["len(a) > 0", 'b != "4"'], columns=["a"])
    kept = [{"a": row["a"]} for row in rows if row["a"] and row["b"] != "4"]
    assert (found, rejects, filtered) == (kept, [], 60 - len(kept))


@pytest.mark.parametrize(
    ("condition", "message"), [("len(aa) > 0", "did you mean a"), ("a >", "condition"), ("a > 1", "a > 1")]
)
def test_a_filter_that_cannot_be_is_told_at_its_line(tmp_path: Path, condition: str, message: str) -> None:
    write_table(tmp_path / "rows.jsonl", [{"a": "x"}] * 5)
    (tmp_path / "data.yaml").write_text(f"dataset:\n  name: rows.jsonl\n  filters: ['{condition}']\n")
    build = Build(PipelineConfig.from_file(tmp_path / "data.yaml"), ArtifactStore(tmp_path / "store"))
    with pytest.raises(ConfigError, match=message) as raised:
        build.run("raw")
    assert raised.value.faults[0].place.endswith("data.yaml:3")


@pytest.mark.parametrize("text", ['{"a":\n1}{"a":2}\n', '{"a": 1}\n1, {"a": 2}\n'])
def test_lines_that_are_no_json_are_rejected_each(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.jsonl").write_text(text)
    rows, rejects, _ = read(tmp_path / "rows.jsonl")
    good = [json.loads(line) for line in text.splitlines() if line == '{"a": 1}']
    assert (rows, len(rejects)) == (good, 2 - len(good))


def test_a_key_with_a_dot_is_no_path(tmp_path: Path) -> None:
    rows = [{"a.b": 1, "a": {"b": "x"}}] * 2
    (tmp_path / "rows.jsonl").write_text("\n".join([*map(json.dumps, rows), "{bad"]))
    found, rejects, _ = read(tmp_path / "rows.jsonl")
    assert (found, [reject["code"] for reject in rejects]) == (rows, ["invalid_json"])


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]},
        {"question": "what?", "answer": "x"},
        {"question": "what?", "answer": "x", "meta": {"lang": "en"}},
    ],
)
def test_a_file_of_one_object_is_one_row(tmp_path: Path, row: Row, indent: int | None) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(row, indent=indent))
    assert read(tmp_path / "rows.json") == ([row], [], 0)


def test_val_split_moves_no_row_when_a_field_is_added(tmp_path: Path) -> None:
    def article(number: int, **more: Any) -> Row:
        return {"title": f"t{number}", "ps": [{"a": f"{number} {index}", "n": index, **more} for index in range(10)]}

    found = []
    for articles in ([article(n) for n in range(20)], [*(article(n) for n in range(20)), article(20, new="x")]):
        (tmp_path / "rows.json").write_text(json.dumps({"data": articles}))
        found.append({row["a"] for row in read_split(tmp_path / "rows.json", "validation", val_split=0.3)})
    assert found[0] == {a for a in found[1] if not a.startswith("20 ")} and len(found[0]) > 30


def test_a_parquet_row_whose_text_is_no_text_is_rejected_and_damage_is_told(tmp_path: Path) -> None:
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


def test_a_damaged_arrow_file_is_told_or_read_never_a_traceback(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (
            ",question,answer\n0,What is it?,It is.\n",
            [{"column_0": "0", "question": "What is it?", "answer": "It is."}],
        ),
        ('"a,b";"c"\n1;2\n', [{"a,b": "1", "c": "2"}]),
        ("a;b\r1,5;2\r", [{"a": "1,5", "b": "2"}]),
    ],
)
def test_usual_oddities_of_csv_are_read(tmp_path: Path, text: str, rows: list[Row]) -> None:
    (tmp_path / "rows.csv").write_bytes(text.encode())
    assert read(tmp_path / "rows.csv") == (rows, [], 0)


def test_a_file_named_in_capitals_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "ROWS.JSONL.GZ").write_bytes(gzip.compress(b'{"a": 1}\n'))
    assert read(tmp_path / "ROWS.JSONL.GZ") == ([{"a": 1}], [], 0)
