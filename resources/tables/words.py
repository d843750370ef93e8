"""Words of texts, folded, and hashes of runs of words: what rows have in common is found by n-grams.

Folding: compatibility decomposition (NFKD) and case folding, without accents. Letters, digits and vowel signs make
words; in scripts that are written without spaces, each code point is a word. A symbol of code or mathematics (`=`, `+`,
`€`) is a word by itself, so that `x == y` and `x != y` differ. All else separates words.
"""

from __future__ import annotations

import sys
import unicodedata
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.ragged import Ints, list_array, offsets_of, ranges, text_array, text_parts
from tokenloom.resources.tables.row_hash import Hashes, mix

Bytes = npt.NDArray[np.uint8]

VERSION = [1, unicodedata.unidata_version]
"""What folding depends on besides the text; part of keys."""

_OPERATORS = b"+*/=<>%^&|~#$@\\"
_ALONE = ("CJK ", "HIRAGANA", "KATAKANA", "THAI ", "LAO ", "MYANMAR ", "KHMER ")
"""Starts of the names of code points of scripts that are written without spaces between words."""
_INVISIBLE = frozenset([0x034F, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)])
"""Marks that show nothing: the grapheme joiner and variation selectors."""


def _folded(code: int) -> str:
    """Return the folded form of a code point: characters of words, an operator or a lone character between spaces, a
    separator, or nothing."""
    character = chr(code)
    if character in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029":
        return "\n"
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    return "".join(map(_part, plain))


def _part(part: str) -> str:
    kind = unicodedata.category(part)
    if _is_silent(part, kind):
        return ""
    if kind == "Nd":
        return str(unicodedata.decimal(part))
    if kind[0] in "LNM":
        return f" {part} " if unicodedata.name(part, "").startswith(_ALONE) else part
    return f" {part} " if part in _OPERATORS.decode() or (kind in ("Sm", "Sc") and not part.isascii()) else " "


def _is_silent(part: str, kind: str) -> bool:
    """Whether a code point neither counts nor separates: accents, points and joiners. Vowel signs, which have the
    combining class 0, are letters."""
    return kind in ("Cf", "Me") or (kind[0] == "M" and unicodedata.combining(part) != 0) or ord(part) in _INVISIBLE


class _Fold(dict[int, str]):
    """The folded forms of code points, computed when they are first asked for; for `str.translate`."""

    def __missing__(self, code: int) -> str:
        folded = self[code] = sys.intern(_folded(code))
        return folded


_FOLD = _Fold({0: "\0"})
"""NUL stays: it separates runs that are folded together."""
_FIRST_OPERATOR, _FIRST_LETTER = 0x21, 0x30
_CODES = {operator: _FIRST_OPERATOR + number for number, operator in enumerate(_OPERATORS)}


def _ascii_code(code: int) -> int:
    folded = ord(_folded(code).strip(" ") or " ")
    return _CODES.get(folded, folded)


_ASCII = bytes(map(_ascii_code, range(128))) + bytes(range(128, 256))
"""Folds the ASCII characters of UTF-8: to separators, then codes of the 15 operators, then digits and letters."""
_SHOWN = bytes.maketrans(bytes(_CODES.values()), _OPERATORS)

_PIECE = 1 << 16
"""Number of powers that are kept; those of later places are products of two."""
_BASE = 0x9E3779B97F4A7C15


def _powers(base: int, count: int) -> Hashes:
    """Return the powers of a number modulo 2^64, from 0, uint64 [count]."""
    factors = np.full(count, base % (1 << 64), np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)


_POWERS, _INVERSES = _powers(_BASE, _PIECE), _powers(pow(_BASE, -1, 1 << 64), _PIECE)


def _fold(texts: pa.Array) -> tuple[Ints, Bytes]:
    """Return texts without nulls, folded, as byte offsets [texts + 1] and bytes, in which words are between separators
    and operators."""
    offsets, data = text_parts(texts)
    if len(data) and data.max() >= 128:
        offsets, data = _fold_runs(offsets, data)
    return offsets, np.frombuffer(data.tobytes().translate(_ASCII), np.uint8)


def _fold_runs(offsets: Ints, data: Bytes) -> tuple[Ints, Bytes]:
    """Fold the runs of characters beyond ASCII in texts, each different run once."""
    beyond = data >= 128
    edge = np.ones(len(data) + 1, bool)
    np.not_equal(beyond[1:], beyond[:-1], out=edge[1:-1])
    inside = offsets[offsets < len(data)]
    edge[inside[beyond[inside]]] = True  # a run ends with its text
    cuts = np.flatnonzero(edge)
    is_run = beyond[cuts[:-1]]
    parts = text_array(cuts, data)
    runs = parts.filter(pa.array(is_run)).dictionary_encode()
    together = pc.binary_join(list_array(np.array([0, len(runs.dictionary)]), runs.dictionary), "\0")[0]
    folded = np.frombuffer(together.as_py().translate(_FOLD).encode(), np.uint8)
    between = np.flatnonzero(folded == 0)
    bounds = np.concatenate([[0], between - np.arange(len(between)), [len(folded) - len(between)]])
    order = np.arange(len(parts))
    order[is_run] = len(parts) + runs.indices.to_numpy()
    made = pa.concat_arrays([parts, text_array(bounds, folded[folded != 0])]).take(pa.array(order))
    places, data = text_parts(made)
    part = np.searchsorted(cuts, offsets, side="right") - 1
    return places[part] + offsets - cuts[part], data


