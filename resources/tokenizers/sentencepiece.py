"""SentencePiece models as tokenizer.json: the same ids as the sentencepiece library gives.

A `.model` file is a protocol buffer, `sentencepiece_model.proto` of https://github.com/google/sentencepiece; the fields
read here are those that encoding depends on.
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
    """What a `.model` file holds.

    Args:
        specials: bos, eos, pad and unk to their pieces; those that exist.
    """

    pieces: tuple[Piece, ...]
    algorithm: int
    unk_id: int
    specials: dict[str, str]
    byte_fallback: bool
    charsmap: bytes
    dummy_prefix: bool
    trims: bool
    """Removes white space at both ends, and all but one inside."""


def parse_sentencepiece(content: bytes) -> SentencePieceModel:
    """Read a `.model` file.

    Raises:
        ValueError: it is none, or does what tokenizer.json cannot.
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
        raise ValueError("it holds no pieces" if not pieces else "a piece is there twice, or empty")
    ids = {role: trainer.get(40 + at, at) for at, role in enumerate(("unk", "bos", "eos"))} | {"pad": trainer.get(43)}
    specials = {role: pieces[id].text for role, id in ids.items() if id is not None and id < len(pieces)}
    unk_id = next((at for at, piece in enumerate(pieces) if piece.kind == UNKNOWN), -1)
    found = SentencePieceModel(
        pieces=tuple(pieces),
        algorithm=trainer.get(3, UNIGRAM),
        unk_id=unk_id,
        specials=specials,
        byte_fallback=bool(trainer.get(35, 0)),
        charsmap=normalizer.get(2, b""),
        dummy_prefix=bool(normalizer.get(3, 1)),
        trims=bool(normalizer.get(4, 1)),
    )
    if found.algorithm not in (UNIGRAM, BPE):
        raise ValueError("only its Unigram and BPE models can be read, not word and char models")
    if max(map(len, texts)) > LONGEST:
        raise ValueError(f"a piece has more than {LONGEST:,} characters")
    if not is_charsmap(base64.b64encode(found.charsmap)):
        raise ValueError("its normalization table is damaged")
    if trainer.get(24, 0) or not normalizer.get(5, 1):
        raise ValueError("white space as a suffix, or not escaped, is not supported")
    if unk_id < 0 or any(piece.kind == UNUSED for piece in pieces):
        raise ValueError("a model without an unknown piece, or with unused ones, is not supported")
    return found


def sentencepiece_json(model: SentencePieceModel, prefix_first_only: bool = False) -> bytes:
    """tokenizer.json of a model.

    Args:
        prefix_first_only: the space that stands for a word's begin is put before a whole text alone, not also behind
            each control token: `legacy: false` of transformers' Llama.
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
    splits = ((_user_defined(model), "Isolated"), (_barred(model), "MergedWithPrevious"))
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
    """Pieces merge by score, highest first, equal ones by id; only normal pieces take part."""
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
    """Patterns of the symbols that are always pieces of their own, longest first."""
    found = [piece.text for piece in model.pieces if piece.kind == USER_DEFINED]
    return [re.escape(text) for text in sorted(found, key=len, reverse=True)]


def _barred(model: SentencePieceModel) -> list[str]:
    """Patterns that keep the model from finding control and byte pieces in plain text, as sentencepiece does.

    Each matches what such a piece begins with, where the rest of it follows; cut there, the text holds it no more.
    The cut goes where it changes nothing else, if there is such a place: where no other piece would be cut, nor a run
    of unknown characters.
    """
    if model.algorithm == BPE and not _user_defined(model):
        return []
    normal = [piece.text for piece in model.pieces if piece.kind in (NORMAL, USER_DEFINED)]
    joined, known = "\0".join(normal), set(normal)
    found = ["<(?=0x[0-9A-F]{2}>)"] if any(piece.kind == BYTE for piece in model.pieces) else []
    for text in (piece.text for piece in model.pieces if piece.kind in (CONTROL, UNKNOWN) and len(piece.text) > 1):
        places = [at for at in range(1, len(text)) if text[at - 1 : at + 1] not in joined]
        at = next((at for at in places if known & {*text[at - 1 : at + 1]}), 1)
        found.append(f"{re.escape(text[:at])}(?={re.escape(text[at:])})")
    return found


def _split(patterns: list[str], behavior: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": "|".join(patterns)}, "behavior": behavior, "invert": False}


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and values, integers or bytes, of a message (https://protobuf.dev/programming-guides/encoding/)."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(message) or shift > 63:
                raise ValueError("it is cut off")
            value |= (message[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if message[at - 1] < 128:
                return value

    while at < len(message):
        field, wire = divmod(varint(), 8)
        if wire == 0:
            yield field, varint()
            continue
        length = {1: lambda: 8, 2: varint, 5: lambda: 4}.get(wire)
        if length is None or not field:
            raise ValueError("it is no protocol buffer")
        size = length()
        if at + size > len(message):
            raise ValueError("it is cut off")
        at += size
        yield field, message[at - size : at]
