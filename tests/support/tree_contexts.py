"""What a row of trees trains: read back from stored trees and from batches of trees, by plain loops over tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Contexts = Counter[tuple[int, ...]]
"""The summed weight of each trained token, by the tokens up to and with it."""


def contexts_of_texts(texts: Sequence[Sequence[int]], weights: Sequence[Sequence[float]]) -> Contexts:
    """Return what separate texts train."""
    found = Contexts()
    for ids, of_text in zip(texts, weights, strict=True):
        for place, weight in enumerate(of_text):
            if weight:
                found[tuple(ids[: place + 1])] += weight  # pyright: ignore[reportArgumentType]
    return found


def contexts_of_row(ids: Sequence[int], weights: Sequence[float], ends: Sequence[int]) -> Contexts:
    """Return what a row of trees trains: a token at `q` sees those at `k <= q < ends[k]`."""
    found = Contexts()
    for query, weight in enumerate(weights):
        if weight:
            seen = tuple(ids[key] for key in range(query + 1) if query < ends[key])
            found[seen] += weight  # pyright: ignore[reportArgumentType]
    return found


def rows_of(table: Any) -> Iterator[dict[str, list[Any]]]:
    """Yield each stored sequence of trees as ids, weights, positions and ends of its tokens, and the documents."""
    for row in table.to_pylist():
        starts, ends, positions, place = [], [], [], 0
        for length, position, reach in zip(row["document_lengths"], row["positions"], row["reach"], strict=True):
            starts.append(place)
            ends += [place + reach] * length
            positions += range(position, position + length)
            place += length
        weights = row.get("weights") or [float(flag) for flag in row["trained"]]
        yield {"ids": row["input_ids"], "weights": weights, "positions": positions, "ends": ends, "starts": starts}


def contexts_of_batch(batch: Mapping[str, Any]) -> Contexts:
    """Return what a batch of a loader trains."""
    found = Contexts()
    labels = batch["labels"].tolist()
    weights = batch["loss_weights"].tolist() if "loss_weights" in batch else [[1.0] * len(row) for row in labels]
    for row, ids in enumerate(batch["input_ids"].tolist()):
        kept = [weight if label != -100 else 0.0 for label, weight in zip(labels[row], weights[row], strict=True)]
        found += contexts_of_row(ids, kept, batch["attention_ends"].tolist()[row])
    return found
