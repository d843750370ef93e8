"""Files made to crash a reader or to exhaust the machine, with what reading them must give."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.reading_child import Outcome

GOOD = b'{"q": "first"}\n', b'{"q": "last"}\n'
MIB = 1 << 20


@dataclass(frozen=True)
class HostileFile:
    """A file, and the outcome of reading it.

    Args:
        name: its name.
        write: writes it to a path.
        rows: the number of rows; None if any outcome will do that is not a crash.
        rejects: the codes of rejected rows, each once.
        error: a part of the message of the error that refuses the file; None for none.
        dataset: further settings of `dataset`.
    """

    name: str
    write: Callable[[Path], object]
    rows: int | None = None
    rejects: tuple[str, ...] = ()
    error: str | None = None
    dataset: dict[str, Any] = field(default_factory=dict)

    def is_met(self, outcome: Outcome) -> bool:
        """Return whether reading the file ended as expected."""
        if outcome.signal or outcome.traceback:
            return False
        if self.error is not None:
            return self.error in outcome.error
        as_expected = (outcome.rows, tuple(outcome.rejects)) == (self.rows, self.rejects) and not outcome.error
        return self.rows is None or as_expected


def _of(name: str, content: bytes, **expected: Any) -> HostileFile:
    return HostileFile(name, lambda path: path.write_bytes(content), **expected)


def deep_files(depth: int = 100_000) -> Iterator[HostileFile]:
    """Yield files with lists and objects nested `depth` levels deep, in every place that JSON can be in."""
    between, deep = GOOD, ("nested_too_deeply",)
    for number, (opening, closing) in enumerate([("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")]):
        value = (opening * depth + "1" + closing * depth).encode()
        open_value = (opening * depth).encode()
        first: dict[str, Any] = {"rows": 1, "rejects": deep} if number == 1 else {"error": "more text after the end"}
        row = b'{"q": ' + value + b"}\n"
        yield _of(f"deep{number}.jsonl", between[0] + row + between[1], rows=2, rejects=deep)
        yield _of(f"first{number}.jsonl", row + between[1], rows=1, rejects=deep)
        yield _of(f"only{number}.jsonl", row, rows=0, rejects=deep)
        yield _of(f"open{number}.jsonl", between[0] + b'{"q": ' + open_value + b"\n" + between[1], rows=2, rejects=deep)
        yield _of(f"bare{number}.jsonl", between[0] + value + b"\n" + between[1], rows=2, rejects=deep)
        yield _of(f"bare_first{number}.jsonl", value + b"\n" + between[1], **first)
        array = b'[{"q": "first"}, ' + row + b', {"q": "last"}]'
        yield _of(f"array{number}.json", array, rows=2, rejects=deep)
        yield _of(f"entries{number}.json", b'{"x": {"q": 1}, "y": ' + row + b"}", rows=1, rejects=deep)
        yield _of(f"first_entry{number}.json", b'{"y": ' + row + b', "x": {"q": 1}}', error="nested more than")
        yield _of(f"whole{number}.json", b'{"a": 1, "y": ' + value + b"}", error="nested more than")
        yield _of(f"root{number}.json", b'{"data": [' + row + b"]}", error="nested more than")
        yield _of(
            f"declared{number}.json",
            b'{"data": [{"q": 1}, ' + row + b"]}",
            rows=1,
            rejects=deep,
            dataset={"reader": {"root": "data[]"}},
        )
        yield _of(f"text{number}.csv", b'a,b\n"' + value.replace(b'"', b'""') + b'",1\n', rows=1)
    yield _of(
        "unclosed_string.jsonl",
        GOOD[0] + b'{"q": "' + b'\\"' * depth + b"\n" + GOOD[1],
        rows=2,
        rejects=("invalid_json",),
    )
    yield _of("brackets_in_text.jsonl", b'{"q": "' + b"[{" * depth + b'"}\n' + GOOD[1], rows=2)
    yield _of(
        "long_number.jsonl", GOOD[0] + b'{"q": ' + b"7" * depth + b"}\n" + GOOD[1], rejects=("invalid_json",), rows=2
    )


def endless_files(size: int = 100 * MIB, limit: int = 64 * MIB) -> Iterator[HostileFile]:
    """Yield files with one record of `size` bytes, more than the `limit` of a record.

    In the parts of a file, text stands for that many repetitions of it.
    """
    large: dict[str, Any] = {"rows": 2, "rejects": ("too_large",)}
    settings = {"reader": {"max_record_bytes": limit}}

    def written(
        name: str, *parts: bytes | str, opened: Callable[[Path, str], Any] = Path.open, **expected: Any
    ) -> HostileFile:
        dataset = {"reader": {**settings["reader"], **expected.pop("reader", {})}}

        def write(path: Path) -> None:
            with opened(path, "wb") as file:
                for part in parts:
                    if isinstance(part, bytes):
                        file.write(part)
                        continue
                    for start in range(0, size, MIB):
                        file.write(part.encode() * min(MIB, size - start))

        return HostileFile(name, write, dataset=dataset, **expected)

    first, last = GOOD
    yield written("text.jsonl", first, b'{"q": "', "x", b'"}\n', last, **large)
    yield written("zeros.jsonl.gz", first, "\0", b"\n", last, opened=gzip.open, **large)
    yield written("zeros.jsonl.bz2", first, "\0", b"\n", last, opened=bz2.open, **large)
    yield written("zeros.jsonl.xz", first, "\0", b"\n", last, opened=lzma.open, **large)
    yield written("first.jsonl", b'{"q": "', "x", b'"}\n', last, **{**large, "rows": 1})
    yield written("end.jsonl", first, b'{"q": "', "x", **{**large, "rows": 1})
    yield written("brackets.jsonl", first, "[", b"\n", last, **large)
    yield written("spaces.jsonl", first, " ", b"\n", last, **large)
    yield written("element.json", b"[", first, b',{"q": "', "x", b'"},', last, b"]", **large)
    yield written("element_quotes.json", b"[", first, b',["', '"', b'"],', last, b"]", **large)
    yield written("element_brackets.json", b"[", first, b",", "[", error="nested more than")
    yield written("entry.json", b'{"a": ', first, b', "b": {"q": "', "x", b'"}, "c": ', last, b"}", **large)
    yield written("layout.json", b'{"a": "', "x", b'"}', error="max_record_bytes")
    yield written("field.csv", b'q,r\n1,2\n3,"', "x", b'"\n5,6\n', **large)
    yield written("quotes.csv", b'q,r\n1,2\n3,"', '"', b'"\n5,6\n', **large)
    yield written("breaks.csv", b'q,r\n1,2\n3,"', "\n", b'"\n5,6\n', **large)
    yield written("unclosed.csv", b'q,r\n1,2\n3,"', "x", error="line 3 is never closed")
    yield written("header.csv", "q", error="max_record_bytes")
    yield written("line.txt", b"a line\n", "x", b"\nanother\n", **large)
    yield written("paragraph.txt", b"one\n\n", "x", b"\n\ntwo\n", reader={"lines_per_row": "paragraph"}, **large)
    yield written("file.txt", b"one\n", "x", reader={"lines_per_row": "file"}, rows=0, rejects=("too_large",))


def other_files() -> Iterator[HostileFile]:
    """Yield files with many columns, large cells, or bytes that are not text."""
    keys = b"{" + b", ".join(b'"key%d": 1' % number for number in range(200_000)) + b"}\n"
    yield _of("keys.jsonl", GOOD[0] + keys + GOOD[1], rows=2, rejects=("too_many_fields",))
    yield _of("colons.jsonl", GOOD[0] + b'{"q": "' + b":" * 200_000 + b'"}\n' + GOOD[1], rows=3)
    rows = (b"{" + b", ".join(b'"key%d": 1' % key for key in range(at, at + 5000)) + b"}\n" for at in (0, 5000, 9000))
    yield _of("many_keys.jsonl", b"".join(rows), error="columns")
    yield from sparse_files()
    yield from tiny_records(100 * MIB)
    yield _of("columns.csv", b",".join(b"c%d" % number for number in range(200_000)) + b"\n", error="200,000 columns")
    for name in ("rows.jsonl", "rows.json", "rows.csv", "rows.tsv", "rows.parquet", "rows.arrow", "rows.txt"):
        yield _of(f"zeros.{name}", b"\0" * 4096)
        yield _of(f"empty.{name}", b"")
        yield _of(f"short.{name}", b"PAR1")
        yield _of(f"high.{name}", b"\xff" * 4096)
    for name in ("rows.jsonl.gz", "rows.csv.bz2", "rows.txt.xz", "rows.jsonl.zst", "rows.parquet.gz"):
        yield _of(f"damaged.{name}", b"\x1f\x8b\x08\0junk", error="cannot be read")
    yield HostileFile("cells.parquet", lambda path: pq.write_table(_large_cells(), path), 2, ("too_large",))
    yield HostileFile("repeated.parquet", lambda path: pq.write_table(_repeated_cell(), path), rows=20_000)
    yield HostileFile("deep.parquet", lambda path: pq.write_table(_deep_table(90), path))
    yield HostileFile("deep.arrow", lambda path: _write_arrow(_deep_table(40), path))
    yield HostileFile("json_text.parquet", lambda path: pq.write_table(_json_texts(), path), rows=2)


def sparse_files(rows: int = 100_000) -> Iterator[HostileFile]:
    """Yield files of many rows, with a key of its own in each."""

    def lines(row: bytes, names: int = rows) -> bytes:
        return b"".join(row % (number % names) for number in range(rows))

    refused = f"{rows:,} columns"
    yield _of("own_keys.jsonl", lines(b'{"k%d": 1}\n'), error=refused)
    yield _of("own_keys_last.jsonl", GOOD[0] * (rows // 2) + lines(b'{"k%d": 1}\n'), error=f"{rows + 1:,} columns")
    yield _of("own_keys_nan.jsonl", lines(b'{"k%d": NaN}\n'), error=refused)
    yield _of("own_keys_bad.jsonl", lines(b'{"k%d": 1}\n') + b"{bad}\n", error=refused)
    yield _of("own_keys_deep.jsonl", lines(b'{"k%d": {"a": []}}\n'), error=refused)
    yield _of("own_keys_inside.jsonl", GOOD[0] + lines(b'{"q": {"k%d": 1}}\n'), rows=rows + 1)
    yield _of("missing.jsonl", lines(b'{"k%d": 1}\n', 9000), error=f"9,000 columns in {rows:,} rows")


def tiny_records(size: int) -> Iterator[HostileFile]:
    """Yield files of empty lines, and files of bad records of a few bytes."""
    blank, bad = b"\n" * size, b"1\n" * (min(size, MIB) // 8)
    yield _of("blank.jsonl", GOOD[0] + blank + GOOD[1], rows=2)
    yield _of("blank.txt", b"one\n" + blank + b"two\n", rows=2)
    yield _of("blank.csv", b"q,r\n1,2\n" + blank + b"3,4\n", rows=2)
    yield _of("numbers.jsonl", GOOD[0] + bad + GOOD[1], rows=2, rejects=("not_an_object",))
    yield _of("fields.csv", b"q,r\n1,2\n" + bad + b"3,4\n", rows=2, rejects=("wrong_field_count",))


def _large_cells() -> pa.Table:
    return pa.table({"q": ["a", "x" * (65 * MIB), "b"]})


def _repeated_cell() -> pa.Table:
    """A table of 20,000 cells of 64 KiB, which Parquet stores once."""
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * (64 << 10)]))
    return pa.table({"q": values})


def _deep_table(depth: int) -> pa.Table:
    kind = pa.int64()
    for _ in range(depth):
        kind = pa.list_(kind)
    return pa.table({"q": pa.array([None, []], kind)})


def _write_arrow(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def _json_texts() -> pa.Table:
    deep = "[" * 50_000 + "]" * 50_000
    return pa.table({"messages": [json.dumps([{"role": "user", "content": "x"}]), deep]})
