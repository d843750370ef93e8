"""Model FLOPs utilization: the share of a device's peak that the model's own computations use."""

from __future__ import annotations

from typing import Any

import torch

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


def flops_per_token(model: Any, length: int) -> float:
    """Return the FLOPs of training on one token of rows of a length, as PaLM's appendix B counts them
    (https://arxiv.org/abs/2204.02311): 6 per weight that is not an embedding, and 12 per layer, width and position.
    """
    if not hasattr(model, "num_parameters"):
        return 0.0
    config = getattr(model, "config", None)
    layers, width = (getattr(config, name, 0) for name in ("num_hidden_layers", "hidden_size"))
    head: Any = model.get_output_embeddings() if getattr(config, "tie_word_embeddings", False) else None
    tied = head.weight.numel() if head is not None else 0  # it computes, though it is an embedding
    return 6.0 * (model.num_parameters(exclude_embeddings=True) + tied) + 12.0 * layers * width * length
