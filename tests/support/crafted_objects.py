"""Objects that match their digests but are not what a build writes, read in a process of their own.

`python -m support.crafted_objects STORE SEED CASES` prints a line per case: its number before it reads the store,
and how the reading ended.
"""

from __future__ import annotations

import os
import random
import resource
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from support.processes import DEADLINE, run
from tokenloom.errors import ConfigError, StoreError, TokenloomError
from tokenloom.loaders import TokenLoader, open_dataset
from tokenloom.resources.digest import block_digests
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk
from tokenloom.resources.store.objects import encode_table

WILD = (0, 1, -1, 7, 100_000, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 40, (1 << 62) + 8, -(1 << 63))
MEMORY = 12 << 30
"""Address space of a child: an allocation of a wild size fails in it, not on the machine."""


def encoded(table: pa.Table, compressed: bool = False) -> bytes:
    return bytes(encode_table(table, compressed))


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def place_of_offsets(data: bytes, column: str = "input_ids") -> int:
    """Return where the offsets of a list column begin in a file."""
    buffer = pa.py_buffer(data)
    array = pa.ipc.open_file(buffer).read_all()[column].chunk(0)
    return array.buffers()[1].address - buffer.address


def with_offsets(data: bytes, offsets: dict[int, int]) -> bytes:
    """Return a file with other offsets of `input_ids`, by their index."""
    content, place = bytearray(data), place_of_offsets(data)
    for index, offset in offsets.items():
        struct.pack_into("<i", content, place + 4 * index, offset)
    return bytes(content)


