"""The model that a config names: downloaded, from a folder, or new; with adapters if the config has `lora`."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import PartialState
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tokenloom.config.training import TrainingConfig
from tokenloom.errors import ConfigError, did_you_mean, missing_package
from tokenloom.loaders import MixedDataset, TokenDataset


def build_model(config: TrainingConfig, dataset: TokenDataset | MixedDataset) -> PreTrainedModel:
    """Return the model of a config, in float32, with room for the dataset's vocabulary.

    Raises:
        ConfigError: `model` is missing or has an unknown setting, or the model cannot be sharded.
        ModuleNotFoundError: `lora` is set and peft is not installed.
    """
    if config.model is None:
        raise ConfigError.at(
            "training.model", "training.model: missing; set a hub id, a folder, or {model_type: llama}"
        )
    options: dict[str, Any] = {"dtype": torch.float32}
    if config.attention:
        options["attn_implementation"] = config.attention
    ranks = PartialState().num_processes if config.strategy == "fsdp" else 1
    model: Any
    try:
        sharded = options | {"distributed_config": DistributedConfig(fsdp_size=ranks)} if ranks > 1 else options
        if isinstance(config.model, str):
            fits = AutoConfig.from_pretrained(config.model).get_text_config().vocab_size >= dataset.vocab_size
            model = AutoModelForCausalLM.from_pretrained(config.model, **(sharded if fits else options))
            if not fits:
                model.resize_token_embeddings(dataset.vocab_size)
        else:
            model = AutoModelForCausalLM.from_config(_new(config.model, dataset), **options)
        if ranks > 1 and not model.is_distributed_loading_by_transformers:
            weights = model.state_dict()
            model = type(model).from_pretrained(None, config=model.config, state_dict=weights, **sharded)
    except (TypeError, ValueError) as error:
        if "fsdp" not in str(error):  # only what transformers says of its plan, or of a version without one
            raise
        message = f"training.strategy: this model cannot be sharded: {error}; set strategy: ddp"
        raise ConfigError.at("training.strategy", message) from None
    return _with_adapters(model, config) if config.lora else model


def _new(settings: dict[str, Any], dataset: TokenDataset | MixedDataset) -> Any:
    """Return the transformers config of a new model."""
    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        hint = did_you_mean(str(kind), CONFIG_MAPPING) if kind else ", such as {model_type: llama}"
        raise ConfigError.at("training.model", f"training.model.model_type: not a model of transformers{hint}")
    ours: dict[str, Any] = {"vocab_size": dataset.vocab_size, "max_position_embeddings": dataset.max_length}
    tokens: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    default = AutoConfig.for_model(kind)
    known = default.to_dict().keys() | default.attribute_map.keys() | {"model_type"}
    for name in settings:
        if name not in known:
            message = f"training.model.{name}: not a setting of {kind}{did_you_mean(name, known)}"
            raise ConfigError.at("training.model", message)
    return AutoConfig.for_model(**(tokens | ours | settings))


def _with_adapters(model: PreTrainedModel, config: TrainingConfig) -> Any:
    try:
        import peft  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise missing_package(error.name or "peft", "training.lora") from None
    lora = config.lora
    assert lora is not None
    modules = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    return peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=modules, task_type="CAUSAL_LM"
        ),
    )
