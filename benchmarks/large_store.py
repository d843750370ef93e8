"""Writes a dataset with very many chunks to a store, without a build."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.assets.sequences.lengths import groups_of
from tokenloom.resources.digest import LENGTHS_BLOCK, block_digests, digest_bytes
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk, Run
from tokenloom.resources.store.manifest import LENGTHS
from tokenloom.resources.store.manifest_chunks import RUN, SCHEMA, ManifestChunks
from tokenloom.resources.store.objects import ObjectStore, encode_table
from tokenloom.resources.tables.ragged import list_array, offsets_of
from tokenloom.resources.tables.sequence_schema import LENGTH

MARK = np.array([65001, 65002, 65003, 65004], np.uint16)
"""The first tokens of a template object, which are replaced by the number of the object."""

TEMPLATES = 64
"""Number of different arrays of lengths."""


@dataclass(frozen=True)
class Template:
    """An object, and where the tokens are that differ between objects."""

    data: bytes
    place: int
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: int, longest: int, seed: int) -> Template:
        draw = np.random.default_rng(seed)
        lengths = draw.integers(1, longest + 1, rows)
        lengths[0] = max(lengths[0], len(MARK))
        offsets, each = offsets_of(lengths), np.arange(rows + 1)
        ids = draw.integers(1, 50_000, offsets[-1]).astype(np.uint16)
        ids[: len(MARK)] = MARK
        table = pa.table(
            {
                "input_ids": list_array(offsets, ids),
                "trained": list_array(offsets, np.ones(len(ids), np.uint8)),
                "rows": list_array(each, np.arange(rows, dtype=np.int32)),
                "document_lengths": list_array(each, lengths.astype(np.int32)),
            }
        )
        data = memoryview(encode_table(table, compressed=False)).tobytes()
        return cls(data, data.index(MARK.tobytes()), lengths)

    def numbered(self, number: int) -> bytes:
        """Return the object with its number in its first tokens, each less than 2^12."""
        tokens = np.array([number >> shift & 0xFFF for shift in (0, 12, 24, 36)], np.uint16).tobytes()
        return b"".join([self.data[: self.place], tokens, self.data[self.place + len(tokens) :]])


def write_large(folder: Path, chunks: int, objects: int, rows: int, longest: int) -> int:
    """Write the dataset `large`; returns its number of tokens.

    Args:
        objects: number of distinct objects, at most `chunks`; fewer are repeated in an arbitrary order.
        rows: rows per chunk.
        longest: maximum number of tokens per row.
    """
    store = ArtifactStore(folder)
    store.prepare()
    for number in range(256):
        (folder / "objects" / f"{number:02x}").mkdir(parents=True, exist_ok=True)
    templates = [Template.of(rows, max(longest, len(MARK)), seed) for seed in range(min(objects, TEMPLATES))]
    outputs, blocks = list[bytes](), list[bytes]()
    for number in range(objects):
        data = templates[number % len(templates)].numbered(number)
        digest = digest_bytes(data)
        (folder / ObjectStore.blob(digest)).write_bytes(data)
        outputs.append(bytes.fromhex(digest))
        blocks.append(block_digests(data))
    chosen = np.arange(chunks) if objects == chunks else np.random.default_rng(1).integers(0, objects, chunks)
    template = chosen % len(templates)
    sizes = np.array([len(each.data) for each in templates])[template]
    tokens = np.array([each.lengths.sum() for each in templates])[template]
    columns = _columns(outputs, blocks, chosen) | _counts(rows, sizes, tokens)
    table = ManifestChunks(pa.table([columns[field.name] for field in SCHEMA], SCHEMA))
    facts: dict[str, Any] = {"pad_token_id": 0, "vocab_size": 65_536, "max_length": max(longest, len(MARK))}
    facts |= {"packed": False, "tokenizer": "", "kind": "sequence"}
    counters = {"weighted_chunks": 0, "tokens_trained": int(tokens.sum())}
    notes = {LENGTHS: _put_lengths(store, table, [each.lengths for each in templates], template)}
    store.put_manifest(Manifest("large", "sequences", table, facts, counters, notes))
    return int(tokens.sum())


def _columns(outputs: list[bytes], blocks: list[bytes], chosen: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    chunks, draw = len(chosen), np.random.default_rng(0)
    numbers = chosen.tolist()
    counted = {"sequences": 480, "answers": 480, "tokens_cut": 0, "tokens_in": 1_000_000, "tokens_trained": 400_000}
    counted |= {f"{what}_of_length/{128 * n}": 20 for what in ("rows", "sequences") for n in range(1, 17)}
    counters = json.dumps(counted, separators=(",", ":")).encode()
    runs = pa.StructArray.from_arrays(
        [
            pa.array([f"web/2026-10/shard-{number // 64:05}.jsonl.zst" for number in range(chunks)]),
            pa.array(np.zeros(chunks, np.int64)),
            pa.array(np.arange(chunks) % 64 * 1000),
        ],
        fields=list(RUN),
    )
    drawn = {name: list(map(bytes, draw.integers(0, 256, (chunks, 32), np.uint8))) for name in ("input", "key")}
    return {
        "split": pa.array(["train"] * chunks),
        "runs": pa.ListArray.from_arrays(pa.array(np.arange(chunks + 1, dtype=np.int32)), runs),
        "unit": pa.array(["line"] * chunks),
        **{name: pa.array(values, pa.binary()) for name, values in drawn.items()},
        "output": pa.array([outputs[number] for number in numbers], pa.binary()),
        "blocks": pa.array([blocks[number] for number in numbers], pa.large_binary()),
        "rejects": pa.nulls(chunks, pa.binary()),
        "lengths": pa.array(drawn["key"], pa.binary()),  # not written: loaders read those of groups
        "counters": pa.array([counters] * chunks, pa.large_binary()),
        "engine": pa.array([b""] * chunks, pa.binary()),
    }


def _counts(rows: int, sizes: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    none, each = np.zeros(len(sizes), np.int64), np.full(len(sizes), rows, np.int64)
    counts = {"rows_in": each, "rows_out": each, "rejected": none, "filtered": none, "table_rows": each}
    return {name: pa.array(values) for name, values in {**counts, "bytes": sizes, "tokens": tokens}.items()}


def _put_lengths(
    store: ArtifactStore,
    chunks: ManifestChunks,
    lengths: list[npt.NDArray[np.int64]],
    template: npt.NDArray[np.int64],
) -> str:
    """Write the lengths of groups of chunks, as a build does; returns the digest of their manifest."""
    kinds, groups = [each.astype(np.uint16) for each in lengths], list[ManifestChunk]()
    for number, (begin, end) in enumerate(groups_of(chunks.digests("output"), chunks.numbers("table_rows"))):
        table = pa.table({LENGTH: np.concatenate([kinds[each] for each in template[begin:end].tolist()])})
        rows, key = table.num_rows, f"{number:064x}"
        counts = {"rows_in": rows, "rows_out": rows, "rejected": 0, "filtered": 0, "tokens": 0}
        how: dict[str, Any] = {"compressed": False, "blocks": True, "block_size": LENGTHS_BLOCK}
        action = store.put_action(key, table, table.slice(0, 0), counts, {}, **how)
        place: dict[str, Any] = {"split": "train", "runs": (Run("large", offset=0),), "unit": "line"}
        groups.append(ManifestChunk(**place, input=key, key=key, **vars(action)))
    facts = {"max_length": max(int(each.max()) for each in lengths)}
    return store.put_manifest_object(Manifest("large", LENGTHS, groups, facts))
