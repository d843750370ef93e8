"""Converts tiktoken's rank files and SentencePiece models to a tokenizer.json that gives the same ids.

A `.model` file is a protocol buffer, `sentencepiece_model.proto` of https://github.com/google/sentencepiece. Only the
fields that encoding depends on are read.

A rank file has one line per token: its bytes in base64, a space, and its rank, which is its id. It contains neither the
split pattern nor the special tokens: these follow from the name of a known encoding, or from tokenizer_config.json.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from tokenloom.resources.tokenizers.tokenizer_json import LONGEST, added_token, is_charsmap

TextOrBytes = TypeVar("TextOrBytes", str, bytes)

_NONE = sys.maxsize


def recover_merges(ranks: Mapping[TextOrBytes, int]) -> list[tuple[TextOrBytes, TextOrBytes]]:
    """Return the pair that each piece is merged from, lowest rank first.

    Encoding by ranks always merges the leftmost adjacent pair whose concatenation has the lowest rank. As long as no
    merge crosses a piece's borders, the merges inside the piece do not depend on the text around it. So the last pair
    inside is always the same, and one merge per piece gives the same ids as the ranks
    (https://github.com/openai/tiktoken, `byte_pair_merge`; Sennrich et al., ACL 2016). Pieces that no merge produces
    are skipped.

    Args:
        ranks: rank of each piece, all different.
    """
    return [pair for piece in sorted(ranks, key=ranks.__getitem__) if (pair := _last_pair(piece, ranks)) is not None]


def _last_pair(piece: TextOrBytes, ranks: Mapping[TextOrBytes, int]) -> tuple[TextOrBytes, TextOrBytes] | None:
    parts = [piece[start : start + 1] for start in range(len(piece))]
    pair_ranks = [ranks.get(piece[start : start + 2], _NONE) for start in range(len(piece) - 1)]
    while len(parts) > 2:
        # no merge produces the piece: only a special rule of the encoder finds it
        if (lowest := min(pair_ranks)) == _NONE:
            return None
        merged = pair_ranks.index(lowest)
        parts[merged : merged + 2] = [parts[merged] + parts[merged + 1]]
        del pair_ranks[merged]
        # only the two pairs beside the merged one have changed
        for left in (merged - 1, merged):
            if 0 <= left < len(pair_ranks):
                pair_ranks[left] = ranks.get(parts[left] + parts[left + 1], _NONE)
    return (parts[0], parts[1]) if len(parts) == 2 else None


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
SPACE = "▁"


class VocabularyPiece(NamedTuple):
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

    pieces: tuple[VocabularyPiece, ...]
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
            pieces.append(VocabularyPiece(piece.get(1, b"").decode(), score, piece.get(3, NORMAL)))
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
    normalizer = {"type": "Sequence", "normalizers": normalizers}
    decoder = {"type": "Sequence", "decoders": decoders}
    scored = [(piece.text, piece.score) for piece in model.pieces]
    unigram = {"type": "Unigram", "unk_id": model.unk_id, "vocab": scored, "byte_fallback": model.byte_fallback}
    written = _scored_bpe(model) if model.algorithm == BPE else unigram
    return _tokenizer_json(added, normalizer, pre_tokenizers, decoder, written)


def _scored_bpe(model: SentencePieceModel) -> dict[str, Any]:
    """Return a BPE model. Pieces are merged by descending score, then by id; only normal pieces are merged."""
    normal = [id for id, piece in enumerate(model.pieces) if piece.kind == NORMAL]
    order = sorted(normal, key=lambda id: (-model.pieces[id].score, id))
    merges = recover_merges({model.pieces[id].text: rank for rank, id in enumerate(order)})
    vocab, unknown = {piece.text: id for id, piece in enumerate(model.pieces)}, model.pieces[model.unk_id].text
    # user-defined symbols are split off as whole words, and no merge produces them
    return _bpe(vocab, merges, unknown, model.byte_fallback, ignore_merges=bool(_user_defined(model)))


def _bpe(
    vocab: dict[str, int], merges: Sequence[Any], unknown: str | None, byte_fallback: bool, ignore_merges: bool
) -> dict[str, Any]:
    model = {"type": "BPE", "dropout": None, "unk_token": unknown}
    model |= {"continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": unknown is not None}
    model |= {"byte_fallback": byte_fallback, "ignore_merges": ignore_merges}
    return {**model, "vocab": vocab, "merges": merges}


def _tokenizer_json(added: Any, normalizer: Any, pre_tokenizers: Any, decoder: Any, model: Any) -> bytes:
    pre_tokenizer = {"type": "Sequence", "pretokenizers": pre_tokenizers} if pre_tokenizers else None
    parts = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer}
    parts |= {"pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": decoder, "model": model}
    return json.dumps(parts, ensure_ascii=False).encode()


def _user_defined(model: SentencePieceModel) -> list[str]:
    texts = [piece.text for piece in model.pieces if piece.kind == USER_DEFINED]
    return [re.escape(text) for text in sorted(texts, key=len, reverse=True)]


def _control_splits(model: SentencePieceModel) -> list[str]:
    """Return patterns that keep the model from matching control and byte pieces in plain text, as in sentencepiece.
    Each matches a prefix of such a piece when the rest of the piece follows, and the text is split after the prefix. If
    possible, that cuts no other piece and no run of unknown characters."""
    if model.algorithm == BPE and not _user_defined(model):
        return []
    normal = [piece.text for piece in model.pieces if piece.kind in (NORMAL, USER_DEFINED)]
    joined, pieces = "\0".join(normal), set(normal)
    patterns = ["<(?=0x[0-9A-F]{2}>)"] if any(piece.kind == BYTE for piece in model.pieces) else []
    for text in (piece.text for piece in model.pieces if piece.kind in (CONTROL, UNKNOWN) and len(piece.text) > 1):
        positions = [cut for cut in range(1, len(text)) if text[cut - 1 : cut + 1] not in joined]
        cut = next((cut for cut in positions if pieces & {*text[cut - 1 : cut + 1]}), 1)
        patterns.append(f"{re.escape(text[:cut])}(?={re.escape(text[cut:])})")
    return patterns


def _split(patterns: list[str], behavior: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": "|".join(patterns)}, "behavior": behavior, "invert": False}


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the field numbers and values (int or bytes) of a message (https://protobuf.dev/programming-guides/encoding/)."""
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
    # `tokenizers` counts ids on from the vocabulary: gaps need tokens
    added = inside + [(id, by_id.get(id, f"<|reserved_token_{id}|>")) for id in above]
    split = {"type": "Split", "pattern": {"Regex": onig_pattern(encoding.pattern)}, "behavior": "Isolated"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    merges = [tuple(part.decode("latin-1").translate(_ALPHABET) for part in pair) for pair in recover_merges(ranks)]
    tokens = [added_token(id, token, special=True) for id, token in added]
    # tiktoken looks up a whole word before it merges, so a token that no merge produces is found
    model = _bpe(vocab, merges, None, byte_fallback=False, ignore_merges=True)
    return _tokenizer_json(tokens, None, [{**split, "invert": False}, byte_level], byte_level, model)


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


_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_ALPHABET = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + index) for index, byte in enumerate(_OTHERS)}
"""The character of each byte in byte-level BPE (GPT-2, `bytes_to_unicode`)."""
