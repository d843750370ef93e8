"""Overlap of rows with the items of evaluations: the share of an item's words that one row contains.

The share of the item, not of the row, finds an item within a row of any length. It is counted with n-grams: a word of
an item is covered if it lies in one that the row has too. N-grams that many items of one evaluation have, such as those
of its instructions, say nothing about an item and do not count, so that the rest of its words decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.assets.columns.row_texts import text_blocks
from tokenloom.config.sections import SHORTEST_ITEM
from tokenloom.resources.tables.hashes import Hashes, HashSet, Words
from tokenloom.resources.tables.ragged import Flags, Ints, offsets_of, ranges

COMMON = 10
"""Number of items of one evaluation from which on an n-gram that they share does not count."""
_PAIRS = 1 << 22
"""N-grams of rows, each with a place in an item, that are compared at a time; more only within one row."""


@dataclass(frozen=True)
class Evaluation:
    """The items of an evaluation.

    Args:
        name: how settings, messages and counters name it.
        texts: the text of each item, strings.
        numbers: int64 [items], the number of each item in its source, from 1.
    """

    name: str
    texts: pa.Array
    numbers: Ints


@dataclass(frozen=True)
class Index:
    """What is needed to find items in rows. Items have consecutive numbers over all evaluations.

    Attributes:
        ngram_size: words of an n-gram.
        ngrams: uint64 [n-grams], those that count.
        offsets: int64 [n-grams + 1], the occurrences of each.
        items, places: int64 [occurrences], the item, and the word of it that the n-gram starts at.
        words: int64 [items], how many words of each item its n-grams cover; 0: it is found otherwise, or not at all.
        findable: bool [items], which items can be found, or have the same words as one that can.
        short: uint64 [short items], hashes of whole items of fewer words than an n-gram.
        short_items: int64 [short items].
        names: the evaluations.
        bounds: int64 [evaluations + 1], the items of each.
        numbers: int64 [items], their numbers in their source.
    """

    ngram_size: int
    ngrams: HashSet
    offsets: Ints
    items: Ints
    places: Ints
    words: Ints
    findable: Flags
    short: HashSet
    short_items: Ints
    names: tuple[str, ...]
    bounds: Ints
    numbers: Ints

    @classmethod
    def of(cls, evaluations: Sequence[Evaluation], ngram_size: int) -> Index:
        """Return the index of some evaluations. Of items with the same words in one evaluation, the first counts."""
        bounds = offsets_of(np.array([len(each.texts) for each in evaluations], np.int64))
        ngrams, items, places, short, short_items, same = [], [], [], [], [], []
        for start, evaluation in zip(bounds.tolist(), evaluations, strict=False):
            words = Words.of(evaluation.texts)
            whole, lengths = words.hashes(words.offsets[:-1], words.offsets[1:]), np.diff(words.offsets)
            _, earliest, number = np.unique(whole, return_index=True, return_inverse=True)
            first = earliest[number] == np.arange(len(whole))
            same.append(earliest[number] + start)
            hashes, at = words.ngrams(ngram_size)
            item = words.text_of(at)
            # n-grams that many items have are its instructions; those of repeated items are counted once
            counted = first[item] & ~_common(hashes, item, first)
            ngrams.append(hashes[counted])
            items.append(item[counted] + start)
            places.append((at - words.offsets[item])[counted])
            brief = np.flatnonzero(first & (lengths >= SHORTEST_ITEM) & (lengths < ngram_size))
            short.append(whole[brief])
            short_items.append(brief + start)
        order = np.lexsort((np.concatenate(places), np.concatenate(items), np.concatenate(ngrams)))
        items, places = np.concatenate(items)[order], np.concatenate(places)[order]
        different_ngrams, starts = np.unique(np.concatenate(ngrams)[order], return_index=True)
        whole, begins = np.unique(np.concatenate(short), return_index=True)  # of equal items, the first evaluation's
        by_item = np.lexsort((places, items))
        new_words = _new_words(items[by_item], places[by_item], ngram_size)
        words = np.bincount(items[by_item], new_words, int(bounds[-1])).astype(np.int64)
        findable = words > 0
        findable[np.concatenate(short_items)] = True
        return cls(
            ngram_size,
            HashSet(different_ngrams),
            np.append(starts, len(items)),
            items,
            places,
            words,
            findable[np.concatenate(same)],
            HashSet(whole),
            np.concatenate(short_items)[begins],
            tuple(evaluation.name for evaluation in evaluations),
            bounds,
            np.concatenate([evaluation.numbers for evaluation in evaluations]),
        )

    def evaluation_of(self, items: Ints) -> Ints:
        """Return the evaluation of each item, int64 [items]."""
        return np.searchsorted(self.bounds, items, side="right") - 1


def _common(ngrams: Hashes, items: Ints, first: Flags) -> Flags:
    """Return bool [n-grams]: which are in `COMMON` items or more, of those that are the first with their words."""
    different, number = np.unique(ngrams, return_inverse=True)
    pairs = np.unique(number[first[items]] * len(first) + items[first[items]])
    return (np.bincount(pairs // max(len(first), 1), minlength=len(different)) >= COMMON)[number]


def _new_words(groups: Ints, places: Ints, size: int) -> Ints:
    """Return how many words each n-gram of a group covers that the one after it does not, int64 [n-grams]; they are
    sorted by group and place, and a place can occur several times."""
    added = np.full(len(places), size, np.int64)
    same = groups[1:] == groups[:-1]
    added[:-1][same] = np.minimum(np.diff(places)[same], size)
    return added


@dataclass(frozen=True)
class Matches:
    """The rows that contain an item, each with the item of which it contains most; of equal shares, the first.

    Attributes:
        rows: int64 [matches], ascending.
        items: int64 [matches].
        shares: float64 [matches], the covered share of the item's words.
        passages: the longest covered run of the row's words, strings.
    """

    rows: Ints
    items: Ints
    shares: npt.NDArray[np.float64]
    passages: pa.Array


def matches(index: Index, texts: pa.Array, row_of_text: Ints, threshold: float) -> Matches:
    """Return the rows that contain at least a share of an item's words.

    Args:
        texts: the texts of rows, without nulls; an n-gram lies within one.
        row_of_text: int64 [texts], ascending.
        threshold: the least share; items of fewer words than an n-gram must equal a line or a text of the row.
    """
    of_blocks = list[Matches]()
    for some, rows_of in text_blocks(texts, row_of_text):
        words = Words.of(some)
        parts = [*_whole_lines(index, words, rows_of), *_by_ngrams(index, words, rows_of, threshold)]
        if any(len(part[0]) for part in parts):
            row, item, share, first, count = (np.concatenate(column) for column in zip(*parts, strict=True))
            # of a row's items the one with the largest share, then the first
            order = np.lexsort((item, -share, row))
            best = order[np.unique(row[order], return_index=True)[1]]
            of_blocks.append(Matches(row[best], item[best], share[best], words.joined(first[best], count[best])))
    if not of_blocks:
        return Matches(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), pa.array([], pa.string()))
    return Matches(
        np.concatenate([each.rows for each in of_blocks]),
        np.concatenate([each.items for each in of_blocks]),
        np.concatenate([each.shares for each in of_blocks]),
        pa.concat_arrays([each.passages for each in of_blocks]),
    )


_Found = tuple[Ints, Ints, npt.NDArray[np.float64], Ints, Ints]
"""Row, item, share, and first word and number of words of the passage, of each match."""


def _whole_lines(index: Index, words: Words, row_of_text: Ints) -> Iterator[_Found]:
    """Yield the short items that are a whole line or a whole text."""
    for bounds in (words.lines(), words.offsets) if len(index.short.values) else ():
        lengths = np.diff(bounds)
        brief = np.flatnonzero((lengths >= SHORTEST_ITEM) & (lengths < index.ngram_size))
        is_item, place = index.short.find(words.hashes(bounds[brief], bounds[brief + 1]))
        first = bounds[brief[is_item]]
        yield (
            row_of_text[words.text_of(first)], index.short_items[place], np.ones(len(first)), first,
            lengths[brief[is_item]],
        )  # fmt: skip


def _by_ngrams(index: Index, words: Words, row_of_text: Ints, threshold: float) -> Iterator[_Found]:
    """Yield the items that rows share n-grams with, some rows at a time."""
    hashes, first = words.ngrams(index.ngram_size)
    hit, ngram = index.ngrams.find(hashes)
    if not len(hit):
        return
    first = first[hit]
    text = words.text_of(first)
    row = row_of_text[text]
    # An n-gram counts once in a row, at its first place: a row that repeats one stays as cheap as one that does not.
    once = np.sort(np.unique(row * len(index.ngrams.values) + ngram, return_index=True)[1])
    row, text, ngram, first = row[once], text[once], ngram[once], first[once]
    pairs = offsets_of(index.offsets[ngram + 1] - index.offsets[ngram])
    # rows are not cut in two, as their shares are counted in one piece
    begins = np.append(np.flatnonzero(np.diff(row, prepend=-1)), len(row))
    cuts = begins[np.append(np.flatnonzero(np.diff(pairs[begins[:-1]] // _PAIRS, prepend=-1)), len(begins) - 1)]
    for start, end in pairwise(cuts.tolist()):
        part = slice(start, end)
        yield _shares(index, row[part], text[part], ngram[part], first[part], threshold)


def _shares(index: Index, row: Ints, text: Ints, ngram: Ints, first: Ints, threshold: float) -> _Found:
    """Return the items that rows cover enough of, given of each shared n-gram, in the order of the rows' words, its
    row, text, number in the index and first word, int64 [n-grams]."""
    counts = index.offsets[ngram + 1] - index.offsets[ngram]
    place = ranges(index.offsets[ngram], counts)
    row, text, first = (np.repeat(column, counts) for column in (row, text, first))
    group = row * np.int64(len(index.words)) + index.items[place]
    order = np.lexsort((index.places[place], group))
    pair, group_of = np.unique(group[order], return_inverse=True)
    # in the order of the item: how many of its words lie in an n-gram that the row has
    covered = np.bincount(group_of, _new_words(group[order], index.places[place][order], index.ngram_size))
    item = pair % len(index.words)
    share = covered / index.words[item]
    enough = share >= threshold
    order = np.argsort(group, kind="stable")  # each row's words in order, for the passages
    order = order[enough[np.searchsorted(pair, group[order])]]
    begin, count = _longest_runs(group[order], text[order], first[order], index.ngram_size)
    return pair[enough] // len(index.words), item[enough], share[enough], begin, count


def _longest_runs(group: Ints, text: Ints, first: Ints, size: int) -> tuple[Ints, Ints]:
    """Return the first word and the number of words of the longest covered run of each group, int64 [groups]; n-grams
    are ascending by group and word."""
    # n-grams of a passage overlap or touch, in one text
    joined = (np.diff(group) == 0) & (np.diff(text) == 0) & (np.diff(first) <= size)
    begins = np.flatnonzero(np.append(True, ~joined)[: len(group)])
    ends = np.append(begins[1:], len(group))[: len(begins)] - 1
    count = first[ends] - first[begins] + size
    order = np.lexsort((begins, -count, group[begins]))
    best = order[np.unique(group[begins][order], return_index=True)[1]]
    return first[begins[best]], count[best]
