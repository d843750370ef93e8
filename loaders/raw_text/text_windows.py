"""Small texts without a build: one stream of tokens, cut into windows, with targets one ahead."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from tokenloom.errors import SourceError
from tokenloom.loaders.any_dataset.config import workers_for_hardware
from tokenloom.loaders.any_dataset.map_style.map_loader import MapLoader
from tokenloom.loaders.raw_text.encoding import TextEncoder, encode_stream
from tokenloom.loaders.raw_text.text_files import read_texts
from tokenloom.resources.digest import digest_bytes


class TransformerDataset(Dataset[dict[str, torch.Tensor]]):
    """Windows of `seq_length` tokens of one stream: the texts of a file, one behind the other.

    `dataset[i]` is window i: int64 [seq_length] `input_ids`, and `labels`, which are the same tokens one further on in
    the stream, so that a model's outputs are held against them without a shift. Windows do not overlap; the tokens
    behind the last whole one are left out. The file is tokenized when the dataset is made, and 2 or 4 bytes a token are
    kept.

    Args:
        path: a text on each line, or, as JSONL, an object with a `text` on each; blank lines are left out.
        tokenizer: `encode(text)` returns ids, a dict with `input_ids`, or an Encoding; special tokens are as it says.
        seq_length: tokens of a window.
        is_jsonl: default: whether the file's name ends with .jsonl, .ndjson or .json.

    Attributes:
        digest: hex BLAKE3 of the tokens.

    Raises:
        SourceError: a line is no object with a `text`, the file cannot be read, or there is not one whole window.
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
        if seq_length < 1:
            raise ValueError(f"seq_length {seq_length} must be at least 1")
        self.path, self.seq_length = Path(path), seq_length
        parts: list[np.ndarray] = [np.zeros(0, np.uint16)]
        for _, encoded in encode_stream(tokenizer, read_texts(self.path, is_jsonl)):
            ids = np.concatenate(encoded)
            parts.append(ids.astype(np.uint16 if int(ids.max(initial=0)) < 1 << 16 else np.uint32))
        self.tokens = np.concatenate(parts)
        if len(self.tokens) <= seq_length:
            raise SourceError(
                f"{self.path}: {len(self.tokens)} tokens make no window of seq_length {seq_length}, which takes "
                f"{seq_length + 1}; lower seq_length"
            )

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.seq_length

    def __getitem__(self, window: int) -> dict[str, torch.Tensor]:
        if not -len(self) <= window < len(self):
            raise IndexError(f"window {window} of {len(self)}")
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
    """Loaders for training and validation over two small files, by `TransformerDataset`.

    Batches are dicts of int64 `input_ids` and `labels`, [batch_size, seq_length]. Training is shuffled and leaves out
    its last batch where that is not full; validation is in order and has every window.

    Args:
        num_workers: worker processes; None: chosen for the hardware.
        is_jsonl: of both files; default: by their names' endings.
        seed: of the order.
        rank, world_size: default: those of `torch.distributed` where it is initialized, else 0 of 1.

    Raises:
        SourceError: a file cannot be read as texts, or has fewer windows than one batch for training.
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
