"""Tokenizes the segments of a chunk, finds the bytes that each token stands for, and assigns each token to a span.

A large chunk is tokenized by gigatoken if it is certified for the tokenizer; `tokenizers` then only tokenizes the
segments that gigatoken can get wrong.

A token belongs to the first trained span that it overlaps, else to the first span that it overlaps. So a token with at
least one trained byte is trained. A token with both trained and masked bytes straddles a boundary; these are counted.
If the lengths of a segment's tokens add up to its bytes (an exact segment), only the boundaries between spans are
looked up among the tokens. Else each token has its own byte range, and is assigned on its own.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.assets.prompts.segments import Segments
from tokenloom.assets.tokens.engines import Ids, Reference
from tokenloom.assets.tokens.gigatoken import GigatokenEncoder
from tokenloom.assets.tokens.vocabulary import TokenBytes, vocabulary_of
from tokenloom.errors import TokenizerError
from tokenloom.resources.store.actions import CertificateStore
from tokenloom.resources.tables.ragged import Ints, list_array, list_parts, offsets_of, row_of, text_parts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Flags = npt.NDArray[np.bool_]

WORTH_BYTES = 256 << 10
"""Smallest chunk, in bytes of text, for which loading gigatoken pays off."""


@dataclass(frozen=True)
class Encoded:
    """The tokens of a chunk's segments, flat.

    Args:
        ids: uint32 [tokens].
        offsets: int64 [segments + 1], the first token of each segment.
        bytes: the lengths of the tokens, valid within exact segments; a segment's first token can be one byte longer
            than the text it stands for.
        exact: bool [segments], whether the tokens partition the segment's bytes.
        places: int64 [tokens of the other segments, 2], start and end of each token in its segment, in bytes.
        engine: key of the certificate that the ids rely on, or "".
    """

    ids: Ids
    offsets: Ints
    bytes: TokenBytes
    exact: Flags
    places: Ints
    engine: str = ""


class ContentEncoder:
    """Tokenizes content: no post-processing, truncation or padding.

    Args:
        tokenizer: the content of tokenizer.json.
        control: the control tokens, also those that tokenizer.json does not mark as special.
        keep_control: whether the text of control tokens in content becomes control tokens; else it is plain text.
        certificates: the certificates of gigatoken; None disables gigatoken.
        worth_bytes: chunks with less text are tokenized by `tokenizers`.
    """

    def __init__(
        self,
        tokenizer: bytes,
        control: Collection[str],
        keep_control: bool,
        certificates: CertificateStore | None = None,
        worth_bytes: int = WORTH_BYTES,
    ):
        parsed = msgspec.json.decode(tokenizer)
        # tokenizers finds special tokens and others in different ways: control tokens must all be found in one way
        unmarked = [token for token in parsed["added_tokens"] if not token["special"] and token["content"] in control]
        for token in unmarked:
            token["special"] = True
        content = json.dumps(parsed) if unmarked else tokenizer.decode()
        self._parsed, self._content = parsed, content
        self._control, self._certificates, self._worth = sorted(control), certificates, worth_bytes
        self._strips = {token["content"]: (token["lstrip"], token["rstrip"]) for token in parsed["added_tokens"]}
        vocab = parsed["model"]["vocab"]
        ids = dict(vocab) if isinstance(vocab, dict) else {token: index for index, (token, _) in enumerate(vocab)}
        self._ids = ids | {token["content"]: token["id"] for token in parsed["added_tokens"]}
        self._keep = keep_control
        self._reference = Reference(content, keep_control)
        self._vocabulary = vocabulary_of(parsed)
        inner = {**parsed, "pre_tokenizer": json.loads(json.dumps(parsed.get("pre_tokenizer")))}
        varies = _never_prepend(inner["pre_tokenizer"])
        self._inner = Reference(json.dumps(inner), keep_control) if varies else self._reference
        self._lock = Lock()
        self._gigatoken: GigatokenEncoder | None = None
        self._recuts: dict[tuple[str, str], bool] = {}

    def id_of(self, token: str) -> int:
        """Return the id of a control token.

        Raises:
            TokenizerError: the tokenizer has no such token.
        """
        index = self._ids.get(token)
        if index is None:
            raise TokenizerError(
                f"the tokenizer has no token {token!r}; list it in tokenizer.special_tokens.additional"
            )
        return index

    @cached_property
    def vocab_size(self) -> int:
        """The highest id plus one, added tokens included."""
        return max(self._ids.values()) + 1

    @cached_property
    def known(self) -> Flags:
        """Bool [vocab_size]: which ids a token has."""
        known = np.zeros(self.vocab_size, bool)
        known[[*self._ids.values()]] = True
        return known

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer itself."""
        return self._reference.tokenizer

    def strips(self, token: str) -> tuple[bool, bool]:
        """Return whether a control token swallows white space on its left, and on its right."""
        return self._strips.get(token, (False, False))

    def recuts(self, text: str, following: str) -> bool:
        """Return whether the end of a text is tokenized differently if a character and a letter follow, other than by
        a token that holds both."""
        # any ASCII character is followed by the same cut as the letter alone, so one entry serves all
        if following.isascii() and not following.isspace():
            following = ""
        if (text, following) not in self._recuts:
            ids, (_, alone, _), places = self._inner.places(pa.array([text, f"{text}{following}a"]))
            straddles = (places[alone:, 0] < len(text)) & (places[alone:, 1] > len(text))
            same = np.array_equal(ids[alone : 2 * alone], ids[:alone])
            self._recuts[text, following] = not same and not straddles.any()
        return self._recuts[text, following]

    def encode(self, cut: Segments) -> Encoded:
        """Tokenize segments; a control segment is one token.

        Raises:
            TokenizerError: the tokenizer lacks a control token.
        """
        token_ids = np.array([self.id_of(token) for token in cut.tokens.dictionary.to_pylist()], np.uint32)
        control = token_ids[cut.tokens.indices.to_numpy()]
        offsets, ids, exact, engine = offsets_of(cut.control), control, cut.control, ""
        gigatoken = None
        if text_parts(cut.text)[0][-1] >= self._worth:
            self.load()
            gigatoken = self._gigatoken
        if gigatoken and not gigatoken.refused and (fast := gigatoken.encode(cut, control)) is not None:
            ids, offsets, lengths, exact, engine = *fast, gigatoken.key
            if exact.all():
                return Encoded(ids, offsets, lengths, exact, np.zeros((0, 2), np.int64), engine)
        missing = np.flatnonzero(~exact)
        leading = np.diff(cut.row, prepend=-1)[missing] != 0
        fresh, fresh_exact, places = self._tokenize(cut.text.take(pa.array(missing)), leading)
        index = np.arange(len(exact))
        # one take puts the segments that were tokenized again into their places
        index[missing] = len(exact) + np.arange(len(missing))
        offsets, values = list_parts(pa.concat_arrays([list_array(offsets, ids), fresh]).take(pa.array(index)))
        exact = exact.copy()
        exact[missing] = fresh_exact
        tokens = self._vocabulary.bytes_of(values) if self._vocabulary else TokenBytes(np.zeros(len(values), np.uint8))
        pairs = list_parts(places)[1].to_numpy().reshape(-1, 2)
        return Encoded(values.to_numpy(), offsets, tokens, exact, pairs, engine)

    def load(self) -> None:
        """Load gigatoken and its certificate, unless the tokenizer rules it out."""
        if self._certificates is None or self._vocabulary is None or self._inner is not self._reference:
            return
        with self._lock:
            if self._gigatoken is None:
                control = {token: self.id_of(token) for token in self._control}
                given = self._content, self._parsed, control, self._keep, self._vocabulary
                self._gigatoken = GigatokenEncoder(*given, self._reference, self._certificates)

    def _tokenize(self, texts: pa.Array, leading: Flags) -> tuple[pa.ListArray, Flags, pa.ListArray]:
        """Return the ids of texts, which texts are exact, and the places of the others' tokens, flat in pairs.

        Args:
            leading: bool [texts], whether the text is the first of its row: only there can a Metaspace tokenizer with
                `prepend_scheme: first` add a space.
        """
        if self._inner is self._reference:
            return self._tokenize_with(self._reference, texts)
        groups = [(self._reference, leading), (self._inner, ~leading)]
        parts = [self._tokenize_with(reference, texts.filter(pa.array(flags))) for reference, flags in groups]
        order = pa.array(np.argsort(np.concatenate([np.flatnonzero(flags) for _, flags in groups])))
        ids, places = (pa.concat_arrays([part[side] for part in parts]).take(order) for side in (0, 2))
        return ids, np.concatenate([part[1] for part in parts])[order.to_numpy()], places

    def _tokenize_with(self, reference: Reference, texts: pa.Array) -> tuple[pa.ListArray, Flags, pa.ListArray]:
        if self._vocabulary is None:
            ids, offsets, characters = reference.places(texts)
            exact = np.zeros(len(texts), bool)
            return list_array(offsets, ids), exact, list_array(2 * offsets, _in_bytes(characters, offsets, texts))
        ids, offsets = reference.ids(texts)
        exact = self._vocabulary.exact(pa.array(ids), offsets, texts)
        rest = texts.filter(pa.array(~exact))
        _, cuts, characters = reference.places(rest)
        counts = np.zeros(len(texts), np.int64)
        counts[~exact] = 2 * np.diff(cuts)
        return list_array(offsets, ids), exact, list_array(offsets_of(counts), _in_bytes(characters, cuts, rest))


