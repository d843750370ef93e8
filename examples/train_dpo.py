"""Train with TRL's DPOTrainer, or with KTOTrainer if rows have labels, on pairs as tokenloom tokenized and masked them.

python examples/train_dpo.py pairs --store .tokenloom --steps 30 --checkpoints run/
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.nn.functional import pad
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel, set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_config import KTOConfig
from trl.trainer.kto_trainer import KTOTrainer

from tokenloom import open_dataset
from tokenloom.loaders import TokenDataset, TokenLoader
from tokenloom.loaders.trainer import TokenLoaderMixin

BATCH_SIZE = 4


class TokenDPOTrainer(TokenLoaderMixin, DPOTrainer):
    """DPOTrainer on the pairs of a TokenLoader. It takes all chosen answers, then all rejected ones."""

    def model_inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        chosen, rejected = batch["chosen_input_ids"], batch["rejected_input_ids"]
        width = max(chosen.shape[1], rejected.shape[1])

        def both(name: str, padding: int) -> torch.Tensor:
            sides = [batch[f"{side}_{name}"] for side in ("chosen", "rejected")]
            return torch.cat([pad(side, (0, width - side.shape[1]), value=padding) for side in sides])

        inputs = {"input_ids": both("input_ids", 0), "attention_mask": both("attention_mask", 0)}
        return inputs | {"completion_mask": (both("labels", -100) != -100).long()}


class TokenKTOTrainer(TokenLoaderMixin, KTOTrainer):
    """KTOTrainer on the labelled rows of a TokenLoader."""

    def model_inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "label")}
        return inputs | {"completion_mask": (batch["labels"] != -100).long()}


def tiny_model(dataset: TokenDataset) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=dataset.vocab_size,
        max_position_embeddings=dataset.max_length,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    return LlamaForCausalLM(config)


def train(model: PreTrainedModel, dataset: TokenDataset, folder: Path, steps: int) -> TokenDPOTrainer | TokenKTOTrainer:
    labelled = "label" in dataset[0]
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": steps,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "per_device_train_batch_size": BATCH_SIZE,  # the same as the loader's; Trainer only reports it
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
    }
    named: dict[str, Any] = {
        "processing_class": AutoTokenizer.from_pretrained(dataset.tokenizer_path),
        "train_loader": TokenLoader(dataset, batch_size=BATCH_SIZE, seed=0, padding="longest"),
    }
    reference = type(model)(model.config)
    reference.load_state_dict(model.state_dict())
    row = {"prompt": "unused", "chosen": " text", "rejected": " texts"}  # batches come from the loader
    if labelled:
        # the loss kto pairs prompts with answers of other rows; this one takes rows as they are
        arguments = KTOConfig(**settings, loss_type="apo_zero_unpaired")
        trainer = TokenKTOTrainer(model, reference, arguments, train_dataset=Dataset.from_list([row]), **named)
    else:
        trainer = TokenDPOTrainer(
            model, reference, DPOConfig(**settings), train_dataset=Dataset.from_list([row]), **named
        )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if folder.exists() else None)
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="name of a built dataset of preference pairs, or of rows with labels")
    parser.add_argument("--store", default=None, help="default: $TOKENLOOM_STORE, else .tokenloom")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder for checkpoints")
    options = parser.parse_args()
    set_seed(0)
    dataset = open_dataset(options.dataset, store=options.store)
    train(tiny_model(dataset), dataset, options.checkpoints, options.steps)


if __name__ == "__main__":
    main()
