"""Carries spans from bytes over to tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenloom.assets.prompts.spans import FlatSpans


@dataclass(frozen=True)
class Owned:
    """Whose each token is.

    Args:
        span: int64 [tokens], index of the span that the token counts to.
        straddles: tokens of which some bytes are trained and some are not.
    """

    span: np.ndarray
    straddles: int


def own_tokens(start: np.ndarray, end: np.ndarray, spans: FlatSpans) -> Owned:
    """Give every token to a span: the first trained one that it overlaps, else the first that it overlaps.

    So a token that overlaps a trained byte is trained.

    Args:
        start, end: int64 [tokens], byte positions, ascending.
        spans: spans that partition the same bytes.
    """
    count = len(spans.end)
    if not len(start):
        return Owned(np.zeros(0, np.int64), 0)
    first = np.minimum(np.searchsorted(spans.end, start, side="right"), count - 1)
    trained = spans.weight > 0
    next_trained = np.full(count + 1, count, np.int64)
    next_trained[:-1] = np.minimum.accumulate(np.where(trained, np.arange(count), count)[::-1])[::-1]
    candidate = next_trained[first]
    starts = np.append(spans.start, np.iinfo(np.int64).max)
    owner = np.where(starts[candidate] < end, candidate, first)
    before = np.concatenate([[0], np.cumsum((spans.end - spans.start) * trained)])
    straddles = _trained_bytes(start, end, spans, trained, before)
    return Owned(owner, int(((straddles > 0) & (straddles < end - start)).sum()))


def _trained_bytes(
    start: np.ndarray, end: np.ndarray, spans: FlatSpans, trained: np.ndarray, before: np.ndarray
) -> np.ndarray:
    """How many of each token's bytes are trained."""

    def up_to(position: np.ndarray) -> np.ndarray:
        span = np.minimum(np.searchsorted(spans.end, position, side="right"), len(spans.end) - 1)
        return before[span] + np.clip(position - spans.start[span], 0, None) * trained[span]

    return up_to(end) - up_to(start)
