"""Chooses the format of a dataset among its candidates, if one of them is certain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenloom.assets.schema.formats.candidate import FormatCandidate

MIN_CONFIDENCE, MIN_LEAD = 0.6, 0.1


@dataclass(frozen=True)
class Ambiguity:
    """No candidate is certain.

    Args:
        close: the candidates that the data does not decide between, the most likely first; empty if none fits.
        unread: a known format that no form can hold, with the reason; it has no roles.
    """

    close: tuple[FormatCandidate, ...]
    unread: FormatCandidate | None = None

    def __str__(self) -> str:
        """Return what is uncertain, in one sentence."""
        if self.unread:
            return f"the rows are {self.unread.format}, which cannot be read: {'; '.join(self.unread.doubts.values())}"
        if not self.close:
            return "no column matches a known format by its name or values"
        shown = [f"{candidate.format} ({_roles(candidate)}{_doubts(candidate)})" for candidate in self.close]
        if len(shown) == 1:
            return f"the format could be {shown[0]}, but this is not certain"
        return f"the format could be {', '.join(shown[:-1])} or {shown[-1]}"


def choose(
    candidates: Sequence[FormatCandidate], min_confidence: float = MIN_CONFIDENCE
) -> FormatCandidate | Ambiguity:
    """Return the most likely candidate if it is certain, else an `Ambiguity`.

    It is certain with a confidence of at least `min_confidence` and a lead of at least `MIN_LEAD` over all others. The
    confidence of the others is taken without their doubts, because a doubt about one candidate is not evidence for
    another. A candidate is ignored if a certain one uses the same columns and more, or if it leaves out the rejected
    answers of a preference pair that is certain and without doubts.

    Args:
        candidates: as `format_candidates` returns them, in any order.
    """
    if unread := next((one for one in candidates if not one.form and one.doubts), None):
        return Ambiguity((), unread)
    ranked = sorted((one for one in candidates if one.form), key=lambda candidate: -candidate.confidence)
    sure = [set(one.unused) for one in ranked if one.confidence >= min_confidence]
    ranked = [one for one in ranked if not any(fewer < set(one.unused) for fewer in sure)]
    if any(one.form == "preference" and one.confidence >= min_confidence and not one.doubts for one in ranked):
        ranked = [one for one in ranked if "rejected" not in one.doubts]
    if not ranked:
        return Ambiguity(())
    best = ranked[0]
    close = tuple(candidate for candidate in ranked if best.confidence - candidate.plausible < MIN_LEAD)
    return best if best.confidence >= min_confidence and len(close) == 1 else Ambiguity(close)


def _roles(candidate: FormatCandidate) -> str:
    return ", ".join(f"{role}: {source!r}" for role, source in candidate.roles.items())


def _doubts(candidate: FormatCandidate) -> str:
    return "".join(f"; but {role}: {reason}" for role, reason in candidate.doubts.items())
