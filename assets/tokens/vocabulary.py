"""The bytes of each token id, where the vocabulary alone determines them, and of the tokens of a chunk.

Sums are stored for every eight tokens. Within eight tokens, the lengths are the bytes of one 64-bit word, which are
added up with a few bit operations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.ragged import Ints, offsets_of, text_parts

LONGEST = 0xFF
"""Length in bytes of the longest token that can be summed."""

_EVEN, _ONES = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0001000100010001)
_FIRST = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
"""Masks that keep the first 0 to 8 bytes of a word."""

Words = npt.NDArray[np.uint64]


class TokenBytes:
    """Sums of token lengths.

    Args:
        lengths: uint8 [tokens], the bytes of each token.
    """

    def __init__(self, lengths: npt.NDArray[np.uint8]):
        padded = np.zeros((len(lengths) // 8 + 1) * 8, np.uint8)
        padded[: len(lengths)] = lengths
        self._words = padded.view("<u8")
        self._sums = np.zeros(len(self._words) + 1, np.int64)
        np.cumsum(_sum_bytes(self._words), out=self._sums[1:])

    def before(self, tokens: Ints) -> Ints:
        """Return how many bytes come before each token, int64; the number of all tokens gives the bytes of all."""
        word = tokens >> 3
        return self._sums[word] + _sum_bytes(self._words[word] & _FIRST[tokens & 7])

    def reaching(self, places: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return the smallest number of tokens, from the first one, that have at least `places` bytes.

        Args:
            places: int64, byte positions.

        Returns:
            int64, the number of tokens; and bool, whether they end exactly at the position.
        """
        word = np.minimum(np.maximum(np.searchsorted(self._sums, places) - 1, 0), len(self._words) - 1)
        missing, lengths = places - self._sums[word], self._words[word]
        # a binary search within the eight tokens of a word
        count = np.zeros(len(places), np.int64)
        for step in (4, 2, 1):
            further = count + step
            count = np.where(_sum_bytes(lengths & _FIRST[further]) < missing, further, count)
        count += missing > 0
        return 8 * word + count, _sum_bytes(lengths & _FIRST[count]) == missing


def _sum_bytes(words: Words) -> Ints:
    pairs = (words & _EVEN) + ((words >> np.uint64(8)) & _EVEN)
    # multiplying by ones adds up the four 16-bit sums in the top one
    return ((pairs * _ONES) >> np.uint64(48)).view(np.int64)


UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
MARK = "▁"

