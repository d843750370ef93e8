"""Hostile compressed files: bombs, bombs in bombs, damage, formats that lie, and members with paths of their own."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

from support.hostile_inputs.hostile_input import DEFAULTS, FIRST, LAST, MIB, HostileInput, data_file


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": partial(gzip.compress, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": _zstd,
}


def inputs() -> Iterator[HostileInput]:
    """Yield all of them."""
    good = (FIRST + LAST) * 2000
    for suffix, pack in PACK.items():
        whole = pack(good)
        damaged = bytearray(whole)
        damaged[len(damaged) // 2] ^= 0xFF
        for name, content in {
            "half": whole[: len(whole) // 2],
            "damaged": bytes(damaged),
            "not packed": good,
            "empty": b"",
            "only a start": whole[:4],
            "text after": whole + b"trailing text",
            "zeros after": whole + b"\0" * 1000,
            "two parts": whole + pack(LAST),
            "a part damaged": whole + bytes(damaged),
            "10,000 empty parts": pack(b"") * 10_000 + whole,
            "another packing": next(other for ending, other in PACK.items() if ending != suffix)(good),
        }.items():
            yield data_file("archive", f"{name}.jsonl{suffix}", content)
        line = FIRST + b'{"text": "' + b"\0" * 160 * MIB + b'"}\n' + LAST
        yield data_file(
            "archive bomb", f"one record.jsonl{suffix}", partial(_write, pack, line), "0: 3 rows, 1 rejected"
        )
        blank = FIRST + b"\n" * 64 * MIB + LAST
        yield data_file(
            "archive bomb", f"line ends.jsonl{suffix}", partial(_write, pack, blank), "0: 2 rows, 0 rejected"
        )
        many = FIRST * 300_000
        yield data_file(
            "archive bomb", f"rows.jsonl{suffix}", partial(_write, pack, many), "0: 300000 rows, 0 rejected"
        )
        yield data_file("archive bomb", f"zeros.parquet{suffix}", partial(_write, pack, bytes(256 * MIB)), "3: .*")
        twice = partial(_write, lambda data, pack=pack: pack(pack(data)), b"x" * 64 * MIB)
        yield data_file("archive bomb", f"twice.txt{suffix}{suffix}", twice)
        yield data_file("archive bomb", f"twice named once.txt{suffix}", twice)
    yield from _containers()


def _write(pack: Callable[[bytes], bytes], data: bytes, path: Path) -> None:
    path.write_bytes(pack(data))


def _zip(members: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return sink.getvalue()


def _tar(members: dict[str, bytes], links: dict[str, str]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as file:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            file.addfile(entry)
    return sink.getvalue()


def _containers() -> Iterator[HostileInput]:
    """Yield zip and tar files, named as files and through fsspec."""
    good = FIRST + LAST
    outside = {"../../../outside.jsonl": good, "/tmp/absolute.jsonl": good, "a/../../b.jsonl": good}
    zipped = _zip({"a.jsonl": good, **outside})
    bomb = _zip({"bomb.jsonl": FIRST + b"\n" * 64 * MIB})
    tarred = _tar({"a.jsonl": good, **outside}, {"link.jsonl": "/etc/passwd", "loop.jsonl": "loop.jsonl"})
    named = {
        "x.zip": zipped,
        "x.tar": tarred,
        "x.tar.gz": gzip.compress(tarred),
        "x.jsonl.zip": zipped,
        "x.db": b"SQLite format 3\0" + bytes(4096),
        "x.7z": b"7z\xbc\xaf\x27\x1c" + bytes(100),
        "x.pkl": b"cos\nsystem\n(S'touch pickled'\ntR.",
        "x.npy": b"\x93NUMPY\x01\0v\0{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "x.tfrecord": b"\xff" * 100,
        "x.png": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "x.jpg": b"\xff\xd8\xff\xe0" + bytes(100),
        "x.pdf": b"%PDF-1.7\n" + bytes(100),
    }
    for name, content in named.items():
        yield data_file("container", name, content, "2: .*unknown format|2: .*no such file")
    images = {"png named text.txt": named["x.png"], "jpeg named lines.jsonl": named["x.jpg"], "pdf.csv": named["x.pdf"]}
    for name, content in {**images, "zip.parquet": zipped, "zip.jsonl": zipped, "tar.txt": tarred}.items():
        yield data_file("container", name, content)
    inside = {
        "zip: one": "zip://a.jsonl::{}/x.zip",
        "zip: outside": "zip://../../../outside.jsonl::{}/x.zip",
        "zip: absolute": "zip:///tmp/absolute.jsonl::{}/x.zip",
        "zip: all": "zip://**.jsonl::{}/x.zip",
        "zip: bomb": "zip://bomb.jsonl::{}/bomb.zip",
        "zip: none": "zip://none.jsonl::{}/x.zip",
        "zip: damaged": "zip://a.jsonl::{}/half.zip",
        "zip: no file": "zip://a.jsonl::{}/none.zip",
        "tar: one": "tar://a.jsonl::{}/x.tar",
        "tar: link": "tar://link.jsonl::{}/x.tar",
        "tar: loop": "tar://loop.jsonl::{}/x.tar",
        "tar: all": "tar://*.jsonl::{}/x.tar",
        "zip in zip": "zip://a.jsonl::zip://x.zip::{}/outer.zip",
        "a chain of 200": "zip://a.jsonl::" * 200 + "{}/x.zip",
    }
    files = {
        "x.zip": zipped,
        "x.tar": tarred,
        "bomb.zip": bomb,
        "half.zip": zipped[:-20],
        "outer.zip": _zip({"x.zip": zipped}),
    }
    for name, address in inside.items():

        def write(folder: Path, address: str = address) -> None:
            for file, content in files.items():
                (folder / file).write_bytes(content)
            config = {**DEFAULTS, "dataset": {"name": address.format(folder)}}
            (folder / "x.yaml").write_text(json.dumps(config))

        yield HostileInput("container", name, write)
