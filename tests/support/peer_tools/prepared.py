"""What axolotl, LLaMA-Factory and TRL make of rows: ids and labels, by their own code."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]
Prepared = list[tuple[tuple[int, ...], ...]]
"""Ids and labels of each row; of a pair, those of the chosen answer and then those of the rejected one."""

MASKED = -100


def by_axolotl(given: Mapping[str, Any], entry: Mapping[str, Any], rows: Rows, tokenizer: Any) -> Prepared:
    """Return what axolotl makes of the rows of one entry of `datasets`."""
    from axolotl.utils.data.wrappers import get_dataset_wrapper  # pyright: ignore[reportMissingImports]
    from axolotl.utils.dict import DictDefault  # pyright: ignore[reportMissingImports]
    from datasets import Dataset

    tokens = {name: token for name, token in (given.get("special_tokens") or {}).items() if token}
    tokenizer.add_special_tokens(tokens)
    if given.get("tokens"):
        tokenizer.add_tokens(given["tokens"])
    length = given.get("sequence_len", 512)
    cfg = DictDefault({**given, "train_on_inputs": bool(given.get("train_on_inputs")), "sequence_len": length})
    cfg.datasets = [DictDefault(entry)]
    if given.get("rl"):
        return _pairs_by_axolotl(cfg, entry, rows, tokenizer, length)
    entry = dict(entry)
    if entry["type"] == "chat_template" and not entry.get("chat_template"):
        entry["chat_template"] = given.get("chat_template")
    base, _, style = entry["type"].partition(":")
    made, _ = get_dataset_wrapper(
        DictDefault(entry), tokenizer, cfg, base, Dataset.from_list(rows), dataset_prompt_style=style or None
    )
    found = [(tuple(row["input_ids"]), tuple(row["labels"])) for row in made]
    return [row for row in found if 2 <= len(row[0]) <= length]


def _pairs_by_axolotl(cfg: Any, entry: Mapping[str, Any], rows: Rows, tokenizer: Any, length: int) -> Prepared:
    from axolotl.prompt_strategies.dpo import load  # pyright: ignore[reportMissingImports]

    transform = load(entry["type"], cfg, dataset_idx=0)
    transform = transform[0] if isinstance(transform, tuple) else transform
    made: Rows = []
    for row in rows:
        made.append(dict(transform(dict(row), tokenizer=tokenizer)))
    return by_trl_pairs([{k: row[k] for k in ("prompt", "chosen", "rejected")} for row in made], tokenizer, length)


def by_trl(given: Mapping[str, Any], rows: Rows, tokenizer: Any) -> Prepared:
    """Return what SFTTrainer makes of rows."""
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    length = given.get("max_length", given.get("max_seq_length", 1024))
    args = SFTConfig(
        output_dir="unused",
        use_cpu=True,
        bf16=False,
        max_length=length,
        assistant_only_loss=bool(given.get("assistant_only_loss")),
        completion_only_loss=given.get("completion_only_loss"),
        dataset_text_field=given.get("dataset_text_field", "text"),
    )
    only = given.get("completion_only_loss")
    trainer: Any = types.SimpleNamespace(
        _tokenizer=tokenizer,
        chat_template=None,
        completion_only_loss="prompt" in rows[0] and "completion" in rows[0] if only is None else only,
    )
    made: Any = SFTTrainer._prepare_dataset(  # pyright: ignore[reportPrivateUsage]
        trainer,
        Dataset.from_list(rows),
        tokenizer,
        args,
        False,
        None,
        "train",
    )
    return [(tuple(row["input_ids"]), tuple(row["labels"])) for row in made]


def by_trl_pairs(rows: Rows, tokenizer: Any, length: int) -> Prepared:
    """Return what DPOTrainer makes of rows, cut at `length` as its collator does."""
    from datasets import Dataset
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer

    args = DPOConfig(output_dir="unused", use_cpu=True, bf16=False, max_length=length)
    trainer: Any = types.SimpleNamespace(_tokenizer=tokenizer)
    made: Any = DPOTrainer._prepare_dataset(  # pyright: ignore[reportPrivateUsage]
        trainer,
        Dataset.from_list(rows),
        tokenizer,
        args,
        "train",
    )
    found: Prepared = []
    for row in made:
        sides: list[tuple[int, ...]] = []
        for side in ("chosen_ids", "rejected_ids"):
            ids = (*row["prompt_ids"], *row[side])
            labels = (*[MASKED] * len(row["prompt_ids"]), *row[side])
            sides += [ids[:length], labels[:length]]
        found.append(tuple(sides))
    return found


def prompts_by_trl(given: Mapping[str, Any], rows: Rows, tokenizer: Any) -> Prepared:
    """Return the prompts that GRPO generates from in open-r1: a system message, and the column with the prompt."""
    found: Prepared = []
    for row in rows:
        prompt = [{"role": "user", "content": row[given.get("dataset_prompt_column", "prompt")]}]
        system = [{"role": "system", "content": given["system_prompt"]}] if given.get("system_prompt") else []
        ids = tokenizer.apply_chat_template([*system, *prompt], add_generation_prompt=True, return_dict=False)
        found.append((tuple(ids)[-(given.get("max_prompt_length") or 1 << 20) :],))
    return found


def by_llamafactory(given: Mapping[str, Any], entry: Mapping[str, Any], rows: Rows, tokenizer: Any) -> Prepared:
    """Return what LLaMA-Factory makes of the rows of one dataset."""
    from datasets import Dataset
    from llamafactory.data import processor as processors  # pyright: ignore[reportMissingImports]
    from llamafactory.data.converter import get_dataset_converter  # pyright: ignore[reportMissingImports]
    from llamafactory.data.parser import DatasetAttr  # pyright: ignore[reportMissingImports]
    from llamafactory.data.template import get_template_and_fix_tokenizer  # pyright: ignore[reportMissingImports]
    from llamafactory.hparams import DataArguments  # pyright: ignore[reportMissingImports]

    names = (
        "template",
        "cutoff_len",
        "train_on_prompt",
        "mask_history",
        "default_system",
        "enable_thinking",
        "tool_format",
    )
    args = DataArguments(**{name: given[name] for name in names if given.get(name) is not None})
    if given.get("stage") == "pt":
        args.packing = False
    template = get_template_and_fix_tokenizer(tokenizer, args)
    attr = DatasetAttr("file", dataset_name="rows")
    attr.join(dict(entry))
    aligned = Dataset.from_list(rows).map(
        get_dataset_converter(attr.formatting, attr, args), remove_columns=list(rows[0])
    )
    stage = given.get("stage", "sft")
    kind = {"pt": "Pretrain", "sft": "Supervised", "rm": "Pairwise", "dpo": "Pairwise", "kto": "Feedback"}[stage]
    made = getattr(processors, f"{kind}DatasetProcessor")(
        template=template, tokenizer=tokenizer, processor=None, data_args=args
    ).preprocess_dataset(aligned[:])
    columns: Sequence[str] = {
        "Pretrain": ("input_ids", "input_ids"),
        "Pairwise": ("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels"),
    }.get(kind, ("input_ids", "labels"))
    return [tuple(map(tuple, row)) for row in zip(*(made[column] for column in columns), strict=True)]


def axolotl_template(name: str) -> str:
    """Return axolotl's copy of a model's chat template."""
    from axolotl.utils.chat_templates import get_chat_template  # pyright: ignore[reportMissingImports]

    return get_chat_template(name)


def tokenizer_of(folder: Path) -> Any:
    """Return a tokenizer of transformers."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
