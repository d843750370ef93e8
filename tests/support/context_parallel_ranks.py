"""A tiny Llama whose attention gathers keys and values over context-parallel ranks, trained for one step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from tokenloom.loaders import context_slice

VOCABULARY = 64

Batch = dict[str, Any]


def model(attention: str) -> LlamaForCausalLM:
    """Return a model with the same weights in each process."""
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes["attn_implementation"] = attention
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=VOCABULARY, **sizes)
    return LlamaForCausalLM(config)


class Gather(torch.autograd.Function):
    """Concatenates the tensors of all ranks along dimension 2; the gradient of a rank's part is summed over ranks."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(value) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, value.contiguous())
        return torch.cat(parts, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size(), 2)[dist.get_rank()]


_SEES: list[torch.Tensor] = []
"""bool [rows, 1, tokens of this rank, tokens of all ranks], which token sees which."""


def gathered_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: None, scaling: float, **others: Any
) -> tuple[torch.Tensor, None]:
    key, value = (Gather.apply(each).repeat_interleave(module.num_key_value_groups, 1) for each in (key, value))  # pyright: ignore[reportOptionalMemberAccess]
    scores = (query @ key.transpose(2, 3) * scaling).masked_fill(~_SEES[0], float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2), None


def step_of_a_slice(batch: Batch, split: Any) -> tuple[float, dict[str, torch.Tensor], Batch]:
    """Return the loss and the gradients summed over ranks, and this rank's slice.

    `batch` also has the columns `place` and `document` of each token in its row.
    """
    AttentionInterface.register("gathered", gathered_attention)
    part = context_slice(batch, dist.get_rank(), dist.get_world_size(), split)
    place, document = (part[name].long() for name in ("place", "document"))
    all_places, all_documents = (Gather.apply(each[:, None, :, None])[:, 0, :, 0] for each in (place, document))  # pyright: ignore[reportOptionalSubscript]
    same = document[:, :, None] == all_documents[:, None]
    _SEES[:] = [(same & (all_places[:, None] <= place[:, :, None]))[:, None]]
    trained = model("gathered")
    logits = trained(input_ids=part["input_ids"], position_ids=part["position_ids"], use_cache=False).logits
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), part["shift_labels"].flatten(), reduction="none")
    if "shift_loss_weights" in part:
        losses = losses * part["shift_loss_weights"].flatten()
    loss = losses.sum() / part["num_items_in_batch"]
    loss.backward()
    total = loss.detach().clone()
    dist.all_reduce(total)
    gradients = {}
    for name, parameter in trained.named_parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        gradients[name] = parameter.grad
    return total.item(), gradients, part


def on_this_rank(batches: list[Batch]) -> list[Any]:
    """Return what `step_of_a_slice` returns for each batch and split; gradients of the first rank only."""
    found = []
    for batch in batches:
        for split in ("zigzag", "contiguous"):
            loss, gradients, part = step_of_a_slice(batch, split)
            found.append((loss, gradients if dist.get_rank() == 0 else {}, part))
    return found


def slices_by_mesh(batch: Batch) -> tuple[tuple[int, ...], Batch]:
    """Return this rank's coordinate in a mesh of 2 × 2 and its slice by it."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    return tuple(mesh.get_coordinate() or ()), context_slice(batch, mesh=mesh)
