"""Dropped rows as people see them: each kept row, with the rows that repeat it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.dedup.stage import source_order
from tokenloom.assets.fingerprints.stage import HASH
from tokenloom.assets.stage.names import DEDUP, FINGERPRINTS
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.tables.ragged import one_array

_MESSAGE = re.compile(r"(?:(\d{1,3})% similar to|the same as) an earlier row \(fingerprint ([0-9a-f]{32})\)")


@dataclass(frozen=True)
class Repeat:
    """A dropped row: its place in the source, its split, why it was dropped, how similar it is, and how it starts."""

    place: str
    split: str
    code: str
    similarity: float
    start: str


@dataclass(frozen=True)
class Group:
    """A kept row, by its place in the source, and the rows that were dropped for it."""

    kept: str
    split: str
    repeats: list[Repeat]


def groups(store: ArtifactStore, dataset: str, against: Sequence[str] = ()) -> list[Group]:
    """Return the kept rows that others repeat, those that most others repeat first.

    Args:
        against: the datasets whose rows come before; theirs have the name of their dataset before their place.
    """
    manifest = store.manifest(dataset, DEDUP)
    found: dict[str, list[Repeat]] = {}
    for chunk in manifest.chunks:
        for record in store.objects.get_intact(chunk.rejects).to_pylist() if chunk.rejects else ():
            place = chunk.place(record[ROW])
            parts = _MESSAGE.fullmatch(record["message"])
            likeness, kept = (int(parts[1] or 100) / 100, parts[2]) if parts else (1.0, "")
            found.setdefault(kept, []).append(Repeat(place, chunk.split, record["code"], likeness, record["excerpt"]))
    places: dict[str, tuple[str, str]] = {}
    for name in (*against, dataset):
        left = found.keys() - places.keys()
        prefix = "" if name == dataset else f"{name}: "
        of_name = _places(store, store.manifest(name, FINGERPRINTS), left) if left else ()
        places |= {kept: (f"{prefix}{place}", split) for kept, (place, split) in of_name}
    made = [Group(*places.get(kept, ("a row that is gone", "")), repeats) for kept, repeats in found.items()]
    return sorted(made, key=lambda group: -len(group.repeats))


def _places(store: ArtifactStore, prints: Manifest, wanted: Collection[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each hash with the place and the split of the first row that has it."""
    left = {bytes.fromhex(each) for each in wanted if each}
    for number in source_order(prints.chunks):
        if not left:
            return
        chunk = prints.chunks[number]
        table = store.objects.get_intact(chunk.output)
        hashes = one_array(table[HASH])
        rows = np.flatnonzero(pc.is_in(hashes, pa.array([*left], pa.binary(16))).to_numpy(zero_copy_only=False))
        for row in rows.tolist():
            found = hashes[row].as_py()
            if found in left:
                left.discard(found)
                yield found.hex(), (chunk.place(table[ROW][row].as_py()), chunk.split)
