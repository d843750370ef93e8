"""Small texts without a build: one stream of tokens, cut into windows, with labels shifted by one."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from tokenloom.errors import SourceError
from tokenloom.loaders.map_style.map_loader import MapLoader
from tokenloom.loaders.order.arguments import LARGEST_COUNT, integer
from tokenloom.loaders.raw_text.encoding import TextEncoder
from tokenloom.loaders.raw_text.text_files import tokenized_file
from tokenloom.loaders.reading.workers import workers_for_hardware
from tokenloom.resources.digest import digest_bytes


class TransformerDataset(Dataset[dict[str, torch.Tensor]]):
    """Windows of `seq_length` tokens over one stream: the concatenated texts of a file.

    `dataset[i]` is window i: int64 [seq_length] `input_ids`, and `labels`, which are the next token of the stream at
    each position, so the loss needs no shift. Windows do not overlap, and tokens after the last full window are
    dropped. The file is tokenized on construction and kept in memory, with 2 or 4 bytes per token.

    Args:
        path: a file with one text per line, or JSONL with a `text` in each object; blank lines are skipped.
        tokenizer: its `encode(text)` returns ids, a dict with `input_ids`, or an Encoding, and decides about special
            tokens.
        seq_length: tokens per window.
        is_jsonl: whether the file is JSONL; default: whether its name ends in .jsonl, .ndjson or .json.

    Attributes:
        digest: hex BLAKE3 of the tokens.

    Raises:
        SourceError: the file cannot be read, a line is not an object with a `text`, or the tokens do not fill one
            window.
        ValueError: `seq_length` is below 1.
        TypeError: `encode` returned something else.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tokenizer: TextEncoder,
        seq_length: int = 128,
        is_jsonl: bool | None = None,
    ):
        seq_length = integer("seq_length", seq_length, 1, LARGEST_COUNT)
        self.path, self.seq_length = Path(path), seq_length
        parts: list[np.ndarray] = [np.zeros(0, np.uint16)]
        for _, block in tokenized_file(self.path, tokenizer, jsonl=is_jsonl):
            ids = np.concatenate(block)
            parts.append(ids.astype(np.uint16 if int(ids.max(initial=0)) < 1 << 16 else np.uint32))
        self.tokens = np.concatenate(parts)
        if len(self.tokens) <= seq_length:
            raise SourceError(
                f"{self.path}: a window of seq_length {seq_length} needs {seq_length + 1} tokens, but the file has "
                f"only {len(self.tokens)}; lower seq_length"
            )

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.seq_length

    def __getitem__(self, window: int) -> dict[str, torch.Tensor]:
        if not -len(self) <= window < len(self):
            raise IndexError(f"window {window} is out of range: the dataset has {len(self)} windows")
        begin = window % len(self) * self.seq_length
        ids = torch.from_numpy(self.tokens[begin : begin + self.seq_length + 1].astype(np.int64))
        return {"input_ids": ids[:-1], "labels": ids[1:]}

    @cached_property
    def digest(self) -> str:
        return digest_bytes(self.tokens.tobytes())


def create_dataloaders(
    train_path: str | os.PathLike[str],
    val_path: str | os.PathLike[str],
    tokenizer: TextEncoder,
    batch_size: int = 16,
    seq_length: int = 128,
    num_workers: int | None = None,
    is_jsonl: bool | None = None,
    seed: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
) -> tuple[MapLoader, MapLoader]:
    """Return a training and a validation loader over two small text files, each read by a `TransformerDataset`.

    Batches are dicts of int64 `input_ids` and `labels`, [batch_size, seq_length]. The training loader shuffles, and
    drops the last batch if it is not full. The validation loader reads every window in order.

    Args:
        train_path, val_path: files with one text per line, or JSONL with a `text` in each object.
        tokenizer: its `encode(text)` returns ids, a dict with `input_ids`, or an Encoding.
        batch_size: windows per rank and batch.
        seq_length: tokens per window.
        num_workers: worker processes; None: 0 without a CUDA device, else half of the CPUs, at most 4.
        is_jsonl: whether both files are JSONL; default: by the ending of each name.
        seed: determines the training order.
        rank, world_size: default: those of `torch.distributed` if it is initialized, else 0 and 1.

    Raises:
        SourceError: a file cannot be read as texts, or the training file does not fill one batch.
    """
    workers = workers_for_hardware() if num_workers is None else num_workers
    shared = {"batch_size": batch_size, "seed": seed, "rank": rank, "world_size": world_size, "num_workers": workers}
    train = TransformerDataset(train_path, tokenizer, seq_length, is_jsonl)
    validation = TransformerDataset(val_path, tokenizer, seq_length, is_jsonl)
    train_loader = MapLoader(train, shuffle=True, drop_last=True, **shared)
    if not len(train_loader):
        raise SourceError(
            f"{train_path}: {len(train)} windows of {seq_length} tokens do not fill a batch of {batch_size} on every "
            "rank; lower batch_size or seq_length"
        )
    return train_loader, MapLoader(validation, shuffle=False, **shared)
