"""Converts SentencePiece models to a tokenizer.json that gives the same ids as the sentencepiece library.

A `.model` file is a protocol buffer, `sentencepiece_model.proto` of https://github.com/google/sentencepiece. Only the
fields that encoding depends on are read.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tokenloom.resources.tokenizers.bpe_merges import LONGEST, recover_merges
from tokenloom.resources.tokenizers.tokenizer_json import added_token, is_charsmap

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
SPACE = "▁"


class Piece(NamedTuple):
    """One entry of the vocabulary; its id is its position."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The parsed content of a `.model` file.

    Args:
        pieces: the vocabulary, ordered by id.
        algorithm: UNIGRAM or BPE.
        unk_id: id of the unknown piece.
        specials: the pieces of bos, eos, pad and unk that exist, by role.
        byte_fallback: encode unknown characters as byte pieces.
        charsmap: the compiled normalization table.
        dummy_prefix: put a space before each text.
        trims: remove white space at both ends of a text, and all but one of consecutive spaces.
    """

    pieces: tuple[Piece, ...]
    algorithm: int
    unk_id: int
    specials: dict[str, str]
    byte_fallback: bool
    charsmap: bytes
    dummy_prefix: bool
    trims: bool


def parse_sentencepiece(content: bytes) -> SentencePieceModel:
    """Parse a `.model` file.

    Raises:
        ValueError: it is malformed, or uses a feature that tokenizer.json does not have.
    """
    pieces, trainer, normalizer = [], {}, {}
    for field, value in _fields(content):
        if field == 1:
            piece = dict(_fields(value))
            (score,) = struct.unpack("<f", piece.get(2, bytes(4)))
            pieces.append(Piece(piece.get(1, b"").decode(), score, piece.get(3, NORMAL)))
        elif field == 2:
            trainer = dict(_fields(value))
        elif field == 3:
            normalizer = dict(_fields(value))
    texts = {piece.text for piece in pieces}
    if not pieces or len(texts) != len(pieces) or "" in texts:
        raise ValueError("a piece is empty or occurs twice" if pieces else "it contains no pieces")
    ids = {role: trainer.get(40 + at, at) for at, role in enumerate(("unk", "bos", "eos"))} | {"pad": trainer.get(43)}
    specials = {role: pieces[id].text for role, id in ids.items() if id is not None and id < len(pieces)}
    unk_id = next((id for id, piece in enumerate(pieces) if piece.kind == UNKNOWN), -1)
    model = SentencePieceModel(
        pieces=tuple(pieces),
        algorithm=trainer.get(3, UNIGRAM),
        unk_id=unk_id,
        specials=specials,
        byte_fallback=bool(trainer.get(35, 0)),
        charsmap=normalizer.get(2, b""),
        dummy_prefix=bool(normalizer.get(3, 1)),
        trims=bool(normalizer.get(4, 1)),
    )
    if model.algorithm not in (UNIGRAM, BPE):
        raise ValueError("only Unigram and BPE models are supported, not word and char models")
    if max(map(len, texts)) > LONGEST:
        raise ValueError(f"a piece has more than {LONGEST:,} characters")
    if not is_charsmap(base64.b64encode(model.charsmap)):
        raise ValueError("its normalization table is damaged")
    if trainer.get(24, 0) or not normalizer.get(5, 1):
        raise ValueError("models that treat white space as a suffix or do not escape it are not supported")
    if unk_id < 0 or any(piece.kind == UNUSED for piece in pieces):
        raise ValueError("models without an unknown piece or with unused pieces are not supported")
    return model


def sentencepiece_json(model: SentencePieceModel, prefix_first_only: bool = False) -> bytes:
    """Convert a model to a tokenizer.json.

    Args:
        prefix_first_only: put the space that marks the start of a word only before the whole text, not also after each
            control token. This is `legacy: false` of transformers' Llama.
    """
    normalizers: list[dict[str, Any]] = []
    if model.charsmap:
        coded = base64.b64encode(model.charsmap).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": coded})
    if model.trims:
        normalizers += [_replace({"Regex": r"\A +"}, ""), _replace({"Regex": " {2,}"}, " ")]
    if model.dummy_prefix and not prefix_first_only:
        normalizers.append({"type": "Prepend", "prepend": SPACE})
    normalizers.append(_replace({"String": " "}, SPACE))
    if model.trims:
        normalizers.append(_replace({"Regex": rf"{SPACE}+\z"}, ""))
    splits = ((_user_defined(model), "Isolated"), (_control_splits(model), "MergedWithPrevious"))
    pre_tokenizers = [_split(patterns, behavior) for patterns, behavior in splits if patterns]
    if model.dummy_prefix and prefix_first_only:
        pre_tokenizers.append({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False})
    decoders = [_replace({"String": SPACE}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if model.dummy_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    added = [
        added_token(id, piece.text, special=True)
        for id, piece in enumerate(model.pieces)
        if piece.kind in (CONTROL, UNKNOWN)
    ]
    written = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers} if pre_tokenizers else None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(model) if model.algorithm == BPE else _unigram(model),
    }
    return json.dumps(written, ensure_ascii=False).encode()


def _bpe(model: SentencePieceModel) -> dict[str, Any]:
    """Return a BPE model. Pieces are merged by descending score, then by id; only normal pieces are merged."""
    normal = [id for id, piece in enumerate(model.pieces) if piece.kind == NORMAL]
    order = sorted(normal, key=lambda id: (-model.pieces[id].score, id))
    merges = recover_merges({model.pieces[id].text: rank for rank, id in enumerate(order)})
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": model.pieces[model.unk_id].text,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": bool(_user_defined(model)),
        "vocab": {piece.text: id for id, piece in enumerate(model.pieces)},
        "merges": merges,
    }


def _unigram(model: SentencePieceModel) -> dict[str, Any]:
    vocabulary = [(piece.text, piece.score) for piece in model.pieces]
    return {"type": "Unigram", "unk_id": model.unk_id, "vocab": vocabulary, "byte_fallback": model.byte_fallback}


def _user_defined(model: SentencePieceModel) -> list[str]:
    """Return patterns of the symbols that always form a piece, longest first."""
    texts = [piece.text for piece in model.pieces if piece.kind == USER_DEFINED]
    return [re.escape(text) for text in sorted(texts, key=len, reverse=True)]


def _control_splits(model: SentencePieceModel) -> list[str]:
    """Return patterns that keep the model from matching control and byte pieces in plain text, as in sentencepiece.

    Each pattern matches a prefix of such a piece when the rest of the piece follows, and the text is split after the
    prefix. If possible, the split is at a position where it cuts no other piece and no run of unknown characters.
    """
    if model.algorithm == BPE and not _user_defined(model):
        return []
    normal = [piece.text for piece in model.pieces if piece.kind in (NORMAL, USER_DEFINED)]
    joined, known = "\0".join(normal), set(normal)
    patterns = ["<(?=0x[0-9A-F]{2}>)"] if any(piece.kind == BYTE for piece in model.pieces) else []
    for text in (piece.text for piece in model.pieces if piece.kind in (CONTROL, UNKNOWN) and len(piece.text) > 1):
        positions = [cut for cut in range(1, len(text)) if text[cut - 1 : cut + 1] not in joined]
        cut = next((cut for cut in positions if known & {*text[cut - 1 : cut + 1]}), 1)
        patterns.append(f"{re.escape(text[:cut])}(?={re.escape(text[cut:])})")
    return patterns


def _split(patterns: list[str], behavior: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": "|".join(patterns)}, "behavior": behavior, "invert": False}


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the field numbers and values (int or bytes) of a message.

    Format: https://protobuf.dev/programming-guides/encoding/
    """
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            if position >= len(message) or shift > 63:
                raise ValueError("it is truncated")
            value |= (message[position] & 127) << shift
            position, shift = position + 1, shift + 7
            if message[position - 1] < 128:
                return value

    while position < len(message):
        field, wire = divmod(varint(), 8)
        if wire == 0:
            yield field, varint()
            continue
        length = {1: lambda: 8, 2: varint, 5: lambda: 4}.get(wire)
        if length is None or not field:
            raise ValueError("it is not a protocol buffer")
        size = length()
        if position + size > len(message):
            raise ValueError("it is truncated")
        position += size
        yield field, message[position - size : position]