_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_OF = {byte: byte for byte in _PRINTED} | {
    256 + place: byte for place, byte in enumerate(sorted({*range(256)} - {*_PRINTED}))
}
"""The byte that each character of a byte-level vocabulary represents."""

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of token ids.

    Args:
        spelling: binary array [ids], the bytes of each id; empty for ids without bytes.
        lengths: uint8 array [ids], the number of bytes; 0 for ids with more than `LONGEST`.
        certain: whether a text's ids always spell the text; if not, a normalizer can have changed it.
        marked: whether the first id of a text can spell a space that the text does not have.
    """

    spelling: pa.BinaryArray
    lengths: pa.UInt8Array
    certain: bool
    marked: bool

    def without(self, ids: list[int]) -> Vocabulary:
        """Return a vocabulary in which some ids stand for no bytes."""
        lengths = self.lengths.to_numpy().copy()
        lengths[ids] = 0
        return Vocabulary(self.spelling, pa.array(lengths), self.certain, self.marked)

    def bytes_of(self, ids: pa.Array) -> TokenBytes:
        """Return the lengths of tokens, given their ids."""
        return TokenBytes(pc.take(self.lengths, ids, boundscheck=False).to_numpy())

    def adds_up(self, tokens: TokenBytes, offsets: Ints, texts: pa.Array) -> npt.NDArray[np.bool_]:
        """Return bool [texts]: whether the token lengths of each text add up to its own (or one more, if `marked`)."""
        excess = np.diff(tokens.before(offsets)) - np.diff(text_parts(texts)[0])
        return (excess == 0) | (self.marked & (excess == 1))

    def exact(self, ids: pa.Array, offsets: Ints, texts: pa.Array) -> npt.NDArray[np.bool_]:
        """Return bool [texts]: whether the ids of each text spell its bytes, in order."""
        exact = self.adds_up(self.bytes_of(ids), offsets, texts)
        return exact if self.certain or not exact.any() else exact & self.spelled(ids, offsets, texts)

    def spelled(self, ids: pa.Array, offsets: Ints, texts: pa.Array) -> npt.NDArray[np.bool_]:
        """Return bool [texts]: whether the ids of each text spell it byte for byte (if `marked`, also after a space).

        Args:
            ids: uint32 [tokens].
            offsets: int64 [texts + 1], the first token of each text.
        """
        flat = pc.take(self.spelling, ids, boundscheck=False)
        bounds, data = text_parts(flat)
        cuts, content = pa.py_buffer(bounds[offsets].astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))
        spelled = pa.BinaryArray.from_buffers(pa.binary(), len(texts), [None, cuts, content])
        expected = texts.cast(pa.binary())
        same = np.asarray(pc.equal(spelled, expected))
        if self.marked:
            after_space = pc.binary_join_element_wise(pa.scalar(b""), expected, pa.scalar(b" "))
            same = same | np.asarray(pc.equal(spelled, after_space))
        return same


def normal_form(parsed: dict[str, Any]) -> str | None:
    """Return the Unicode normal form of a tokenizer.json: "" for no normalizer, one of FORMS, or None for another."""
    normalizer = parsed.get("normalizer")
    while normalizer and normalizer["type"] == "Sequence" and len(normalizer["normalizers"]) == 1:
        normalizer = normalizer["normalizers"][0]
    if not normalizer or (normalizer["type"] == "Sequence" and not normalizer["normalizers"]):
        return ""
    return normalizer["type"] if normalizer["type"] in UNICODE_FORMS else None


def vocabulary_of(parsed: dict[str, Any]) -> Vocabulary | None:
    """Return the vocabulary of a tokenizer.json, or None if the bytes of ids do not follow from it."""
    if parsed["model"]["type"] != "BPE":
        return None
    if is_byte_level(parsed.get("pre_tokenizer")) and (form := normal_form(parsed)) is not None:
        spell, certain, marked = _byte_level, not form, False
    elif _is_marked(parsed):
        spell, certain, marked = _sentencepiece, False, True
    else:
        return None
    vocab, added = parsed["model"]["vocab"], {token["id"]: token["content"] for token in parsed["added_tokens"]}
    size = max(max(vocab.values()), max(added, default=0)) + 1
    tokens = np.full(size, "", object)
    tokens[np.fromiter(vocab.values(), np.int64, len(vocab))] = [*vocab]
    spelling = spell(tokens.tolist())
    if added:
        index, added_ids = np.arange(size), np.array(sorted(added))
        # added tokens are stored as their text, not spelled like those of the vocabulary
        index[added_ids] = np.arange(size, size + len(added_ids))
        added_bytes = pa.array([added[place].encode() for place in added_ids], pa.binary())
        spelling = pa.concat_arrays([spelling, added_bytes]).take(pa.array(index))
    lengths = pc.binary_length(spelling).to_numpy()
    short = pa.array(np.where(lengths <= LONGEST, lengths, 0).astype(np.uint8))
    return Vocabulary(spelling, short, certain, marked)


def is_byte_level(pre_tokenizer: Any) -> bool:
    """Return whether a pre-tokenizer maps each byte of a text to a character, and adds no space."""
    if not pre_tokenizer:
        return False
    if pre_tokenizer["type"] == "Sequence":
        return any(is_byte_level(inner) for inner in pre_tokenizer["pretokenizers"])
    return pre_tokenizer["type"] == "ByteLevel" and not pre_tokenizer["add_prefix_space"]


def _byte_level(tokens: list[str]) -> pa.BinaryArray:
    data = "".join(tokens).translate(BYTE_OF).encode("latin-1", "replace")
    offsets = offsets_of(np.fromiter(map(len, tokens), np.int32, len(tokens))).astype(np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), len(tokens), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _sentencepiece(tokens: list[str]) -> pa.BinaryArray:
    spelled = (
        bytes([int(byte[1], 16)]) if (byte := _BYTE.fullmatch(token)) else token.replace(MARK, " ").encode()
        for token in tokens
    )
    return pa.array(spelled, pa.binary())


def _is_marked(parsed: dict[str, Any]) -> bool:
    """Return whether a tokenizer replaces spaces with `MARK`, can add one before a text, and changes nothing else."""
    normalizer, pre_tokenizer = parsed.get("normalizer"), parsed.get("pre_tokenizer")
    if not parsed["model"].get("byte_fallback"):
        return False
    if pre_tokenizer and pre_tokenizer["type"] == "Metaspace":
        return not normalizer and pre_tokenizer["replacement"] == MARK
    steps = (normalizer or {}).get("normalizers", [normalizer] if normalizer else [])
    prepend = {"type": "Prepend", "prepend": MARK}
    mark = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    return not pre_tokenizer and mark in steps and all(step in (prepend, mark) for step in steps)