@dataclass(frozen=True)
class Words:
    """The words of texts.

    The hash of a word is a polynomial of its bytes, and that of a run of words one of their hashes, modulo 2^64. Each
    is a difference of two sums over all bytes, or words, before a place, each times a power of the base by its place,
    divided by the power at the first (the hash of Karp and Rabin, 1987, from prefix sums).

    Attributes:
        offsets: int64 [texts + 1], the words of each text.
        folded: uint8 [bytes], the folded texts.
        starts, ends: int64 [words], bounds of each word in `folded`.
        sums: uint64 [words + 1], sums over the words before each.
        inverses: uint64 [words + 1], the inverse of the power at each.
    """

    offsets: Ints
    folded: Bytes
    starts: Ints
    ends: Ints
    sums: Hashes
    inverses: Hashes

    @classmethod
    def of(cls, texts: pa.Array) -> Words:
        """Return the words of texts without nulls."""
        texts_at, folded = _fold(texts)
        within, letter = folded >= _FIRST_OPERATOR, folded >= _FIRST_LETTER
        joins = np.zeros(len(folded) + 1, bool)  # whether a word goes on from the byte before to this one
        np.logical_and(letter[1:], letter[:-1], out=joins[1:-1])
        joins[texts_at] = False
        starts, ends = np.flatnonzero(within > joins[:-1]), np.flatnonzero(within > joins[1:]) + 1
        sums = _prefix_sums(folded)
        words = mix((sums[ends] - sums[starts]) * _inverses(starts, len(folded)))
        places = np.arange(len(words) + 1)
        return cls(
            np.searchsorted(starts, texts_at), folded, starts, ends, _prefix_sums(words), _inverses(places, len(words))
        )

    def __len__(self) -> int:
        return len(self.starts)

    def text_of(self, words: Ints) -> Ints:
        """Return the text of each word, int64 [words]."""
        return np.searchsorted(self.offsets, words, side="right") - 1

    def hashes(self, first: Ints, last: Ints) -> Hashes:
        """Return a hash of each run of words, uint64 [runs]; that of an empty one is 0.

        Args:
            first, last: int64 [runs], the first word, and the word after the last.
        """
        return mix((self.sums[last] - self.sums[first]) * self.inverses[first])

    def ngrams(self, size: int, bounds: Ints | None = None) -> tuple[Hashes, Ints]:
        """Return the n-grams that lie within one text: their hashes, uint64 [n-grams], and first words, int64.

        Args:
            bounds: int64 [runs + 1], instead of texts, runs of words that they lie within.
        """
        bounds = self.offsets if bounds is None else bounds
        lengths = np.diff(bounds)
        within = np.ones(len(self), bool)
        cut = np.minimum(lengths, size - 1)  # the last words of a text start no n-gram
        within[ranges(bounds[1:] - cut, cut)] = False
        first = np.flatnonzero(within)
        hashes = (self.sums[size:] - self.sums[:-size]) * self.inverses[: max(len(self) - size + 1, 0)]
        return mix(hashes[first]), first

    def lines(self) -> Ints:
        """Return the lines of all texts as bounds in words, int64 [lines + 1]; those without words are left out."""
        begins = np.zeros(len(self) + 1, bool)
        begins[np.searchsorted(self.starts, np.flatnonzero(self.folded == ord("\n")))] = True
        begins[self.offsets] = True
        return np.flatnonzero(begins)

    def joined(self, first: Ints, count: Ints) -> pa.Array:
        """Return runs of words as text, with spaces between words.

        Args:
            first, count: int64 [runs], the first word and the number of words.
        """
        words = ranges(first, count)
        lengths = self.ends[words] - self.starts[words]
        data = self.folded[ranges(self.starts[words], lengths)].tobytes().translate(_SHOWN)
        texts = text_array(offsets_of(lengths), np.frombuffer(data, np.uint8))
        return pc.binary_join(list_array(offsets_of(count), texts), " ")


def _prefix_sums(values: Bytes | Hashes) -> Hashes:
    """Return the sums of the values before each place, each times the power of the base at its place, uint64
    [values + 1]."""
    sums = np.zeros(len(values) + 1, np.uint64)
    products = sums[1:]
    products[:] = values
    for start in range(0, len(values), _PIECE):
        piece = products[start : start + _PIECE]
        piece *= _POWERS[: len(piece)]
        if start:
            piece *= np.uint64(pow(_BASE, start, 1 << 64))
    np.cumsum(products, out=products)
    return sums


def _inverses(places: Ints, last: int) -> Hashes:
    """Return the inverses of the powers of the base at some places up to the last, uint64 [places]."""
    if last < _PIECE:
        return _INVERSES[places]
    return (
        _INVERSES[places & (_PIECE - 1)] * _powers(pow(_BASE, -_PIECE, 1 << 64), last // _PIECE + 1)[places // _PIECE]
    )


class HashSet:
    """Hashes that are looked up: sorted, and marked by their top bits, which answers most questions without a search.

    Args:
        values: uint64 [values], without duplicates, ascending.
    """

    def __init__(self, values: Hashes):
        self.values = values
        bits = min(max(len(values).bit_length() + 4, 10), 26)
        self._shift = np.uint64(64 - bits)
        self._marked = np.zeros(1 << bits, bool)
        self._marked[values >> self._shift] = True

    def find(self, hashes: Hashes) -> tuple[Ints, Ints]:
        """Return which hashes are among the values, int64 [found], ascending, and the place of each, int64 [found]."""
        likely = np.flatnonzero(self._marked[hashes >> self._shift])
        place = np.searchsorted(self.values, hashes[likely])
        place[place == len(self.values)] = 0
        equal = self.values[place] == hashes[likely] if len(self.values) else np.zeros(0, bool)
        return likely[equal], place[equal]
