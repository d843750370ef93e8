"""Tokenizer files as tokenloom resolves them, and as transformers reads what it publishes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tokenloom.config import PipelineConfig
from tokenloom.resources.tokenizers import CONFIG, TEMPLATE, TOKENIZER, TokenizerSpec, export_config, resolve_tokenizer


def resolve(path: Path, **settings: Any) -> TokenizerSpec:
    """What tokenloom makes of a tokenizer's files."""
    tokenizer = {"name_or_path": str(path), **settings}
    return resolve_tokenizer(PipelineConfig.from_mapping({"dataset": {"name": "x"}, "tokenizer": tokenizer}))


def exported(spec: TokenizerSpec, folder: Path) -> Any:
    """The tokenizer that transformers loads from the folder that tokenloom publishes."""
    folder.mkdir()
    (folder / TOKENIZER).write_bytes(spec.files[TOKENIZER])
    (folder / CONFIG).write_bytes(export_config(spec))
    if spec.chat_template:
        (folder / TEMPLATE).write_text(spec.chat_template, encoding="utf-8")
    return AutoTokenizer.from_pretrained(str(folder))