def _in_bytes(characters: Ints, offsets: Ints, texts: pa.Array) -> Ints:
    """Convert positions of tokens in their texts, int64 [tokens, 2], from characters to bytes; flat int64."""
    bounds, data = text_parts(texts)
    # the first byte of each character; others continue it
    starts = np.flatnonzero((data & 0xC0) != 0x80)
    text = row_of(np.diff(offsets))[:, None]
    first = np.searchsorted(starts, bounds[:-1])
    return (np.append(starts, len(data))[first[text] + characters] - bounds[text]).reshape(-1)


def _never_prepend(pre_tokenizer: Any) -> bool:
    """Replace every `prepend_scheme: first` of Metaspace with `never`, in place; return whether there was one."""
    if not pre_tokenizer:
        return False
    if pre_tokenizer["type"] == "Sequence":
        return sum(_never_prepend(inner) for inner in pre_tokenizer["pretokenizers"]) > 0
    if pre_tokenizer["type"] != "Metaspace" or pre_tokenizer.get("prepend_scheme") != "first":
        return False
    pre_tokenizer["prepend_scheme"] = "never"
    return True


def count_span_tokens(cut: Segments, encoded: Encoded) -> tuple[Ints, int, Ints]:
    """Return the number of tokens of each span, int64 [spans], the number of tokens that straddle, and the indices of
    the spans of exact segments that end within a token."""
    spans, trained = cut.spans, cut.spans.weight > 0
    counts, straddles, ending = _count_in_exact(cut, encoded, trained)
    inexact = ~encoded.exact
    if not inexact.any():
        return counts, straddles, ending
    inexact_spans = np.flatnonzero(np.repeat(inexact, np.diff(np.append(cut.first, len(spans.end)))))
    base = cut.start[inexact][row_of(np.diff(encoded.offsets)[inexact])]
    start, end = (encoded.places + base[:, None]).T
    span_start, span_end = spans.start[inexact_spans], spans.end[inexact_spans]
    owner, more = assign_tokens(start, end, span_start, span_end, trained[inexact_spans])
    counts[inexact_spans] = np.bincount(owner, minlength=len(inexact_spans))
    return counts, straddles + more, ending


