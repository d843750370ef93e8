"""Truncates rows to `max_length` tokens: on the right, on the left, in the middle, part by part in the order of
`length.give_up` (`length.strategy: smart`), or splits them into overlapping pieces.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from tokenloom.assets.prompts.spans import IS_PART, SPAN_ROLES, FlatSpans
from tokenloom.assets.prompts.truncation_order import SPOKEN, TruncationOrder
from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges, row_of

Truncation = Literal["truncate_right", "truncate_left", "truncate_middle"]


def kept_tokens(lengths: Ints, max_length: int, strategy: Truncation) -> tuple[Ints, Ints]:
    """Return which tokens are kept.

    Args:
        lengths: int64 [rows].

    Returns:
        int64, the flat indices of the kept tokens, in order; and int64 [rows], the new lengths.
    """
    starts = offsets_of(lengths)[:-1]
    new = np.minimum(lengths, max_length)
    if strategy == "truncate_right":
        return ranges(starts, new), new
    if strategy == "truncate_left":
        return ranges(starts + lengths - new, new), new
    head = (new + 1) // 2
    tail = new - head
    halves = np.column_stack([starts, starts + lengths - tail]).ravel()
    return ranges(halves, np.column_stack([head, tail]).ravel()), new


def overlapping(lengths: Ints, max_length: int, stride: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Split rows into pieces of at most `max_length` tokens; consecutive pieces share `stride` tokens.

    Args:
        lengths: int64 [rows].
        stride: in tokens, less than `max_length`.

    Returns:
        Four arrays, int64 [pieces]: the row of the piece, its first token within the row, its number of tokens, and how
        many of them it shares with the piece before.
    """
    step = max_length - stride
    counts = 1 + np.maximum(-(-(lengths - max_length) // step), 0)
    row = row_of(counts)
    number = np.arange(len(row)) - np.repeat(offsets_of(counts)[:-1], counts)
    start = number * step
    return row, start, np.minimum(lengths[row] - start, max_length), np.where(number > 0, stride, 0)


_INPUT, _USER = SPAN_ROLES.index("input"), SPAN_ROLES.index("user")
_ANSWERS = [SPAN_ROLES.index(role) for role in ("answer", "assistant", "text")]
_PART_OF_ROLE = np.array([SPOKEN.index(role) if role in SPOKEN else -1 for role in SPAN_ROLES])
_PART_OF_ROLE[[_INPUT, _USER]] = SPOKEN.index("question")


FLOOR = 8
"""Each part keeps at least this fraction (an eighth) of `max_length`, or all of its tokens if it has fewer."""


def truncate_by_part(
    spans: FlatSpans, lengths: Ints, longest: Ints, max_length: int, order: TruncationOrder
) -> tuple[Ints, Ints]:
    """Truncate rows to `max_length`, part by part.

    A part is a span with content. Parts are truncated in the order of their ranks; parts of one rank, such as the
    messages of a conversation, from the first one on. The next part is only truncated when the one before is down to
    its floor. Template text, control tokens and the last token of a part with text after it (it can contain the start
    of that text) are kept. A row that is still too long loses its end: the end of an answer, and the stop after it.

    Args:
        spans: the spans in tokens.
        lengths: int64 [rows], the number of tokens of each row.
        longest: int64 [rows], the length that the parts before the answer are truncated for: the row's own, or that of
            the longer side of its pair, so that both sides keep the same prompt.
        max_length: in tokens.
        order: the truncation order.

    Returns:
        int64, the flat indices of the kept tokens, in order; and int64 [rows], the new lengths.
    """
    chosen = np.flatnonzero(longest > max_length)
    places = ranges(spans.offsets[chosen], spans.counts[chosen])
    row = np.repeat(chosen, spans.counts[chosen])
    size = (spans.end - spans.start)[places]
    rank, answer = _ranks(spans, places, row, order)
    part = rank >= 0
    removable = np.where(part, np.maximum(size - _floors(part, answer, row, max_length), 0), 0)
    removed = np.zeros(len(places), np.int64)
    by_rank = np.lexsort((rank, row))
    before = _sums_before(removable[by_rank], row[by_rank])  # tokens that earlier parts can give up
    removed[by_rank] = np.clip(longest[row] - max_length - before, 0, removable[by_rank])
    same_row = np.append(row[1:] == row[:-1], False)
    followed = same_row & np.append(~spans.control[places][1:], False)  # by text other than a control token
    head = np.zeros_like(removed) if order.keep == "end" else size - removed - followed
    head = np.where(removed > 0, head, size)
    tail = size - removed - head
    starts = offsets_of(lengths)[:-1]
    span_starts = starts[row] + spans.start[places]
    untouched = np.flatnonzero(longest <= max_length)
    kept_starts = np.concatenate([starts[untouched], span_starts, span_starts + size - tail])
    sizes = np.concatenate([lengths[untouched], head, tail])
    in_order = np.argsort(kept_starts, kind="stable")
    in_order = in_order[sizes[in_order] > 0]
    sizes, of = sizes[in_order], np.concatenate([untouched, row, row])[in_order]
    sizes = np.clip(max_length - _sums_before(sizes, of), 0, sizes)
    left = np.bincount(of, sizes, len(lengths)).astype(np.int64)
    return ranges(kept_starts[in_order], sizes), left


def _floors(part: np.ndarray, answer: np.ndarray, row: Ints, max_length: int) -> Ints:
    """Return int64 [spans]: how many tokens a part keeps. The parts before a row's first answer keep at most half of
    `max_length` together, and each at least one token.

    Args:
        part, answer: bool [spans], whether the span is a part that can be truncated, and an answer.
        row: int64 [spans], the spans' rows.
    """
    opening = part & (_sums_before(answer.astype(np.int64), row) == 0)
    parts = np.bincount(row, opening)
    return np.maximum(max_length // np.maximum(2 * parts, FLOOR), 1).astype(np.int64)[row]


def _ranks(spans: FlatSpans, places: Ints, row: Ints, order: TruncationOrder) -> tuple[Ints, np.ndarray]:
    """Return when each span is truncated: its rank, or -1 for never; and whether it is an answer's content.

    Args:
        places: int64, the indices of the spans.
        row: int64, their rows.
    """
    role, message = spans.speaker[places], spans.message[places]
    same = np.zeros(len(places), bool)
    same[1:] = (row[1:] == row[:-1]) & (role[1:] == role[:-1]) & (message[1:] == message[:-1])
    content = (message >= 0) & ~spans.control[places] & ~same
    trains = (spans.weight[places] > 0) | (IS_PART[spans.role[places]] & (not order.by_role))  # weights mask parts
    answer = content & trains & (np.isin(role, _ANSWERS) | (not order.by_role))
    if order.columns:
        part = np.where(message < len(order.ranks), message, -1)
    else:
        user = content & (role == _USER)
        last = np.full(int(row.max(initial=-1)) + 1, -1, np.int64)
        np.maximum.at(last, row[user], message[user])
        part = np.where(user & (message < last[row]), SPOKEN.index("earlier"), _PART_OF_ROLE[role])
    ranks = np.append(np.array(order.ranks, np.int64), -1)
    return np.where(content & ~answer, ranks[part], -1), answer


def _sums_before(values: Ints, row: Ints) -> Ints:
    """Return the sum of the values before each one in its row; the values of one row are adjacent."""
    sums = np.cumsum(values) - values
    first = np.flatnonzero(np.diff(row, prepend=-1))
    return sums - np.repeat(sums[first], np.diff(np.append(first, len(row))))
