"""Tiny models, and datasets of each shape to train them on: ragged, packed and weighted rows."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.nn.functional import log_softmax
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

from support.loaded_rows import settings, write_rows
from tokenloom import DataPipeline
from tokenloom.config import TrainingConfig
from tokenloom.loaders import TokenDataset, TokenLoader
from tokenloom.trainer import TokenTrainer

TINY = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
SHAPES = ("ragged", "packed", "weighted")


def built(folder: Path, shape: str, tokenizer_folder: Path, rows: int = 29, seed: int = 0, **sections: Any) -> Path:
    """Write the YAML of a dataset `<shape>.yaml` and its rows, build it in `folder/store`, and return the YAML."""
    source = folder / f"{shape}.jsonl"
    write_rows(source, rows, seed)
    config: dict[str, Any] = {"dataset": {"name": source.name}, **settings(tokenizer_folder)}
    if shape == "packed":
        config["length"] = {"packing": "best_fit"}
    if shape == "weighted":
        draw = random.Random(seed)
        found = [json.loads(line) for line in source.read_text().splitlines()]
        turns = [
            [
                {"role": "user", "content": row["q"]},
                {"role": "assistant", "content": row["a"], "weight": draw.choice([0.25, 1.0, 3.0])},
            ]
            for row in found
        ]
        source.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns))
        config["tokenizer"] |= {"chat_template": "chatml", "max_length": 96}
        config["prompt_template"] = {"format_type": "chat"}
    path = folder / f"{shape}.yaml"
    path.write_text(yaml.safe_dump(config | sections, sort_keys=False), encoding="utf-8")
    DataPipeline.from_config(path, folder / "store").unwrap().build().unwrap()
    return path


class Gradients(TrainerCallback):
    """The gradients of each step, before the optimizer uses them."""

    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.steps.append({name: value.grad.clone() for name, value in model.named_parameters()})


def tiny_model(dataset: Any, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    names = {name: value for name, value in TINY.items() if name != "model_type"}
    config = LlamaConfig(vocab_size=dataset.vocab_size, max_position_embeddings=dataset.max_length, **names)
    return LlamaForCausalLM(config)


def trainer_on(
    dataset: TokenDataset, folder: Path, model: torch.nn.Module | None = None, batch_size: int = 4, **values: Any
) -> TokenTrainer:
    config = TrainingConfig(**{"steps": 3, "learning_rate": 1e-3, "save_steps": 10**6, **values})
    loader = TokenLoader(dataset, batch_size=batch_size, seed=0, padding="longest")
    return TokenTrainer(model or tiny_model(dataset), config, loader, output_dir=folder)


def summed_loss(
    model: Any, batches: Iterable[dict[str, Any]], z_loss: float = 0.0, smoothing: float = 0.0
) -> tuple[torch.Tensor, float]:
    """Return the sum of the losses of all trained tokens and their total weight: document by document, without padding
    and packing, token by token, as a definition."""
    total, weight = torch.zeros(()), 0.0
    for batch in batches:
        for row, mask in enumerate(batch["attention_mask"].bool()):
            ids, labels = batch["input_ids"][row][mask], batch["labels"][row][mask]
            weights = batch["loss_weights"][row][mask] if "loss_weights" in batch else torch.ones(len(ids))
            starts = [0] if len(ids) else []
            if "position_ids" in batch:
                starts = (batch["position_ids"][row][mask] == 0).nonzero()[:, 0].tolist()
            for begin, end in zip(starts, [*starts[1:], len(ids)], strict=True):
                logits = model(input_ids=ids[None, begin:end]).logits[0].float()
                for place in range(begin + 1, end):
                    if labels[place] == -100:
                        continue
                    scores = logits[place - begin - 1]
                    logarithms = log_softmax(scores, -1)
                    loss = -(1 - smoothing) * logarithms[labels[place]] - smoothing * logarithms.mean()
                    loss = loss + z_loss * scores.logsumexp(-1) ** 2
                    total, weight = total + weights[place] * loss, weight + float(weights[place])
    return total, weight