def _count_in_exact(cut: Segments, encoded: Encoded, trained: Flags) -> tuple[Ints, int, Ints]:
    """Return the result of `count_span_tokens` for exact segments; the counts of other segments' spans are wrong.

    Spans follow each other, so it is enough to know how many tokens belong to all spans up to each one (`up_to`). At
    the end of a segment these are all its tokens. At a boundary within a segment they are the tokens that end before
    it, and the token that contains it if that belongs to the span before the boundary.
    """
    offsets, count = encoded.offsets, len(trained)
    if not count:
        return np.zeros(0, np.int64), 0, np.zeros(0, np.int64)
    up_to = np.empty(count, np.int64)
    spans_in = np.diff(cut.first, append=count)
    up_to[cut.first + spans_in - 1] = offsets[1:]
    segment = row_of(spans_in - 1)
    inner = np.arange(len(segment)) + segment  # the spans that end within a segment: all but its last
    boundary = np.minimum(np.maximum(cut.spans.end[inner], cut.start[segment]), cut.end[segment])
    position = (encoded.bytes.before(offsets[1:]) - cut.end)[segment] + boundary  # among the bytes of all tokens
    reached, whole = encoded.bytes.reaching(position)
    at_start = boundary <= cut.start[segment]
    up_to[inner] = np.where(at_start, offsets[segment], reached - ~whole)
    token = reached - 1
    within = np.flatnonzero(~whole & ~at_start & encoded.exact[segment])  # boundaries within a token
    if not len(within):
        return np.diff(up_to, prepend=0), 0, within
    opens = np.diff(token[within], prepend=-1) != 0  # several boundaries can be within one token
    first = inner[within[opens]]
    final = inner[within[np.append(opens[1:], True)]] + 1
    owner = _first_trained(first, final, trained)
    # the token that contains the boundary is before it only if the span that it belongs to is
    up_to[inner[within]] += owner[np.cumsum(opens) - 1] <= inner[within]
    before = np.append(0, np.cumsum(trained))
    trained_spans = before[final + 1] - before[first]
    return np.diff(up_to, prepend=0), int(((trained_spans > 0) & (trained_spans <= final - first)).sum()), inner[within]


