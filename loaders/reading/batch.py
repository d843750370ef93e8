"""The type of a batch, and how its rows are padded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.tables.ragged import Ints

IGNORED = -100
"""The label of tokens that are not trained."""

Padding = Literal["max_length", "longest"] | int
Batch = dict[str, npt.NDArray[np.generic] | int | list[Any]]
"""Arrays by name; for packed rows also the int `max_seqlen`; and a list for each kept column."""


@dataclass(frozen=True)
class PaddingPolicy:
    """How the rows of a batch are padded to one length.

    Args:
        pad_token_id: fills input_ids where attention_mask is 0.
        padding: `max_length`; `longest`: to the longest row of the batch; or an integer: to the longest row, rounded up
            to a multiple of it.
        side: the side on which rows are padded, `left` or `right`.
        max_length: length of the longest sequence that the dataset can have, in tokens.
        packed: whether sequences hold several documents, separated by position_ids and cu_seqlens.

    Raises:
        ValueError: `padding` or `side` is not one of these.
    """

    pad_token_id: int
    padding: Padding
    side: Literal["left", "right"]
    max_length: int
    packed: bool

    def __post_init__(self) -> None:
        is_multiple = isinstance(self.padding, int) and not isinstance(self.padding, bool) and self.padding > 0
        if not is_multiple and self.padding not in ("max_length", "longest"):
            raise ValueError(f"padding must be 'max_length', 'longest' or an integer above 0, got {self.padding!r}")
        if self.side not in ("left", "right"):
            raise ValueError(f"padding_side must be 'left' or 'right', got {self.side!r}")

    def width(self, longest: Ints) -> Ints:
        """Return the padded width of each batch, given its longest row; int64 in and out, of one shape."""
        longest = np.maximum(longest, self.max_length if self.padding == "max_length" else 1)
        return longest if isinstance(self.padding, str) else -(-longest // self.padding) * self.padding


def to_tensors(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch with its arrays as tensors that share their memory; other values are unchanged."""
    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}


def batch_digest(batch: Mapping[str, Any]) -> str:
    """Return the hex BLAKE3 of a batch of tensors or arrays; equal batches have equal digests. Lists do not count."""
    parts = []
    for name in sorted(name for name, value in batch.items() if not isinstance(value, list)):
        value = batch[name]
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        parts.append([name, str(array.dtype), list(array.shape), digest_bytes(np.ascontiguousarray(array).tobytes())])
    return digest_json(parts)
