"""Carries spans from bytes over to tokens.

A token goes to the first trained span that it overlaps, else to the first that it overlaps; so one that overlaps a
trained byte is trained. It straddles where some of its bytes are trained and some are not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenloom.assets.prompts.segments import Segments
from tokenloom.assets.tokens.encode import Encoded
from tokenloom.resources.tables.ragged import Ints, row_of

Flags = npt.NDArray[np.bool_]


def span_tokens(found: Segments, encoded: Encoded) -> tuple[Ints, int]:
    """How many tokens each span owns, int64 [spans], and how many tokens straddle."""
    spans, trained = found.spans, found.spans.weight > 0
    owned, straddles = _owned_in_exact(found, encoded, trained)
    loose = ~encoded.exact
    if not loose.any():
        return owned, straddles
    of_loose = np.flatnonzero(np.repeat(loose, np.diff(np.append(found.first, len(spans.end)))))
    base = found.start[loose][row_of(np.diff(encoded.offsets)[loose])]
    start, end = (encoded.places + base[:, None]).T
    owner, more = own_tokens(start, end, spans.start[of_loose], spans.end[of_loose], trained[of_loose])
    owned[of_loose] = np.bincount(owner, minlength=len(of_loose))
    return owned, straddles + more


def _owned_in_exact(found: Segments, encoded: Encoded, trained: Flags) -> tuple[Ints, int]:
    """The same within exact segments: each border of two spans is looked for among the tokens."""
    offsets, count = encoded.offsets, len(trained)
    if not count:
        return np.zeros(0, np.int64), 0
    up_to = np.empty(count, np.int64)  # tokens that go to a span or to one before it
    last = np.append(found.first[1:], count) - 1
    up_to[last] = offsets[1:]
    inner = np.ones(count, bool)
    inner[last] = False
    inner = np.flatnonzero(inner)
    segment = np.searchsorted(found.first, inner, side="right") - 1
    border = np.clip(found.spans.end[inner], found.start[segment], found.end[segment])
    place = (encoded.bytes.before(offsets[1:]) - found.end)[segment] + border
    reached, whole = encoded.bytes.reaching(place)
    begins = border <= found.start[segment]
    up_to[inner] = np.where(begins, offsets[segment], reached - ~whole)
    token = reached - 1
    cut = np.flatnonzero(~whole & ~begins & encoded.exact[segment])
    if not len(cut):
        return np.diff(up_to, prepend=0), 0
    opens = np.diff(token[cut], prepend=-1) != 0
    first = inner[cut[opens]]
    final = inner[cut[np.append(opens[1:], True)]] + 1
    owner = _owner(first, final, trained)
    up_to[inner[cut]] += owner[np.cumsum(opens) - 1] <= inner[cut]
    before = np.append(0, np.cumsum(trained))
    share = before[final + 1] - before[first]
    return np.diff(up_to, prepend=0), int(((share > 0) & (share <= final - first)).sum())


def _owner(first: Ints, final: Ints, trained: Flags) -> Ints:
    """The first trained span from `first` to `final`, else `first`."""
    count = len(trained)
    follows = np.full(count + 1, count, np.int64)
    follows[:-1] = np.minimum.accumulate(np.where(trained, np.arange(count), count)[::-1])[::-1]
    return np.where(follows[first] <= final, follows[first], first)


def own_tokens(start: Ints, end: Ints, span_start: Ints, span_end: Ints, trained: Flags) -> tuple[Ints, int]:
    """For each token the span that it goes to, and how many straddle, token by token.

    Args:
        start, end: int64 [tokens], byte positions, ascending; they may overlap each other, or be empty.
        span_start, span_end: int64 [spans], ascending and apart; they hold every token.
        trained: bool [spans].
    """
    if not len(start):
        return np.zeros(0, np.int64), 0
    count = len(span_end)
    first = np.minimum(np.searchsorted(span_end, start, side="right"), count - 1)
    final = np.minimum(np.searchsorted(span_start, end, side="left") - 1, count - 1)
    owner = _owner(first, np.maximum(first, final), trained)
    before = np.append(0, np.cumsum((span_end - span_start) * trained))

    def up_to(position: Ints) -> Ints:
        span = np.minimum(np.searchsorted(span_end, position, side="right"), count - 1)
        return before[span] + np.clip(position - span_start[span], 0, None) * trained[span]

    share = up_to(end) - up_to(start)
    return owner, int(((share > 0) & (share < end - start)).sum())
