"""New models from the settings of a YAML: what transformers knows is taken, everything else is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import MixtralConfig, MixtralForCausalLM

from support.tiny_training import TINY, built
from tokenloom.config import TrainingConfig
from tokenloom.errors import ConfigError
from tokenloom.loaders import TokenDataset, open_dataset
from tokenloom.trainer.losses import router_weight
from tokenloom.trainer.run import build_model


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> TokenDataset:
    folder = tmp_path_factory.mktemp("model")
    built(folder, "ragged", tokenizer_folder)
    return open_dataset("ragged", store=folder / "store")


def test_other_names_of_settings_are_taken(dataset: TokenDataset) -> None:
    widths: dict[str, Any] = {**TINY, "model_type": "qwen3_moe", "moe_intermediate_size": 16, "num_key_value_heads": 2}
    model = build_model(TrainingConfig(model={**widths, "num_experts": 4}), dataset)
    assert model.config.num_local_experts == 4  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, r"training\.model: missing; set a hub id, a folder"),
        (
            {**TINY, "hiden_size": 16},
            r"training\.model\.hiden_size: not a setting of llama; did you mean hidden_size\?",
        ),
        ({"model_type": "gpt22"}, r"training\.model\.model_type: not a model of transformers; did you mean gpt2\?"),
    ],
)
def test_what_transformers_does_not_know_is_refused(model: Any, message: str, dataset: TokenDataset) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(TrainingConfig(model=model), dataset)


def test_a_model_whose_experts_cannot_be_balanced_is_refused() -> None:
    widths = {name: value for name, value in TINY.items() if name != "model_type"}
    settings = MixtralConfig(
        vocab_size=9, num_key_value_heads=2, num_local_experts=2, output_router_logits=True, **widths
    )
    model: Any = MixtralForCausalLM(settings)
    assert router_weight(model, "cross_entropy") == settings.router_aux_loss_coef
    with pytest.raises(ConfigError, match="with dpo, a model cannot balance its experts; set loss: cross_entropy"):
        router_weight(model, "dpo")
    del model.router_aux_loss_coef
    with pytest.raises(ConfigError, match=r"without router_aux_loss_coef, .*; set its output_router_logits: false"):
        router_weight(model, "cross_entropy")
