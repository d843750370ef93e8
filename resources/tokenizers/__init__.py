"""Tokenizers as their files tell: tokenizer.json, SentencePiece models, tiktoken ranks; local, from the hub, or to be
trained."""

from tokenloom.resources.tokenizers.tokenizer_files import CONFIG, TEMPLATE, TOKENIZER
from tokenloom.resources.tokenizers.tokenizer_json import load_tokenizer, vocab_size
from tokenloom.resources.tokenizers.tokenizer_spec import (
    SPECIAL_ROLES,
    TokenizerSpec,
    declared_tokenizer,
    export_config,
    resolve_tokenizer,
)

__all__ = [
    "CONFIG",
    "SPECIAL_ROLES",
    "TEMPLATE",
    "TOKENIZER",
    "TokenizerSpec",
    "declared_tokenizer",
    "export_config",
    "load_tokenizer",
    "resolve_tokenizer",
    "vocab_size",
]
