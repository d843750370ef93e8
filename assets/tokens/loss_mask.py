"""The loss mask: assigns each token to a span, so that spans in bytes become spans in tokens.

A token belongs to the first trained span that it overlaps, else to the first span that it overlaps. So a token with at
least one trained byte is trained. A token with both trained and masked bytes straddles a boundary; these are counted.

If the lengths of a segment's tokens add up to its bytes (an exact segment), only the boundaries between spans are
looked up among the tokens. Else each token has its own byte range, and is assigned on its own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenloom.assets.prompts.segments import Segments
from tokenloom.assets.tokens.encode import Encoded
from tokenloom.resources.tables.ragged import Ints, row_of

Flags = npt.NDArray[np.bool_]


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
    straddles = int(((trained_spans > 0) & (trained_spans <= final - first)).sum())
    return np.diff(up_to, prepend=0), straddles, inner[within]


def _first_trained(first: Ints, final: Ints, trained: Flags) -> Ints:
    """Return the first trained span from `first` to `final` (inclusive), else `first`; int64, the shape of `first`."""
    count = len(trained)
    following = np.full(count + 1, count, np.int64)
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
    before = np.append(0, np.cumsum((span_end - span_start) * trained))

    def trained_before(position: Ints) -> Ints:
        span = np.minimum(np.searchsorted(span_end, position, side="right"), count - 1)
        return before[span] + np.clip(position - span_start[span], 0, None) * trained[span]

    trained_bytes = trained_before(end) - trained_before(start)
    return owner, int(((trained_bytes > 0) & (trained_bytes < end - start)).sum())
