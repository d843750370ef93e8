"""Hostile files of token ids: Megatron's pairs, flat arrays, and folders of MDS and litdata."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from support.hostile_inputs.hostile_input import DEFAULTS, MIB, HostileInput

Files = dict[str, bytes | Callable[[Path], object]]
MANY = 1_000_000


def inputs() -> Iterator[HostileInput]:
    """Yield all of them."""
    for name, files in _megatron().items():
        yield _of("megatron", name, files, "x.idx")
    for name, files in _flat().items():
        yield _of("flat tokens", name, files, "", reader={"dtype": "uint16", "eos_id": 2})
    for name, files in _mds().items():
        yield _of("mds", name, files, "", format="mds")
    for name, files in _litdata().items():
        yield _of("litdata", name, files, "", format="litdata")


def _of(kind: str, name: str, files: Files, named: str, **dataset: Any) -> HostileInput:
    def write(folder: Path) -> None:
        (folder / "data").mkdir()
        for file, content in files.items():
            path = folder / "data" / file
            content(path) if callable(content) else path.write_bytes(content)

    config = {**DEFAULTS, "dataset": {"name": f"data/{named}", **dataset}, "prompt_template": {}}
    return HostileInput(kind, name, write, "", config)


def _index(sequences: int = 1, bounds: int = 2, code: int = 4, version: int = 1, rest: bytes | None = None) -> bytes:
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, code, sequences, bounds)
    return head + (struct.pack("<iqqq", 2, 0, 0, 1) if rest is None else rest)


def _gz(content: Callable[[], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(gzip.compress(content()))


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _hole(size: int, start: bytes = b"") -> Callable[[Path], object]:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.write(start)
            file.truncate(size)

    return write


def _mutated(data: bytes, seed: int) -> bytes:
    generator, changed = random.Random(seed), bytearray(data)
    for _ in range(1 + seed % 3):
        changed[generator.randrange(len(changed))] = generator.choice((0, 0x7F, 0x80, 0xFF, generator.randrange(256)))
    return bytes(changed)


def _megatron() -> dict[str, Files]:
    tokens, good = struct.pack("<ii", 1, 2), _index()
    many = np.zeros(3 * MANY, "<i4").tobytes() + np.zeros(MANY + 1, "<i8").tobytes()
    found: dict[str, Files] = {
        "2^62 sequences": {"x.idx": _index(1 << 62), "x.bin": tokens},
        "2^64 bounds": {"x.idx": _index(1, (1 << 64) - 1), "x.bin": tokens},
        "a million empty documents": {"x.idx": _index(MANY, MANY + 1, rest=many), "x.bin": b""},
        "an index of a hole": {"x.idx": _hole(34 + 12 * (1 << 30) + 16, _index(1 << 30, 2, rest=b"")), "x.bin": tokens},
        "tokens of a hole": {
            "x.idx": _index(rest=struct.pack("<iqqq", (1 << 31) - 1, 0, 0, 1)),
            "x.bin": _hole(8 << 30),
        },
        "one document of a hole": {
            "x.idx": _index(rest=struct.pack("<iqqq", 1 << 30, 0, 0, 1)),
            "x.bin": _hole(4 << 30),
        },
        "a pipe for tokens": {"x.idx": good, "x.bin": _pipe},
        "zeros for tokens": {"x.idx": good, "x.bin": _device},
        "a pipe for the mask": {"x.idx": good, "x.bin": tokens, "x_loss_mask.idx": _pipe},
        "a folder for tokens": {"x.idx": good, "x.bin": lambda path: path.mkdir()},
        "no tokens": {"x.idx": good},
        "half an index": {"x.idx": good[:40], "x.bin": tokens},
        "floats": {"x.idx": _index(code=6), "x.bin": tokens},
        "version 2": {"x.idx": _index(version=2), "x.bin": tokens},
        "lengths below zero": {"x.idx": _index(rest=struct.pack("<iqqq", -2, 0, 0, 1)), "x.bin": tokens},
        "bounds that descend": {"x.idx": _index(1, 3, rest=struct.pack("<iqqqq", 2, 0, 0, 1, 0)), "x.bin": tokens},
        "positions far away": {"x.idx": _index(rest=struct.pack("<iqqq", 2, 1 << 60, 0, 1)), "x.bin": tokens},
        "ids of 2^31": {"x.idx": good, "x.bin": b"\xff\xff\xff\x7f" * 2},
        "ids below zero": {"x.idx": good, "x.bin": b"\xff" * 8},
    }
    for seed in range(8):
        found[f"damage {seed}"] = {"x.idx": _mutated(good, seed), "x.bin": tokens}
    return found


def _flat() -> dict[str, Files]:
    ids, name = np.array([1, 2, 3, 2], "<u2").tobytes(), "token_ids_part_0.npy"

    def header(text: bytes, version: bytes = b"\1\0") -> bytes:
        size = struct.pack("<H" if version == b"\1\0" else "<I", len(text))
        return b"\x93NUMPY" + version + size + text

    shape = b"{'descr': '<u2', 'fortran_order': False, 'shape': (%s,)}\n"
    lines = "token_ids_part_0.csv.gz"
    return {
        "ids without an end": {name: _hole(300 * MIB)},
        "only ends": {name: np.full(2 * MANY, 2, "<u2").tobytes()},
        "a header of objects": {name: header(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n") + ids},
        "a header of 2^62 ids": {name: header(shape % b"4611686018427387904") + ids},
        "a header of a power": {name: header(shape % b"9**9**9") + ids},
        "a header of brackets": {name: header(b"[" * 60_000) + ids},
        "a header of 4 GiB": {name: b"\x93NUMPY\2\0\xff\xff\xff\xff" + ids},
        "a header of code": {name: header(b"__import__('os').system('touch run')\n") + ids},
        "a header of noise": {name: b"\x93NUMPY" + bytes(range(256)) * 10},
        "an odd size": {name: ids + b"\0"},
        "an empty file": {name: b""},
        "a pipe for the mask": {name: ids, "labels_mask_part_0.npy": _pipe},
        "a mask of another length": {name: ids, "labels_mask_part_0.npy": b"\1"},
        "a list of one line": {name: ids, lines: _gz(lambda: b"0," * 20 * MIB)},
        "a list of line ends": {name: ids, lines: _gz(lambda: b"\n" * 50 * MIB)},
        "a list of many columns": {name: ids, lines: gzip.compress(b"0,4" + b",1" * 400_000 + b"\n")},
        "a list of digits": {name: ids, lines: gzip.compress(b"0," + b"9" * 500_000 + b"\n")},
        "a list of quotes": {name: ids, lines: gzip.compress(b'"' * 900_000 + b"\n")},
        "a list that is not packed": {name: ids, lines: b"0,4\n"},
        "half a list": {name: ids, lines: gzip.compress(b"0,2\n2,4\n" * 1000)[:20]},
        "a list of other documents": {name: ids, lines: gzip.compress(b"0,3\n1,4\n")},
        "an array of zeros, packed": {f"{name}.gz": _gz(lambda: bytes(16 * MIB))},
    }


SHARD: dict[str, Any] = {
    "column_names": ["text"], "column_encodings": ["str"], "column_sizes": [None], "format": "mds", "version": 2,
    "compression": None, "samples": 1, "raw_data": {"basename": "a.mds", "bytes": 21}, "zip_data": None,
}  # fmt: skip
SAMPLE = struct.pack("<IIIIB", 1, 12, 21, 1, 65) + b"\0\0\0\0"


def _mds() -> dict[str, Files]:
    def index(**changed: Any) -> bytes:
        return json.dumps({"shards": [{**SHARD, **changed}]}).encode()

    def packed(kind: str, content: bytes | Callable[[Path], object], size: int) -> Files:
        named = {"basename": f"a.mds.{kind}", "bytes": 1}
        stated = index(compression=kind, zip_data=named, raw_data={"basename": "a.mds", "bytes": size})
        return {"index.json": stated, f"a.mds.{kind}": content}

    names = [str(number) for number in range(MANY)]
    found: dict[str, Files] = {
        "a million sizes below zero": {"index.json": index(column_sizes=[-1] * MANY)},
        "a million names of numbers": {"index.json": index(column_names=[1] * MANY)},
        "a million empty shards": {"index.json": b'{"shards":[' + b"{}," * MANY + b"{}]}"},
        "a million lists for shards": {"index.json": b'{"shards":[' + b"[]," * MANY + b"[]]}"},
        "a million columns": {
            "index.json": index(column_names=names, column_encodings=["str"] * MANY, column_sizes=[0] * MANY)
        },
        "50,000 shards": {"index.json": json.dumps({"shards": [SHARD] * 50_000}).encode()},
        "an index of 40 MiB": {"index.json": b" " * 40 * MIB + index()},
        "a deep index": {"index.json": b'{"shards":' + b"[" * 100_000},
        "an index of digits": {"index.json": b'{"shards":' + b"9" * 900_000 + b"}"},
        "an index outside": {"index.json": index(raw_data={"basename": "../../etc/passwd", "bytes": 1})},
        "an index of a device": {"index.json": _device},
        "a shard of a pipe": {"index.json": index(), "a.mds": _pipe},
        "a shard of 2^32 bytes": {
            "index.json": index(raw_data={"basename": "a.mds", "bytes": (1 << 32) - 1}),
            "a.mds": _hole((1 << 32) - 1, SAMPLE),
        },
        "2^32 samples": {"index.json": index(samples=(1 << 32) - 1), "a.mds": SAMPLE},
        "no shard": {"index.json": index()},
        "zeros that unpack to 400 MiB": packed("gz", _gz(lambda: bytes(400 * MIB)), 21),
        "zeros that unpack to 400 MiB, bz2": packed(
            "bz2", lambda path: path.write_bytes(bz2.compress(bytes(400 * MIB))), 21
        ),
        "zeros that unpack to what is stated": packed("gz", _gz(lambda: bytes(400 * MIB)), 400 * MIB),
        "a packed shard that is not packed": packed("zstd", SAMPLE, 21),
        "an unknown packing": packed("lzma", SAMPLE, 21),
        "pickled values": {"index.json": index(column_encodings=["pkl"]), "a.mds": SAMPLE},
        "deep values": {
            "index.json": index(column_encodings=["json"], raw_data={"basename": "a.mds", "bytes": 16 + 90_000}),
            "a.mds": struct.pack("<IIII", 1, 12, 16 + 90_000, 90_000) + b"[" * 90_000,
        },
    }
    for seed in range(6):
        found[f"damage {seed}"] = {"index.json": index(), "a.mds": _mutated(SAMPLE, seed)}
    return found


def _litdata() -> dict[str, Files]:
    config = {"data_format": ["no_header_tensor:16"], "item_loader": "TokensLoader", "compression": None}
    chunk = {"filename": "c.bin", "chunk_size": 1, "dim": 2, "chunk_bytes": 20}
    data = struct.pack("<IIIii", 1, 12, 20, 1, 2)

    def index(settings: Any = config, **changed: Any) -> bytes:
        return json.dumps({"config": settings, "chunks": [{**chunk, **changed}]}).encode()

    return {
        "a million empty chunks": {"index.json": b'{"config":{},"chunks":[' + b"{}," * MANY + b"{}]}", "c.bin": data},
        "2^62 tokens": {"index.json": index(dim=1 << 62), "c.bin": data},
        "digits": {"index.json": index().replace(b'"dim": 2', b'"dim": ' + b"9" * 100_000), "c.bin": data},
        "tokens below zero": {"index.json": index(dim=-2), "c.bin": data},
        "2^32 items": {"index.json": index(chunk_size=(1 << 32) - 1), "c.bin": data},
        "a chunk outside": {"index.json": index(filename="../../x"), "c.bin": data},
        "a chunk of a pipe": {"index.json": index(), "c.bin": _pipe},
        "a chunk of a hole": {"index.json": index(dim=1 << 30), "c.bin": _hole(12 + 4 * (1 << 30), data[:12])},
        "pickled items": {"index.json": index({**config, "data_format": ["pickle"]}), "c.bin": data},
        "a format of 1 MiB": {"index.json": index({**config, "data_format": ["x" * MIB]}), "c.bin": data},
        "encrypted": {"index.json": index({**config, "encryption": {"a": [1] * 1000}}), "c.bin": data},
        "half a chunk": {"index.json": index(), "c.bin": data[:10]},
    }  # fmt: skip
