"""Rows that splits of a dataset share: what a model is trained on and then evaluated with.

Rows are compared by a hash of their tokens in the sequences, all parts of a row joined, so that neither packing nor the
pieces of `split` matter. Only the hashes of the splits other than `train` are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.assets.raw.chunks import TRAIN
from tokenloom.assets.stage.rejects import no_rejects
from tokenloom.resources.digest import digest_json
from tokenloom.resources.engines.compute import ComputeEngine
from tokenloom.resources.store import Action, ArtifactStore, Manifest
from tokenloom.resources.tables.preference_pairs import sides
from tokenloom.resources.tables.ragged import Ints, flat_numbers, list_parts, offsets_of, ranges
from tokenloom.resources.tables.row_hash import Hashes, hash_records, mix
from tokenloom.resources.tables.sequence_schema import DOCUMENT_LENGTHS, INPUT_IDS, ROWS

_VERSION = 1
_EXAMPLES = 5
"""Maximum number of shared rows of each split that are named."""
_SCHEMA = pa.schema([(name, pa.int32()) for name in ("chunk", "row", "train_chunk", "train_row")])


@dataclass(frozen=True)
class SharedRows:
    """The rows of one split that `train` has too.

    Args:
        rows: all rows of the split.
        shared: those that `train` has too.
        examples: places in the source of some of them: in the split, and in `train`.
    """

    split: str
    rows: int
    shared: int
    examples: list[tuple[str, str]]


def shared_rows(store: ArtifactStore, engine: ComputeEngine, manifest: Manifest) -> list[SharedRows]:
    """Return what each split but `train` shares with it; nothing if there is no `train`, or nothing else.

    The result is stored as an action, so that it is computed once for the same sequences. It reads all of them.

    Args:
        manifest: of sequences.
    """
    splits = [split for split in manifest.splits if split != TRAIN]
    if not splits or len(splits) == len(manifest.splits):
        return []
    key = digest_json(["shared rows", _VERSION, [(chunk.split, chunk.output) for chunk in manifest.chunks]])
    action = store.find_action(key)
    if action is None or not store.objects.is_intact(action.output):
        with store.building():
            action = _compute(store, engine, manifest, splits, key)
    named = [manifest.chunks[number].split for number in range(len(manifest.chunks))]
    places = store.objects.get(action.output).to_pylist()
    found = []
    for split in splits:
        examples = [
            (manifest.chunks[at["chunk"]].place(at["row"]), manifest.chunks[at["train_chunk"]].place(at["train_row"]))
            for at in places
            if named[at["chunk"]] == split
        ]
        found.append(SharedRows(split, action.counters[f"rows/{split}"], action.counters[f"shared/{split}"], examples))
    return found


def row_hashes(table: pa.Table) -> tuple[npt.NDArray[np.int32], Hashes]:
    """Return the raw rows of a chunk of sequences, ascending, and a hash of the tokens of each, uint64 [rows].

    For pairs, the hash is that of both sides.
    """
    rows, hashes = np.zeros(0, np.int32), None
    for side in sides(table).values():
        ids = flat_numbers(list_parts(side[INPUT_IDS])[1])
        row, lengths = (flat_numbers(list_parts(side[name])[1]) for name in (ROWS, DOCUMENT_LENGTHS))
        if not (np.diff(row) >= 0).all():
            order = np.argsort(row, kind="stable")
            ids = ids[ranges(offsets_of(lengths)[:-1][order], lengths[order])]
            row, lengths = row[order], lengths[order]
        first = np.flatnonzero(np.diff(row, prepend=-1))
        rows, size = row[first], ids.itemsize
        bounds = np.append(offsets_of(lengths)[:-1][first], len(ids)) * size
        found = hash_records(ids.view(np.uint8), bounds[:-1], bounds[1:])
        hashes = found if hashes is None else mix(hashes) + found
    return rows, np.zeros(0, np.uint64) if hashes is None else hashes


def _compute(
    store: ArtifactStore, engine: ComputeEngine, manifest: Manifest, splits: Sequence[str], key: str
) -> Action:
    others = [number for number, chunk in enumerate(manifest.chunks) if chunk.split != TRAIN]
    trained = [number for number, chunk in enumerate(manifest.chunks) if chunk.split == TRAIN]
    chunk, row, hashes = map(np.concatenate, zip(*_hashed(store, engine, manifest, others), strict=True))
    known, place = np.unique(hashes, return_inverse=True)
    seen = np.full((2, len(known)), -1, np.int64)  # chunk and row of train
    for numbers, rows, found in _hashed(store, engine, manifest, trained):
        at = np.minimum(np.searchsorted(known, found), len(known) - 1)
        same = known[at] == found if len(known) else np.zeros(len(found), bool)
        same[same] = seen[0, at[same]] < 0
        seen[:, at[same][::-1]] = np.stack([numbers[same], rows[same]])[:, ::-1]  # the first row of each hash remains
    train_chunk, train_row = seen[:, place]
    shared, examples, counters = train_chunk >= 0, list[Ints](), dict[str, int]()
    of_split = np.array([splits.index(item.split) if item.split != TRAIN else -1 for item in manifest.chunks])[chunk]
    for number, split in enumerate(splits):
        in_split = of_split == number
        counters |= {f"rows/{split}": int(in_split.sum()), f"shared/{split}": int((in_split & shared).sum())}
        examples.append(np.flatnonzero(in_split & shared)[:_EXAMPLES])
    chosen = np.concatenate(examples)
    columns = [pa.array(column[chosen], pa.int32()) for column in (chunk, row, train_chunk, train_row)]
    counts = {"rows_in": len(row), "rows_out": len(row), "rejected": 0, "filtered": 0, "tokens": 0}
    return store.put_action(key, pa.table(columns, _SCHEMA), no_rejects(), counts, counters, compressed=True)


def _hashed(
    store: ArtifactStore, engine: ComputeEngine, manifest: Manifest, numbers: Sequence[int]
) -> Iterator[tuple[Ints, npt.NDArray[np.int32], Hashes]]:
    """Yield for each of some chunks its number and row for each row, and the hash of the row."""
    found = engine.map(partial(_hash_chunk, store, manifest), numbers, store)
    for number, (rows, hashes) in zip(numbers, found, strict=True):
        yield np.full(len(rows), number, np.int64), rows, hashes


def _hash_chunk(store: ArtifactStore, manifest: Manifest, number: int) -> tuple[npt.NDArray[np.int32], Hashes]:
    return row_hashes(store.objects.get(manifest.chunks[number].output))
