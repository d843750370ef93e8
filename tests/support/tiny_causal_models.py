"""Tiny models with random weights of every family that takes trees."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 60

_WIDTHS = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "dim_ff"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 512),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "first_k_dense_replace", "max_window_layers"), 1),
    **dict.fromkeys(("num_key_value_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("hidden_size_per_layer_input", "laurel_rank", "rotary_dim"), 8),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("num_kv_shared_layers", "pad_token_id"), 0),
    "word_embed_proj_dim": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "activation_sparsity_pattern": None,
}
_OPTIONAL = ("pad_token_id", "num_key_value_heads", "head_dim", "n_inner", "q_lora_rank", "n_routed_experts")
_OPTIONAL += ("n_shared_experts", "num_experts_per_tok")
"""Settings that are set although their default is None."""


def tiny_causal_model(
    kind: str,
    attention: str = "eager",
    window: int = 5,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **settings: Any,
) -> Any:
    """Return a model by `model_type`, in evaluation mode, whose weights are large enough that all tokens matter.

    Args:
        window: sliding window of every other layer, or of all if the family has only one kind of layer.
    """
    default = CONFIG_MAPPING[kind]().to_dict()
    chosen = {
        name: value
        for name, value in _WIDTHS.items()
        if name in default and (default[name] is not None or name in _OPTIONAL)
    }
    chosen |= {name: 0.0 for name, value in default.items() if ("drop" in name and isinstance(value, float))}
    if default.get("kv_lora_rank"):  # each head has its own keys
        chosen["num_key_value_heads"] = 4
        chosen.pop("head_dim", None)
    if default.get("layer_types"):
        windows = "sliding_window" in default
        chosen["layer_types"] = [
            "sliding_attention" if windows and layer % 2 else "full_attention" for layer in range(4)
        ]
    if "sliding_window" in default:
        chosen["sliding_window"] = window
    if "use_sliding_window" in default:
        chosen["use_sliding_window"] = True
    config = CONFIG_MAPPING[kind](**{**chosen, **settings})
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * (0.15 if weight.ndim > 1 else 0.05))
    return model.eval()
