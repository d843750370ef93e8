"""Joins the lengths of the rows of many chunks into one object, for loaders to map: few files, whatever the number of
chunks.

Groups are consecutive chunks. A group ends where the digest of a chunk's output says so: an edit changes the groups of
the edited chunks alone, and the others are found in the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.resources.digest import LENGTHS_BLOCK, digest_json
from tokenloom.resources.engines.compute import ComputeEngine
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk
from tokenloom.resources.store.manifest import LENGTHS
from tokenloom.resources.store.manifest_chunks import ManifestChunks
from tokenloom.resources.tables.loaded_chunk import check_lengths
from tokenloom.resources.tables.ragged import Ints, flat_numbers, offsets_of, one_array
from tokenloom.resources.tables.sequence_schema import LENGTH, length_type

MEAN_CHUNKS = 1024
"""Average number of chunks per group."""

MOST_CHUNKS = 4096
MOST_ROWS = 1 << 26

_VERSION = 1


def put_lengths(store: ArtifactStore, engine: ComputeEngine, sequences: Manifest) -> str:
    """Find or compute the groups of a dataset; returns the digest of their manifest.

    Raises:
        RemovedObjectError: the lengths of a chunk were damaged.
        StoreError: the lengths of a chunk are missing.
    """
    chunks = sequences.chunks
    bounds = groups_of(chunks.digests("output"), chunks.numbers("table_rows"))
    groups = engine.map(partial(_group, store, sequences.facts["max_length"]), (chunks[a:b] for a, b in bounds), store)
    facts = {"max_length": sequences.facts["max_length"]}
    return store.put_manifest_object(Manifest(sequences.dataset, LENGTHS, list(groups), facts))


def groups_of(outputs: Sequence[str], rows: Ints) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each group.

    Args:
        outputs: digest of each chunk's output.
        rows: number of rows of each chunk, int64 [chunks].
    """
    ends = np.flatnonzero([int(output[:8], 16) % MEAN_CHUNKS == 0 for output in outputs]) + 1
    offsets, begin = offsets_of(rows), 0
    while begin < len(outputs):
        within = int(offsets.searchsorted(offsets[begin] + MOST_ROWS, "right")) - 1
        chosen = ends[ends.searchsorted(begin, "right") :][:1].tolist()
        end = max(begin + 1, min(*chosen, begin + MOST_CHUNKS, within, len(outputs)))
        yield begin, end
        begin = end


def _group(store: ArtifactStore, longest: int, chunks: ManifestChunks) -> ManifestChunk:
    """Find or compute one group."""
    digests, kind = chunks.digests("lengths"), length_type(longest)
    joined = digest_json(digests)
    key = digest_json(["row lengths", _VERSION, str(kind), joined])
    action = store.find_action(key)
    if action is None:
        table = _joined(store, longest, chunks, digests)
        rows = table.num_rows
        tokens = int(flat_numbers(one_array(table[LENGTH])).sum(dtype=np.int64))
        counts = {"rows_in": rows, "rows_out": rows, "rejected": 0, "filtered": 0, "tokens": tokens}
        how: dict[str, Any] = {"compressed": False, "blocks": True, "block_size": LENGTHS_BLOCK}
        action = store.put_action(key, table, table.slice(0, 0), counts, {}, **how)
    first = chunks[0]
    return ManifestChunk(split=first.split, runs=first.runs, unit=first.unit, input=joined, key=key, **vars(action))


def _joined(store: ArtifactStore, longest: int, chunks: ManifestChunks, digests: Sequence[str]) -> pa.Table:
    store.objects.fetch(digests)
    kind, parts = length_type(longest), list[pa.Array]()
    for digest, rows in zip(digests, chunks.numbers("table_rows").tolist(), strict=True):
        table = store.objects.get_verified(digest, partial(check_lengths, rows=rows, longest=longest))
        parts.append(one_array(table[LENGTH]).cast(kind))
    return pa.table({LENGTH: pa.chunked_array(parts, kind).combine_chunks()})
