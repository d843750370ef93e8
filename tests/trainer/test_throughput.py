"""Model FLOPs as torch's own counter counts them, and their share of a device's peak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from support.tiny_training import TINY, built
from tokenloom.config.dataset import load_config
from tokenloom.trainer import train
from tokenloom.trainer.log import model_flops, read_log

WIDE = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **WIDE},
    "tied": {"model_type": "llama", "tie_word_embeddings": True, **WIDE},
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4},
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 16, **WIDE},
    "wide heads": {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 32, **WIDE},
    "experts": {
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 2,
        **WIDE,
    },
}


@pytest.mark.parametrize("kind", [*MODELS, "frozen"])
def test_flops_are_those_of_torchs_counter(kind: str) -> None:
    settings = AutoConfig.for_model(vocab_size=300, max_position_embeddings=64, **MODELS.get(kind, MODELS["llama"]))
    model: Any = AutoModelForCausalLM.from_config(settings, attn_implementation="eager", experts_implementation="eager")
    if kind == "frozen":
        for name, parameter in model.named_parameters():
            parameter.requires_grad = "embed" in name  # all layers pass gradients on
    rows, length = 2, 64
    ids = torch.arange(rows * length).reshape(rows, length)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    per_token, per_position = model_flops(model)
    expected = counter.get_total_flops() / (rows * length)
    assert per_token + per_position * length == pytest.approx(expected, rel=0.02)


def test_nothing_is_known_of_another_model() -> None:
    model: Any = torch.nn.Linear(2, 2)
    model.config = {"n_layer": 2}
    assert model_flops(model) == (0.0, 0.0)


def test_utilization_is_the_share_of_the_peak(tmp_path: Path, tokenizer_folder: Path) -> None:
    training = {"model": TINY, "batch_size": 4, "steps": 8, "logging_steps": 8, "peak_tflops": 0.25}
    config = built(tmp_path, "packed", tokenizer_folder, training=training | {"output_dir": str(tmp_path / "run")})
    trainer: Any = train(load_config(config), str(tmp_path / "store"))
    rates = [line for line in read_log(tmp_path / "run" / "log.jsonl") if "mfu" in line]
    assert len(rates) == 1
    per_token, per_position = model_flops(trainer.model)
    length = trainer.train_loader.dataset.dataset.max_length  # packed rows are full
    low, high = per_token, per_token + per_position * length
    used = rates[0]["mfu"] * 0.25e12 / rates[0]["tokens_per_second"]
    assert 0.9 * low <= used <= 1.1 * high, (low, used, high)
