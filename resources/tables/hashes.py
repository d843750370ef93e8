"""Hashes of rows by their content, which decide chunk boundaries and validation splits and count distinct values; and
words of texts, folded, with hashes of runs of them: what rows have in common is found by n-grams.

Folding: compatibility decomposition (NFKD) and case folding, without accents. Letters, digits and vowel signs make
words; in scripts that are written without spaces, each code point is a word. A symbol of code or mathematics (`=`, `+`,
`€`) is a word by itself, so that `x == y` and `x != y` differ. All else separates words.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from tokenloom.resources.tables.json_text import is_json, json_texts
from tokenloom.resources.tables.json_values import FLOAT, TEXT, kinds_of, typed
from tokenloom.resources.tables.ragged import Ints, list_array, offsets_of, one_array, ranges, text_array, text_parts

Hashes = npt.NDArray[np.uint64]

_LONG_RECORD = 1 << 22
"""Bytes beyond which a record has another hash function, which needs no memory."""
_GROUP_BYTES = 1 << 18
"""Bytes that are hashed at a time, so that the arrays stay in the processor's cache."""
_MANY_WORDS = 1 << 16
"""Words of 8 bytes up to which the products with their numbers are kept: most groups have no more."""
_FEW_ROWS = 64
"""Rows up to which the texts of all columns are hashed together: a call per column takes longer than the hashing."""
_MANY_NUMBERS = 1 << 12
"""Integers from which on it pays off to look for equal ones."""
_EMPTY_RECORD = np.uint64(0x7C2FE70AB6585B7A)
"""The hash of a record without bytes, as `_hash_short` computes it."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)


def hash_records(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> Hashes:
    """Return a hash of each record's bytes, uint64 [records]."""
    lengths = ends - starts
    if lengths.sum() <= _GROUP_BYTES and lengths.all():  # one group, as in tables of few rows and many columns
        return _hash_short(data, starts, lengths)
    hashes = np.full(len(lengths), _EMPTY_RECORD)
    for record in np.flatnonzero(lengths > _LONG_RECORD):
        digest = blake3(data[starts[record] : ends[record]].data).digest(8)
        hashes[record] = np.frombuffer(digest, "<u8")[0]
    short = np.flatnonzero((lengths > 0) & (lengths <= _LONG_RECORD))
    group = np.cumsum(lengths[short]) // _GROUP_BYTES
    for start, end in pairwise([0, *(np.flatnonzero(np.diff(group)) + 1), len(short)]):
        members = short[start:end]
        hashes[members] = _hash_short(data, starts[members], lengths[members])
    return hashes


def _hash_short(data: npt.NDArray[np.uint8], starts: Ints, lengths: Ints) -> Hashes:
    """Hash records as the sum of their 8-byte words, each mixed with its position."""
    if not len(starts):
        return np.zeros(0, np.uint64)
    if (starts + lengths).max() + 8 > len(data):  # a word can reach beyond the end
        data, starts = np.concatenate([data[starts.min() :], np.zeros(8, np.uint8)]), starts - starts.min()
    counts = np.maximum((lengths + 7) >> 3, 1)
    first = np.cumsum(counts) - counts
    bytes_before, products = _of_words(int(counts.sum()))
    unaligned = np.ndarray((len(data) - 7,), "<u8", data.data, strides=(1,))
    places = np.repeat(starts - (first << 3), counts)
    places += bytes_before
    words = unaligned[places]
    tail = lengths - ((counts - 1) << 3)
    # the last word of a record has bytes of the next one: they are cleared
    beyond = np.where(tail < 8, np.uint64(2**64 - 1) << (np.minimum(tail, 7) << 3).astype(np.uint64), np.uint64(0))
    words[first + counts - 1] &= ~beyond
    # The position within the record, plus 1, times the multiplier: the product wraps around as the difference does.
    positions = np.repeat((1 - first).view(np.uint64) * _MULTIPLIER, counts)
    positions += products
    words ^= positions
    return mix(np.add.reduceat(mix(words), first) ^ lengths.astype(np.uint64))


