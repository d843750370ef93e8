"""Small datasets that tests write to disk: YAML, rows and a tokenizer to train."""

from __future__ import annotations

import json
import random
from pathlib import Path

import yaml

from tokenloom.assets.stage.names import stages_of
from tokenloom.config import PipelineConfig

STAGES = stages_of(PipelineConfig.from_mapping({"dataset": {"name": "rows.jsonl"}}))
"""The stages of a dataset that asks for no optional one."""

WORDS = ["river", "stone", "lantern", "maple", "quiet", "orbit", "copper", "willow", "ember", "harbor", "meadow"]
WORDS += ["signal", "thread", "velvet", "川", "мост", "été", "🌊"]


def rows(count: int, seed: int = 0, words: int = 30) -> list[dict[str, str]]:
    """Instruction rows, all different."""
    draw = random.Random(seed)

    def say(length: int) -> str:
        return " ".join(draw.choices(WORDS, k=length))

    return [
        {
            "instruction": f"{number}: {say(6)}?",
            "input": say(4) if number % 3 else "",
            "output": say(draw.randint(1, words)),
        }
        for number in range(count)
    ]


TEMPLATE = "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n{output}\n"
PROMPT = {"format_type": "custom", "template": TEMPLATE, "label_column": "output"}
TOKENIZER = {
    "train": {"vocab_size": 500, "min_frequency": 2},
    "special_tokens": {"eos": "<|endoftext|>", "pad": "<|pad|>"},
    "max_length": 256,
}


def write_dataset(folder: Path, count: int = 300, name: str = "small", seed: int = 0, **changes: object) -> Path:
    """Write `count` rows and a YAML that declares them; `changes` replace sections. Returns the YAML's path."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) for row in rows(count, seed)]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = {"dataset": {"name": f"{name}.jsonl"}, "tokenizer": TOKENIZER, "prompt_template": PROMPT} | changes
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


DESIGN = """type: "data_module"
version: "1.0"
dataset:
  name: "tatsu-lab/alpaca"
  columns: ["instruction", "input", "output"]
tokenizer:
  name_or_path: "meta-llama/Llama-2-7b-hf"
  max_length: 2048
prompt_template:
  format_type: "custom"
  template: |
    Below is an instruction that describes a task.

    ### Instruction:
    {instruction}

    ### Input:
    {input}

    ### Response:
    {output}
  input_columns: ["instruction", "input"]
  label_column: "output"
dataloader:
  batch_size: 4
  num_workers: 4
"""
"""The file of the quick start, as its users wrote it."""
