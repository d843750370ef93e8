"""`length.strategy: smart`: truncates rows part by part, in the order of `length.give_up`; the answer comes last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenloom.assets.prompts.spans import ROLES, FlatSpans
from tokenloom.assets.prompts.truncation_order import SPOKEN, TruncationOrder
from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges

_INPUT, _USER = ROLES.index("input"), ROLES.index("user")
_ANSWERS = [ROLES.index(role) for role in ("answer", "assistant", "text")]
_PART_OF_ROLE = np.array([SPOKEN.index(role) if role in SPOKEN else -1 for role in ROLES])
_PART_OF_ROLE[[_INPUT, _USER]] = SPOKEN.index("question")


@dataclass(frozen=True)
class Shortened:
    """The rows of a chunk after truncation.

    Args:
        index: int64 [kept tokens], the flat indices of the kept tokens, in order.
        lengths: int64 [rows], the number of kept tokens.
        fits: bool [rows], whether the row now fits.
    """

    index: Ints
    lengths: Ints
    fits: np.ndarray


def truncate_by_part(
    spans: FlatSpans, lengths: Ints, longest: Ints, max_length: int, order: TruncationOrder
) -> Shortened:
    """Truncate rows to `max_length`, part by part.

    A part is a span with content. Parts are truncated from the end, in the order of their ranks; parts of one rank,
    such as the messages of a conversation, from the first one on. The next part is only truncated when the one before
    has no more tokens to remove. Never removed are template text, control tokens, the last token of a part with text
    after it (it can contain the start of that text), and the first token of an answer, so that its stop is never
    trained alone.

    Args:
        spans: the spans in tokens.
        lengths: int64 [rows], the number of tokens of each row.
        longest: int64 [rows], the length that the parts before the answer are truncated for: the row's own, or that of
            the longer side of its pair, so that both sides keep the same prompt.
        max_length: in tokens.
        order: the truncation order.
    """
    chosen = np.flatnonzero(longest > max_length)
    places = ranges(spans.offsets[chosen], spans.counts[chosen])
    row = np.repeat(chosen, spans.counts[chosen])
    size = (spans.end - spans.start)[places]
    rank, content, answer = _ranks(spans, places, row, order)
    same_row = np.append(row[1:] == row[:-1], False)
    followed = same_row & np.append(~spans.control[places][1:], False)  # by text other than a control token
    removable = np.where(content & (rank >= 0), np.maximum(size - followed - answer, 0), 0)
    removed = np.zeros(len(places), np.int64)
    by_rank = np.lexsort((rank, row))
    before = _sums_before(removable[by_rank], row[by_rank])  # tokens that earlier parts can give up
    excess = np.where(answer, lengths[row], longest[row]) - max_length
    removed[by_rank] = np.clip(excess[by_rank] - before, 0, removable[by_rank])
    tail = np.where(removed > 0, followed, 0)  # the last token, which is kept after the removed ones
    starts = offsets_of(lengths)[:-1]
    span_starts = starts[row] + spans.start[places]
    untouched = np.flatnonzero(longest <= max_length)
    kept_starts = np.concatenate([starts[untouched], span_starts, span_starts + size - tail])
    kept_sizes = np.concatenate([lengths[untouched], size - removed - tail, tail])
    in_order = np.argsort(kept_starts, kind="stable")
    left = lengths - np.bincount(row, removed, len(lengths)).astype(np.int64)
    return Shortened(ranges(kept_starts[in_order], kept_sizes[in_order]), left, left <= max_length)


def _ranks(spans: FlatSpans, places: Ints, row: Ints, order: TruncationOrder) -> tuple[Ints, np.ndarray, np.ndarray]:
    """Return the rank of some spans, whether they are content, and whether they are the content of an answer.

    Args:
        places: int64, the indices of the spans.
        row: int64, their rows.
    """
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
    """Return the sum of the values before each one in its row; the values of one row are adjacent."""
    sums = np.cumsum(values) - values
    first = np.flatnonzero(np.diff(row, prepend=-1))
    return sums - np.repeat(sums[first], np.diff(np.append(first, len(row))))
