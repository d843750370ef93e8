"""Train with Accelerate. The same command resumes from the last checkpoint.

python examples/train_with_accelerate.py quickstart --store .tokenloom --steps 30 --checkpoints run/
accelerate launch examples/train_with_accelerate.py quickstart --checkpoints run/
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tokenloom import open_dataset
from tokenloom.loaders import TokenDataset, TokenLoader, model_inputs


class Steps:
    """The number of steps done, which Accelerate saves and loads."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


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


def train(model: nn.Module, dataset: TokenDataset, folder: Path, steps: int, save_steps: int = 10) -> None:
    accelerator = Accelerator()
    loader = TokenLoader(dataset, batch_size=8, seed=0, padding="longest")  # after Accelerator: rank is known
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=2e-3))
    counter = Steps()
    accelerator.register_for_checkpointing(loader, counter)  # not prepared: it is already sharded
    complete = sorted(folder.glob("step-*/complete"))
    if complete:
        accelerator.load_state(str(complete[-1].parent))
    while counter.done < steps:
        for batch in loader:
            loss = model(**model_inputs(batch, accelerator.device)).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            counter.done += 1
            if counter.done % 10 == 0:
                accelerator.print(f"step {counter.done:4d}  loss {loss.item():.3f}")
            if counter.done % save_steps == 0:
                saved = folder / f"step-{counter.done:08d}"
                accelerator.save_state(str(saved))
                accelerator.wait_for_everyone()
                (saved / "complete").touch()  # written last, so that a checkpoint cut off by a kill is ignored
            if counter.done == steps:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="name of a built dataset")
    parser.add_argument("--store", default=None, help="default: $TOKENLOOM_STORE, else .tokenloom")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder for checkpoints")
    options = parser.parse_args()
    set_seed(0)
    dataset = open_dataset(options.dataset, store=options.store)
    train(tiny_model(dataset), dataset, options.checkpoints, options.steps)


if __name__ == "__main__":
    main()
