"""Certificates: where gigatoken and `tokenizers` agree, tested code point by code point.

A sample of real text proves little, because the two libraries are built with different versions of the Unicode tables.
So every code point in the data is tested between letters, digits, spaces, line ends, punctuation, marks and itself,
with both engines. A code point that they tokenize differently is disputed. Each test runs with the dataset's tokenizer,
and with one that splits texts the same way but merges any two bytes of them, so that every split shows in the ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from importlib import metadata
from itertools import groupby, product
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.tokens.engines import Gigatoken, Reference
from tokenloom.assets.tokens.vocabulary import BYTE_OF, is_byte_level, normal_form
from tokenloom.errors import TokenizerError
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.certificates import Certificate, CertificateStore, from_ranges, to_ranges
from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges, sum_rows, text_parts

PROBES = 1
"""Version of the tests; raise it when they change, so that old certificates become invalid."""

NEIGHBOURS = "Aa1 .\n'"
"""One character of each common kind; all runs of three of these and a code point are tested."""

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
"""More texts around a code point: white space, contractions, marks, letters of other kinds, starts and ends."""

CHARACTERS = "aSs1 \t\n\r.'_/<é"
"""One character of each kind that a pattern distinguishes; all their runs are tested at once."""

RUN = 4
"""Length of the longest runs."""

Engines = tuple[Gigatoken, Reference]

_UNKNOWN, _AGREED, _DISPUTED = 0, 1, 2
_BATCH = 4096


class EngineCertificate:
    """The code points for which gigatoken and `tokenizers` agree with one tokenizer.

    Args:
        plain: the parsed tokenizer.json, without the added tokens that the caller handles itself.
        digest: digest of the original tokenizer.json.
        store: the store's certificates, read and extended here.
        loaded: returns both engines with the original tokenizer.json, to test texts without the added tokens that
            `plain` lacks. Default: `plain` is loaded for all texts.
        lacking: these added tokens.
    """

    def __init__(
        self,
        plain: dict[str, Any],
        digest: str,
        store: CertificateStore,
        loaded: Callable[[], Engines] | None = None,
        lacking: Sequence[str] = (),
    ):
        self._plain, self._store, self._lock = plain, store, Lock()
        self._loaded, self._lacking = loaded or (lambda: self._plain_engines), lacking
        versions = {name: metadata.version(name) for name in ("gigatoken", "tokenizers")}
        self.key = digest_json(
            {"tokenizer": digest, "added": plain["added_tokens"], "versions": versions, "probes": PROBES}
        )
        self._state = np.zeros(0x110000, np.uint8)
        self.refused = self._load()

    def _load(self) -> str:
        """Load what the store knows, and test ASCII if it knows nothing; return why gigatoken is refused, or ""."""
        if self._store.is_void(self.key):
            return "void"
        known = self._store.read(self.key)
        if not known.refused and not known.agreed:
            known = self._test_ascii()
            self._store.add(self.key, known)
        self._note(known)
        return known.refused

    def _test_ascii(self) -> Certificate:
        """Test ASCII, and runs of its kinds of characters."""
        if reason := refusal(self._plain):
            return Certificate(refused=reason)
        try:
            tested = self._test(np.arange(128))
        except TokenizerError as error:
            return Certificate(refused=str(error).splitlines()[0])
        disputed = {chr(point) for point in from_ranges(tested.disputed)}
        runs = [*runs_of("".join(sorted({*CHARACTERS} - disputed)))]
        return Certificate(refused="they tokenize runs of ASCII differently") if self._differ(runs).any() else tested

    def disputed(self, points: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Return bool [points]: whether the engines tokenize the code point differently; new ones are tested first."""
        if (self._state[points] == _UNKNOWN).any():
            with self._lock:
                new = np.unique(points[self._state[points] == _UNKNOWN]).astype(np.int64)
                if len(new):
                    tested = self._test(new)
                    self._store.add(self.key, tested)
                    self._note(tested)
        return self._state[points] == _DISPUTED

    @property
    def disputes_ascii(self) -> bool:
        """Whether some ASCII characters are disputed."""
        return bool((self._state[:128] == _DISPUTED).any())

    def void(self, reason: str) -> None:
        """Withdraw the certificate, so that everything that relied on it is computed again."""
        self._store.void(self.key, reason)
        self.refused = "void"

    def _note(self, certificate: Certificate) -> None:
        self._state[from_ranges(certificate.agreed)] = _AGREED
        self._state[from_ranges(certificate.disputed)] = _DISPUTED

    def _test(self, points: Ints) -> Certificate:
        """Tokenize each code point in all contexts with both engines."""
        bad = np.zeros(len(points), bool)
        contexts = (cyclic(f"{NEIGHBOURS}\0", 3).replace("\0", "{0}"), *CONTEXTS)
        for start in range(0, len(points), _BATCH):
            batch = points[start : start + _BATCH]
            texts = [context.format(chr(point)) for point in batch for context in contexts]
            bad[start : start + _BATCH] = self._differ(texts).reshape(len(batch), -1).any(axis=1)
        return Certificate(to_ranges(points[~bad]), to_ranges(points[bad]))

    def _differ(self, texts: list[str]) -> npt.NDArray[np.bool_]:
        """Return bool [texts]: whether the engines tokenize the text differently."""
        array = pa.array(texts, pa.string())
        tested = [self._plain_engines if self._contains_lacking(array) else self._loaded()]
        if (revealed := revealing(self._plain, array)) is not None:
            tested.append(_engines(revealed))
        differ = np.zeros(len(texts), bool)
        for gigatoken, reference in tested:
            differ |= unequal(gigatoken.ids(array), reference.ids(array))
        return differ

    def _contains_lacking(self, texts: pa.Array) -> bool:
        """Return whether a text, normalized or not, contains an added token that `plain` lacks."""
        joined = "\n".join(text for each in _forms(self._plain, texts) for text in each.to_pylist())
        return any(token in joined for token in self._lacking)

    @cached_property
    def _plain_engines(self) -> Engines:
        return _engines(self._plain)


