"""Tokenizers for tests, as the code under test and as `tokenizers` and `transformers` load them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tokenloom.assets.prompts.spans import SPANS
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.tokens.encode import ContentEncoder
from tokenloom.assets.tokens.stage import ControlPolicy, tokenize
from tokenloom.resources.store.actions import CertificateStore

Piece = tuple[str, bool, bool]
"""Text, whether it is trained, and whether it is a control token."""

FAST = ("bpe", "bpe-nfc", "llama-3", "sentencepiece", "phi-2")
"""Tokenizers that gigatoken supports."""

NAMES = (*FAST, "bpe-no-alphabet", "wordpiece", "unigram", "unigram-first", "metaspace", "bert-base-cased")
REAL = ("phi-2", "bert-base-cased")
"""Those of the real data."""

WORDS = [
    "hello",
    " world",
    "the quick brown fox",
    "naïve café",
    "e\u0301",
    "你好",
    "👩‍👩‍👧",
    "🏳️‍🌈",
    "مرحبا",
    "\r\n",
    "    ",
    "\t",
    "\x00",
    "ﬁ",
    "…",
]
LINES = [
    "the quick brown fox jumps over the lazy dog",
    "hello world, naïve café e\u0301",
    "Привет 你好 مرحبا 123 👩‍👩‍👧",
] * 4
SPECIAL = ["<unk>", "<s>", "</s>", "<|end|>"]


LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def made(name: str, lines: Iterable[str] = LINES) -> Tokenizer:
    """Return a small tokenizer trained on some lines."""
    settings: dict[str, Any] = {"vocab_size": 400, "special_tokens": SPECIAL, "show_progress": False}
    trainer: Any = trainers.BpeTrainer(**settings, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "bpe-nfc":
        tokenizer.normalizer = normalizers.NFC()
    elif name == "llama-3":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    elif name in ("sentencepiece", "metaspace"):
        return _with_bytes(name, lines, trainers.BpeTrainer(**settings))
    elif name == "bpe-no-alphabet":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(**settings)
    elif name == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(**settings)
    elif name.startswith("unigram"):
        tokenizer = Tokenizer(models.Unigram())
        scheme = "first" if name == "unigram-first" else "always"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        trainer = trainers.UnigramTrainer(**settings, unk_token="<unk>")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def _with_bytes(name: str, lines: Iterable[str], trainer: Any) -> Tokenizer:
    """Return a BPE like Llama 2's: spaces as marks, unknown characters as bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    if name == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.train_from_iterator(lines, trainer)
    parsed = json.loads(tokenizer.to_str())
    vocabulary = parsed["model"]["vocab"]
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    parsed["model"]["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(parsed))


@dataclass(frozen=True, eq=False)
class Kit:
    """One tokenizer, loaded by the code under test and by the references."""

    content: bytes
    control: tuple[str, ...]
    transformers: Any
    certificates: CertificateStore | None = None

    def run(self, rows: list[list[Piece]], policy: ControlPolicy = "split") -> Any:
        return tokenize(prompts(rows), self.encoder(policy == "keep"), self.control, policy)

    @cache  # noqa: B019
    def encoder(self, keep: bool) -> ContentEncoder:
        return ContentEncoder(self.content, self.control, keep, self.certificates, worth_bytes=0)

    @cached_property
    def plain(self) -> Tokenizer:
        return Tokenizer.from_str(self.content.decode())


def kit_of(file: Path, certificates: CertificateStore | None = None) -> Kit:
    """Return the kit of a tokenizer.json; with certificates, gigatoken tokenizes every chunk that it can."""
    content = file.read_bytes()
    control = tuple(token["content"] for token in json.loads(content)["added_tokens"] if token["special"])
    return Kit(content, control, PreTrainedTokenizerFast(tokenizer_file=str(file)), certificates)


def prompts(rows: list[list[Piece]]) -> pa.Table:
    """Return a table as the prompts stage stores it; every piece is a span."""
    texts, spans = [], []
    for pieces in rows:
        found, at = [], 0
        for text, trained, control in pieces:
            end = at + len(text.encode())
            found.append(
                {"start": at, "end": end, "role": 0, "message": -1, "weight": float(trained), "control": control}
            )
            at = end
        texts.append("".join(piece[0] for piece in pieces))
        spans.append(found)
    positions = pa.array(range(len(rows)), pa.int32())
    return pa.table({ROW: positions, "text": pa.array(texts, pa.string()), "spans": pa.array(spans, SPANS)})


def labels_of(row: dict[str, Any]) -> list[bool]:
    """Return whether each token is trained, from spans that must partition the tokens."""
    flags: list[bool] = []
    for span in row["spans"]:
        assert span["start"] == len(flags) < span["end"]
        flags += [span["weight"] > 0] * (span["end"] - span["start"])
    assert len(flags) == len(row["input_ids"])
    return flags


def expected(kit: Kit, pieces: list[Piece]) -> tuple[list[int], list[bool], int]:
    """Return ids, trained flags and straddles of one row, from the token offsets of the whole text."""
    text = "".join(piece[0] for piece in pieces)
    trained = b"".join(bytes([piece[1]]) * len(piece[0].encode()) for piece in pieces)
    encoding = kit.plain.encode(text, add_special_tokens=False)
    covered = []
    for begin, end in encoding.offsets:
        first, last = len(text[:begin].encode()), len(text[:end].encode())
        covered.append(set(trained[first : max(last, first + 1)]))
    return encoding.ids, [1 in found for found in covered], sum(len(found) == 2 for found in covered)


CONTENT = st.one_of(st.text(max_size=20), st.lists(st.sampled_from(WORDS), max_size=6).map("".join))
FILLED = CONTENT.filter(bool)


def rows_for(kit: Kit) -> st.SearchStrategy[list[list[Piece]]]:
    """Return rows of content without the text of control tokens, and control tokens."""
    plain = FILLED.filter(lambda text: not set(text) & set("<>|[]"))
    content = st.tuples(plain, st.booleans(), st.just(False))
    control = st.tuples(st.sampled_from(kit.control), st.booleans(), st.just(True))
    return st.lists(st.lists(st.one_of(content, control), min_size=1, max_size=6), min_size=1, max_size=4)