def _of_words(count: int) -> tuple[Ints, Hashes]:
    """Return 8 × n and n × `_MULTIPLIER` for each n below a count, int64 and uint64 [count]."""
    if count > _MANY_WORDS:
        word = np.arange(count, dtype=np.int64)
        return word << 3, word.view(np.uint64) * _MULTIPLIER
    eights, products = _of_few_words()
    return eights[:count], products[:count]


@cache
def _of_few_words() -> tuple[Ints, Hashes]:
    """Return the same for `_MANY_WORDS`."""
    word = np.arange(_MANY_WORDS, dtype=np.int64)
    return word << 3, word.view(np.uint64) * _MULTIPLIER


def hash_rows(table: pa.Table) -> tuple[Hashes, Ints]:
    """Return a hash of each row's content, uint64 [rows], and its size in bytes, int64 [rows].

    Neither the order of columns nor columns that are null in a row affect its hash.
    """
    columns = [one_array(column) for column in table.columns]
    hashes, sizes = _hash_fields(table.column_names, columns, table.num_rows)
    return hashes, np.maximum(sizes, 1)


def _hash_fields(names: Sequence[str], fields: Sequence[pa.Array], rows: int) -> tuple[Hashes, Ints]:
    hashes, sizes = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
    for name, array, (value_hashes, size) in zip(names, fields, _hash_each(fields, rows), strict=True):
        name_hash = np.frombuffer(blake3(name.encode()).digest(8), "<u8")[0]
        valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), bool)
        # a sum does not depend on the order of columns, and a null adds nothing
        hashes += np.where(valid, mix(value_hashes ^ name_hash), np.uint64(0))
        sizes += size
    return mix(hashes), sizes


def _hash_each(arrays: Sequence[pa.Array], rows: int) -> Iterator[tuple[Hashes, Ints]]:
    """Yield `hash_array` of each array. Texts of few rows are hashed together."""
    texts = [array for array in arrays if pa.types.is_string(array.type)] if rows <= _FEW_ROWS else []
    together = len(texts) > 1 and sum(array.nbytes for array in texts) <= _GROUP_BYTES
    hashes, sizes = hash_array(pa.concat_arrays(texts)) if together else (np.zeros(0, np.uint64), np.zeros(0, np.int64))
    start = 0
    for array in arrays:
        if together and pa.types.is_string(array.type):
            yield hashes[start : start + rows], sizes[start : start + rows]
            start += rows
        else:
            yield hash_array(array)


