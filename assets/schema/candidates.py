"""What a dataset's columns are: candidates for its format and for the role of each column, and which one is sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenloom.assets.schema.formats import FormatCandidate, format_candidates
from tokenloom.assets.schema.names import ALIASES
from tokenloom.assets.schema.roles import RoleCandidate, role_candidates

__all__ = [
    "ALIASES",
    "LEAD",
    "SURE",
    "Ambiguity",
    "FormatCandidate",
    "RoleCandidate",
    "choose",
    "format_candidates",
    "role_candidates",
]

SURE, LEAD = 0.6, 0.1


@dataclass(frozen=True)
class Ambiguity:
    """No reading is sure.

    Args:
        close: the readings between which the data do not decide, the likeliest first; none where nothing fits.
    """

    close: tuple[FormatCandidate, ...]

    def __str__(self) -> str:
        """What is in doubt, in one sentence."""
        if not self.close:
            return "no column is known by its name or its values"
        told = [f"{found.format} ({_roles(found)}{_doubts(found)})" for found in self.close]
        if len(told) == 1:
            return f"it may be {told[0]}, but that is not sure"
        return f"it may be {', '.join(told[:-1])} or {told[-1]}"


def choose(candidates: Sequence[FormatCandidate]) -> FormatCandidate | Ambiguity:
    """The likeliest candidate where it is sure: confidence of at least `SURE`, and a lead of `LEAD` before all others.

    The lead is before what others would be without the doubts about them: a doubt asks, it decides for no other.

    Args:
        candidates: as `format_candidates` finds them, in any order.
    """
    readings = sorted((found for found in candidates if found.form), key=lambda found: -found.confidence)
    if not readings:
        return Ambiguity(())
    best = readings[0]
    close = tuple(found for found in readings if best.confidence - found.plausible < LEAD)
    return best if best.confidence >= SURE and len(close) == 1 else Ambiguity(close)


def _roles(found: FormatCandidate) -> str:
    return ", ".join(f"{role}: {source!r}" for role, source in found.roles.items())


def _doubts(found: FormatCandidate) -> str:
    return "".join(f"; but {role}: {reason}" for role, reason in found.doubts.items())
