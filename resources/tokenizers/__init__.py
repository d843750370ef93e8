"""Tokenizers of any format, converted to tokenizer.json.

`tokenizer_files` finds the files that a YAML names, locally or on the hub. `conversion` turns them into a
tokenizer.json: `formats` parses those of SentencePiece and tiktoken, `tokenizer_json` parses and checks the result.
`tokenizer_spec` applies the YAML.
"""

from tokenloom.resources.tokenizers.conversion import CONFIG, TEMPLATE, TOKENIZER
from tokenloom.resources.tokenizers.tokenizer_json import load_tokenizer, naming_tokenizer, token_ids, vocab_size
from tokenloom.resources.tokenizers.tokenizer_spec import (
    SPECIAL_ROLES,
    BorderRule,
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
    "BorderRule",
    "TokenizerSpec",
    "declared_tokenizer",
    "export_config",
    "load_tokenizer",
    "naming_tokenizer",
    "resolve_tokenizer",
    "token_ids",
    "vocab_size",
]
