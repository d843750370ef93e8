"""The tokenizer and chat template are published with the sequences: serving gets the same ids as training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from support.canonical_tables import CHATML
from support.small_tokenizers import CORPUS
from tokenloom import DataPipeline
from tokenloom.config import PipelineConfig

TALKS = [
    [
        {"role": "system", "content": text},
        {"role": "user", "content": f"{text}?"},
        {"role": "assistant", "content": text[::-1].strip()},
        {"role": "user", "content": "and then?"},
        {"role": "assistant", "content": "  so  "},
    ]
    for text in CORPUS
]
WRITTEN = "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}"
OTHERS = {"bos": "<|endoftext|>", "eos": "<|eot_id|>"}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(("template", "tokens"), [(CHATML, {}), (WRITTEN, OTHERS)])
def test_the_exported_tokenizer_gives_the_stored_ids(
    tokenizer_folder: Path, tmp_path: Path, template: str, tokens: dict[str, str], train: bool
) -> None:
    lines = [json.dumps({"messages": talk}, ensure_ascii=False) for talk in TALKS]
    (tmp_path / "talks.jsonl").write_text("\n".join(lines), encoding="utf-8")
    named = {"eos": "<|im_end|>", "bos": "<s>", **tokens, "additional": ["<|im_start|>", "<|im_end|>"]}
    own: dict[str, Any] = {"train": {"vocab_size": 400}} if train else {"name_or_path": str(tokenizer_folder)}
    config = PipelineConfig.from_mapping(
        {
            "name": "talks",
            "dataset": {"name": str(tmp_path / "talks.jsonl")},
            "tokenizer": {**own, "special_tokens": named, "chat_template": template},
            "prompt_template": {"format_type": "chat", "add_eos": False, "add_bos": False},
        }
    )
    dataset = DataPipeline(config, store=tmp_path / "store").get_dataset("train").unwrap()
    tokenizer = AutoTokenizer.from_pretrained(dataset.tokenizer_path)
    assert tokenizer.chat_template == template
    assert tokenizer.eos_token == named["eos"]
    assert len(dataset) == len(TALKS)
    for number, talk in enumerate(TALKS):
        made: Any = tokenizer.apply_chat_template(talk, return_dict=False)
        assert dataset[number]["input_ids"].tolist() == made
