"""Model FLOPs utilization: the share of a device's peak that the model's own computations use."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

PEAK_TFLOPS = {"A100": 312, "H100 PCIe": 756, "H100": 989, "H200": 989, "L40S": 362, "B200": 2250}
"""Dense bf16 peak of devices, from NVIDIA's data sheets."""


def peak_flops(tflops: float | None) -> float | None:
    """Return the peak of one device per second, or None if it is not known.

    Args:
        tflops: the peak that a config sets, in 10^12 FLOPs per second.
    """
    if tflops is None and torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        tflops = next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)
    return None if tflops is None else tflops * 1e12


def model_flops(model: Any) -> tuple[float, float]:
    """Return the FLOPs of training on one token, and those on one token for each position of its row, as PaLM's
    appendix B counts them (https://arxiv.org/abs/2204.02311): 6 per weight, and 12 per layer and width of attention.

    A frozen weight has 4. Embeddings have none, unless they are the output layer too. Stacked experts count by the
    share of them that a token is routed to. Of a model that is not one of transformers, nothing is known: 0.
    """
    if not hasattr(model, "get_output_embeddings"):
        return 0.0, 0.0
    config = model.config
    embeddings = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    embeddings -= {getattr(model.get_output_embeddings(), "weight", None)}
    routed = getattr(config, "num_experts_per_tok", None)
    flops = 0.0
    for weight in model.parameters():
        if weight not in embeddings:
            share = routed / len(weight) if routed and weight.ndim == 3 else 1.0
            flops += (6.0 if weight.requires_grad else 4.0) * share * weight.numel()
    layers, width, heads = (
        getattr(config, name, 0) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    head_width = getattr(config, "head_dim", None)
    return flops, 12.0 * layers * (heads * head_width if head_width else width)
