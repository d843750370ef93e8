"""Shortens rows part by part: what may be given up goes first, the answer last, and never its stop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenloom.assets.prompts.truncation_order import SPOKEN, TruncationOrder
from tokenloom.assets.prompts.spans import ROLES, FlatSpans
from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges

_INPUT, _USER = ROLES.index("input"), ROLES.index("user")
_ANSWERS = [ROLES.index(role) for role in ("answer", "assistant", "text")]
_PART_OF_ROLE = np.array([SPOKEN.index(role) if role in SPOKEN else -1 for role in ROLES])
_PART_OF_ROLE[[_INPUT, _USER]] = SPOKEN.index("question")


@dataclass(frozen=True)
class Shortened:
    """What is left of a chunk's rows.

    Args:
        index: int64, the flat places of the tokens kept, in order.
        lengths: int64 [rows], tokens kept of each.
        fits: bool [rows], whether the row came within its limit.
    """

    index: Ints
    lengths: Ints
    fits: np.ndarray


def truncate_by_part(spans: FlatSpans, lengths: Ints, longest: Ints, max_length: int, order: TruncationOrder) -> Shortened:
    """Shorten rows to `max_length`: each part gives up its end before the next one does.

    Of parts of one turn, such as the messages of a conversation, earlier ones go first. The template's own text and
    control tokens stay, and so does the last token of a part with text behind it, since it may hold the begin of
    that. Of each answer one token stays at least, so that its stop never stands alone.

    Args:
        spans: of each row's tokens.
        lengths: int64 [rows], tokens of each row.
        longest: int64 [rows], what the parts before the answer must make room for: the row's own length, or the
            longer one of its pair, so that both sides keep the same prompt.
    """
    chosen = np.flatnonzero(longest > max_length)
    places = ranges(spans.offsets[chosen], spans.counts[chosen])
    row = np.repeat(chosen, spans.counts[chosen])
    size = (spans.end - spans.start)[places]
    rank, content, answer = _turns(spans, places, row, order)
    beside = np.append(row[1:] == row[:-1], False)
    followed = beside & np.append(~spans.control[places][1:], False)
    room = np.where(content & (rank >= 0), np.maximum(size - followed - answer, 0), 0)
    given = np.zeros(len(places), np.int64)
    sequence = np.lexsort((rank, row))
    before = _sums_before(room[sequence], row[sequence])
    need = np.where(answer, lengths[row], longest[row]) - max_length
    given[sequence] = np.clip(need[sequence] - before, 0, room[sequence])
    tail = np.where(given > 0, followed, 0)
    starts = offsets_of(lengths)[:-1]
    begin = starts[row] + spans.start[places]
    untouched = np.flatnonzero(longest <= max_length)
    begins = np.concatenate([starts[untouched], begin, begin + size - tail])
    sizes = np.concatenate([lengths[untouched], size - given - tail, tail])
    in_order = np.argsort(begins, kind="stable")
    left = lengths - np.bincount(row, given, len(lengths)).astype(np.int64)
    return Shortened(ranges(begins[in_order], sizes[in_order]), left, left <= max_length)


def _turns(spans: FlatSpans, places: Ints, row: Ints, order: TruncationOrder) -> tuple[Ints, np.ndarray, np.ndarray]:
    """For some spans their turn to give up tokens, whether they are content, and whether an answer's."""
    role, message = spans.role[places], spans.message[places]
    same = np.zeros(len(places), bool)
    same[1:] = (row[1:] == row[:-1]) & (role[1:] == role[:-1]) & (message[1:] == message[:-1])
    content = (message >= 0) & ~spans.control[places] & ~same
    answer = content & (spans.weight[places] > 0) & (np.isin(role, _ANSWERS) | (not order.by_role))
    if order.columns:
        part = np.where(message < len(order.ranks), message, -1)
    else:
        user = content & (role == _USER)
        last = np.full(int(row.max(initial=-1)) + 1, -1, np.int64)
        np.maximum.at(last, row[user], message[user])
        part = np.where(user & (message < last[row]), SPOKEN.index("earlier"), _PART_OF_ROLE[role])
    ranks = np.append(np.array(order.ranks, np.int64), -1)
    return np.where(answer, order.last, ranks[part]), content, answer


def _sums_before(values: Ints, row: Ints) -> Ints:
    """The sum of the values before each one in its row; rows stand together."""
    sums = np.cumsum(values) - values
    first = np.flatnonzero(np.diff(row, prepend=-1))
    return sums - np.repeat(sums[first], np.diff(np.append(first, len(row))))