def _engines(parsed: dict[str, Any]) -> Engines:
    """Return both engines with a tokenizer.json."""
    content = json.dumps(parsed)
    return Gigatoken(content), Reference(content, keep_control=True)


def unequal(one: tuple[npt.NDArray[Any], Ints], other: tuple[npt.NDArray[Any], Ints]) -> npt.NDArray[np.bool_]:
    """Return bool [texts]: whether two lists of ids, each flat with offsets, differ."""
    (ids, offsets), (other_ids, other_offsets) = one, other
    counts = np.diff(offsets)
    different = counts != np.diff(other_offsets)
    counts = np.where(different, 0, counts)
    wrong = ids[ranges(offsets[:-1], counts)] != other_ids[ranges(other_offsets[:-1], counts)]
    return different | (sum_rows(wrong, offsets_of(counts)) > 0)


def runs_of(characters: str) -> Iterator[str]:
    """Yield one text with all runs of RUN characters, and each shorter run as a separate text."""
    yield cyclic(characters, RUN)
    for length in range(1, RUN):
        yield from map("".join, product(characters, repeat=length))


def cyclic(characters: str, length: int) -> str:
    """Return a shortest text with every run of `length` characters: a de Bruijn sequence, built from Lyndon words."""
    size, word, sequence = len(characters), [-1], []
    while word:
        word[-1] += 1
        if length % len(word) == 0:
            sequence += word
        word = (word * length)[:length]
        while word and word[-1] == size - 1:
            word.pop()
    return "".join(characters[index] for index in sequence + sequence[: length - 1])


def refusal(parsed: dict[str, Any]) -> str:
    """Return the part of tokenizer.json that gigatoken would ignore, as the reason not to use it, or ""."""
    model = parsed["model"]
    if model["type"] != "BPE":
        return f"the model is {model['type']}"
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            return f"the model has {name}"
    if not (model.get("byte_fallback") or _splits_alike(parsed.get("pre_tokenizer"))):
        return "the pre-tokenizer is not supported"
    return _ambiguity(model)


def _splits_alike(pre_tokenizer: Any) -> bool:
    """Return whether a pre-tokenizer is ByteLevel with its own pattern, or patterns followed by ByteLevel without."""
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


def _ambiguity(model: dict[str, Any]) -> str:
    """Return why the order of merges, or the bytes of ids, are ambiguous, or ""."""
    merges = [tuple(merge.split(" ", 1) if isinstance(merge, str) else merge) for merge in model["merges"]]
    if len(set(merges)) < len(merges):
        return "merges are listed twice"
    merged = [model["vocab"].get(left + right, -1) for left, right in merges]
    if any(len([*same]) > 1 for _, same in groupby(merged)) and merged == sorted(merged):
        return "consecutive merges give the same token"
    spelled = {token.translate(BYTE_OF) if all(ord(c) in BYTE_OF for c in token) else token for token in model["vocab"]}
    return "several tokens have the same spelling" if len(spelled) < len(model["vocab"]) else ""


def _forms(parsed: dict[str, Any], texts: pa.Array) -> list[pa.Array]:
    """Return texts as they are and, if the tokenizer normalizes, normalized."""
    form = normal_form(parsed)
    return [texts, pc.utf8_normalize(texts, form)] if form else [texts]


def revealing(parsed: dict[str, Any], texts: pa.Array) -> dict[str, Any] | None:
    """Return a tokenizer that normalizes and splits texts like `parsed`, and whose ids show every split.

    It merges any two bytes that follow each other in the texts, those at the boundary of two characters first. None if
    `parsed` does not split texts.
    """
    if not is_byte_level(parsed.get("pre_tokenizer")):
        return None
    written = [text_parts(each)[1] for each in _forms(parsed, texts)]
    found = np.unique(np.concatenate([data[:-1].astype(np.int64) << 8 | data[1:] for data in written]))
    left, right = found >> 8, found & 0xFF
    rank = np.where((right & 0xC0) == 0x80, 2, np.where((left | right) >= 0x80, 0, 1))
    character = {byte: chr(printed) for printed, byte in BYTE_OF.items()}
    order = np.argsort(rank, kind="stable")
    merges = [
        [character[one], character[other]]
        for one, other in zip(left[order].tolist(), right[order].tolist(), strict=True)
    ]
    tokens = [*(character[byte] for byte in range(256)), *map("".join, merges)]
    model = {**parsed["model"], "unk_token": None, "ignore_merges": False, "merges": merges}
    model["vocab"] = {token: index for index, token in enumerate(tokens)}
    return {**parsed, "model": model, "added_tokens": []}
