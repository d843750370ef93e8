"""The probe of `tokens`: fixed texts, tokenized by kinds of tokenizers that change between library versions."""

from __future__ import annotations

import json

import pyarrow as pa

from tokenloom.assets.prompts.spans import Piece, assemble
from tokenloom.assets.stage.fixed_texts import FIXED_TEXTS
from tokenloom.assets.tokenizer.probe import trained
from tokenloom.assets.tokens.encode import ContentEncoder
from tokenloom.assets.tokens.stage import tokenize

_CONTROL = ("<s>", "</s>")
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def probe() -> list[pa.Table]:
    texts = pa.array(FIXED_TEXTS)
    pieces = [
        Piece("<s>", control=True),
        Piece("Q: "),
        Piece(None, 0, "input"),
        Piece("</s>", weight=1.0, control=True),
    ]
    prompts = assemble(pa.array(range(len(texts)), pa.int32()), pieces, [texts])
    tables = []
    for tokenizer in (trained().decode(), _by_pattern(), _word_pieces()):
        encoder = ContentEncoder(tokenizer.encode(), _CONTROL, keep_control=False)
        tables.append(tokenize(prompts, encoder, _CONTROL, "split").table)
    return tables


def _by_pattern() -> str:
    """Return the trained tokenizer with a normalizer, and a pattern that uses Unicode's letters and digits."""
    parsed = json.loads(trained())
    split = {"type": "Split", "pattern": {"Regex": _PATTERN}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    parsed["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
    parsed["normalizer"] = {"type": "NFC"}
    return json.dumps(parsed)


def _word_pieces() -> str:
    """Return a WordPiece tokenizer whose vocabulary is the characters of the texts."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

    normalizer = normalizers.BertNormalizer(lowercase=True)
    characters = sorted({char for text in FIXED_TEXTS for char in normalizer.normalize_str(text) if not char.isspace()})
    pieces = ["[UNK]", "q", ":", *characters, *(f"##{char}" for char in characters)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")])
    return tokenizer.to_str()
