"""Lengths of rows: joined into objects that loaders map, and counted in histograms.

Groups are consecutive chunks. A group ends where the digest of a chunk's output says so: an edit changes the groups of
the edited chunks alone, and the others are found in the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.assets.stage.definition import Picture
from tokenloom.resources.digest import LENGTHS_BLOCK, digest_json
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.png import DARK, GREEN, GREY, png
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk
from tokenloom.resources.store.manifest import LENGTHS
from tokenloom.resources.store.manifest_chunks import ManifestChunks
from tokenloom.resources.tables.ragged import Ints, flat_numbers, list_parts, offsets_of, one_array, sides
from tokenloom.resources.tables.sequence_schema import LENGTH, check_lengths, length_type

BEFORE, AFTER = "rows_of_length", "sequences_of_length"
MORE = "more"
_BUCKETS = 16
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Histogram:
    """A histogram of lengths.

    Args:
        bounds: inclusive upper bounds of the buckets: sixteenths of max_length, then 2 and 4 times max_length.
        counts: the number of lengths in each bucket; the additional last bucket has no upper bound.
    """

    bounds: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, counters: Mapping[str, int], name: str, max_length: int) -> Histogram:
        """Return the histogram in a stage's counters."""
        bounds = length_bounds(max_length)
        return cls(bounds, tuple(counters.get(f"{name}/{bound}", 0) for bound in (*bounds, MORE)))

    def bars(self) -> str:
        """Return one character per bucket; only empty buckets are blank."""
        most = max(self.counts) or 1
        return "".join(_BARS[-(-8 * count // most)] for count in self.counts)


def length_bounds(max_length: int) -> tuple[int, ...]:
    """Return the bounds of a histogram."""
    within = {-(-max_length * part // _BUCKETS) for part in range(1, _BUCKETS + 1)}
    return (*sorted(within), 2 * max_length, 4 * max_length)


def count_lengths(name: str, table: pa.Table, max_length: int) -> dict[str, int]:
    """Return counters of the lengths of a table's `input_ids`, for pairs of both sides, without empty buckets."""
    lengths: list[Ints] = [np.diff(list_parts(side["input_ids"])[0]) for side in sides(table).values()]
    bounds = length_bounds(max_length)
    counts = np.bincount(np.searchsorted(bounds, np.concatenate(lengths)), minlength=len(bounds) + 1).tolist()
    return {f"{name}/{bound}": count for bound, count in zip((*bounds, MORE), counts, strict=True) if count}


def fill(counters: Mapping[str, int], tokens: int, max_length: int) -> float:
    """Return the packing efficiency: tokens without padding divided by sequences times `max_length`; 0 without
    sequences."""
    sequences = sum(Histogram.of(counters, AFTER, max_length).counts)
    return (tokens - counters.get("tokens_padding", 0)) / (sequences * max_length) if sequences else 0.0


def histogram_png(before: Histogram, after: Histogram, width: int = 304, height: int = 60) -> bytes:
    """Return a PNG with two rows of bars, grey and green, each with a line at max_length; sizes in pixels."""
    picture = np.zeros((2 * height + 4, width), np.uint8)
    step = width // len(before.counts)
    for row, (histogram, colour) in enumerate(((before, GREY), (after, GREEN))):
        top, most = row * (height + 4), max(histogram.counts) or 1
        picture[top : top + height, step * (len(histogram.bounds) - 2) - 1] = DARK
        for place, count in enumerate(histogram.counts):
            tall = -(-(height - 2) * count // most)
            picture[top + height - tall : top + height, place * step + 1 : (place + 1) * step - 1] = colour
        picture[top + height - 1, : step * len(histogram.counts)] = DARK
    return png(picture)


def shown_lengths(counters: Mapping[str, int], max_length: int) -> dict[str, Any]:
    """Return the lengths of rows and sequences as a picture and as rows of a table."""
    before, after = (Histogram.of(counters, name, max_length) for name in (BEFORE, AFTER))
    bounds = [*(f"≤ {bound:,}" for bound in before.bounds), f"> {before.bounds[-1]:,}"]
    buckets = zip(bounds, before.counts, after.counts, strict=True)
    rows = [{"length": bound, "rows": f"{some:,}", "sequences": f"{others:,}"} for bound, some, others in buckets]
    caption = f"grey: rows before truncation and packing; green: sequences; line: max_length, {max_length:,} tokens"
    return {"lengths": Picture(histogram_png(before, after), caption), "length_counts": rows}


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
    # an edit changes one chunk's digest, so only groups that it is in, or that it ends, are others
    ends = np.flatnonzero([int(output[:8], 16) % MEAN_CHUNKS == 0 for output in outputs]) + 1
    offsets, begin = offsets_of(rows), 0
    while begin < len(outputs):
        within = int(offsets.searchsorted(offsets[begin] + MOST_ROWS, "right")) - 1
        chosen = ends[ends.searchsorted(begin, "right") :][:1].tolist()
        end = max(begin + 1, min(*chosen, begin + MOST_CHUNKS, within, len(outputs)))
        yield begin, end
        begin = end


def _group(store: ArtifactStore, longest: int, chunks: ManifestChunks) -> ManifestChunk:
    digests, kind = chunks.digests("lengths"), length_type(longest)
    joined = digest_json(digests)
    key = digest_json(["row lengths", _VERSION, str(kind), joined])
    action = store.find_action(key)
    if action is None:
        store.objects.fetch(digests)
        parts: list[pa.Array] = []
        for digest, count in zip(digests, chunks.numbers("table_rows").tolist(), strict=True):
            part = store.objects.get_verified(digest, partial(check_lengths, rows=count, longest=longest))
            parts.append(one_array(part[LENGTH]).cast(kind))
        table = pa.table({LENGTH: pa.chunked_array(parts, kind).combine_chunks()})
        rows = table.num_rows
        tokens = int(flat_numbers(one_array(table[LENGTH])).sum(dtype=np.int64))
        counts = {"rows_in": rows, "rows_out": rows, "rejected": 0, "filtered": 0, "tokens": tokens}
        how: dict[str, Any] = {"compressed": False, "blocks": True, "block_size": LENGTHS_BLOCK}
        action = store.put_action(key, table, table.slice(0, 0), counts, {}, **how)
    first = chunks[0]
    return ManifestChunk(split=first.split, runs=first.runs, unit=first.unit, input=joined, key=key, **vars(action))
