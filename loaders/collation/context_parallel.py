"""The part of a batch that each context-parallel rank computes, and what attention kernels take of the whole batch.

Ranks of a context-parallel group load the same batch and each compute a part of its tokens. Causal attention costs more
at the end of a document than at its start, so that the split `zigzag` gives each rank a chunk of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from tokenloom.loaders.order.ranks import Ranks
from tokenloom.loaders.reading.batch import IGNORED, OF_TOKENS, image_inputs, token_values
from tokenloom.resources.tables.ragged import Ints, ranges

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Split = Literal["zigzag", "contiguous"]

_WHOLE = ("cu_seqlens", "cu_seqlens_unpadded", "max_seqlen")


def context_slice(
    batch: Mapping[str, Any],
    rank: int | None = None,
    size: int | None = None,
    split: Split = "zigzag",
    *,
    mesh: DeviceMesh | None = None,
    mesh_dim: str | tuple[str, ...] = "cp",
) -> dict[str, Any]:
    """Return the part of a batch that one context-parallel rank computes.

    `zigzag` cuts each document of packed rows, or each row of others, into 2 × `size` equal chunks; rank r has the
    chunks r and 2 × `size` - 1 - r. That is the partition of Transformer Engine
    (`thd_get_partitioned_indices`, for packed rows) and Megatron-LM (`get_batch_on_this_cp_rank` in
    `megatron/core/utils.py`, for others). `contiguous` cuts each row into `size` equal runs.

    The slice has [rows, width / size] `input_ids`, `attention_mask`, `position_ids` (the place in the row if the batch
    has none) and columns of `token_columns`. It has `shift_labels` instead of `labels`: at each token the label of the
    next one in the row, -100 at the row's end, so that the last token of a chunk has its label too; and
    `shift_loss_weights` instead of `loss_weights`, shifted likewise. Of the whole batch it has `cu_seqlens`,
    `cu_seqlens_unpadded` and `max_seqlen`, if the batch has them, and the scalar `num_items_in_batch`: the number of
    trained tokens, or the sum of their weights. Divide the sum of a slice's losses by it, and add up the results of all
    ranks.

    Args:
        batch: a batch of a loader, the same on all ranks of the group; tensors or arrays.
        rank, size: the place in the context-parallel group, and its size.
        split: how tokens are divided.
        mesh: replaces `rank` and `size`: a DeviceMesh with named dimensions.
        mesh_dim: its context-parallel dimension.

    Returns:
        a dict with the columns of the slice, and those of the whole batch that kernels take.

    Raises:
        ValueError: a document or row cannot be cut into equal parts, the batch has columns that cannot be cut, or
            arguments contradict each other.
    """
    if mesh is None and (rank is None or size is None):
        raise ValueError("give rank and size, or a mesh with a context-parallel dimension")
    rank, size = Ranks(rank, size, mesh, mesh_dim).now()
    _check_columns(batch)
    index = _index(batch, rank, size, split)
    named = {name: batch[name] for name in (*sorted(OF_TOKENS), *sorted(token_values(batch))) if name in batch}
    named.setdefault("position_ids", _places(batch["input_ids"]))
    count = None
    for name, last in (("labels", IGNORED), ("loss_weights", 0)):
        if name in named:
            shifted = named[f"shift_{name}"] = _shifted(named.pop(name), last)
            count = (shifted != IGNORED).sum() if name == "labels" else shifted.sum()
    rows = len(batch["input_ids"])
    part: dict[str, Any] = {
        name: values.reshape(-1)[_like(index, values)].reshape(rows, -1) for name, values in named.items()
    }
    part |= {name: batch[name] for name in _WHOLE if name in batch}
    return part if count is None else {**part, "num_items_in_batch": count}


def whole_from_slices(parts: Sequence[Any], batch: Mapping[str, Any], split: Split = "zigzag") -> Any:
    """Return values of all tokens of a batch, given those of each context-parallel rank: the inverse of
    `context_slice`.

    Args:
        parts: [rows, width / ranks, …] for each rank, in order, such as labels or logits; tensors or arrays.
        batch: the whole batch.
        split: as given to `context_slice`.

    Returns:
        [rows, width, …].

    Raises:
        ValueError: a document or row cannot be cut into equal parts.
    """
    shape, size = batch["input_ids"].shape, len(parts)
    index = np.concatenate([_index(batch, rank, size, split) for rank in range(size)])
    flat = [part.reshape(-1, *part.shape[2:]) for part in parts]
    joined = torch.cat(flat) if isinstance(flat[0], torch.Tensor) else np.concatenate(flat)
    return joined[_like(np.argsort(index), joined)].reshape(*shape, *joined.shape[1:])


def packed_seq_params(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of Megatron-core's `PackedSeqParams` (`megatron/core/packed_seq_params.py`) for a batch.

    Bounds are those of the whole flattened batch, for any number of context-parallel ranks. `cu_seqlens_q_padded` are
    the places of documents in it; `cu_seqlens_q` cumulate their lengths without padding.

    Raises:
        ValueError: the batch is not packed.
    """
    if "cu_seqlens" not in batch:
        raise ValueError("the batch has no cu_seqlens; set length.packing: best_fit, and build the dataset again")
    padded, longest = batch["cu_seqlens"], batch["max_seqlen"]
    own = batch.get("cu_seqlens_unpadded", padded)
    bounds = {"cu_seqlens_q": own, "cu_seqlens_kv": own, "cu_seqlens_q_padded": padded, "cu_seqlens_kv_padded": padded}
    return {"qkv_format": "thd", **bounds, "max_seqlen_q": longest, "max_seqlen_kv": longest}


