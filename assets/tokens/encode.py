"""Turns content into token ids, each with the bytes that it stands for."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import TokenizerError
from tokenloom.resources.ragged import Ints, offsets_of, row_of, sum_rows, text_parts

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


@dataclass(frozen=True)
class Encoded:
    """Ids of many texts, flat.

    Args:
        ids: int64 [tokens].
        counts: int64 [texts], tokens of each text.
        start, end: int64 [tokens], the bytes that each token stands for, counted from the first text's begin.
    """

    ids: Ints
    counts: Ints
    start: Ints
    end: Ints


class ContentEncoder:
    """A tokenizer made ready for content: no post-processing, truncation or padding.

    Args:
        tokenizer: the content of tokenizer.json.
        control: the control tokens, also those that tokenizer.json does not call special.
        keep_control: whether control strings in content become control tokens; else they are plain text.
    """

    def __init__(self, tokenizer: bytes, control: Collection[str], keep_control: bool):
        from tokenizers import Tokenizer

        def load(content: str) -> Tokenizer:
            loaded = Tokenizer.from_str(content)
            loaded.no_truncation()
            loaded.no_padding()
            loaded.encode_special_tokens = not keep_control
            return loaded

        parsed = json.loads(tokenizer)
        for token in parsed["added_tokens"]:
            token["special"] = token["special"] or token["content"] in control
        self._tokenizer = load(json.dumps(parsed))
        self._byte_lengths = _byte_lengths(parsed, self._tokenizer)
        self._inner = load(json.dumps(parsed)) if _never_prepend(parsed.get("pre_tokenizer")) else self._tokenizer
        self._strips = {token["content"]: (token["lstrip"], token["rstrip"]) for token in parsed["added_tokens"]}

    def id_of(self, token: str) -> int:
        """The id of a control token.

        Raises:
            TokenizerError: the tokenizer has no such token.
        """
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise TokenizerError(
                f"the tokenizer has no token {token!r}; name it in tokenizer.special_tokens.additional"
            )
        return found

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return self._tokenizer.get_vocab_size()

    def strips(self, token: str) -> tuple[bool, bool]:
        """Whether a control token swallows white space on its left, and on its right."""
        return self._strips.get(token, (False, False))

    def encode(self, texts: pa.Array, leading: npt.NDArray[np.bool_]) -> Encoded:
        """Ids and byte positions of each text's tokens.

        Args:
            leading: bool [texts], whether each is the begin of a whole text: some tokenizers put a mark before that.
        """
        strings = texts.to_pylist()
        bounds, data = text_parts(texts)
        if self._byte_lengths is not None:
            encodings = self._tokenizer.encode_batch_fast(strings, add_special_tokens=False)
            ids, counts = _ids(encodings)
            lengths = self._byte_lengths[ids]
            end = np.cumsum(lengths)
            if (sum_rows(lengths, offsets_of(counts)) == np.diff(bounds)).all():
                return Encoded(ids, counts, end - lengths, end)
        encodings = self._encodings(strings, leading)
        ids, counts = _ids(encodings)
        places = np.array([place for encoding in encodings for place in encoding.offsets], np.int64).reshape(-1, 2)
        starts = np.flatnonzero((data & 0xC0) != 0x80)
        characters = np.append(starts, len(data))
        base = np.searchsorted(starts, bounds[:-1])[row_of(counts)]
        return Encoded(ids, counts, characters[base + places[:, 0]], characters[base + places[:, 1]])

    def _encodings(self, strings: list[str], leading: npt.NDArray[np.bool_]) -> list[Encoding]:
        encodings = self._inner.encode_batch(strings, add_special_tokens=False)
        if self._inner is not self._tokenizer:
            first = np.flatnonzero(leading)
            begun = self._tokenizer.encode_batch([strings[index] for index in first], add_special_tokens=False)
            for index, encoding in zip(first, begun, strict=True):
                encodings[index] = encoding
        return encodings


def _never_prepend(pre_tokenizer: Any) -> bool:
    """Turn `prepend_scheme: first` of Metaspace, wherever it stands, into `never`; whether there was one."""
    if not pre_tokenizer:
        return False
    if pre_tokenizer["type"] == "Sequence":
        return sum(_never_prepend(inner) for inner in pre_tokenizer["pretokenizers"]) > 0
    if pre_tokenizer["type"] != "Metaspace" or pre_tokenizer.get("prepend_scheme") != "first":
        return False
    pre_tokenizer["prepend_scheme"] = "never"
    return True


def _ids(encodings: list[Encoding]) -> tuple[Ints, Ints]:
    lists = [encoding.ids for encoding in encodings]
    counts = np.fromiter((len(found) for found in lists), np.int64, len(lists))
    flat = np.concatenate([np.array(found, np.int64) for found in lists]) if lists else np.zeros(0, np.int64)
    return flat, counts


def _byte_lengths(parsed: dict[str, Any], tokenizer: Tokenizer) -> Ints | None:
    """int64 [ids]: how many bytes of text each id stands for; None where that is not known from the vocabulary.

    It is known for byte-level BPE without a normalizer: each character of a token stands for one byte.
    """
    if parsed["model"]["type"] != "BPE" or parsed.get("normalizer") or not _is_byte_level(parsed.get("pre_tokenizer")):
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    lengths = np.zeros(max([*vocabulary.values(), *(token["id"] for token in parsed["added_tokens"])]) + 1, np.int64)
    for token, index in vocabulary.items():
        lengths[index] = len(token)
    for token in parsed["added_tokens"]:
        lengths[token["id"]] = len(token["content"].encode())
    return lengths


def _is_byte_level(pre_tokenizer: Any) -> bool:
    if not pre_tokenizer:
        return False
    if pre_tokenizer["type"] == "Sequence":
        return any(_is_byte_level(inner) for inner in pre_tokenizer["pretokenizers"])
    return pre_tokenizer["type"] == "ByteLevel" and not pre_tokenizer["add_prefix_space"]
