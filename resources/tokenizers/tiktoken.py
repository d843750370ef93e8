"""Converts tiktoken's rank files to a tokenizer.json that gives the same ids as tiktoken.

A rank file has one line per token: its bytes in base64, a space, and its rank, which is its id. It contains neither the
split pattern nor the special tokens: these follow from the name of a known encoding, or from tokenizer_config.json.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass

from tokenloom.resources.tokenizers.bpe_merges import LONGEST, recover_merges
from tokenloom.resources.tokenizers.tokenizer_json import added_token

MAX_RESERVED = 10_000
"""Maximum number of unused ids between ranks and special tokens. Known encodings have at most 17."""
END_OF_TEXT = "<|endoftext|>"
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Encoding:
    """What a rank file lacks: the split pattern, in tiktoken's syntax, and the ids of the special tokens."""

    pattern: str
    special: dict[str, int]


ENCODINGS = {
    "r50k_base": Encoding(_GPT2, {END_OF_TEXT: 50256}),
    "p50k_base": Encoding(_GPT2, {END_OF_TEXT: 50256}),
    "cl100k_base": Encoding(
        _CL100K,
        {
            END_OF_TEXT: 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": Encoding(_O200K, {END_OF_TEXT: 199999, "<|endofprompt|>": 200018}),
}
"""Known encodings (https://github.com/openai/tiktoken, tiktoken_ext/openai_public.py)."""


def is_ranks(content: bytes) -> bool:
    """Return whether a file starts like a rank file."""
    return re.match(rb"\s*[A-Za-z0-9+/]+={0,2} \d+\r?(\n|\Z)", content[:4096]) is not None


def parse_ranks(content: bytes) -> dict[bytes, int]:
    """Return the rank of each token.

    Raises:
        ValueError: a line is malformed, a token or rank occurs twice, or a byte has no token.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        coded, _, rank = line.partition(b" ")
        try:
            token = base64.b64decode(coded, validate=True)
        except binascii.Error:
            token = b""
        if not token or not re.fullmatch(rb"\d{1,8}", rank):
            raise ValueError(
                f"line {number} is not a token in base64 and its rank: {line[:40].decode(errors='replace')!r}"
            )
        if len(token) > LONGEST:
            raise ValueError(f"line {number} has a token of {len(token):,} bytes; at most {LONGEST:,} are supported")
        if token in ranks:
            raise ValueError(f"line {number} repeats a token: {line[:40].decode(errors='replace')!r}")
        ranks[token] = int(rank)
    if len(set(ranks.values())) != len(ranks):
        raise ValueError("two tokens share a rank")
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise ValueError(f"it has no token for the byte {missing[0]:#04x}")
    return ranks


def tiktoken_json(ranks: dict[bytes, int], encoding: Encoding) -> bytes:
    """Convert ranks and their encoding to a tokenizer.json.

    Unused ids between special tokens get reserved tokens, named as in transformers.

    Raises:
        ValueError: a rank is missing, or a special token has the id of another token.
    """
    special = dict(sorted(encoding.special.items(), key=lambda item: item[1]))
    vocab = {token.decode("latin-1").translate(_ALPHABET): rank for token, rank in ranks.items()}
    vocab |= {token: id for token, id in special.items() if id <= max(ranks.values())}
    if (highest := max(special.values(), default=0)) > len(vocab) + MAX_RESERVED:
        raise ValueError(f"it has {len(ranks):,} ranks, but a special token has the id {highest:,}")
    used = {**vocab, **special}
    by_id = {id: token for token, id in used.items()}
    if len(by_id) != len(used):
        duplicate = next(token for token, id in special.items() if by_id[id] != token or id in ranks.values())
        raise ValueError(f"the special token {duplicate!r} has the id {special[duplicate]} of another token")
    if (gap := next((id for id in range(len(vocab)) if id not in by_id), None)) is not None:
        raise ValueError(f"no token has the rank {gap}")
    above = range(len(vocab), max(by_id) + 1)
    inside = [(id, token) for token, id in special.items() if id < len(vocab)]
    added = inside + [(id, by_id.get(id, f"<|reserved_token_{id}|>")) for id in above]
    split = {"type": "Split", "pattern": {"Regex": onig_pattern(encoding.pattern)}, "behavior": "Isolated"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    merges = [tuple(part.decode("latin-1").translate(_ALPHABET) for part in pair) for pair in recover_merges(ranks)]
    written = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(id, token, special=True) for id, token in added],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{**split, "invert": False}, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": vocab,
            "merges": merges,
        },
    }
    return json.dumps(written, ensure_ascii=False).encode()


def onig_pattern(pattern: str) -> str:
    """Translate a split pattern from tiktoken's regex syntax to that of `tokenizers` (Oniguruma).

    In Oniguruma, `$` also matches before the end of a line, and `{1,3}+` is a repetition instead of possessive.

    Raises:
        ValueError: a possessive counted repetition is not at the end of an alternative, which cannot be translated.
    """
    parts = re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d+(?:,\d*)?\}\+?|.", pattern, re.DOTALL)
    for index, part in enumerate(parts):
        if part == "$":
            parts[index] = r"\z"
        elif part.endswith("}+"):
            if parts[index + 1 : index + 2] not in ([], ["|"]):
                raise ValueError(f"the split pattern has {part} before the end of an alternative; remove its +")
            parts[index] = part[:-1]
    return "".join(parts)


def _byte_alphabet() -> dict[int, str]:
    """Return the character of each byte in byte-level BPE (GPT-2, `bytes_to_unicode`)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()
