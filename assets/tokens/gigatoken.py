"""Tokenizes a whole chunk with gigatoken, and finds the segments where `tokenizers` can give other ids.

A sample of real text proves little, because the two libraries are built with different versions of the Unicode tables.
So every code point in the data is tested between letters, digits, spaces, line ends, punctuation, marks and itself,
with both engines. A code point that they tokenize differently is disputed. Each test runs with the dataset's tokenizer,
and with one that splits texts the same way but merges any two bytes of them, so that every split shows in the ids.

These are the segments with a disputed code point, those that the normalizer changes, and those that contain a control
token's text. The latter show in the result: the lengths of their tokens do not add up to the text.
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

from tokenloom.assets.prompts.segments import Segments
from tokenloom.assets.tokens.engines import Gigatoken, Ids, Reference
from tokenloom.assets.tokens.vocabulary import BYTE_OF, MARK, TokenBytes, Vocabulary, is_byte_level, normal_form
from tokenloom.errors import TokenizerError
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.store.actions import Certificate, CertificateStore, from_ranges, to_ranges
from tokenloom.resources.tables.ragged import Ints, list_array, list_parts, offsets_of, ranges, sum_rows, text_parts

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
        added = plain["added_tokens"]
        self.key = digest_json({"tokenizer": digest, "added": added, "versions": versions, "probes": PROBES})
        self._state = np.zeros(0x110000, np.uint8)
        self.refused = self._load()

    def _load(self) -> str:
        """Load what the store knows, and test ASCII if it knows nothing; return why gigatoken is refused, or ""."""
        if self._store.is_void(self.key):
            return "void"
        certificate = self._store.read(self.key)
        if not certificate.refused and not certificate.agreed:
            certificate = self._test_ascii()
            self._store.add(self.key, certificate)
        self._note(certificate)
        return certificate.refused

    def _test_ascii(self) -> Certificate:
        if reason := refusal(self._plain):
            return Certificate(refused=reason)
        try:
            tested = self._test(np.arange(128))
        except TokenizerError as error:
            return Certificate(refused=str(error).splitlines()[0])
        runs = [*runs_of("".join(sorted({*CHARACTERS} - {chr(point) for point in from_ranges(tested.disputed)})))]
        return Certificate(refused="they tokenize runs of ASCII differently") if self._differ(runs).any() else tested

    def disputed(self, points: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Return bool [points]: whether the engines tokenize the code point differently; new ones are tested first."""
        # without the lock, which nearly all chunks never need: states only ever become known
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
        joined = "\n".join(text for each in _forms(self._plain, array) for text in each.to_pylist())
        tested = [self._plain_engines if any(token in joined for token in self._lacking) else self._loaded()]
        if (revealed := revealing(self._plain, array)) is not None:
            tested.append(_engines(revealed))
        differ = np.zeros(len(texts), bool)
        for gigatoken, reference in tested:
            differ |= unequal(gigatoken.ids(array), reference.ids(array))
        return differ

    @cached_property
    def _plain_engines(self) -> Engines:
        return _engines(self._plain)


def _engines(parsed: dict[str, Any]) -> Engines:
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
        # the next Lyndon word: the last symbol that is not the highest is raised
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
    merges = [tuple(merge.split(" ", 1) if isinstance(merge, str) else merge) for merge in model["merges"]]
    if len(set(merges)) < len(merges):
        return "merges are listed twice"
    merged = [model["vocab"].get(left + right, -1) for left, right in merges]
    # where merges are in the order of their tokens' ids, two in a row that give one token are ambiguous
    if any(len([*same]) > 1 for _, same in groupby(merged)) and merged == sorted(merged):
        return "consecutive merges give the same token"
    spelled = {token.translate(BYTE_OF) if all(ord(c) in BYTE_OF for c in token) else token for token in model["vocab"]}
    return "several tokens have the same spelling" if len(spelled) < len(model["vocab"]) else ""


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
    # normalized text has byte pairs of its own, which must be merged too
    written = [text_parts(each)[1] for each in _forms(parsed, texts)]
    byte_pairs = np.unique(np.concatenate([data[:-1].astype(np.int64) << 8 | data[1:] for data in written]))
    left, right = byte_pairs >> 8, byte_pairs & 0xFF
    rank = np.where((right & 0xC0) == 0x80, 2, np.where((left | right) >= 0x80, 0, 1))
    character = {byte: chr(printed) for printed, byte in BYTE_OF.items()}
    order = np.argsort(rank, kind="stable")
    ordered = zip(left[order].tolist(), right[order].tolist(), strict=True)
    merges = [[character[one], character[other]] for one, other in ordered]
    tokens = [*(character[byte] for byte in range(256)), *map("".join, merges)]
    model = {**parsed["model"], "unk_token": None, "ignore_merges": False, "merges": merges}
    model["vocab"] = {token: index for index, token in enumerate(tokens)}
    return {**parsed, "model": model, "added_tokens": []}


