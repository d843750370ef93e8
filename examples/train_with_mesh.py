"""Train as torchtitan does: a mesh of data-parallel dimensions, FSDP, and a checkpoint of Stateful parts.

python examples/train_with_mesh.py quickstart --store .tokenloom --steps 30 --checkpoints run/
torchrun --standalone --nproc-per-node 2 examples/train_with_mesh.py quickstart --checkpoints run/ --shards 2
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from tokenloom import open_dataset
from tokenloom.loaders import TokenDataset, TokenLoader, model_inputs

DATA_PARALLEL = ("dp_replicate", "dp_shard")


class TrainState(Stateful):
    """Model, optimizer and the number of steps done. The loader is a separate part of the checkpoint."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        parts = {"model_state_dict": state_dict["model"], "optim_state_dict": state_dict["optimizer"]}
        set_state_dict(self.model, self.optimizer, **parts)
        self.step = state_dict["step"]


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
    model: nn.Module, dataset: TokenDataset, folder: Path, steps: int, mesh: DeviceMesh, save_steps: int = 10
) -> None:
    device = torch.device(mesh.device_type)
    loader = TokenLoader(dataset, batch_size=8, seed=0, padding="longest", mesh=mesh, mesh_dim=DATA_PARALLEL)
    fully_shard(model.to(device), mesh=mesh[DATA_PARALLEL])
    training = TrainState(model, torch.optim.AdamW(model.parameters(), lr=2e-3))
    parts = {"train_state": training, "dataloader": loader}
    complete = sorted(folder.glob("step-*/.metadata"))  # `.metadata` is written last
    if complete:
        dcp.load(parts, checkpoint_id=complete[-1].parent)
    while training.step < steps:
        for batch in loader:
            loss = model(**model_inputs(batch, device)).loss
            loss.backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
            training.step += 1
            if training.step % 10 == 0 and dist.get_rank() == 0:
                print(f"step {training.step:4d}  loss {loss.item():.3f}")
            if training.step % save_steps == 0:
                dcp.save(parts, checkpoint_id=folder / f"step-{training.step:08d}")
            if training.step == steps:
                break


def make_mesh(shards: int, device: str) -> DeviceMesh:
    shape = (dist.get_world_size() // shards, shards)
    return init_device_mesh(device, shape, mesh_dim_names=DATA_PARALLEL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="name of a built dataset")
    parser.add_argument("--store", default=None, help="default: $TOKENLOOM_STORE, else .tokenloom")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--shards", type=int, default=1, help="ranks that share one copy of the model")
    options = parser.parse_args()
    if dist.is_torchelastic_launched():
        dist.init_process_group()
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    dataset = open_dataset(options.dataset, store=options.store)
    mesh = make_mesh(options.shards, "cuda" if torch.cuda.is_available() else "cpu")
    train(tiny_model(dataset), dataset, options.checkpoints, options.steps, mesh)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
