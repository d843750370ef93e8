"""Candidates for the role of each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenloom.assets.schema.names import ALIASES, role_likeness
from tokenloom.assets.schema.profiles import (
    Profile,
    fits_answer,
    fits_context,
    fits_flag,
    fits_label,
    fits_messages,
    fits_text,
    fits_tools,
    profiles,
)

LEAST = 0.2


@dataclass(frozen=True)
class RoleCandidate:
    """A role that a source may play, with a confidence from 0 to 1 and the evidence in words."""

    role: str
    source: str
    confidence: float
    evidence: str


def role_candidates(columns: Sequence[Mapping[str, object]]) -> list[RoleCandidate]:
    """For every column, and for text within columns, the roles that it may play, the likeliest first.

    Args:
        columns: as `tokenloom.assets.schema.sketch.merge` describes them.
    """
    ranked = (
        sorted(_roles(profile), key=lambda role: -role.confidence)
        for profile in profiles(columns).values()
        if profile.is_column or profile.kind == "text"
    )
    return [role for roles in ranked for role in roles]


def _roles(profile: Profile) -> list[RoleCandidate]:
    found = []
    for role in ALIASES:
        like, shape = role_likeness(profile.name, role), _by_shape(role, profile)
        confidence = max(like.score * _fit(role, profile), shape)
        if confidence >= LEAST:
            evidence = ", ".join(part for part in (like.reason, profile.shape()) if part)
            found.append(RoleCandidate(role, profile.source, round(confidence, 3), evidence))
    return found


def _fit(role: str, profile: Profile) -> float:
    """How well values fit a role that the name speaks for."""
    if role == "messages":
        return fits_messages(profile)
    if role in ("chosen", "rejected"):
        return max(fits_text(profile), fits_messages(profile))
    if role == "label":
        return max(fits_label(profile), fits_flag(profile))
    if role == "choices":
        return float(profile.kind == "list")
    fits = {"completion": fits_answer, "context": fits_context, "system": fits_context, "tools": fits_tools}
    return fits.get(role, fits_text)(profile)


def _by_shape(role: str, profile: Profile) -> float:
    """What the values alone say."""
    if role == "messages":
        return 0.9 * fits_messages(profile)
    if profile.kind != "text" or not profile.is_column:
        return 0.0
    if role == "prompt":
        return 0.4 * profile.trait("question")
    if role == "label":
        return 0.4 * profile.trait("identifier") * fits_label(profile)
    return 0.4 * profile.trait("sentences") * fits_text(profile) if role == "text" else 0.0
