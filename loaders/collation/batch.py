"""What a batch is, and how its rows come to one length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tokenloom.resources.tables.ragged import Ints

IGNORED = -100
"""The label of what is not trained."""

Padding = Literal["max_length", "longest"] | int
Batch = dict[str, npt.NDArray[np.generic] | int]


@dataclass(frozen=True)
class PaddingPolicy:
    """How rows of a batch come to one length.

    Args:
        pad_token_id: fills input_ids where attention_mask is 0.
        padding: `max_length`, `longest` (of the batch), or a multiple.
        side: which side is filled.
        max_length: the longest sequence.
        packed: whether sequences hold several documents, kept apart by position_ids and cu_seqlens.
    """

    pad_token_id: int
    padding: Padding
    side: Literal["left", "right"]
    max_length: int
    packed: bool

    def __post_init__(self) -> None:
        whole = isinstance(self.padding, int) and not isinstance(self.padding, bool) and self.padding > 0
        if not whole and self.padding not in ("max_length", "longest"):
            raise ValueError(f"padding {self.padding!r} is not 'max_length', 'longest' or a multiple of at least 1")
        if self.side not in ("left", "right"):
            raise ValueError(f"padding side {self.side!r} is not 'left' or 'right'")

    def width(self, longest: Ints) -> Ints:
        """The lengths that rows are padded to, of which the longest have so many tokens; int64, of one shape."""
        longest = np.maximum(longest, self.max_length if self.padding == "max_length" else 1)
        return longest if isinstance(self.padding, str) else -(-longest // self.padding) * self.padding
