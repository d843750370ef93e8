"""Where gigatoken and `tokenizers` agree, found out code point by code point.

A sample of real text proves little: the tables of Unicode that the two are built with differ in code points that are
new. So every code point that the data holds is tried between letters, digits, spaces, line ends, punctuation, marks
and itself, through both engines; what they read differently is disputed. They are tried with the tokenizer at hand,
and with one that cuts texts the same way but merges any two bytes, so that every cut shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from itertools import groupby, product
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.assets.tokens.engines import Gigatoken, Reference
from tokenloom.assets.tokens.vocabulary import BYTE_OF, is_byte_level
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.certificates import Certificate, CertificateStore, from_ranges, to_ranges
from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges, sum_rows

PROBES = 1
"""Version of what is tried: bumped with it, so that old certificates no longer count."""

NEIGHBOURS = "Aa1 .\n'"
"""One character of each common kind: all runs of three of these and a code point are tried."""

CONTEXTS = (
    "a\r\n{0}\r\n{0}\n\n{0}a\t{0}\ta\u00a0{0}\u00a0a\u3000{0}a",
    "'{0}e 'l{0} 'v{0} 'r{0} 's{0}",
    "e{0}\u0301 e\u0301{0} \u0301{0}\u0323 \u0323{0}\u0301 {0}\u0301\u0323 \u05b0{0}\u0591",
    "\u4e2d{0}\u4e2d{0}\u3042 \u01c5{0}\u01c5 \u02b0{0}\u02b0 \u0967{0}\u0967 \U0001f600{0}\u200d{0}\U0001f600",
    "\u1100{0}\u11a8 \u1100\u1161{0} \uac00{0} {0}\u1161\u11a8",
    "{0}",
    "{0}{0}",
    " {0}",
    "{0} ",
    "{0}a",
    "a{0}",
    "\n{0}",
    "{0}\n",
)
"""Further texts around a code point: white space, contractions, marks, letters of other kinds, begins and ends."""

CHARACTERS = "aSs1 \t\n\r.'_/<é"
"""One of each kind that a pattern tells apart; texts of all their runs are tried at once."""

RUN = 4

_UNKNOWN, _AGREED, _DISPUTED = 0, 1, 2
_BATCH = 4096


class EngineCertificate:
    """What is known of gigatoken's reading of one tokenizer.

    Args:
        plain: tokenizer.json as gigatoken is given it, without tokens that are looked for in texts by other means.
        digest: of the tokenizer.json that it was made from.
        store: where the knowledge is kept.
    """

    def __init__(self, plain: dict[str, Any], digest: str, store: CertificateStore):
        self._plain, self._store, self._lock = plain, store, Lock()
        versions = {name: metadata.version(name) for name in ("gigatoken", "tokenizers")}
        self.key = digest_json(
            {"tokenizer": digest, "added": plain["added_tokens"], "versions": versions, "probes": PROBES}
        )
        self._state = np.zeros(0x110000, np.uint8)
        self._pairs: list[tuple[Gigatoken, Reference]] = []
        self.refused = self._begin()

    def _begin(self) -> str:
        if self._store.is_void(self.key):
            return "void"
        known = self._store.read(self.key)
        if not known.refused and not known.agreed:
            known = self._first()
            self._store.add(self.key, known)
        self._note(known)
        return known.refused

    def _first(self) -> Certificate:
        """ASCII, and the runs of its kinds."""
        if reason := refusal(self._plain):
            return Certificate(refused=reason)
        try:
            found = self._try(np.arange(128))
        except RuntimeError as error:
            return Certificate(refused=str(error).splitlines()[0])
        disputed = {chr(point) for point in from_ranges(found.disputed)}
        runs = [*runs_of("".join(sorted({*CHARACTERS} - disputed)))]
        return Certificate(refused="they read runs of ASCII differently") if self._differ(runs).any() else found

    def disputed(self, points: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """bool [points]: which code points the engines read differently; new ones are tried first."""
        with self._lock:
            new = np.unique(points[self._state[points] == _UNKNOWN]).astype(np.int64)
            if len(new):
                found = self._try(new)
                self._store.add(self.key, found)
                self._note(found)
        return self._state[points] == _DISPUTED

    @property
    def disputes_ascii(self) -> bool:
        """Whether there are disputed code points in ASCII."""
        return bool((self._state[:128] == _DISPUTED).any())

    def void(self, reason: str) -> None:
        """Withdraw the certificate: what was made on the strength of it is made again."""
        self._store.void(self.key, reason)
        self.refused = "void"

    def _note(self, found: Certificate) -> None:
        self._state[from_ranges(found.agreed)] = _AGREED
        self._state[from_ranges(found.disputed)] = _DISPUTED

    def _try(self, points: Ints) -> Certificate:
        bad = np.zeros(len(points), bool)
        contexts = (cyclic(f"{NEIGHBOURS}\0", 3).replace("\0", "{0}"), *CONTEXTS)
        for begin in range(0, len(points), _BATCH):
            batch = points[begin : begin + _BATCH]
            texts = [context.format(chr(point)) for point in batch for context in contexts]
            bad[begin : begin + _BATCH] = self._differ(texts).reshape(len(batch), -1).any(axis=1)
        return Certificate(to_ranges(points[~bad]), to_ranges(points[bad]))

    def _differ(self, texts: list[str]) -> npt.NDArray[np.bool_]:
        """bool [texts]: which of them the engines read differently."""
        if not self._pairs:
            contents = [json.dumps(tokenizer) for tokenizer in (self._plain, revealing(self._plain)) if tokenizer]
            self._pairs = [(Gigatoken(content), Reference(content, keep_control=True)) for content in contents]
        array = pa.array(texts, pa.string())
        differ = np.zeros(len(texts), bool)
        for fast, right in self._pairs:
            differ |= unequal(fast.ids(array), right.ids(array))
        return differ


def unequal(one: tuple[npt.NDArray[Any], Ints], other: tuple[npt.NDArray[Any], Ints]) -> npt.NDArray[np.bool_]:
    """bool [texts]: where two lists of ids, each flat with offsets, are not the same."""
    (ids, offsets), (found, places) = one, other
    counts = np.diff(offsets)
    different = counts != np.diff(places)
    counts = np.where(different, 0, counts)
    wrong = ids[ranges(offsets[:-1], counts)] != found[ranges(places[:-1], counts)]
    return different | (sum_rows(wrong, offsets_of(counts)) > 0)


def runs_of(characters: str) -> Iterator[str]:
    """Texts that hold all runs of RUN characters, within one text and as whole short texts."""
    yield cyclic(characters, RUN)
    for length in range(1, RUN):
        yield from map("".join, product(characters, repeat=length))


def cyclic(characters: str, length: int) -> str:
    """A shortest text that holds each run of `length` characters: a de Bruijn sequence, from its Lyndon words."""
    size, word, found = len(characters), [-1], []
    while word:
        word[-1] += 1
        if length % len(word) == 0:
            found += word
        word = (word * length)[:length]
        while word and word[-1] == size - 1:
            word.pop()
    return "".join(characters[place] for place in found + found[: length - 1])


def refusal(parsed: dict[str, Any]) -> str:
    """Why gigatoken must not be used: what it would read over in tokenizer.json, or ""."""
    model = parsed["model"]
    if model["type"] != "BPE":
        return f"the model is {model['type']}"
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            return f"the model has {name}"
    if not (model.get("byte_fallback") or _cuts_alike(parsed.get("pre_tokenizer"))):
        return "the pre-tokenizer is of another kind"
    return _ambiguous(model)


def _cuts_alike(pre_tokenizer: Any) -> bool:
    """Whether a pre-tokenizer is ByteLevel with its own pattern, or patterns and then ByteLevel without."""
    if not is_byte_level(pre_tokenizer):
        return False
    if pre_tokenizer["type"] == "ByteLevel":
        return pre_tokenizer.get("use_regex", True)
    *splits, last = pre_tokenizer["pretokenizers"]
    plain = last["type"] == "ByteLevel" and not last.get("use_regex", True)
    return plain and all(
        step["type"] == "Split" and "Regex" in step["pattern"] and step["behavior"] == "Isolated" and not step["invert"]
        for step in splits
    )


def _ambiguous(model: dict[str, Any]) -> str:
    """Why the order of merges, or what ids stand for, may be read in two ways, or ""."""
    merges = [tuple(merge.split(" ", 1) if isinstance(merge, str) else merge) for merge in model["merges"]]
    if len(set(merges)) < len(merges):
        return "merges are listed twice"
    made = [model["vocab"].get(left + right, -1) for left, right in merges]
    if any(len([*same]) > 1 for _, same in groupby(made)) and made == sorted(made):
        return "merges that make the same token follow each other"
    spelled = {token.translate(BYTE_OF) if all(ord(c) in BYTE_OF for c in token) else token for token in model["vocab"]}
    return "tokens are spelled alike" if len(spelled) < len(model["vocab"]) else ""


def revealing(parsed: dict[str, Any]) -> dict[str, Any] | None:
    """A tokenizer that normalizes and cuts texts as another one does, and whose ids show where: it merges any two
    bytes, first those at the border of two characters. None where texts are not cut."""
    if not is_byte_level(parsed.get("pre_tokenizer")):
        return None
    character = {byte: chr(printed) for printed, byte in BYTE_OF.items()}

    def rank(pair: tuple[int, ...]) -> int:
        left, right = pair
        if 0x80 <= right < 0xC0:
            return 2
        return 0 if left >= 0x80 or right >= 0x80 else 1

    pairs = sorted(product(range(256), repeat=2), key=rank)
    merges = [[character[left], character[right]] for left, right in pairs]
    tokens = [*(character[byte] for byte in range(256)), *map("".join, merges)]
    model = {**parsed["model"], "unk_token": None, "ignore_merges": False, "merges": merges}
    model["vocab"] = {token: index for index, token in enumerate(tokens)}
    return {**parsed, "model": model, "added_tokens": []}
