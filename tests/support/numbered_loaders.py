"""Every loader over rows that are numbered from 0, and the numbers of the rows in its batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from support.on_the_fly_rows import LengthEngine
from support.stored_sequences import write_numbered
from tokenloom import open_dataset
from tokenloom.loaders import (
    ArrayDataLoader,
    DataLoaderBuilder,
    MapLoader,
    MixedDataset,
    PaddingPolicy,
    PreprocessedDataset,
    StreamingDataset,
    StreamingLoader,
    TextDataset,
    TokenLoader,
    UniversalDataModule,
    create_dataloaders,
)

CHUNKS, MORE = [10, 13], 9
ROWS, WINDOWS = sum(CHUNKS), 24
LONGEST = 5

TOKEN_LOADERS = ["token", "budget", "mixture", "array", "raw text"]
MAP_LOADERS = ["map", "builder", "module", "windows", "preprocessed"]
LOADERS = [*TOKEN_LOADERS, *MAP_LOADERS, "stream"]
WITH_WORKERS = [name for name in LOADERS if name != "array"]
"""Loaders that can have worker processes."""


class Integers:
    """A tokenizer of numbers in words, each of which is its own id."""

    pad_token_id = 0

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]


class OneToken:
    """An engine that makes one trained token of each row: its number plus 1."""

    def encode(self, table: pa.Table) -> pa.Table:
        ones = [[1]] * table.num_rows
        columns = {"input_ids": pa.array([[number + 1] for number in table["n"].to_pylist()], pa.list_(pa.uint32()))}
        columns |= {"trained": pa.array(ones, pa.list_(pa.uint8()))}
        columns |= {"rows": pa.array([[row] for row in range(table.num_rows)], pa.list_(pa.int32()))}
        return pa.table({**columns, "document_lengths": pa.array(ones, pa.list_(pa.int32()))})


def first_ids(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["input_ids"][0]) for row in rows]


def _blocks() -> Iterator[pa.Table]:
    yield from (pa.table({"n": np.arange(begin, min(begin + 8, ROWS))}) for begin in range(0, ROWS, 8))


class NumberedLoaders:
    """The loaders. `token`, `budget`, `array`: a built dataset of ROWS rows; `mixture`: that and another, MORE rows
    longer; `windows`: WINDOWS rows, of which a batch that is not full is dropped; the others: ROWS rows.

    Args:
        folder: where their data are written.
        first: number of the first token of the data that are written, so that two folders can have different data.
    """

    def __init__(self, folder: Path, first: int = 3):
        rows = write_numbered(folder, "a", CHUNKS, LONGEST, first=first)
        rows += write_numbered(folder, "b", [MORE], LONGEST, first=first + 9000)
        self._numbers = {row[0][0]: number for number, row in enumerate(rows)}
        self._folder, self._first = folder, first
        (folder / "text.txt").write_text("".join(f"{first + number}\n" for number in range(ROWS)))
        (folder / "stream.txt").write_text(" ".join(str(first + number) for number in range(2 * WINDOWS + 1)))

    def rows(self, name: str) -> int:
        return {"mixture": ROWS + MORE, "windows": WINDOWS}.get(name, ROWS)

    def dataset(self, name: str) -> Any:
        """Return what a loader of `TOKEN_LOADERS` reads."""
        opened = {each: open_dataset(each, store=self._folder) for each in ("a", "b")}
        text: Any = TextDataset(self._folder / "text.txt", Integers(), 8)
        return {"mixture": MixedDataset(opened, by="size"), "raw text": text}.get(name, opened["a"])

    def make(
        self,
        name: str,
        batch_size: int = 4,
        seed: int = 5,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        **options: Any,
    ) -> Any:
        """Return a loader, shuffled.

        Args:
            options: more arguments of the loader's class.
        """
        shared: dict[str, Any] = {"seed": seed, "rank": rank, "world_size": world_size}
        if name == "stream":
            policy = PaddingPolicy(0, "longest", "right", 8, False)
            data = StreamingDataset(_blocks, OneToken(), policy, batch_size, True, **shared, **options)
            return StreamingLoader(data, num_workers)
        shared |= options
        if name == "array":
            return ArrayDataLoader(None, None, self.dataset(name), batch_size, **shared)
        shared["num_workers"] = num_workers
        if name == "windows":
            paths = [self._folder / "stream.txt"] * 2
            return create_dataloaders(paths[0], paths[1], Integers(), batch_size, 2, **shared)[0]
        if name == "module":
            tensors = [torch.tensor([number, number]) for number in range(ROWS)]
            return UniversalDataModule(tensors, val_split=0, batch_size=batch_size, **shared).train_dataloader()
        if name == "map":
            return MapLoader(range(ROWS), batch_size, **shared)
        if name == "preprocessed":
            rows = [{"n": number, "times": 1 + number % 3} for number in range(ROWS)]
            return MapLoader(PreprocessedDataset(rows, LengthEngine()), batch_size, collate_fn=first_ids, **shared)
        if name == "builder":
            ids = [{"input_ids": [number] * (1 + number % 3)} for number in range(ROWS)]
            return DataLoaderBuilder().with_dataset(ids).with_batch_size(batch_size).with_options(**shared).build()
        size = {"token_budget": max(4 * batch_size, LONGEST)} if name == "budget" else {"batch_size": batch_size}
        return TokenLoader(self.dataset(name), padding="longest", **size, **shared)

    def read(self, name: str, batch: Any) -> list[int]:
        """Return the numbers of the rows of a batch, without padding rows."""
        if name == "map":
            return batch.tolist()
        if name == "preprocessed":
            return batch
        ids = np.asarray(batch["input_ids"])
        if name == "windows":
            return ((ids[:, 0] - self._first) // 2).tolist()
        if name in ("builder", "module"):
            return ids[:, 0].tolist()
        found = ids[:, 0][np.asarray(batch["attention_mask"]).any(1)].tolist()
        if name in ("raw text", "stream"):
            return [token - (1 if name == "stream" else self._first) for token in found]
        return [self._numbers[token] for token in found]

    def epoch(self, name: str, loader: Iterable[Any]) -> list[list[int]]:
        """Return the numbers in the batches that one iteration yields."""
        return [self.read(name, batch) for batch in loader]


def flat(batches: Iterable[Iterable[int]]) -> list[int]:
    return [number for batch in batches for number in batch]
