"""What attention takes of a batch beside its tokens: the part that each context-parallel rank computes, and masks of
trees.

Ranks of a context-parallel group load the same batch and each compute a part of its tokens. Causal attention costs more
at the end of a document than at its start, so that the split `zigzag` gives each rank a chunk of both.

In a batch of trees (`length.packing: tree`), the token at place q of a row sees the token at place k of the row if and
only if `k <= q < attention_ends[k]`. A sliding window is one of depth, as the texts by themselves have it: a token sees
tokens whose `position_ids` are less than the window before its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from tokenloom.loaders.order.ranks import Ranks
from tokenloom.loaders.reading.batch import IGNORED, OF_TOKENS, image_inputs, token_values
from tokenloom.resources.tables.ragged import Ints, ranges

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.nn.attention.flex_attention import BlockMask

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
    ids, (rows, width) = batch["input_ids"], batch["input_ids"].shape
    if isinstance(ids, torch.Tensor):
        places: Any = torch.arange(width, device=ids.device).expand(rows, -1)
    else:
        places = np.broadcast_to(np.arange(width), (rows, width))
    named.setdefault("position_ids", places)
    count = None
    for name, last in (("labels", IGNORED), ("loss_weights", 0)):
        if name in named:
            # before cutting: the next token of a chunk's last one is on another rank
            values = named.pop(name)
            shifted = named[f"shift_{name}"] = values.clone() if isinstance(values, torch.Tensor) else values.copy()
            shifted[:, :-1], shifted[:, -1] = values[:, 1:], last
            count = (shifted != IGNORED).sum() if name == "labels" else shifted.sum()
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
    # the sort of the places of all parts is the inverse permutation
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
    """Raise a ValueError if the batch cannot be cut."""
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
    # an early chunk with a late one: attention costs the same on all ranks
    begins = np.column_stack([bounds[:-1] + rank * chunk, bounds[:-1] + (2 * size - 1 - rank) * chunk])
    return ranges(begins.ravel(), np.repeat(chunk, 2))


def _like(index: Ints, values: Any) -> Any:
    return torch.from_numpy(index).to(values.device) if isinstance(values, torch.Tensor) else index


ENDS = "attention_ends"
"""The column of a batch of trees: int32 [rows, width], for each token the place in its row of the first token after it
that does not see it."""

Sees = Callable[[Any, Any, Any, Any], torch.Tensor]


def sees(ends: torch.Tensor, position_ids: torch.Tensor | None = None, sliding_window: int | None = None) -> Sees:
    """Return the rule as a `mask_mod` of FlexAttention: a function of row, head, query and key, which are integer
    tensors, to bool.

    Args:
        ends: `attention_ends`, integers [rows, width].
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


@dataclass(frozen=True)
class TreeMasks:
    """Makes what a causal language model of transformers takes as `attention_mask` of a batch of trees.

    Attributes:
        attention: `eager`, `sdpa` or `flex_attention`.
        dtype: of the scores of `eager`, to which the mask is added.
        windows: the sliding window of each kind of layer that the model has; None: the layers see everything.
    """

    attention: str
    dtype: torch.dtype
    windows: Mapping[str, int | None]

    @classmethod
    def of(cls, model: Any) -> TreeMasks:
        """Return the masks of a model, which can be wrapped by DDP or PEFT.

        Raises:
            ValueError: trees would not be trained as their texts are, for the model has layers that no mask divides,
                computes positions by itself, is not known, or has another attention.
        """
        model = getattr(model, "module", model)
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        config: Any = getattr(model, "config", None)
        if config is None or not hasattr(config, "model_type"):
            raise ValueError(f"{type(model).__name__} is not a model of transformers, so its masks are not known")
        if reason := _refusal(config):
            raise ValueError(f"{config.model_type} {reason}; {_REMEDY}")
        attention = config.get_text_config(decoder=True)._attn_implementation or "eager"
        if attention not in ATTENTIONS:
            raise ValueError(f"{attention} does not take masks of trees; set one of {', '.join(ATTENTIONS)}")
        # as transformers' `create_masks_for_generate` does
        text = config.get_text_config(decoder=True)
        window = getattr(text, "sliding_window", None)
        kinds = sorted({*(getattr(text, "layer_types", None) or ())}) or [""]
        return cls(attention, model.dtype, {kind: None if kind == "full_attention" else window for kind in kinds})

    def __call__(self, ends: torch.Tensor, position_ids: torch.Tensor) -> Any:
        masks: dict[str, Any] = {}
        for kind, window in self.windows.items():
            if self.attention == "flex_attention":
                masks[kind] = tree_block_mask(ends, position_ids, window)
            else:
                dtype = torch.bool if self.attention == "sdpa" else self.dtype
                masks[kind] = tree_mask(ends, position_ids, window, dtype)
        return masks if len(masks) > 1 else next(iter(masks.values()))


ATTENTIONS = ("flex_attention", "sdpa", "eager")
"""Attention of transformers that takes masks of trees."""

_REMEDY = "build the dataset with another length.packing, or train another model"

_LAYERS = ("full_attention", "sliding_attention")
"""Kinds of layers whose attention is what the mask says."""


_FAMILIES = """
    afmoe apertus arcee aria_text bitnet codegen cohere cohere2 cohere2_moe cwm deepseek_v2 deepseek_v3 diffllama
    dots1 ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon flex_olmo gemma gemma2 gemma3_text gemma3n_text
    gemma4_text glm glm4 glm4_moe glm4_moe_lite gpt2 gpt_bigcode gpt_neox gpt_oss gptj granite granite_swa
    granitemoe granitemoe_swa granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax jais2 jetmoe
    llama mellum mimo_v2_flash minicpm3 minimax_m2 ministral ministral3 mistral mixtral modernbert-decoder nanochat
    nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3
    solar_open stablelm starcoder2 vaultgemma xglm youtu
"""

TAKES_TREES = frozenset(_FAMILIES.split())
"""Models of transformers whose logits of trees are those of the texts, as tests show: values of `model_type`."""


def _refusal(config: Any) -> str | None:
    text = config.get_text_config(decoder=True)
    others = sorted({*(getattr(text, "layer_types", None) or ())} - {*_LAYERS})
    if others:
        return f"has layers of {' and '.join(others)}, which no mask divides"
    if getattr(text, "alibi", config.model_type in ("bloom", "mpt")):
        return "computes distances from places in the row (ALiBi), not from position_ids"
    if getattr(text, "use_bidirectional_attention", None) in (True, "all"):
        return "lets tokens see later ones (use_bidirectional_attention)"
    if config.model_type not in TAKES_TREES:
        return "is not among the models that are known to take masks of trees"
    return None


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
    # ends count padding of their row; without it they are the tokens before that place
    ends = counts.gather(1, batch[ENDS].long()) + before[:, None]
    columns = {
        name: batch[name] for name in sorted((OF_TOKENS | token_values(batch)) & batch.keys() - {"attention_mask"})
    }
    return {name: column[own][None] for name, column in {**columns, ENDS: ends}.items()}