def repeated(table: pa.Table, batches: int) -> bytes:
    """Return the bytes of a file that has a table several times, as record batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        for _ in range(batches):
            for batch in table.to_batches():
                writer.write_batch(batch)
    return bytes(sink.getvalue())


def named_cases(table: pa.Table) -> dict[str, bytes]:
    """Return crafted forms of a chunk of sequences, by what is wrong with them."""
    ids, rows = table["input_ids"].chunk(0), table.num_rows
    documents, offsets = table["document_lengths"].chunk(0), ids.offsets.to_pylist()
    cases: dict[str, pa.Table] = {}
    for name in table.column_names:
        cases[f"no {name}"] = table.drop_columns([name])
        cases[f"nulls for {name}"] = with_column(table, name, pa.nulls(rows, table[name].type))
        cases[f"untyped nulls for {name}"] = with_column(table, name, pa.nulls(rows))
        cases[f"text for {name}"] = with_column(table, name, pa.array(["x"] * rows))
        cases[f"{name} twice"] = table.append_column(name, table[name])
        cases[f"wider {name}"] = with_column(table, name, table[name].cast(pa.list_(pa.int64())))
        holes = pa.array([[None]] * rows, table[name].type)
        cases[f"null values in {name}"] = with_column(table, name, holes)
        cases[f"other lengths of {name}"] = with_column(table, name, pa.array([[1, 1]] * rows, table[name].type))
    cases["another column"] = table.append_column("more", pa.array([1] * rows))
    cases["no rows"] = table.slice(0, 0)
    cases["more rows"] = pa.concat_tables([table] * 3)
    cases["no columns"] = table.select([])
    for length in (-1, 0, (1 << 31) - 1):
        wild = pa.array([[length]] * rows, documents.type)
        cases[f"documents of {length}"] = with_column(table, "document_lengths", wild)
    negative = pa.array([[-5]] * rows, pa.list_(pa.int32()))
    cases["negative raw rows"] = with_column(table, "rows", negative)
    made = {name: encoded(case) for name, case in cases.items()}
    made["compressed"] = encoded(table, compressed=True)
    made["two batches"] = repeated(table, 2)
    made["many batches"] = repeated(table.slice(0, 1), 1000)
    wild_offsets = {
        "offsets that descend": {3: offsets[1], 4: offsets[2]},
        "offsets beyond the values": {-1 + len(offsets): (1 << 31) - 1},
        "an offset beyond the values": {3: (1 << 31) - 1},
        "negative offsets": {0: -(1 << 31)},
        "offsets that start late": {0: 1},
    }
    made |= {name: with_offsets(encoded(table), wild) for name, wild in wild_offsets.items()}
    made["empty file"], made["no Arrow file"] = b"", b"\0" * 4096
    return made


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Return the bytes with a few wild numbers, mostly in the metadata at the start and the end."""
    content = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        size = draw.choice((1, 2, 4, 8, 8, 8))
        edge = min(1400, len(content))
        place = draw.choice(
            (draw.randrange(edge), len(content) - 1 - draw.randrange(edge), draw.randrange(len(content)))
        )
        place = min(place // size * size, len(content) - size)
        known = int.from_bytes(content[place : place + size], "little")
        value = draw.choice((draw.choice(WILD), known * 100_000, known + 1, known - 1, known ^ 1 << draw.randrange(64)))
        content[place : place + size] = struct.pack("<Q", value % (1 << 64))[:size]
    if draw.random() < 0.05:
        del content[draw.randrange(len(content)) :]
    return bytes(content)


def publish(store: ArtifactStore, manifest: Manifest, data: bytes, **fields: Any) -> ManifestChunk:
    """Make the bytes the first chunk of a dataset, under their right digest."""
    digest = store.objects.put(pa.py_buffer(data))
    blocks = block_digests(data).hex()
    chunk = replace(manifest.chunks[0], output=digest, bytes=len(data), blocks=blocks, **fields)
    store.put_manifest(replace(manifest, chunks=(chunk, *manifest.chunks[1:])))
    return chunk


def read_all(name: str, store: Path, verify: bool) -> int:
    """Read a dataset in all ways; returns the number of batches."""
    dataset = open_dataset(name, store=store, verify=verify)
    dataset.lengths(np.arange(min(len(dataset), 1000)))
    for row in (0, len(dataset) - 1):
        _ = dataset[row], dataset.trace(row)
    loaders = (
        TokenLoader(dataset, batch_size=8, padding="longest"),
        TokenLoader(dataset, batch_size=8, padding="max_length", padding_side="left", shuffle="none"),
        TokenLoader(dataset, token_budget=600, padding="longest"),
    )
    return sum(len([*loader]) for loader in loaders)


def outcome(read: Callable[[], Any]) -> str:
    """Return `read`, the type of one of our errors, or an error that should not be."""
    try:
        read()
    except TokenloomError as error:
        assert "\n" not in str(error) or isinstance(error, ConfigError)
        return "StoreError" if isinstance(error, StoreError) else type(error).__name__
    except BaseException as error:
        return repr(error)[:200]
    return "read"


def main(folder: str, seed: str, count: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    store = ArtifactStore(folder)
    names = store.datasets()
    manifests = {name: store.manifest(name) for name in names}
    contents = {name: bytes(store.objects.mapped(manifests[name].chunks[0].output)) for name in names}
    for number in range(int(seed), int(seed) + int(count)):
        name, draw = names[number % len(names)], random.Random(number)
        data = mutated(contents[name], draw)
        print(f"{number} ", end="", flush=True)
        chunk = publish(store, manifests[name], data)
        verify = draw.random() < 0.7
        print(outcome(partial(read_all, name, Path(folder), verify)), flush=True)
        if data != contents[name]:
            store.objects.delete(chunk.output)


def in_child(module: str, *arguments: object, seconds: float = DEADLINE) -> Iterator[str]:
    """Run a module of this folder; yields the outcome of each case. The child must not end by a signal."""
    command = [sys.executable, "-m", f"support.{module}", *arguments]
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    done = run(command, seconds=seconds, env={**os.environ, "PYTHONPATH": paths})
    lines = done.stdout.splitlines()
    assert done.returncode == 0, (done.returncode, lines[-1:], done.stderr[-2000:])
    for line in lines:
        yield line.partition(" ")[2]


if __name__ == "__main__":
    main(*sys.argv[1:])