def _first_trained(first: Ints, final: Ints, trained: Flags) -> Ints:
    """Return the first trained span from `first` to `final` (inclusive), else `first`; int64, the shape of `first`."""
    count = len(trained)
    following = np.full(count + 1, count, np.int64)
    # for each span the next trained one, found from the end
    following[:-1] = np.minimum.accumulate(np.where(trained, np.arange(count), count)[::-1])[::-1]
    return np.where(following[first] <= final, following[first], first)


def assign_tokens(start: Ints, end: Ints, span_start: Ints, span_end: Ints, trained: Flags) -> tuple[Ints, int]:
    """Return the span of each token, int64 [tokens], and the number of tokens that straddle.

    Args:
        start, end: int64 [tokens], byte positions, ascending; tokens can overlap each other, or be empty.
        span_start, span_end: int64 [spans], ascending, without overlaps; they cover every token.
        trained: bool [spans].
    """
    if not len(start):
        return np.zeros(0, np.int64), 0
    count = len(span_end)
    first = np.minimum(np.searchsorted(span_end, start, side="right"), count - 1)
    final = np.minimum(np.searchsorted(span_start, end, side="left") - 1, count - 1)
    # a token over a border is trained as a whole if any byte of it is: the model must be able to generate the answer
    owner = _first_trained(first, np.maximum(first, final), trained)
    # bytes that are trained up to each span, so that those within a token are a difference of two sums
    before = np.append(0, np.cumsum((span_end - span_start) * trained))

    def trained_before(position: Ints) -> Ints:
        span = np.minimum(np.searchsorted(span_end, position, side="right"), count - 1)
        return before[span] + np.clip(position - span_start[span], 0, None) * trained[span]

    trained_bytes = trained_before(end) - trained_before(start)
    return owner, int(((trained_bytes > 0) & (trained_bytes < end - start)).sum())
