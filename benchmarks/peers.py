"""The loaders that are timed, one class each: batches of 8 rows from one workload, as dicts of int64 tensors.

All read the same rows: tokenloom from the store that it built, the others from the flat arrays of `workloads.py`, or
from files that their own writers wrote from them. None uses worker processes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import DataLoader

BATCH, SEED, IGNORED, STATE_EVERY = 8, 1234, -100, 100
"""Rows of a batch, seed, the label of masked tokens, and batches between reads of tokenloom's state."""

Batches = Iterator[dict[str, Any]]


class Rows:
    """Rows as a sequence of dicts of arrays: `input_ids`, and for ragged rows also int32 `labels`."""

    def __init__(self, folder: Path):
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        self.ragged, self.pad = facts["ragged"], facts["pad_token_id"]
        self.ids = np.asarray(np.load(folder / "ids.npy", mmap_mode="r"))
        self.offsets, self.prompts = np.load(folder / "offsets.npy"), np.load(folder / "prompts.npy")
        self.length = int(self.offsets[1])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        ids = self.ids[self.offsets[row] : self.offsets[row + 1]]
        if not self.ragged:
            return {"input_ids": ids}
        labels = ids.astype(np.int32)
        labels[: self.prompts[row]] = IGNORED
        return {"input_ids": ids, "labels": labels}