def hash_array(array: pa.Array) -> tuple[Hashes, Ints]:
    """Return a hash of each value's content, uint64 [rows], and its size in bytes, int64 [rows].

    A null hashes like an empty value.
    """
    kind = array.type
    if is_json(kind):
        return hash_array(_as_if_typed(json_texts(array)))
    if isinstance(array, pa.ExtensionArray):
        return hash_array(array.storage)
    if pa.types.is_dictionary(kind):
        return hash_array(array.dictionary_decode())
    if str(kind) in ("string", "binary", "large_string", "large_binary"):
        bounds, values = text_parts(array)
        return hash_records(values, bounds[:-1], bounds[1:]), np.diff(bounds)
    if pa.types.is_struct(kind):
        return _hash_fields(kind.names, array.flatten(), len(array))
    if pa.types.is_fixed_size_list(kind):
        return hash_array(array.cast(pa.list_(kind.value_type)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _hash_lists(array)
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.uint64), np.zeros(len(array), np.int64)
    if pa.types.is_integer(kind) and len(array) > _MANY_NUMBERS and not array.null_count:
        coded = array.dictionary_encode()  # token ids and masks are few numbers: their texts are made once
        if 2 * len(coded.dictionary) < len(array):
            hashes, sizes = hash_array(coded.dictionary.cast(pa.string()))
            indices = coded.indices.to_numpy()
            return hashes[indices], sizes[indices]
    if pa.types.is_timestamp(kind):
        return hash_array(array.cast(pa.int64()))  # a cast to text needs the time zone database
    if (pa.types.is_primitive(kind) and not pa.types.is_interval(kind)) or pa.types.is_decimal(kind):
        return hash_array(array.cast(pa.string()).fill_null(""))
    return hash_array(pa.array([repr(value) for value in array.to_pylist()], pa.string()))  # rare types, such as maps


def _as_if_typed(texts: pa.Array) -> pa.Array:
    """Return JSON texts so that scalars hash like those of typed columns."""
    kinds = kinds_of(texts)
    for kind in (TEXT, FLOAT):
        rows = kinds == kind
        values = typed(texts.filter(pa.array(rows)))
        if rows.any() and not is_json(values.type):
            # `1.0` and `1.00`, or two ways to escape a text, are equal values
            texts = pc.replace_with_mask(texts, pa.array(rows), values.cast(pa.string()))
    return texts


def _hash_lists(array: pa.Array) -> tuple[Hashes, Ints]:
    lengths = np.asarray(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    item_hashes, item_sizes = hash_array(array.flatten())
    position = np.arange(len(item_hashes), dtype=np.int64) - np.repeat(offsets[:-1], lengths)
    mixed = mix(item_hashes ^ mix(position.astype(np.uint64)))
    totals = np.concatenate([[np.uint64(0)], np.cumsum(mixed, dtype=np.uint64)])
    bytes_before = np.concatenate([[0], np.cumsum(item_sizes)])
    # sums over a list are differences of running sums: no loop over rows, and wrapping around is exact
    hashes = mix(totals[offsets[1:]] - totals[offsets[:-1]] ^ lengths.astype(np.uint64))
    return hashes, bytes_before[offsets[1:]] - bytes_before[offsets[:-1]]


def mix(words: Hashes) -> Hashes:
    """Mix the bits of each word bijectively, with two rounds of multiply and xor-shift."""
    mixed = words >> _SHIFT
    mixed ^= words
    mixed *= _MULTIPLIER
    mixed ^= mixed >> np.uint64(29)
    mixed *= _MULTIPLIER
    return mixed


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
    # accents, points and joiners neither count nor separate; vowel signs, of combining class 0, are letters
    if kind in ("Cf", "Me") or (kind[0] == "M" and unicodedata.combining(part)) or ord(part) in _INVISIBLE:
        return ""
    if kind == "Nd":
        return str(unicodedata.decimal(part))
    if kind[0] in "LNM":
        return f" {part} " if unicodedata.name(part, "").startswith(_ALONE) else part
    return f" {part} " if part in _OPERATORS.decode() or (kind in ("Sm", "Sc") and not part.isascii()) else " "


class _Fold(dict[int, str]):
    """The folded forms of code points, computed when they are first asked for; for `str.translate`."""

    def __missing__(self, code: int) -> str:
        folded = self[code] = sys.intern(_folded(code))
        return folded


_FOLD = _Fold({0: "\0"})
"""NUL stays: it separates runs that are folded together."""
_FIRST_OPERATOR, _FIRST_LETTER = 0x21, 0x30
_CODES = {operator: _FIRST_OPERATOR + number for number, operator in enumerate(_OPERATORS)}


_ALONE_OR_SPACE = [ord(_folded(code).strip(" ") or " ") for code in range(128)]
_ASCII = bytes(_CODES.get(folded, folded) for folded in _ALONE_OR_SPACE) + bytes(range(128, 256))
"""Folds the ASCII characters of UTF-8: to separators, then codes of the 15 operators, then digits and letters."""
_SHOWN = bytes.maketrans(bytes(_CODES.values()), _OPERATORS)

_ENDS = np.frombuffer(_ASCII, np.uint8) < _FIRST_OPERATOR
_ENDS[0xE4:0xEA] = True
"""Bytes of UTF-8 before which each word ends: separators, and the first ones of U+4000 to U+9FFF, which stand alone."""
LONG = 1 << 22
"""Bytes of the texts of a row from which on they are long."""
_PIECE = 1 << 16
"""Number of powers that are kept; those of later places are products of two."""
_BASE = 0x9E3779B97F4A7C15


def _powers(base: int, count: int) -> Hashes:
    """Return the powers of a number modulo 2^64, from 0, uint64 [count]."""
    factors = np.full(count, base % (1 << 64), np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)


_POWERS, _INVERSES = _powers(_BASE, _PIECE), _powers(pow(_BASE, -1, 1 << 64), _PIECE)


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
    # all runs as one text: one call of `translate`, which is a loop in C
    together = pc.binary_join(list_array(np.array([0, len(runs.dictionary)]), runs.dictionary), "\0")[0]
    folded = np.frombuffer(together.as_py().translate(_FOLD).encode(), np.uint8)
    between = np.flatnonzero(folded == 0)
    # places of the separators, without the separators before them
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
    def of_rows(cls, texts: pa.Array, rows: int) -> Words | LongWords:
        """Return the words of the texts of some rows."""
        return LongWords(texts) if rows == 1 and len(text_parts(texts)[1]) >= LONG else cls.of(texts)

    @classmethod
    def of(cls, texts: pa.Array) -> Words:
        """Return the words of texts without nulls."""
        texts_at, data = text_parts(texts)
        if len(data) and data.max() >= 128:
            texts_at, data = _fold_runs(texts_at, data)
        folded = np.frombuffer(data.tobytes().translate(_ASCII), np.uint8)
        within, letter = folded >= _FIRST_OPERATOR, folded >= _FIRST_LETTER
        joins = np.zeros(len(folded) + 1, bool)  # whether a word goes on from the byte before to this one
        np.logical_and(letter[1:], letter[:-1], out=joins[1:-1])
        joins[texts_at] = False
        # a word starts where a byte of a word is not joined to the one before, and ends likewise
        starts, ends = np.flatnonzero(within > joins[:-1]), np.flatnonzero(within > joins[1:]) + 1
        sums = _prefix_sums(folded)
        # divided by the power at the start, the same word has the same hash everywhere
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


class LongWords:
    """The words of one row whose texts are long, as `Words`, without what takes many times their size."""

    def __init__(self, texts: pa.Array):
        self._values, count, total = np.empty(len(text_parts(texts)[1]), np.uint64), 0, 0
        for piece in _pieces(texts):
            words = Words.of(piece)
            self._values[count : count + len(words)] = np.diff(words.sums) * words.inverses[:-1]
            total += int(words.sums[-1]) * pow(_BASE, count, 1 << 64)
            count += len(words)
        self.offsets = np.append(np.zeros(len(texts), np.int64), count)
        self._whole = mix(np.array([total % (1 << 64)], np.uint64))

    def hashes(self, first: Ints, last: Ints) -> Hashes:
        """Return the hash of all words, for each run."""
        return self._whole[np.zeros(len(first), np.int64)]

    def ngrams(self, size: int, bounds: Ints) -> tuple[Hashes, Ints]:
        """Return the n-grams of all words, once: they take the place of the words."""
        count = max(int(self.offsets[-1]) - size + 1, 0)
        for start in range(0, count, _PIECE):
            sums = _prefix_sums(self._values[start : min(start + _PIECE, count) + size - 1])
            first = np.arange(len(sums) - size)
            self._values[start : start + len(first)] = mix((sums[size:] - sums[:-size]) * _inverses(first, len(sums)))
        return self._values[:count], bounds[:0]


def _pieces(texts: pa.Array) -> Iterator[pa.Array]:
    """Yield texts in parts of about `LONG` / 4 bytes that end where a word ends."""
    offsets, data = text_parts(texts)
    start = 0
    while start < len(data):
        end = start + LONG // 4
        # a word longer than a piece stays whole
        while len(ahead := data[end : end + LONG]) and not _ENDS[ahead].any():
            end += len(ahead)
        end = min(end, len(data)) + int(_ENDS[ahead].argmax() if len(ahead) else 0)
        inside = offsets[(offsets > start) & (offsets < end)]
        yield text_array(np.concatenate([[start], inside, [end]]) - start, data[start:end])
        start = end


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
        # sixteen marks per value or more: nearly all that are not there end here
        likely = np.flatnonzero(self._marked[hashes >> self._shift])
        place = np.searchsorted(self.values, hashes[likely])
        place[place == len(self.values)] = 0
        equal = self.values[place] == hashes[likely] if len(self.values) else np.zeros(0, bool)
        return likely[equal], place[equal]