def _check_columns(batch: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: the batch cannot be cut.
    """
    if "attention_ends" in batch:
        raise ValueError("batches of packing: tree cannot be cut for context parallelism; use packing: best_fit")
    if "input_ids" not in batch:
        raise ValueError("the batch has no input_ids; pairs cannot be cut for context parallelism")
    if others := sorted(image_inputs(batch)):
        raise ValueError(f"{', '.join(others)} cannot be cut for context parallelism; remove them from the batch")


def _index(batch: Mapping[str, Any], rank: int, size: int, split: Split) -> Ints:
    """Return the places of a rank's tokens in the flattened batch, int64 [tokens / size]."""
    rows, width = batch["input_ids"].shape
    bounds = np.arange(rows + 1) * width
    if split == "contiguous":
        if width % size:
            raise ValueError(
                f"rows of {width} tokens cannot be cut into {size} equal runs; pass padding={size} to the loader, or "
                f"set length.document_multiple: {2 * size}"
            )
        return ranges(bounds[:-1] + rank * (width // size), np.full(rows, width // size))
    if split != "zigzag":
        raise ValueError(f"split must be 'zigzag' or 'contiguous', got {split!r}")
    if "cu_seqlens" in batch:
        bounds = np.asarray(torch.as_tensor(batch["cu_seqlens"]).cpu()).astype(np.int64)
    lengths = np.diff(bounds)
    if (uneven := lengths[lengths % (2 * size) > 0]).size:
        raise ValueError(
            f"a document of {uneven[0]} tokens cannot be cut into {2 * size} equal chunks; set "
            f"length.document_multiple: {2 * size}, and build the dataset again"
        )
    chunk = lengths // (2 * size)
    begins = np.column_stack([bounds[:-1] + rank * chunk, bounds[:-1] + (2 * size - 1 - rank) * chunk])
    return ranges(begins.ravel(), np.repeat(chunk, 2))


def _places(ids: Any) -> Any:
    """Return the place of each token in its row."""
    rows, width = ids.shape
    if isinstance(ids, torch.Tensor):
        return torch.arange(width, device=ids.device).expand(rows, -1)
    return np.broadcast_to(np.arange(width), (rows, width))


def _shifted(values: Any, last: int) -> Any:
    """Return each row's values one place to the left, with `last` at the end."""
    shifted = values.clone() if isinstance(values, torch.Tensor) else values.copy()
    shifted[:, :-1], shifted[:, -1] = values[:, 1:], last
    return shifted


def _like(index: Ints, values: Any) -> Any:
    """Return an index for values, on their device."""
    return torch.from_numpy(index).to(values.device) if isinstance(values, torch.Tensor) else index
