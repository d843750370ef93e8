"""Packing: which documents go into which sequence.

Every function returns a `Layout`, which lists the pieces of each sequence; no tokens are copied here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges


@dataclass(frozen=True)
class Layout:
    """The pieces of all sequences, in order; a piece is a run of tokens of one document.

    Args:
        document: int64 [pieces], the piece's document.
        start: int64 [pieces], the piece's first token, counted over all documents.
        length: int64 [pieces], the piece's number of tokens.
        pieces: int64 [sequences], the number of pieces of each sequence.
    """

    document: Ints
    start: Ints
    length: Ints
    pieces: Ints


def single(lengths: Ints) -> Layout:
    """Put each document into its own sequence; `lengths` is int64 [documents]."""
    count = len(lengths)
    return Layout(np.arange(count), offsets_of(lengths)[:-1], lengths, np.ones(count, np.int64))


def concat(lengths: Ints, max_length: int) -> Layout:
    """Concatenate all documents and cut every `max_length` tokens; no token is lost or repeated.

    Args:
        lengths: int64 [documents], at least 1 each.
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.arange(max_length, total, max_length)
    bounds = np.unique(np.concatenate([[0], ends, cuts]))
    starts = bounds[:-1]
    document = np.searchsorted(ends, starts, side="right")
    pieces = np.bincount(starts // max_length) if total else np.zeros(0, np.int64)
    return Layout(document, starts, np.diff(bounds), pieces)


def best_fit(lengths: Ints, max_length: int) -> Layout:
    """Pack whole documents into few sequences: best-fit decreasing.

    From the longest document to the shortest, each goes into the fullest sequence that still has room for it (Johnson,
    "Near-optimal bin packing algorithms", 1973; for language models Ding et al., "Fewer Truncations Improve Language
    Modeling", 2024). Sequences are sorted by their first document, and documents keep their order within a sequence.

    Args:
        lengths: int64 [documents], from 1 to `max_length`.
    """
    if not len(lengths):
        return single(lengths)
    narrow = lengths.astype(np.uint16 if max_length < 1 << 16 else np.int64)  # 16 bits sort in linear time
    ascending = np.argsort(narrow, kind="stable")
    counts = np.bincount(lengths, minlength=max_length + 1)
    sequence = np.empty(len(lengths), np.int64)
    sequence[ascending[::-1]] = _assign(counts, max_length)
    first = np.full(int(sequence.max()) + 1, len(lengths))
    np.minimum.at(first, sequence, np.arange(len(lengths)))
    rank = np.empty_like(first)
    rank[np.argsort(first)] = np.arange(len(first))
    sequence = rank[sequence]
    order = np.argsort(sequence.astype(np.uint16) if len(first) <= 1 << 16 else sequence, kind="stable")
    return Layout(order, offsets_of(lengths)[:-1][order], lengths[order], np.bincount(sequence))


def _assign(counts: Ints, max_length: int) -> Ints:
    """Return the sequence of each document, longest document first.

    Documents of one length are assigned together, as many as fit into each sequence. Consecutive sequences with the
    same free room are a run and are filled together. So the number of steps depends on the number of different lengths,
    not on the number of documents.

    Args:
        counts: int64 [max_length + 1], the number of documents of each length.
    """
    sizes = np.flatnonzero(counts)[::-1]
    runs: dict[int, list[tuple[int, int]]] = {}  # free room -> runs of sequences, as (first sequence, count)
    rooms = opened = 0  # `rooms` is a bit mask of the keys of `runs`; `opened` counts the sequences
    steps: list[tuple[int, int, int]] = []  # (first sequence, count, documents that each of them gets)
    for size, count in zip(sizes.tolist(), counts[sizes].tolist(), strict=True):
        while count:
            if fitting := rooms >> size:  # the lowest set bit is the smallest room that is large enough
                room = size + (fitting & -fitting).bit_length() - 1
                first, run = runs[room].pop()
                rooms ^= 0 if runs[room] else 1 << room
            else:  # open new sequences
                room, first = max_length, opened
                run = -(-count // (room // size))
                opened += run
            each = room // size
            full = min(run, count // each)  # sequences that get `each` documents; one more can get the rest
            rest = count - full * each if full < run else 0
            count -= full * each + rest
            last = int(rest > 0)
            for start, sequences, documents in ((first, full, each), (first + full, last, rest)):
                if sequences:
                    steps.append((start, sequences, documents))
                    runs.setdefault(room - documents * size, []).append((start, sequences))
                    rooms |= 1 << room - documents * size
            if run > full + last:
                runs[room].append((first + full + last, run - full - last))
                rooms |= 1 << room
    first, run, documents = np.array(steps).T
    return np.repeat(ranges(first, run), np.repeat(documents, run))
