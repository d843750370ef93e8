"""Time epochs of a loader with and without checks of the bytes that it reads.

usage: reading.py [--tokens N] [--batch N] [--runs N]

Writes objects of random tokens in rows of 2,048, as a build would store them. Prints, for the first epoch after opening
and for a later one, tokens per second without and with checks, and the ratio of their times.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from timing import median_seconds

from tokenloom.assets.sequences.stage import STAGE
from tokenloom.loaders import TokenDataset, TokenLoader, open_dataset
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk, Run
from tokenloom.resources.tables.ragged import list_array

LENGTH, CHUNK = 2048, 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=50_000_000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as folder:
        tokens = write(Path(folder), max(options.tokens // LENGTH // CHUNK, 1))
        seconds: dict[tuple[str, bool], list[float]] = {}
        for _ in range(options.runs):
            for verify in (False, True):
                dataset = open_dataset("random", store=folder, verify=verify)
                for epoch in ("first", "later"):
                    took = median_seconds(reading(dataset, options.batch), 1)
                    seconds.setdefault((epoch, verify), []).append(took)
    print(f"{tokens:,} tokens, batches of {options.batch} × {LENGTH}, shuffled, one process")
    for epoch in ("first", "later"):
        plain, checked = (statistics.median(seconds[epoch, verify]) for verify in (False, True))
        rate = f"{tokens / plain / 1e6:,.0f} M tokens/s without checks, {tokens / checked / 1e6:,.0f} with them"
        print(f"{epoch + ' epoch':12} {rate}: {checked / plain:.2f} times as long")


def reading(dataset: TokenDataset, batch: int) -> Callable[[], object]:
    return lambda: [None for _ in TokenLoader(dataset, batch_size=batch)]


def write(folder: Path, chunks: int) -> int:
    """Write a dataset with this number of chunks. Return its number of tokens."""
    draw, store, written = np.random.default_rng(0), ArtifactStore(folder), []
    store.prepare()
    counts = {"rows_in": CHUNK, "rows_out": CHUNK, "rejected": 0, "filtered": 0, "tokens": CHUNK * LENGTH}
    offsets, each = np.arange(CHUNK + 1) * LENGTH, np.arange(CHUNK + 1)
    for number in range(chunks):
        table = pa.table(
            {
                "input_ids": list_array(offsets, draw.integers(0, 50_000, CHUNK * LENGTH).astype(np.uint16)),
                "trained": list_array(offsets, np.ones(CHUNK * LENGTH, np.uint8)),
                "rows": list_array(each, np.arange(CHUNK, dtype=np.int32)),
                "document_lengths": list_array(each, np.full(CHUNK, LENGTH, np.int32)),
            }
        )
        key = f"{number:064x}"
        how: dict[str, Any] = {"compressed": False, "blocks": True, "lengths": STAGE.lengths(table)}
        action = store.put_action(key, table, table.slice(0, 0), counts, {}, **how)
        place = {"split": "train", "runs": (Run("random", offset=0),), "unit": "row"}
        written.append(ManifestChunk(**place, input=key, key=key, **vars(action)))
    facts = {"pad_token_id": 0, "vocab_size": 50_000, "max_length": LENGTH, "packed": False}
    facts |= {"tokenizer": "", "kind": "sequence"}
    store.put_manifest(Manifest("random", "sequences", tuple(written), facts, {"weighted_chunks": 0}))
    return chunks * CHUNK * LENGTH


if __name__ == "__main__":
    main()
