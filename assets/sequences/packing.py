"""Puts several documents into one sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges


@dataclass(frozen=True)
class Layout:
    """What sequences are made of, piece by piece.

    Args:
        document: int64 [pieces], the document that each piece is of.
        begin, length: int64 [pieces], its first token, counted through all documents, and its tokens.
        pieces: int64 [sequences], the number of pieces in each sequence.
    """

    document: Ints
    begin: Ints
    length: Ints
    pieces: Ints


def single(lengths: Ints) -> Layout:
    """Each document a sequence of its own; `lengths` is int64 [documents]."""
    count = len(lengths)
    return Layout(np.arange(count), offsets_of(lengths)[:-1], lengths, np.ones(count, np.int64))


def concat(lengths: Ints, max_length: int) -> Layout:
    """Join documents end to end and cut every `max_length` tokens; no token is lost or repeated.

    Args:
        lengths: int64 [documents], none 0.
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.arange(max_length, total, max_length)
    bounds = np.unique(np.concatenate([[0], ends, cuts]))
    begins = bounds[:-1]
    document = np.searchsorted(ends, begins, side="right")
    sequences = np.bincount(begins // max_length) if total else np.zeros(0, np.int64)
    return Layout(document, begins, np.diff(bounds), sequences)


def best_fit(lengths: Ints, max_length: int) -> Layout:
    """Put documents, whole, into about as few sequences as will hold them: best-fit decreasing.

    Each document, the longest first, goes where the least room is left that holds it (Johnson, "Near-optimal bin
    packing algorithms", 1973; for language models Ding et al., "Fewer Truncations Improve Language Modeling", 2024).
    Sequences come in the order of their first documents, and documents keep their order within a sequence.

    Args:
        lengths: int64 [documents], from 1 to `max_length`.
    """
    if not len(lengths):
        return single(lengths)
    narrow = lengths.astype(np.uint16 if max_length < 1 << 16 else np.int64)  # 16 bits sort in linear time
    ascending = np.argsort(narrow, kind="stable")
    counts = np.bincount(lengths, minlength=max_length + 1)
    sequence = np.empty(len(lengths), np.int64)
    sequence[ascending[::-1]] = _places(counts, max_length)
    first = np.full(int(sequence.max()) + 1, len(lengths))
    np.minimum.at(first, sequence, np.arange(len(lengths)))
    rank = np.empty_like(first)
    rank[np.argsort(first)] = np.arange(len(first))
    sequence = rank[sequence]
    order = np.argsort(sequence.astype(np.uint16) if len(first) <= 1 << 16 else sequence, kind="stable")
    return Layout(order, offsets_of(lengths)[:-1][order], lengths[order], np.bincount(sequence))


def _places(counts: Ints, max_length: int) -> Ints:
    """The sequence of each document, the longest first, given how many there are of each length.

    Documents of one length are placed together, as many as fit into each sequence, and sequences filled alike stay
    together: so the steps follow the number of different lengths, not of documents.
    """
    sizes = np.flatnonzero(counts)[::-1]
    runs: dict[int, list[tuple[int, int]]] = {}  # sequences by the room left in them, as (first, how many)
    rooms = opened = 0  # `rooms` has a bit for every room in `runs`
    steps: list[tuple[int, int, int]] = []  # sequences, as (first, how many), and how many documents each gets
    for size, count in zip(sizes.tolist(), counts[sizes].tolist(), strict=True):
        while count:
            if fitting := rooms >> size:
                room = size + (fitting & -fitting).bit_length() - 1
                first, many = runs[room].pop()
                rooms ^= 0 if runs[room] else 1 << room
            else:
                room, first = max_length, opened
                many = -(-count // (room // size))
                opened += many
            each = room // size
            full = min(many, count // each)
            rest = count - full * each if full < many else 0
            count -= full * each + rest
            last = int(rest > 0)
            for begin, some, held in ((first, full, each), (first + full, last, rest)):
                if some:
                    steps.append((begin, some, held))
                    runs.setdefault(room - held * size, []).append((begin, some))
                    rooms |= 1 << room - held * size
            if many > full + last:
                runs[room].append((first + full + last, many - full - last))
                rooms |= 1 << room
    first, many, held = np.array(steps).T
    return np.repeat(ranges(first, many), np.repeat(held, many))
