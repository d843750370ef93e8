"""Train with TRL's GRPOTrainer on prompts of a built dataset, with rewards that read a kept column.

python examples/train_grpo.py sums --store .tokenloom --steps 10 --checkpoints run/

The dataset's YAML has `prompt_template.format_type: prompt_only` and `dataset.keep_columns: [answer]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel, set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from tokenloom import open_dataset
from tokenloom.loaders import TokenDataset, TokenLoader

GENERATIONS = 4


def answered(completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
    """Return the reward of each completion: 1 if it has the row's answer. TRL passes kept columns by name."""
    return [float(wanted in text) for text, wanted in zip(completions, answer, strict=True)]


def prompts(dataset: TokenDataset) -> Iterator[dict[str, Any]]:
    """Yield the prompts as text with their kept columns. GRPOTrainer tokenizes them again, which gives the same ids.

    Raises:
        ValueError: it gives others, as for a tokenizer that adds BOS to text that has one.
    """
    tokenizer = AutoTokenizer.from_pretrained(dataset.tokenizer_path)
    for batch in TokenLoader(dataset, batch_size=64, shuffle="none", padding="longest", drop_last=False):
        for ids, mask, answer in zip(batch["input_ids"], batch["attention_mask"], batch["answer"], strict=True):
            if mask.any():
                text = tokenizer.decode(ids[mask.bool()])
                if tokenizer(text)["input_ids"] != ids[mask.bool()].tolist():
                    raise ValueError(f"the tokenizer gives other ids for the prompt {text!r}")
                yield {"prompt": text, "answer": answer}


def tiny_model(dataset: TokenDataset) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=dataset.vocab_size,
        max_position_embeddings=2 * dataset.max_length,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    return LlamaForCausalLM(config)


def train(model: PreTrainedModel, dataset: TokenDataset, folder: Path, steps: int) -> GRPOTrainer:
    arguments = GRPOConfig(
        output_dir=str(folder),
        max_steps=steps,
        logging_steps=1,
        learning_rate=1e-3,
        per_device_train_batch_size=GENERATIONS,
        num_generations=GENERATIONS,
        max_completion_length=8,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
    )
    trainer = GRPOTrainer(
        model,
        reward_funcs=answered,
        args=arguments,
        train_dataset=Dataset.from_list(list(prompts(dataset))),
        processing_class=AutoTokenizer.from_pretrained(dataset.tokenizer_path),
    )
    trainer.train()
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="name of a built dataset of prompts that keeps the column `answer`")
    parser.add_argument("--store", default=None, help="default: $TOKENLOOM_STORE, else .tokenloom")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder for checkpoints")
    options = parser.parse_args()
    set_seed(0)
    dataset = open_dataset(options.dataset, store=options.store)
    train(tiny_model(dataset), dataset, options.checkpoints, options.steps)


if __name__ == "__main__":
    main()
