"""Datasets of sequences written to a store without a build, with objects of several MiB: for tests of reading."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from tokenloom.assets.stage import ChunkOutput
from tokenloom.resources.ragged import list_array, offsets_of
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk

FACTS = {"pad_token_id": 0, "vocab_size": 60_000, "max_length": 1 << 20, "packed": False, "tokenizer": ""}
VALUES = {"input_ids": np.uint16, "trained": np.uint8, "weights": np.float32}


@dataclass(frozen=True)
class Written:
    """A dataset: its store, and of each row input_ids and labels, int64, and weights, float32."""

    folder: Path
    name: str
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]]

    def objects(self) -> list[Path]:
        store = ArtifactStore(self.folder)
        return [store.objects.path(chunk.output) for chunk in store.manifest(self.name).chunks]


def write_sequences(folder: Path, name: str, tokens: list[int], mean: int = 500, seed: int = 0) -> Written:
    """One chunk for each of `tokens`, of about so many, in rows of about `mean`; the second chunk has weights."""
    draw, store = np.random.default_rng(seed), ArtifactStore(folder)
    store.prepare()
    chunks, rows = [], []
    for number, count in enumerate(tokens):
        lengths = draw.integers(1, 2 * mean, -(-count // mean))
        offsets = offsets_of(lengths)
        ids = draw.integers(1, 60_000, offsets[-1]).astype(np.uint16)
        trained = draw.integers(0, 2, offsets[-1]).astype(np.uint8)
        weights = (trained * draw.integers(1, 4, offsets[-1]) / 2).astype(np.float32)
        one_each = offsets_of(np.ones(len(lengths), np.int64))
        columns = {
            "input_ids": list_array(offsets, ids),
            "trained": list_array(offsets, trained),
            "rows": list_array(one_each, np.arange(len(lengths), dtype=np.int32)),
            "document_lengths": list_array(one_each, lengths.astype(np.int32)),
        }
        if number == 1:
            columns["weights"] = list_array(offsets, weights)
        output = ChunkOutput(pa.table(columns), len(lengths), tokens=len(ids))
        key = f"{seed:032x}{number:032x}"
        action = store.put_action(key, output.table, output.rejects, output.counts(), {}, False, True)
        place = {"split": "train", "source": "made", "offset": 0, "unit": "row"}
        chunks.append(ManifestChunk(**place, input=key, key=key, **action.outcome()))
        labels = np.where(trained == 1, ids.astype(np.int64), -100)
        counted = (weights if number == 1 else trained).astype(np.float32)
        for begin, end in pairwise(offsets.tolist()):
            rows.append((ids[begin:end].astype(np.int64), labels[begin:end], counted[begin:end]))
    store.put_manifest(Manifest(name, "sequences", tuple(chunks), FACTS, {"weighted_chunks": int(len(tokens) > 1)}))
    return Written(folder, name, rows)
