"""The bytes that each token of a text stands for, from the tokenizer's vocabulary: an oracle for offsets and masks."""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from support.chat_writers import Part

Range = tuple[int, int]


@dataclass(frozen=True)
class Written:
    """A text: its bytes, whether each is trained, and where control tokens are."""

    data: bytes
    trained: np.ndarray
    control: dict[Range, str]


def written(parts: Iterable[Part], control: Collection[str], keep: bool) -> Written:
    """Return the text of some parts; control tokens are those of the template, with `keep` also those in contents."""
    name = re.compile("|".join(re.escape(token) for token in sorted(control, key=len, reverse=True)))
    text, flags, places, at = b"", [], {}, 0
    for part in parts:
        for match in name.finditer(part.text) if part.own or keep else ():
            start = at + len(part.text[: match.start()].encode())
            places[start, start + len(match.group().encode())] = match.group()
        data = part.text.encode()
        text += data
        flags.append(np.full(len(data), part.trained))
        at += len(data)
    return Written(text, np.concatenate(flags), places)


class Vocabulary:
    """The tokens of a tokenizer.json, each with its spelling."""

    def __init__(self, folder: Path):
        parsed = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        self._model = parsed["model"]
        self.special = {token["id"]: token["content"] for token in parsed["added_tokens"] if token["special"]}
        self._added = {token["id"]: token["content"].encode() for token in parsed["added_tokens"]}
        self._strips = {token["content"]: (token["lstrip"], token["rstrip"]) for token in parsed["added_tokens"]}
        self._byte_level = "ByteLevel" in json.dumps(parsed["pre_tokenizer"])
        processor = parsed.get("post_processor") or {}
        self.adds_first = "SpecialToken" in (processor.get("single") or [{}])[0]

    @cached_property
    def _tokens(self) -> dict[int, str]:
        return {index: token for token, index in self._model["vocab"].items()}

    @cached_property
    def _spelled(self) -> dict[int, bytes]:
        """Return the spelling of each token, for vocabularies with a token for every byte."""
        read = self._read_byte_level if self._byte_level else self._read_metaspace
        return {index: read(token) for index, token in self._tokens.items()} | self._added

    def _read_byte_level(self, token: str) -> bytes:
        return bytes(_BYTES[char] for char in token)

    def _read_metaspace(self, token: str) -> bytes:
        byte = re.fullmatch("<0x([0-9A-F]{2})>", token)
        return bytes([int(byte.group(1), 16)]) if byte else token.replace("▁", " ").encode()

    def places(self, ids: Sequence[int], text: Written) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the start and end byte of each token if the tokens spell each byte of the text once and in order.

        A vocabulary of words does not spell white space and control characters.
        """
        if self._model["type"] == "WordPiece":
            return self._word_places(ids, text)
        pieces = [self._spelled[index] for index in ids]
        if not self._byte_level and ids[0] not in self.special and not text.data.startswith(pieces[0]):
            pieces[0] = pieces[0].removeprefix(b" ")  # what SentencePiece puts before a text
        left = np.flatnonzero(~self._swallowed(text))
        if b"".join(pieces) != np.frombuffer(text.data, np.uint8)[left].tobytes():
            return None
        lengths = np.array([len(piece) for piece in pieces])
        ends = np.cumsum(lengths)
        starts = left[ends - lengths]
        return starts, np.where(lengths, left[ends - 1] + 1, starts)

    def _swallowed(self, text: Written) -> np.ndarray:
        """Return bool [bytes]: white space that an adjacent control token swallows."""
        gone = np.zeros(len(text.data), bool)
        for (start, middle), (_, end) in pairwise(_between(text)):
            first, second = text.control.get((start, middle)), text.control.get((middle, end))
            if first and not second and self._strips[first][1]:
                after = text.data[middle:end].decode()
                gone[middle : end - len(after.lstrip().encode())] = True
            if second and not first and self._strips[second][0]:
                before = text.data[start:middle].decode()
                gone[start + len(before.rstrip().encode()) : middle] = True
        return gone

    def _word_places(self, ids: Sequence[int], text: Written) -> tuple[np.ndarray, np.ndarray] | None:
        found: list[Range] = []
        tokens = iter([self._tokens[index] for index in ids])
        for at, end in _between(text):
            if (at, end) in text.control:
                words = [(text.control[at, end], [(at, end)] * (end - at))]
            else:
                words = _words(text.data[at:end].decode(), at)
            for characters, places in words:
                here = 0
                while here < len(characters):
                    spelled = next(tokens, "")
                    piece = characters if spelled == "[UNK]" else spelled.removeprefix("##" if here else "")
                    if not piece or not characters.startswith(piece, here):
                        return None
                    found.append((places[here][0], places[here + len(piece) - 1][1]))
                    here += len(piece)
        if next(tokens, None) is not None:
            return None
        return np.array([start for start, _ in found]), np.array([end for _, end in found])


def _between(text: Written) -> list[Range]:
    """Yield the control tokens and the text between them, in order."""
    bounds = sorted({0, len(text.data), *(bound for place in text.control for bound in place)})
    return list(pairwise(bounds))


def _words(text: str, at: int) -> list[tuple[str, list[Range]]]:
    """Yield BERT's words of a text: their characters, each with its bytes in the text."""
    words: list[tuple[str, list[Range]]] = [("", [])]
    for char in text:
        place = (at, at + len(char.encode()))
        at = place[1]
        if char in "\0\ufffd" or (unicodedata.category(char)[0] == "C" and char not in "\t\n\r"):
            continue
        if char.isspace():
            words.append(("", []))
        elif char in string.punctuation or unicodedata.category(char)[0] == "P" or "\u4e00" <= char <= "\u9fff":
            words += [(char, [place]), ("", [])]
        else:
            words[-1] = (words[-1][0] + char, [*words[-1][1], place])
    return [word for word in words if word[0]]


def _visible_bytes() -> dict[str, int]:
    """Return GPT-2's characters for bytes."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


_BYTES = _visible_bytes()
