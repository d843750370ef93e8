"""Candidates for the role of each column, by its name and its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenloom.assets.schema.evidence.name_similarity import ALIASES, role_likeness
from tokenloom.assets.schema.evidence.profiles import (
    Profile,
    fits_answer,
    fits_context,
    fits_flag,
    fits_history,
    fits_label,
    fits_messages,
    fits_text,
    fits_tools,
    profiles,
)

MIN_CONFIDENCE = 0.2


@dataclass(frozen=True)
class RoleCandidate:
    """A role that a source could have.

    Args:
        role: the role.
        source: a source expression.
        confidence: from 0 to 1.
        evidence: in words.
    """

    role: str
    source: str
    confidence: float
    evidence: str


def role_candidates(columns: Sequence[Mapping[str, object]]) -> list[RoleCandidate]:
    """Return the roles that each column, and text nested in columns, could have, the most likely first.

    Args:
        columns: profiles as `tokenloom.assets.schema.merge` returns them.
    """
    ranked = (
        sorted(_roles(profile), key=lambda role: -role.confidence)
        for profile in profiles(columns).values()
        if profile.is_column or profile.kind == "text"
    )
    return [role for roles in ranked for role in roles]


def _roles(profile: Profile) -> list[RoleCandidate]:
    candidates = []
    for role in ALIASES:
        name, by_values = role_likeness(profile.name, role), _fit_by_values(role, profile)
        confidence = max(name.score * _fit(role, profile) if name.score else 0.0, by_values)
        if confidence >= MIN_CONFIDENCE:
            evidence = ", ".join(part for part in (name.reason, profile.shape()) if part)
            candidates.append(RoleCandidate(role, profile.source, round(confidence, 3), evidence))
    return candidates


def _fit(role: str, profile: Profile) -> float:
    """Return how well values fit a role that the name suggests."""
    if role == "messages":
        return fits_messages(profile)
    if role in ("chosen", "rejected"):
        return max(fits_text(profile), fits_messages(profile))
    if role == "label":
        return max(fits_label(profile), fits_flag(profile))
    if role == "choices":
        return float(profile.kind == "list")
    fits = {"completion": fits_answer, "context": fits_context, "system": fits_context, "tools": fits_tools}
    fits["history"] = fits_history
    return fits.get(role, fits_text)(profile)


def _fit_by_values(role: str, profile: Profile) -> float:
    """Return how well values fit a role regardless of the name."""
    if role == "messages":
        return 0.9 * fits_messages(profile)
    if profile.kind != "text" or not profile.is_column:
        return 0.0
    if role == "prompt":
        return 0.4 * profile.trait("question")
    if role == "label":
        return 0.4 * profile.trait("identifier") * fits_label(profile)
    return 0.4 * profile.trait("sentences") * fits_text(profile) if role == "text" else 0.0
