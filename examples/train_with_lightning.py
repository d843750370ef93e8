"""Train with Lightning. The same command resumes from the last checkpoint.

python examples/train_with_lightning.py quickstart --store .tokenloom --steps 30 --checkpoints run/
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tokenloom import open_dataset
from tokenloom.loaders import TokenDataset, TokenLoader, model_inputs


class TokenDataModule(LightningDataModule):
    """Lightning saves the state of the loader returned here in its checkpoints, and loads it."""

    def __init__(self, dataset: TokenDataset, **loader_settings: Any):
        super().__init__()
        self.dataset, self.loader_settings = dataset, loader_settings

    def train_dataloader(self) -> TokenLoader:
        return TokenLoader(self.dataset, **self.loader_settings)  # called when ranks are known


class LanguageModel(LightningModule):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        loss = self.model(**model_inputs(batch)).loss
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def tiny_model(dataset: TokenDataset) -> nn.Module:
    config = LlamaConfig(
        vocab_size=dataset.vocab_size,
        max_position_embeddings=dataset.max_length,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    return LlamaForCausalLM(config)


def train(
    model: nn.Module, dataset: TokenDataset, folder: Path, steps: int, save_steps: int = 10, **settings: Any
) -> None:
    every = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=save_steps, save_top_k=1, save_last=True)
    trainer = Trainer(
        max_steps=steps,
        callbacks=[every],
        default_root_dir=folder,
        logger=False,
        **settings,
    )
    data = TokenDataModule(dataset, batch_size=8, seed=0, padding="longest")
    trainer.fit(LanguageModel(model.train()), datamodule=data, ckpt_path="last")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="name of a built dataset")
    parser.add_argument("--store", default=None, help="default: $TOKENLOOM_STORE, else .tokenloom")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder for checkpoints")
    options = parser.parse_args()
    seed_everything(0)
    dataset = open_dataset(options.dataset, store=options.store)
    train(tiny_model(dataset), dataset, options.checkpoints, options.steps)


if __name__ == "__main__":
    main()
