"""Datasets of sequences written to a store without a build, with objects of several MiB: for tests of reading."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from tokenloom.assets.sequences.stage import STAGE
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.resources.digest import BLOCK_SIZES, block_digests
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk, Run
from tokenloom.resources.tables.ragged import list_array, list_views, offsets_of
from tokenloom.resources.tables.sequence_schema import with_padding

FACTS = {
    "pad_token_id": 0,
    "vocab_size": 60_000,
    "max_length": 1 << 20,
    "packed": False,
    "tokenizer": "",
    "kind": "sequence",
}
VALUES = {"input_ids": np.uint16, "trained": np.uint8, "weights": np.float32}


@dataclass(frozen=True)
class Written:
    """A dataset: its store, and of each row input_ids and labels, int64, and weights, float32; and the size of the
    blocks with digests."""

    folder: Path
    name: str
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
    block: int

    def objects(self) -> list[Path]:
        store = ArtifactStore(self.folder)
        return [store.objects.path(chunk.output) for chunk in store.manifest(self.name).chunks]


def write_sequences(
    folder: Path, name: str, tokens: list[int], mean: int = 500, seed: int = 0, block: int = BLOCK_SIZES[0]
) -> Written:
    """Write one chunk of about `tokens[i]` tokens for each i, in rows of about `mean`; the second chunk has weights."""
    draw, store = np.random.default_rng(seed), ArtifactStore(folder)
    store.prepare()
    chunks, rows = [], []
    for number, count in enumerate(tokens):
        lengths = draw.integers(1, 2 * mean, -(-count // mean))
        offsets = offsets_of(lengths)
        ids = draw.integers(1, 60_000, offsets[-1]).astype(np.uint16)
        trained = draw.integers(0, 2, offsets[-1]).astype(np.uint8)
        weights = (trained * draw.integers(1, 4, offsets[-1]) / 2).astype(np.float32)
        columns = {"input_ids": list_array(offsets, ids), "trained": list_array(offsets, trained)}
        if number == 1:
            columns["weights"] = list_array(offsets, weights)
        chunk = _put(store, f"{seed:032x}{number:032x}", columns, np.arange(len(lengths) + 1), lengths)
        blocks = block_digests(store.objects.path(chunk.output).read_bytes(), block)
        chunks.append(replace(chunk, blocks=blocks.hex()))
        labels = np.where(trained == 1, ids.astype(np.int64), -100)
        counted = (weights if number == 1 else trained).astype(np.float32)
        for begin, end in pairwise(offsets.tolist()):
            rows.append((ids[begin:end].astype(np.int64), labels[begin:end], counted[begin:end]))
    store.put_manifest(Manifest(name, "sequences", tuple(chunks), FACTS, {"weighted_chunks": int(len(tokens) > 1)}))
    return Written(folder, name, rows, block)


def write_numbered(
    folder: Path, name: str, chunks: list[int], longest: int, packed: bool = False, first: int = 3, multiple: int = 0
) -> list[list[list[int]]]:
    """Write rows of 1 to `longest` tokens, `chunks[i]` rows in chunk i. Tokens count up from `first`, so that each
    occurs once; multiples of 3 are not trained. Packed rows hold several documents, up to 3. Returns the documents of
    each row. With a `multiple`, documents are stored padded to it."""
    draw, store = np.random.default_rng(first), ArtifactStore(folder)
    store.prepare()
    made, rows = [], list[list[list[int]]]()
    for number, count in enumerate(chunks):
        begin, tokens, documents = len(rows), first, list[int]()
        for length in draw.integers(1, longest + 1, count).tolist():
            bounds = sorted({0, length, *draw.integers(0, length, 2 * packed).tolist()})
            rows.append([list(range(tokens + start, tokens + end)) for start, end in pairwise(bounds)])
            documents += [end - start for start, end in pairwise(bounds)]
            tokens += length
        offsets = offsets_of(np.array([sum(map(len, row)) for row in rows[begin:]], np.int64))
        each = offsets_of(np.array([len(row) for row in rows[begin:]], np.int64))
        ids = np.arange(first, tokens, dtype=np.uint16)
        trained = (ids % 3 > 0).astype(np.uint8)
        columns = {"input_ids": list_array(offsets, ids), "trained": list_array(offsets, trained)}
        made.append(_put(store, f"{first:032x}{number:032x}", columns, each, np.array(documents, np.int64), multiple))
        first = tokens
    facts = {**FACTS, "max_length": longest, "packed": packed}
    if multiple:
        facts |= {"document_multiple": multiple, "max_length": (-(-longest // multiple) + 3) * multiple}
    store.put_manifest(Manifest(name, "sequences", tuple(made), facts, {"weighted_chunks": 0}))
    return rows


def _put(
    store: ArtifactStore,
    key: str,
    columns: dict[str, pa.Array],
    each: np.ndarray,
    lengths: np.ndarray,
    multiple: int = 0,
) -> ManifestChunk:
    """Store a chunk; `each` are the offsets of rows among their documents, `lengths` the documents' tokens."""
    columns["rows"] = list_array(each, np.arange(len(lengths), dtype=np.int32))
    columns["document_lengths"] = list_array(each, lengths.astype(np.int32))
    rows, table = len(each) - 1, pa.table(columns)
    table = with_padding(table, multiple, FACTS["pad_token_id"]) if multiple else table
    output = ChunkOutput(table, rows, tokens=len(list_views(table["input_ids"])[1]))
    tokens = STAGE.lengths(output.table)
    action = store.put_action(key, output.table, output.rejects, output.counts(), {}, False, True, tokens)
    place = {"split": "train", "runs": (Run("made", offset=0),), "unit": "row"}
    return ManifestChunk(**place, input=key, key=key, **vars(action))
