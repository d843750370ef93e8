"""Hostile Parquet and Arrow files: crafted footers, absurd counts, bombs, damaged pages, odd types."""

from __future__ import annotations

import datetime
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from support.hostile_inputs.hostile_input import INSPECT, MIB, HostileInput, data_file

ROWS = 70_003
"""A count of rows whose bytes are easy to find in a footer."""
Write = Callable[[Path], object]


def inputs() -> Iterator[HostileInput]:
    """Yield all of them."""
    for name, write in _parquet().items():
        yield data_file("parquet", f"{name}.parquet", write)
    for name in ("2^21 rows of nulls", "a schema of 300 levels", "20,000 columns", "30 MiB of metadata"):
        yield data_file("parquet", f"{name}.parquet", _parquet()[name], command=INSPECT)
    for name, content in _damaged().items():
        yield data_file("parquet damage", f"{name}.parquet", content)
    for name, write in _arrow().items():
        yield data_file("arrow", f"{name}.arrow", write)


def _texts(rows: int = 1000) -> pa.Table:
    return pa.table({"text": [f"row {row}" for row in range(rows)], "n": list(range(rows))})


def _written(table: Callable[[], pa.Table], **options: Any) -> Write:
    return lambda path: pq.write_table(table(), path, **options)


def _nested(depth: int, list_of: bool) -> pa.Table:
    kind: pa.DataType = pa.int64()
    for _ in range(depth):
        kind = pa.list_(kind) if list_of else pa.struct([("a", kind)])
    return pa.table({"text": ["x", "y"], "deep": pa.nulls(2, kind)})


def _lists(rows: int, items: int, kind: pa.DataType) -> pa.Table:
    """A table whose first row has all items, which take no bytes in Parquet."""
    offsets = pa.array([0] + [items] * rows, pa.int32())
    values = pa.array(np.zeros(items, np.int8)).cast(kind) if kind != pa.null() else pa.nulls(items)
    return pa.table({"text": ["x"] * rows, "bomb": pa.ListArray.from_arrays(offsets, values)})


def _with_metadata(size: int, entries: int = 1) -> pa.Table:
    return _texts(3).replace_schema_metadata({f"k{n}": "x" * size for n in range(entries)})


def _row_groups(groups: int, columns: int) -> Write:
    def write(path: Path) -> None:
        table = pa.table({"text": ["x"], **{f"c{n}": [n] for n in range(columns)}})
        with pq.ParquetWriter(path, table.schema, write_statistics=False) as writer:
            for _ in range(groups):
                writer.write_table(table)

    return write


def _repeated(value: Any, rows: int) -> pa.Table:
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value]))
    return pa.table({"text": values})


def _listed(table: pa.Table, rows: int, field: str = "") -> pa.Table:
    """A table whose last row has all values of another one in a list."""
    values = table["text"].combine_chunks()
    values = pa.StructArray.from_arrays([values], [field]) if field else values
    offsets = pa.array([0] * rows + [len(values)], pa.int32())
    return pa.table({"text": ["x"] * rows, "l": pa.ListArray.from_arrays(offsets, values)})