SAMPLE, SAMPLE_BYTES, LONGEST_SAMPLE = 16, 4 << 10, 64 << 10
"""Number of segments of a chunk that are compared with `tokenizers`, and their largest size in bytes. If all segments
are larger, the shortest one is compared, up to `LONGEST_SAMPLE`."""

Tokenized = tuple[Ids, Ints, TokenBytes, npt.NDArray[np.bool_]]
"""ids, offsets, bytes and exact, as in `Encoded`."""


class GigatokenEncoder:
    """A gigatoken tokenizer with its certificate.

    Args:
        content: tokenizer.json, with control tokens marked as special.
        parsed: the same, parsed.
        control: the ids of the control tokens.
        keep_control: whether the text of control tokens in content becomes control tokens.
        vocabulary: the bytes that ids stand for.
        reference: the same tokenizer in `tokenizers`.
        certificates: the store's certificates.
    """

    def __init__(
        self,
        content: str,
        parsed: dict[str, Any],
        control: dict[str, int],
        keep_control: bool,
        vocabulary: Vocabulary,
        reference: Reference,
        certificates: CertificateStore,
    ):
        self._reference, self._form = reference, normal_form(parsed)
        added = parsed["added_tokens"]
        plain = [token for token in added if _is_plain(token, vocabulary.certain)]
        # a text that the normalizer makes can be an added token's, which gigatoken does not find
        hidden = (
            token["normalized"] and (self._form is None or (self._form and not token["content"].isascii()))
            for token in added
            if keep_control or not token["special"]
        )
        self.refused = "added tokens are matched in normalized text" if any(hidden) else ""
        if self.refused:
            return
        bare = {**parsed, "post_processor": None, "truncation": None, "padding": None, "added_tokens": plain}
        listed = {token["content"] for token in added}
        unlisted = [_special(token, index) for token, index in control.items() if token not in listed]
        self._content = json.dumps({**parsed, "added_tokens": [*added, *unlisted]}) if unlisted else content
        lacking = [token["content"] for token in [*added, *unlisted] if token not in plain]
        try:
            self._certificate = EngineCertificate(
                bare, digest_bytes(content.encode()), certificates, lambda: (self._engine, reference), lacking
            )
            self.refused = self._certificate.refused
            if not self.refused:
                _ = self._engine
        except (ImportError, TokenizerError) as error:
            self.refused = str(error)
        not_plain = [token["id"] for token in added if token not in plain]
        self._vocabulary = vocabulary.without([*not_plain, *control.values()])

    @cached_property
    def _engine(self) -> Gigatoken:
        return Gigatoken(self._content)

    @property
    def key(self) -> str:
        """The certificate's key."""
        return self._certificate.key

    def encode(self, cut: Segments, control: Ids) -> Tokenized | None:
        """Tokenize segments; the tokens of segments that are not exact must be ignored.

        Args:
            control: uint32 [control segments], their ids.

        Returns:
            the tokens, or None if gigatoken cannot be trusted with this chunk.
        """
        ids, offsets = self._engine.ids(cut.text)
        tokens = pa.array(ids)
        lengths = self._vocabulary.bytes_of(tokens)
        exact = self._vocabulary.adds_up(lengths, offsets, cut.text)
        exact &= ~self._doubtful(cut.text)
        if not self._vocabulary.certain:
            exact &= self._vocabulary.spelled(tokens, offsets, cut.text)
        at_control = np.flatnonzero(cut.control)
        # a control segment must have become its own single token
        exact[at_control] = np.diff(offsets)[at_control] == 1
        control_right = exact[at_control].all() and (ids[offsets[at_control]] == control).all()
        if not (control_right and self._sample_agrees(cut, exact, ids, offsets)):
            return None
        return ids, offsets, lengths, exact

    def _doubtful(self, texts: pa.Array) -> npt.NDArray[np.bool_]:
        """Return bool [texts]: whether the engines can tokenize the text differently."""
        bounds, data = text_parts(texts)
        doubtful = np.zeros(len(texts), bool)
        places, points = code_points(data)
        bad = [places[self._certificate.disputed(points) | (self._vocabulary.marked & (points == ord(MARK)))]]
        if self._certificate.disputes_ascii:
            ascii_disputed = np.append(self._certificate.disputed(np.arange(128)), np.zeros(128, bool))
            bad.append(np.flatnonzero(ascii_disputed[data]))
        doubtful[np.searchsorted(bounds, np.concatenate(bad), side="right") - 1] = True
        if self._form and len(places):
            doubtful |= ~np.asarray(pc.equal(pc.utf8_normalize(texts, self._form), texts))
        return doubtful

    def _sample_agrees(self, cut: Segments, exact: npt.NDArray[np.bool_], ids: Ids, offsets: Ints) -> bool:
        """Return whether `tokenizers` gives the same ids for a sample of the segments; if not, void the certificate."""
        lengths = cut.end - cut.start
        used = np.flatnonzero(exact & ~cut.control & (lengths > 0))
        limit = np.clip(lengths[used].min(initial=LONGEST_SAMPLE), SAMPLE_BYTES, LONGEST_SAMPLE)
        eligible = used[lengths[used] <= limit]
        if not len(eligible):
            return True
        # from the whole chunk, and the longest one, which has the most places to differ
        spread = eligible[np.linspace(0, len(eligible) - 1, min(SAMPLE, len(eligible))).astype(np.int64)]
        picked = pa.array(np.unique(np.append(spread, eligible[np.argmax(lengths[eligible])])))
        texts = cut.text.take(picked)
        cuts, values = list_parts(list_array(offsets, ids).take(picked))
        wrong = unequal((values.to_numpy(), cuts), self._reference.ids(texts))
        if wrong.any():
            self._certificate.void(f"tokenized differently: {texts.filter(pa.array(wrong))[0].as_py()[:200]!r}")
            self.refused = self._certificate.refused
        return not self._certificate.refused


def code_points(data: npt.NDArray[np.uint8]) -> tuple[Ints, npt.NDArray[np.int64]]:
    """Return the byte positions and the code points of the non-ASCII characters in UTF-8 data."""
    places = np.flatnonzero(data >= 0xC0)
    lead = data[places].astype(np.int64)
    # two bytes first; longer characters are corrected below
    points = (lead & 0x1F) << 6 | (data[places + 1] & 0x3F)
    longer = np.flatnonzero(lead >= 0xE0)
    points[longer] = (lead[longer] & 0x0F) << 12 | (points[longer] & 0x3F) << 6 | (data[places[longer] + 2] & 0x3F)
    longest = longer[lead[longer] >= 0xF0]
    points[longest] = (lead[longest] & 0x07) << 18 | (points[longest] & 0xFFF) << 6 | (data[places[longest] + 3] & 0x3F)
    return places, points


def _is_plain(token: dict[str, Any], certain: bool) -> bool:
    """Return whether both engines find an added token in the same way, wherever its text is."""
    flags = ("special", "single_word", "lstrip", "rstrip")
    return not any(token[flag] for flag in flags) and (certain or (not token["normalized"]))


def _special(content: str, index: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, "special": True, **flags}
