"""Trains a tiny decoder-only model on a built dataset, on any machine: shows that loss falls and how fast tokens flow.

python examples/train_tiny.py quickstart --store .tokenloom --steps 30
"""

from __future__ import annotations

import argparse
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tokenloom import open_dataset
from tokenloom.loaders import TokenLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="name of a built dataset")
    parser.add_argument("--store", default=None, help="default: $TOKENLOOM_STORE, else .tokenloom")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dataset = open_dataset(options.dataset, split="train", store=options.store)
    loader = TokenLoader(dataset, batch_size=options.batch_size, seed=0, padding="longest")
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=dataset.vocab_size,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=dataset.max_length,
            pad_token_id=dataset.pad_token_id,
        )
    )
    model.to(torch.device(device))  # pyright: ignore[reportArgumentType]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    print(f"{dataset.name}: {len(dataset):,} rows; model: {model.num_parameters():,} parameters on {device}")

    losses: list[float] = []
    tokens, started = 0, time.perf_counter()
    while len(losses) < options.steps:
        for batch in loader:
            batch = {name: value.to(device) for name, value in batch.items()}
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            tokens += int(batch["attention_mask"].sum())
            if len(losses) % 10 == 0 or len(losses) == 1:
                rate = tokens / (time.perf_counter() - started)
                print(f"step {len(losses):4d}  loss {losses[-1]:.3f}  {rate:,.0f} tokens/s")
            if len(losses) == options.steps:
                break
    edge = max(1, min(5, options.steps // 3))
    first, last = sum(losses[:edge]) / edge, sum(losses[-edge:]) / edge
    print(
        f"loss fell from {first:.3f} to {last:.3f}" if last < first else f"loss did not fall: {first:.3f} to {last:.3f}"
    )


if __name__ == "__main__":
    main()