def _parquet() -> dict[str, Write]:
    dates = [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)]
    return {
        "2^21 rows of nulls": _written(lambda: pa.table({"text": pa.nulls(1 << 21, pa.string())})),
        "2^21 rows without columns": _written(lambda: pa.table({"a": pa.nulls(1 << 21)}).select([])),
        "400,000 equal rows": _written(lambda: _repeated("x", 400_000)),
        "a cell of 32 KiB 20,000 times": _written(lambda: _repeated("x" * (32 << 10), 20_000)),
        "a cell of 60 MiB 20 times": _written(lambda: _repeated("x" * 60 * MIB, 20)),
        "a cell of 1 MiB 20,000 times": _written(lambda: _repeated("x" * MIB, 20_000)),
        "a cell of 4 KiB 4,000,000 times": _written(lambda: _repeated("x" * 4096, 4_000_000)),
        "a list of 10,000 cells of 1 MiB": _written(lambda: _listed(_repeated("x" * MIB, 10_000), 1)),
        "objects of 1 MiB in a list": _written(lambda: _listed(_repeated("x" * MIB, 10_000), 1, "c")),
        "lists of 1 MiB after empty ones": _written(lambda: _listed(_repeated("x" * MIB, 10_000), 3000)),
        "five columns of 1 MiB 600 times": _written(
            lambda: pa.table({f"c{n}": _repeated("x" * MIB, 600)["text"] for n in range(5)})
        ),
        "a list of 2^24 zeros": _written(lambda: _lists(3, 1 << 24, pa.int64())),
        "a list of 2^27 zeros": _written(lambda: _lists(3, 1 << 27, pa.int8())),
        "a list of 2^27 zeros in 1,000 rows": _written(lambda: _lists(1000, 1 << 27, pa.int8())),
        "a list of 2^26 nulls": _written(lambda: _lists(3, 1 << 26, pa.null())),
        "a schema of 90 levels of lists": _written(lambda: _nested(90, True)),
        "a schema of 300 levels": _written(lambda: _nested(300, False)),
        "a schema of 900 levels": _written(lambda: _nested(900, False)),
        "20,000 columns": _written(lambda: pa.table({f"c{n}": ["x"] for n in range(20_000)})),
        "9,000 columns": _written(lambda: pa.table({"text": ["x"], **{f"c{n}": ["x"] for n in range(9_000)}})),
        "a struct of 20,000 fields": _written(
            lambda: pa.table({"text": ["x"], "a": pa.array([{f"f{n}": n for n in range(20_000)}])})
        ),
        "20,000 row groups": _row_groups(20_000, 0),
        "300 row groups of 300 columns": _row_groups(300, 300),
        "30 MiB of metadata": _written(lambda: _with_metadata(30 * MIB)),
        "90 MiB of metadata": _written(lambda: _with_metadata(90 * MIB)),
        "200 MiB of metadata": _written(lambda: _with_metadata(200 * MIB)),
        "200,000 entries of metadata": _written(lambda: _with_metadata(10, 200_000)),
        "a name of 20 MiB": _written(lambda: pa.table({"text": ["x"], "n" * 20 * MIB: ["y"]})),
        "a name with markup": _written(lambda: pa.table({"text": ["x"], "[/bold]\x1b[2J": ["y"]})),
        "no name": _written(lambda: pa.table({"text": ["x"], "": ["y"]})),
        "a name twice": _written(lambda: pa.table([["x"], ["y"]], ["text", "text"])),
        "the row's own name": _written(lambda: pa.table({"text": ["x"], "_row": [1]})),
        "no rows": _written(lambda: _texts(0)),
        "text that is not UTF-8": _written(
            lambda: (
                pa.table({"text": pa.array([b"\xff\xfe", b"ok"]).view(pa.binary()).cast(pa.string(), safe=False)})
                if False
                else pa.table({"text": pa.StringArray.from_buffers(2, *pa.array([b"\xff\xfe", b"ok"]).buffers()[1:])})
            )
        ),
        "text of bytes": _written(lambda: pa.table({"text": pa.array([b"x", b"\xff"], pa.binary())})),
        "text of dates": _written(lambda: pa.table({"text": pa.array(dates, pa.timestamp("us"))})),
        "far dates": _written(
            lambda: pa.table(
                {"text": ["x", "y"], "at": pa.array([-(1 << 62), 1 << 62]).cast(pa.timestamp("us", "UTC"))}
            )
        ),
        "an unknown time zone": _written(
            lambda: pa.table({"text": ["x"], "at": pa.array([0]).cast(pa.timestamp("us", "Nowhere/Never"))})
        ),
        "decimals of 76 digits": _written(
            lambda: pa.table({"text": ["x"], "n": pa.array([1]).cast(pa.decimal256(70, 3))})
        ),
        "NaN": _written(lambda: pa.table({"text": ["x", "y"], "n": [float("nan"), float("-inf")]})),
        "a map": _written(
            lambda: pa.table({"text": ["x"], "m": pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))})
        ),
        "a million list items as text": _written(lambda: pa.table({"text": [["x"] * 1_000_000]})),
    }


