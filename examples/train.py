"""Train a tiny decoder-only model on a built dataset, on one or many processes. The same command resumes it.

python examples/train.py quickstart --store .tokenloom --steps 30
torchrun --standalone --nproc-per-node 2 examples/train.py quickstart --checkpoints run/ --metrics run/metrics.jsonl
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tokenloom import open_dataset
from tokenloom.loaders import TokenLoader, batch_digest


class TinyModel(nn.Module):
    """A decoder: int64 tokens [rows, length], padded on the right, to float32 logits [rows, length, vocab_size]."""

    def __init__(self, vocab_size: int, max_length: int, width: int = 128):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(max_length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        length = input_ids.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length, input_ids.device)
        hidden = self.tokens(input_ids) + self.positions.weight[:length]
        return self.head(self.layers(hidden, mask=causal, is_causal=True))


class Training:
    """Everything that a checkpoint contains: model, optimizer, loader, and the number of steps done."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loader: TokenLoader):
        self.model, self.optimizer, self.loader, self.step = model, optimizer, loader, 0

    def save(self, folder: Path) -> None:
        dcp.save(self._state(), checkpoint_id=folder / f"step-{self.step:08d}")

    def resume(self, folder: Path) -> None:
        """Load the last complete checkpoint, if any. `.metadata` is written last."""
        complete = sorted(folder.glob("step-*/.metadata"))
        if complete:
            state = self._state()
            dcp.load(state, checkpoint_id=complete[-1].parent)
            parts = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
            set_state_dict(self.model, self.optimizer, **parts)
            self.step = state["step"]

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "loader": self.loader, "step": self.step}


def join_ranks() -> torch.device:
    """Join the processes started by torchrun, or run as the only one. Return this rank's device."""
    if dist.is_torchelastic_launched():
        dist.init_process_group()
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cuda")


def train_step(training: Training, batch: dict[str, torch.Tensor]) -> float:
    """Run one step on all ranks. Return the mean loss of the tokens that they train together."""
    labels = batch["labels"][:, 1:]
    trained = (labels != -100).sum()
    dist.all_reduce(trained)
    logits = training.model(batch["input_ids"])[:, :-1]
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / trained.clamp(min=1)
    (loss * dist.get_world_size()).backward()  # DistributedDataParallel takes the mean of the ranks' gradients
    training.optimizer.step()
    training.optimizer.zero_grad()
    total = loss.detach()
    dist.all_reduce(total)
    return total.item()


def rows_of_all_ranks(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the `input_ids` and `labels` of a global batch, concatenated without padding, and the rows' `lengths`."""
    real = batch["attention_mask"] == 1
    lengths = real.sum(1)
    mine = {"input_ids": batch["input_ids"][real], "labels": batch["labels"][real], "lengths": lengths[lengths > 0]}
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return {name: torch.cat([part[name] for part in parts]) for name in mine}


def train(options: argparse.Namespace, device: torch.device) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if options.batch_size % world_size:
        raise SystemExit(f"--batch-size {options.batch_size} is not a multiple of the world size, {world_size}")
    torch.manual_seed(0)
    dataset = open_dataset(options.dataset, store=options.store)
    loader = TokenLoader(dataset, batch_size=options.batch_size // world_size, seed=0, padding="longest")
    model = DistributedDataParallel(TinyModel(dataset.vocab_size, dataset.max_length).to(device))
    training = Training(model, torch.optim.AdamW(model.parameters(), lr=2e-3), loader)
    if options.checkpoints:
        training.resume(options.checkpoints)
    if rank == 0:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        print(f"{dataset.name}: {len(dataset):,} rows; model: {parameters:,} parameters on {world_size} × {device}")

    losses: list[float] = []
    tokens, started = 0, time.perf_counter()
    while training.step < options.steps:
        for batch in loader:
            loss = train_step(training, {name: batch[name].to(device) for name in ("input_ids", "labels")})
            training.step += 1
            losses.append(loss)
            rows = rows_of_all_ranks(batch)
            tokens += len(rows["input_ids"])
            if rank == 0 and options.metrics:
                values = {"step": training.step, "epoch": loader.place.epoch, "loss": loss}
                write_line(options.metrics, {**values, "rows": len(rows["lengths"]), "digest": batch_digest(rows)})
            if rank == 0 and (training.step % 10 == 0 or len(losses) == 1):
                rate = tokens / (time.perf_counter() - started)
                print(f"step {training.step:4d}  loss {loss:.3f}  {rate:,.0f} tokens/s")
            if options.checkpoints and training.step % options.checkpoint_every == 0:
                training.save(options.checkpoints)
            if training.step == options.steps:
                break
    if rank == 0 and losses:
        edge = max(1, min(5, len(losses) // 3))
        first, last = sum(losses[:edge]) / edge, sum(losses[-edge:]) / edge
        print(f"loss {'fell' if last < first else 'did not fall:'} from {first:.3f} to {last:.3f}")


def write_line(path: Path, values: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="name of a built dataset")
    parser.add_argument("--store", default=None, help="default: $TOKENLOOM_STORE, else .tokenloom")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=8, help="rows of all ranks together")
    parser.add_argument("--checkpoints", type=Path, help="folder for checkpoints; training resumes from the last one")
    parser.add_argument("--checkpoint-every", type=int, default=10, help="in steps")
    parser.add_argument("--metrics", type=Path, help="file to append one line of JSON per step to")
    options = parser.parse_args()
    train(options, join_ranks())
    dist.destroy_process_group()  # after the model is freed: a model that outlives its group can hang


if __name__ == "__main__":
    main()
