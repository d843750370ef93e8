"""What TRL's trainers prepare from rows, in token ids and labels. The trainers are constructed but do not train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_config import KTOConfig
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

Row = dict[str, Any]
Sequence = tuple[list[int], list[int]]
"""Ids and labels; a label is -100 where the token is not trained."""


def sft(rows: list[Row], tokenizer: PreTrainedTokenizerFast, folder: Path, **options: Any) -> list[list[Sequence]]:
    """Return SFTTrainer's sequence of each row."""
    given: Any = _trainer(SFTTrainer, SFTConfig, rows, tokenizer, folder, options)
    return [[_sequence(given.data_collator([row]), "labels")] for row in given.train_dataset]


def prepared(rows: list[Row], tokenizer: PreTrainedTokenizerFast, folder: Path, **options: Any) -> Any:
    """Return the dataset that SFTTrainer prepared, and its sequence of each row."""
    given: Any = _trainer(SFTTrainer, SFTConfig, rows, tokenizer, folder, options)
    batches = [given.data_collator([row]) for row in given.train_dataset]
    for batch in batches:  # packed rows are flattened, without padding
        batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))
    return given.train_dataset, [_sequence(batch, "labels") for batch in batches]


def dpo(rows: list[Row], tokenizer: PreTrainedTokenizerFast, folder: Path, **options: Any) -> list[list[Sequence]]:
    """Return DPOTrainer's sequences of each row: chosen and rejected."""
    given: Any = _trainer(DPOTrainer, DPOConfig, rows, tokenizer, folder, options)
    batches = [given.data_collator([row]) for row in given.train_dataset]
    return [[_sequence(batch, "completion_mask", side) for side in (0, 1)] for batch in batches]


def kto(rows: list[Row], tokenizer: PreTrainedTokenizerFast, folder: Path, **options: Any) -> list[list[Sequence]]:
    """Return KTOTrainer's sequence of each row."""
    options |= {"loss_type": "apo_zero_unpaired"}  # needs no mismatched completions
    given: Any = _trainer(KTOTrainer, KTOConfig, rows, tokenizer, folder, options)
    return [[_sequence(given.data_collator([row]), "completion_mask")] for row in given.train_dataset]


def prompts(rows: list[Row], tokenizer: PreTrainedTokenizerFast, folder: Path, **options: Any) -> list[list[Sequence]]:
    """Return the prompt of each row as GRPOTrainer gives it to the model."""
    made = []
    for row in rows:
        if isinstance(row["prompt"], str):
            ids = tokenizer(text=row["prompt"])["input_ids"]
        else:
            written: Any = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=True)
            ids = written["input_ids"]
        made.append([(ids, [-100] * len(ids))])
    return made


def _sequence(batch: Row, flags: str, side: int = 0) -> Sequence:
    real = batch["attention_mask"][side].bool()
    ids = batch["input_ids"][side][real]
    marked = batch[flags][side][real]
    labels = marked if flags == "labels" else torch.where(marked.bool(), ids, -100)
    return ids.tolist(), labels.tolist()


def _trainer(
    kind: Any, settings: Any, rows: list[Row], tokenizer: PreTrainedTokenizerFast, folder: Path, options: Row
) -> Any:
    """Return a trainer with a tiny model."""
    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = LlamaConfig(vocab_size=len(tokenizer), **sizes)
    reference: dict[str, Any] = {} if kind is SFTTrainer else {"ref_model": LlamaForCausalLM(config)}
    model = LlamaForCausalLM(config)
    defaults = {"use_cpu": True, "report_to": [], "max_length": None, "disable_tqdm": True, "bf16": False}
    args = settings(output_dir=str(folder), **{**defaults, **options})
    return kind(model=model, args=args, train_dataset=_dataset(rows), processing_class=tokenizer, **reference)


def _dataset(rows: list[Row]) -> datasets.Dataset:
    """Return rows as a dataset; lists of messages are JSON, so that call arguments keep their fields."""
    first = rows[0]
    features = {
        name: datasets.List(datasets.Json()) if isinstance(value, list) else datasets.Value(_kind(value))
        for name, value in first.items()
    }
    return datasets.Dataset.from_list(rows, features=datasets.Features(features))


def _kind(value: Any) -> str:
    return "bool" if isinstance(value, bool) else "string"