def _bytes_of(**options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(_texts(ROWS), sink, **options)
    return sink.getvalue().to_pybytes()


def _varint(number: int) -> bytes:
    """A number as Thrift's compact protocol writes it."""
    zigzag, out = number << 1 if number >= 0 else (-number << 1) - 1, bytearray()
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def _damaged() -> dict[str, bytes]:
    plain = _bytes_of()
    size = struct.unpack("<I", plain[-8:-4])[0]
    pages, footer = plain[: -8 - size], plain[-8 - size : -8]

    def file(changed: bytes, stated: int | None = None) -> bytes:
        return pages + changed + struct.pack("<I", len(changed) if stated is None else stated) + b"PAR1"

    found = {
        f"a footer of {stated:,} bytes": file(footer, stated)
        for stated in (0, 1, size - 1, size + 1, 1 << 31, 2**32 - 1)
    }
    for count in (-1, 0, 1, 1 << 31, 1 << 40, (1 << 62) - 1):
        found[f"a count of {count:,} rows"] = file(footer.replace(_varint(ROWS), _varint(count)))
        at = footer.index(_varint(ROWS))
        found[f"one count of {count:,} rows"] = file(footer[:at] + _varint(count) + footer[at + len(_varint(ROWS)) :])
    found["no pages"] = b"PAR1" + footer + struct.pack("<I", size) + b"PAR1"
    found["zeros for pages"] = b"PAR1" + b"\0" * (len(pages) - 4) + plain[-8 - size :]
    found["half a file"] = plain[: len(plain) // 2]
    found["only marks"] = b"PAR1" * 3
    found["an encrypted footer"] = plain[:-4] + b"PARE"
    found["two files"] = plain + plain
    found["text after"] = plain + b"x"
    for seed in range(12):
        found[f"footer damage {seed}"] = file(_mutated(footer, seed, 1 + seed % 4))
    for codec in ("none", "snappy", "gzip", "zstd", "lz4", "brotli"):
        whole = _bytes_of(compression=codec)
        end = len(whole) - 8 - struct.unpack("<I", whole[-8:-4])[0]
        for seed in range(3):
            found[f"page damage {codec} {seed}"] = whole[:4] + _mutated(whole[4:end], seed, 20) + whole[end:]
    first = _bytes_of(compression="none", use_dictionary=False)
    for seed in range(8):  # the header of the first page: its sizes and counts
        found[f"page header damage {seed}"] = first[:4] + _mutated(first[4:40], seed, 2) + first[40:]
    return found


def _mutated(data: bytes, seed: int, changes: int) -> bytes:
    generator, changed = random.Random(seed), bytearray(data)
    for _ in range(changes):
        changed[generator.randrange(len(changed))] = generator.choice((0, 0x7F, 0x80, 0xFF, generator.randrange(256)))
    return bytes(changed)


def _arrow_bytes(table: pa.Table, stream: bool = False, **options: Any) -> bytes:
    sink, options = pa.BufferOutputStream(), {"options": pa.ipc.IpcWriteOptions(**options)}
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _arrow() -> dict[str, Write]:
    tables: dict[str, Callable[[], pa.Table]] = {
        "2^24 rows without bytes": lambda: pa.table({"text": pa.nulls(1 << 24)}),
        "2^21 rows without columns": lambda: pa.table({"a": pa.nulls(1 << 21)}).select([]),
        "a schema of 60 levels": lambda: _nested(60, True),
        "20,000 columns": lambda: pa.table({f"c{n}": ["x"] for n in range(20_000)}),
        "a name twice": lambda: pa.table([["x"], ["y"]], ["text", "text"]),
        "a name that is not UTF-8": lambda: pa.table([["x"]], [b"col\xff"]),
        "a run of 2^24": lambda: pa.table(
            {"text": pa.RunEndEncodedArray.from_arrays(pa.array([1 << 24], pa.int32()), pa.array(["x"]))}
        ),
        "a dictionary of 64 MiB": lambda: _repeated("x" * 64 * MIB, 50),
        "a cell of 32 KiB 20,000 times": lambda: _repeated("x" * (32 << 10), 20_000),
        "a union": lambda: pa.table(
            {
                "text": ["x", "y"],
                "u": pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
            }
        ),
        "text views": lambda: pa.table({"text": pa.array(["x" * 20, "y"], pa.string_view())}),
        "list views": lambda: pa.table({"text": ["x"], "v": pa.array([[1, 2]], pa.list_view(pa.int64()))}),
        "list views that overlap": lambda: pa.table(
            {
                "text": ["x"] * 10_000,
                "v": pa.ListViewArray.from_arrays(
                    pa.array([0] * 10_000, pa.int32()), pa.array([10_000] * 10_000, pa.int32()), pa.array(range(10_000))
                ),
            }
        ),
        "durations": lambda: pa.table({"text": ["x"], "d": pa.array([1 << 62]).cast(pa.duration("ns"))}),
        "metadata of 60 MiB": lambda: _with_metadata(60 * MIB),
    }
    found: dict[str, Write] = {}
    for name, table in tables.items():
        found[name] = lambda path, table=table: path.write_bytes(_arrow_bytes(table()))
    good = _arrow_bytes(_texts(5000))
    found["zeros that unpack to 512 MiB"] = lambda path: path.write_bytes(
        _arrow_bytes(
            pa.table({"text": ["x"], "b": pa.array([bytes(512 * MIB)], pa.large_binary())}), compression="zstd"
        )
    )
    found["half a file"] = lambda path: path.write_bytes(good[: len(good) // 2])
    found["half a stream"] = lambda path: path.write_bytes(_arrow_bytes(_texts(5000), True)[:5000])
    found["only marks"] = lambda path: path.write_bytes(b"ARROW1\0\0ARROW1")
    found["a footer of 2 GiB"] = lambda path: path.write_bytes(good[:-10] + struct.pack("<i", 2**31 - 1) + b"ARROW1")
    found["a footer of -1"] = lambda path: path.write_bytes(good[:-10] + struct.pack("<i", -1) + b"ARROW1")
    found["a message of 2 GiB"] = lambda path: path.write_bytes(
        b"\xff\xff\xff\xff" + struct.pack("<i", 2**31 - 1) + good
    )
    for seed in range(16):
        found[f"damage {seed}"] = lambda path, seed=seed: path.write_bytes(_mutated(good, seed, 3 + seed))
        metadata = good[:8] + _mutated(good[8:400], seed, 2) + good[400:]
        found[f"schema damage {seed}"] = lambda path, metadata=metadata: path.write_bytes(metadata)
        end = good[:-(600)] + _mutated(good[-600:], seed, 2)
        found[f"footer damage {seed}"] = lambda path, end=end: path.write_bytes(end)
    return found
