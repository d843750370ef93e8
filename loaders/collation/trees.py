"""Attention masks of batches of trees (`length.packing: tree`), in the forms that models and kernels take.

In such a batch, the token at place q of a row sees the token at place k of the row if and only if
`k <= q < attention_ends[k]`. A sliding window is one of depth, as the texts by themselves have it: a token sees tokens
whose `position_ids` are less than the window before its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tokenloom.loaders.reading.batch import OF_TOKENS

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

ENDS = "attention_ends"
"""The column of a batch of trees: int64 [rows, width], for each token the place in its row of the first token after it
that does not see it."""

Sees = Callable[[Any, Any, Any, Any], torch.Tensor]


def sees(ends: torch.Tensor, position_ids: torch.Tensor | None = None, sliding_window: int | None = None) -> Sees:
    """Return the rule as a `mask_mod` of FlexAttention: a function of row, head, query and key, which are integer
    tensors, to bool.

    Args:
        ends: `attention_ends`, int64 [rows, width].
        position_ids: int64 [rows, width]; needed with a window.
        sliding_window: number of positions that a token sees, its own included; None: all.

    Raises:
        ValueError: there is a window, but no `position_ids`.
    """
    if sliding_window is None:
        return lambda row, head, query, key: (key <= query) & (query < ends[row, key])
    if position_ids is None:
        raise ValueError("a sliding window of trees is counted in position_ids: pass them too")

    def in_window(row: Any, head: Any, query: Any, key: Any) -> torch.Tensor:
        near = position_ids[row, query] - position_ids[row, key] < sliding_window
        return (key <= query) & (query < ends[row, key]) & near

    return in_window


def tree_mask(
    ends: torch.Tensor,
    position_ids: torch.Tensor | None = None,
    sliding_window: int | None = None,
    dtype: torch.dtype = torch.bool,
) -> torch.Tensor:
    """Return the mask as a tensor [rows, 1, width, width], queries by keys.

    Args:
        ends, position_ids, sliding_window: as for `sees`.
        dtype: bool: True where a query sees a key, as `scaled_dot_product_attention` takes it. A floating-point dtype:
            0 there and the lowest number elsewhere, to be added to attention scores.
    """
    places = torch.arange(ends.shape[1], device=ends.device)
    rows = torch.arange(len(ends), device=ends.device)[:, None, None]
    seen = sees(ends, position_ids, sliding_window)(rows, 0, places[:, None], places)[:, None]
    if dtype == torch.bool:
        return seen
    return torch.zeros(seen.shape, dtype=dtype, device=ends.device).masked_fill_(~seen, torch.finfo(dtype).min)


def tree_block_mask(
    ends: torch.Tensor, position_ids: torch.Tensor | None = None, sliding_window: int | None = None
) -> BlockMask:
    """Return the mask as FlexAttention takes it, on the device of `ends`. Arguments are those of `sees`."""
    from torch.nn.attention.flex_attention import create_block_mask

    rows, width = ends.shape
    create: Any = create_block_mask if ends.device.type == "cpu" else torch.compile(create_block_mask)
    return create(sees(ends, position_ids, sliding_window), rows, None, width, width, device=ends.device)


def startend_row_indices(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return what FlashMask takes for causal attention (https://arxiv.org/abs/2410.01359), int32 [rows, 1, width, 1]:
    for each key, the first query after it that does not see it."""
    return batch[ENDS].to(torch.int32)[:, None, :, None]


def flattened(batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a batch of trees as a single row without padding: its columns [1, tokens], without `attention_mask`.

    `attention_ends` are places in that row; `position_ids` and the other columns are unchanged.
    """
    own = batch["attention_mask"] != 0
    counts = torch.nn.functional.pad(own.cumsum(1), (1, 0))  # of tokens before each place of a row, and in the row
    before = counts[:, -1].cumsum(0) - counts[:, -1]
    ends = counts.gather(1, batch[ENDS]) + before[:, None]
    columns = {name: batch[name] for name in sorted(OF_TOKENS & batch.keys() - {"attention_mask"})}
    return {name: column[own][None] for name, column in {**columns, ENDS: ends}.items()}