def padded(rows: Sequence[dict[str, Any]], pad: int) -> dict[str, torch.Tensor]:
    """Pad rows of any length on the right to the longest."""
    shape = len(rows), max(len(row["input_ids"]) for row in rows)
    input_ids, labels = np.full(shape, pad, np.int64), np.full(shape, IGNORED, np.int64)
    attention_mask = np.zeros(shape, np.int64)
    for place, row in enumerate(rows):
        length = len(row["input_ids"])
        input_ids[place, :length] = row["input_ids"]
        labels[place, :length] = row["labels"]
        attention_mask[place, :length] = 1
    batch = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def stacked(rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Stack rows of one length, given as arrays or tensors."""
    tensors = [torch.as_tensor(row["input_ids"]) for row in rows]
    input_ids = torch.stack(tensors).to(torch.int64)
    return {"input_ids": input_ids, "labels": input_ids.clone()}


class Contender:
    """A loader of one workload.

    Args:
        folder: of the workload; the contender's own format, if it has one, is written there too.

    Attributes:
        environment: its environment in `environments.py`; empty: the one of tokenloom.
        own: the folder of its own format.
        ranks: the world size.
    """

    environment: ClassVar[str] = ""
    own: ClassVar[str] = ""
    ranks = 1

    def __init__(self, folder: Path):
        self.folder = folder
        self.data = folder / self.own
        self.rows = Rows(folder)
        self.collate: Any = partial(padded, pad=self.rows.pad) if self.rows.ragged else stacked

    def prepare(self) -> None:
        """Write the contender's own format if it is missing."""
        if not self.data.exists():
            part = self.data.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            self.write(part)
            part.rename(self.data)

    def write(self, folder: Path) -> None: ...

    def batches(self, state: Any = None) -> Batches:
        """Yield the batches of an epoch, or the rest of one after `state`."""
        raise NotImplementedError

    def state(self) -> Any:
        """Return the state after the last batch; None if the loader has none."""


class Tokenloom(Contender):
    """tokenloom: shuffled, as rank 0, with its state read every 100 batches."""

    def __init__(self, folder: Path, world_size: int = 1):
        super().__init__(folder)
        from tokenloom.loaders import TokenLoader, open_dataset

        dataset = open_dataset(folder.name, store=folder.parent / "store")
        padding = "longest" if self.rows.ragged else "max_length"
        self.loader = TokenLoader(dataset, BATCH, seed=SEED, padding=padding, rank=0, world_size=world_size)
        self.ranks = world_size

    def batches(self, state: Any = None) -> Batches:
        if state:
            self.loader.load_state_dict(state)
        for number, batch in enumerate(self.loader):
            if not number % STATE_EVERY:
                self.loader.state_dict()
            yield batch

    def state(self) -> Any:
        return self.loader.state_dict()


class Floor(Contender):
    """A NumPy loop over a memory map that only copies shuffled rows into batches; for packed rows, with all arrays that
    tokenloom returns."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.make = self._ragged if self.rows.ragged else self._even
        if folder.name == "packed":
            self.make = self._packed
            self.counted = np.arange(self.rows.length)
            self.documents = np.append(0, np.cumsum(np.load(folder / "documents.npy"), dtype=np.int64))
            self.first = np.searchsorted(self.documents, self.rows.offsets)

    def batches(self, state: Any = None) -> Batches:
        order = np.random.default_rng(SEED).permutation(len(self.rows))
        for start in range(0, len(order), BATCH):
            batch = self.make(order[start : start + BATCH])
            yield {name: torch.from_numpy(array) for name, array in batch.items()}

    def _ragged(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        ids, starts = self.rows.ids, self.rows.offsets[chosen]
        lengths = self.rows.offsets[chosen + 1] - starts
        shape = len(chosen), int(lengths.max())
        input_ids, labels = np.full(shape, self.rows.pad, np.int64), np.full(shape, IGNORED, np.int64)
        attention_mask = np.zeros(shape, np.int64)
        places = zip(starts.tolist(), lengths.tolist(), self.rows.prompts[chosen].tolist(), strict=True)
        for row, (start, length, prompt) in enumerate(places):
            input_ids[row, :length] = ids[start : start + length]
            labels[row, prompt:length] = input_ids[row, prompt:length]
            attention_mask[row, :length] = 1
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}

    def _even(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        ids, length = self.rows.ids, self.rows.length
        input_ids, labels = (np.empty((len(chosen), length), np.int64) for _ in range(2))
        for row, start in enumerate(self.rows.offsets[chosen].tolist()):
            values = ids[start : start + length]
            input_ids[row] = values
            labels[row] = values
        return {"input_ids": input_ids, "labels": labels}

    def _packed(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        shape, bounds = (len(chosen), self.rows.length), list[int]()
        input_ids, attention_mask, labels, position_ids = (np.empty(shape, np.int64) for _ in range(4))
        for row, number in enumerate(chosen.tolist()):
            documents = self.documents[self.first[number] : self.first[number + 1] + 1]
            starts = (documents - documents[0]).tolist()
            length = starts.pop()
            values = self.rows.ids[documents[0] : documents[-1]]
            input_ids[row, :length], input_ids[row, length:] = values, self.rows.pad
            labels[row, :length], labels[row, length:] = values, IGNORED
            attention_mask[row, :length], attention_mask[row, length:] = 1, 0
            position_ids[row, length:] = 0
            for start, end in pairwise([*starts, length]):
                position_ids[row, start:end] = self.counted[: end - start]
                labels[row, start] = IGNORED
            bounds += [row * shape[1] + start for start in (starts if length == shape[1] else [*starts, length])]
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        return {**batch, "position_ids": position_ids, "cu_seqlens": np.array([*bounds, input_ids.size], np.int32)}


class Datasets(Contender):
    """Hugging Face datasets in a `DataLoader`, or in torchdata's `StatefulDataLoader`."""

    environment, own = "peers", "datasets"

    def __init__(self, folder: Path, format: str = "numpy", loader: str = "torch.utils.data.DataLoader"):
        super().__init__(folder)
        self.format = format
        module, _, self.name = loader.rpartition(".")
        self.kind: Any = getattr(import_module(module), self.name)
        if format == "torch":
            self.collate = self._pad_sequence if self.rows.ragged else stacked
        self.loader: Any = None

    def write(self, folder: Path) -> None:
        import pyarrow as pa

        datasets, rows, tables = import_module("datasets"), self.rows, []
        for start in range(0, len(rows), 1000):
            offsets = rows.offsets[start : start + 1001]
            ids = rows.ids[offsets[0] : offsets[-1]]
            lists = pa.array((offsets - offsets[0]).astype(np.int32))
            table = {"input_ids": pa.ListArray.from_arrays(lists, pa.array(ids))}
            if rows.ragged:
                labels = np.concatenate([rows[row]["labels"] for row in range(start, start + len(offsets) - 1)])
                table["labels"] = pa.ListArray.from_arrays(lists, pa.array(labels))
            tables.append(pa.table(table))
        datasets.Dataset(pa.concat_tables(tables)).save_to_disk(folder)

    def _pad_sequence(self, rows: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        pad, columns = (
            torch.nn.utils.rnn.pad_sequence,
            zip(*((row["input_ids"], row["labels"]) for row in rows), strict=True),
        )
        ids, labels = (list(column) for column in columns)
        return {
            "input_ids": pad(ids, batch_first=True, padding_value=self.rows.pad),
            "attention_mask": pad([torch.ones_like(row) for row in ids], batch_first=True),
            "labels": pad(labels, batch_first=True, padding_value=IGNORED),
        }

    def batches(self, state: Any = None) -> Batches:
        data = import_module("datasets").load_from_disk(self.data).with_format(self.format)
        draw = torch.Generator().manual_seed(SEED)
        self.loader = self.kind(data, BATCH, shuffle=True, generator=draw, collate_fn=self.collate)
        if state:
            self.loader.load_state_dict(state)
        yield from self.loader

    def state(self) -> Any:
        return self.loader.state_dict() if hasattr(self.loader, "state_dict") else None


class Litdata(Contender):
    """litdata with its default shuffle; token streams in its layout for them."""

    environment, own = "peers", "litdata"

    def write(self, folder: Path) -> None:
        litdata, rows, block = import_module("litdata"), self.rows, 2048
        if rows.ragged:
            litdata.optimize(rows.__getitem__, list(range(len(rows))), str(folder), chunk_bytes="64MB", num_workers=1)
            return
        blocks = range(0, len(rows) * rows.length, block * rows.length)
        litdata.optimize(
            partial(tokens_from, self.folder, block * rows.length),
            list(blocks),
            str(folder),
            chunk_size=block * rows.length,
            item_loader=litdata.TokensLoader(block_size=rows.length),
            num_workers=1,
        )

    def batches(self, state: Any = None) -> Batches:
        litdata = import_module("litdata")
        layout = None if self.rows.ragged else litdata.TokensLoader(block_size=self.rows.length)
        data = litdata.StreamingDataset(str(self.data), item_loader=layout, shuffle=True, seed=SEED, drop_last=False)
        collate = self.collate if self.rows.ragged else self._stack
        self.loader = litdata.StreamingDataLoader(data, batch_size=BATCH, collate_fn=collate)
        if state:
            self.loader.load_state_dict(state)
        yield from self.loader

    def _stack(self, rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return stacked([{"input_ids": row} for row in rows])

    def state(self) -> Any:
        return self.loader.state_dict()


def tokens_from(folder: Path, count: int, start: int) -> Iterator[torch.Tensor]:
    """Yield `count` tokens of a stream, as litdata takes them."""
    yield torch.from_numpy(Rows(folder).ids[start : start + count].copy())


class Mosaic(Contender):
    """mosaicml-streaming with its default shuffle."""

    environment, own = "mosaic", "mds"

    def write(self, folder: Path) -> None:
        streaming, rows = import_module("streaming"), self.rows
        columns = {"input_ids": "ndarray:uint16" + ("" if rows.ragged else f":{rows.length}")}
        if rows.ragged:
            columns["labels"] = "ndarray:int32"
        with streaming.MDSWriter(out=str(folder), columns=columns) as writer:
            for row in range(len(rows)):
                writer.write(rows[row])

    def batches(self, state: Any = None) -> Batches:
        streaming = import_module("streaming")
        import_module("streaming.base.util").clean_stale_shared_memory()
        data = streaming.StreamingDataset(local=str(self.data), shuffle=True, shuffle_seed=SEED, batch_size=BATCH)
        self.loader = streaming.StreamingDataLoader(data, batch_size=BATCH, collate_fn=self.collate)
        if state:
            self.loader.load_state_dict(state)
        yield from self.loader

    def state(self) -> Any:
        return self.loader.state_dict()


class Grain(Contender):
    """Grain's `MapDataset`, read batch by batch by index, or iterated with its threads."""

    environment = "peers"

    def __init__(self, folder: Path, iterated: bool = False):
        super().__init__(folder)
        data = import_module("grain").MapDataset.source(self.rows).shuffle(seed=SEED)
        self.shuffled, self.iterated = data.batch(BATCH, batch_fn=self.collate), iterated

    def batches(self, state: Any = None) -> Batches:
        if self.iterated:
            self.iterator = iter(self.shuffled.to_iter_dataset())
            if state:
                self.iterator.set_state(state)
            yield from self.iterator
            return
        for number in range(state or 0, len(self.shuffled)):
            self.given = number + 1
            yield self.shuffled[number]

    def state(self) -> Any:
        return self.iterator.get_state() if self.iterated else self.given


class Megatron(Contender):
    """As Megatron-LM's indexed and GPT datasets: a shuffled list of samples, each assembled from the documents that it
    spans, one token longer than a row, for shifted labels."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        rows = self.rows
        self.map = memoryview(rows.ids)  # pyright: ignore[reportArgumentType]
        self.starts, self.lengths = rows.offsets[:-1] * rows.ids.itemsize, np.diff(rows.offsets).astype(np.int32)
        self.samples = len(rows)
        if not rows.ragged:
            lengths = np.load(folder.parent / "packed" / "documents.npy")
            ends = np.minimum(np.cumsum(lengths, dtype=np.int64), len(rows.ids))
            ends = np.append(ends[ends < len(rows.ids)], len(rows.ids))
            starts = np.append(0, ends[:-1])
            self.starts, self.lengths = starts * rows.ids.itemsize, np.diff(ends, prepend=0).astype(np.int32)
            self.samples = (len(rows.ids) - 1) // rows.length
            first = np.arange(self.samples + 1) * rows.length
            document = np.searchsorted(ends, first, side="right")
            self.first = np.stack([document, first - starts[document]], 1)
        self.order = np.random.default_rng(SEED).permutation(self.samples)
        self.given = 0

    def get(self, document: int, offset: int = 0, length: int | None = None) -> np.ndarray:
        """Return `length` tokens of a document from `offset` on; None: up to its end."""
        ids = self.rows.ids
        count = self.lengths[document] - offset if length is None else length
        return np.frombuffer(self.map, ids.dtype, count, self.starts[document] + offset * ids.itemsize)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, place: int) -> dict[str, Any]:
        if self.rows.ragged:
            ids = self.get(self.order[place]).astype(np.int64)
            labels = ids.copy()
            labels[: self.rows.prompts[self.order[place]]] = IGNORED
            return {"input_ids": ids, "labels": labels}
        (document, offset), (last, end) = self.first[self.order[place]], self.first[self.order[place] + 1]
        if document == last:
            parts = [self.get(document, offset, end - offset + 1)]
        else:
            between = [self.get(number) for number in range(document + 1, last)]
            parts = [self.get(document, offset), *between, self.get(last, 0, end + 1)]
        text = torch.from_numpy(np.concatenate(parts).astype(np.int64))
        return {"input_ids": text[:-1].contiguous(), "labels": text[1:].contiguous()}

    def batches(self, state: Any = None) -> Batches:
        places = range((state or 0) * BATCH, self.samples)
        collate = self.collate if self.rows.ragged else None
        loader: Any = DataLoader(self, BATCH, sampler=places, collate_fn=collate)  # pyright: ignore[reportArgumentType]
        for self.given, batch in enumerate(loader, (state or 0) + 1):
            yield batch

    def state(self) -> Any:
        return self.given


STATEFUL = "torchdata.stateful_dataloader.StatefulDataLoader"
CONTENDERS: dict[str, Callable[[Path], Contender]] = {
    "floor": Floor,
    "tokenloom": Tokenloom,
    "tokenloom, rank 0 of 2": partial(Tokenloom, world_size=2),
    "Megatron-style": Megatron,
    "litdata": Litdata,
    "Grain, indexed": Grain,
    "Grain, iterated": partial(Grain, iterated=True),
    "datasets, NumPy format": Datasets,
    "datasets, torch format": partial(Datasets, format="torch"),
    "datasets, StatefulDataLoader": partial(Datasets, loader=STATEFUL),
    "mosaicml-streaming": Mosaic,
}
