"""Time training on conversations whose template drops reasoning: as separate texts, packed, and as trees.

usage: tree_training.py [--rows N] [--turns N] [--max-length N] [--tokens N] [--hidden N] [--layers N] [--runs N]

Conversations are questions and answers of Alpaca with phi-2's tokenizer if $TOKENLOOM_REAL_DATA is set, else those of
the quickstart, one after the other, with reasoning in front of each answer; `turns: exact` trains all of it. A Llama of
random weights is trained for an epoch with each packing, in turn, on batches of about as many tokens. Prints the tokens
stored, and the trained tokens per second, as a median over runs; on CPUs, seconds are those of CPU time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from alpaca import source
from transformers import LlamaConfig, LlamaForCausalLM

from tokenloom import DataPipeline
from tokenloom.config import TrainingConfig
from tokenloom.loaders import TokenDataset, TokenLoader, open_dataset
from tokenloom.resources.engines.engine import cpu_count
from tokenloom.trainer import TokenTrainer

PACKINGS = ("none", "best_fit", "tree")

TEMPLATE = r"""
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.reasoning_content and loop.last %}
{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}
{%- endif %}
{{- message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""


def write_chats(path: Path, rows: list[dict[str, str]], count: int, turns: int) -> None:
    """Write conversations of some turns each."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            messages: list[dict[str, str]] = []
            for turn in range(number * turns, (number + 1) * turns):
                row = rows[turn % len(rows)]
                thought = f"The user asks: {row['instruction']}"
                messages.append({"role": "user", "content": f"{row['instruction']}\n\n{row['input']}".strip()})
                messages.append({"role": "assistant", "content": row["output"], "reasoning_content": thought})
            file.write(json.dumps({"messages": messages}) + "\n")


def seconds_per_epoch(dataset: TokenDataset, folder: Path, options: argparse.Namespace) -> float:
    torch.manual_seed(0)
    widths: dict[str, Any] = {"hidden_size": options.hidden, "intermediate_size": 4 * options.hidden}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=dataset.vocab_size, num_hidden_layers=options.layers, num_attention_heads=4, **widths)
    )
    loader = TokenLoader(dataset, 1, seed=0, padding="longest", token_budget=options.tokens)
    config = TrainingConfig(epochs=1, save_steps=10**9, logging_steps=10**9, loss="fused_linear_cross_entropy")
    trainer = TokenTrainer(model, config, loader, output_dir=folder)
    trainer.step_log.report = lambda line: None
    clock = time.perf_counter if torch.accelerator.is_available() else time.process_time
    started = clock()
    trainer.train()
    return clock() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--max-length", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as name:
        folder = Path(name)
        rows, tokenizer = source(folder)
        write_chats(folder / "chats.jsonl", rows, options.rows, options.turns)
        datasets: dict[str, TokenDataset] = {}
        for packing in PACKINGS:
            settings = {
                "name": packing,
                "dataset": {"name": str(folder / "chats.jsonl")},
                "tokenizer": {
                    "name_or_path": tokenizer,
                    "max_length": options.max_length,
                    "chat_template": TEMPLATE,
                },
                "prompt_template": {"format_type": "chat", "turns": "exact"},
                "length": {"packing": packing},
            }
            (folder / f"{packing}.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
            DataPipeline.from_config(folder / f"{packing}.yaml", folder / "store").unwrap().build().unwrap()
            datasets[packing] = open_dataset(packing, store=folder / "store")
        seconds: dict[str, list[float]] = {packing: [] for packing in PACKINGS}
        for run in range(options.runs):
            for packing, dataset in datasets.items():
                seconds[packing].append(seconds_per_epoch(dataset, folder / f"{packing}-{run}", options))
        print(f"{options.rows} conversations of {options.turns} turns, {options.runs} runs, {cpu_count()} cores")
        for packing, dataset in datasets.items():
            stored = trained = 0
            for batch in TokenLoader(dataset, 8, padding="longest"):
                stored += int(batch["attention_mask"].sum())
                trained += int((batch["labels"] != -100).sum())
            median = statistics.median(seconds[packing])
            print(
                f"{packing:9} {stored:9,} tokens stored, {trained:,} of them trained; {median:6.2f} s per epoch, "
                f"{trained / median:,.0f} trained tokens/s"
            )


if __name__ == "__main__":
    main()
