"""Damages files of a store, one at a time, and reads the store, in a process of its own.

`python -m support.damaged_stores STORE NAME SEED CASES` prints a line per case: the file, what `verify` finds, and how
the reading ended.
"""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from support.crafted_objects import MEMORY, mutated, outcome
from tokenloom.errors import StoreError
from tokenloom.loaders import TokenLoader, open_dataset
from tokenloom.loaders.reading.batch import batch_digest
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.verify import verify


def flipped(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]


def shortened(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def lengthened(data: bytes, draw: random.Random) -> bytes:
    return data + draw.choice((b"\0", b"\n", b" ", data))


def zeroed(data: bytes, draw: random.Random) -> bytes:
    begin = draw.randrange(len(data))
    end = min(begin + draw.choice((1, 16, 512, 4096)), len(data))
    return data[:begin] + bytes(end - begin) + data[end:]


def noise(data: bytes, draw: random.Random) -> bytes:
    return draw.randbytes(draw.choice((0, 1, len(data))))


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flipped,
    flipped,
    shortened,
    lengthened,
    zeroed,
    noise,
    mutated,
)


def files_by_kind(store: Path) -> list[list[Path]]:
    """Return the files of a store, by the folder that they are in; scratch files, which nothing reads, are omitted."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(store.rglob("*")):
        if path.is_file() and "scratch" not in path.parts:
            kinds.setdefault(path.relative_to(store).parts[0], []).append(path)
    return list(kinds.values())


def is_reported(store: Path, path: Path) -> bool:
    """Whether `verify` names a file, or the store is not opened."""
    name = str(path.relative_to(store))
    try:
        findings = verify(ArtifactStore(store), None, ComputeEngine(1), remove=False).findings
    except StoreError:
        return name == "FORMAT"
    return any(name == finding.blob for finding in findings)


def batches(store: Path, name: str) -> list[str]:
    """Return digests of all batches, kept columns included."""
    dataset = open_dataset(name, store=store)
    loader = TokenLoader(dataset, batch_size=16, padding="longest")
    kept = [str([batch[column] for column in dataset.keep_columns]) for batch in loader]
    return [*map(batch_digest, loader), *kept]


def check_batches(store: Path, name: str, whole: list[str]) -> None:
    assert batches(store, name) == whole, "wrong batches"


def main(folder: str, name: str, seed: str, count: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    store = Path(folder)
    whole, kinds = batches(store, name), files_by_kind(store)
    for number in range(int(seed), int(seed) + int(count)):
        draw = random.Random(number)
        path = draw.choice(kinds[number % len(kinds)])
        data = path.read_bytes()
        damaged = draw.choice(DAMAGES)(data, draw)
        print(f"{number} ", end="", flush=True)
        path.write_bytes(damaged)
        ended = outcome(partial(check_batches, store, name, whole))
        reported = "reported" if is_reported(store, path) or damaged == data else "unreported"
        print(f"{path.relative_to(store)}: {reported}, {ended}", flush=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main(*sys.argv[1:])
