"""Prompts without answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tokenloom.assets.schema.evidence import doubts as doubt
from tokenloom.assets.schema.evidence.name_similarity import role_likeness
from tokenloom.assets.schema.evidence.profiles import Profile, fits_messages
from tokenloom.assets.schema.evidence.unused_columns import is_filled, is_spoken
from tokenloom.assets.schema.formats.candidate import (
    AROUND_TEXT,
    SETTINGS,
    FormatCandidate,
    Profiles,
    asks,
    candidate,
    columns_of,
    fits_reply,
    optional,
    ranked,
)

UNASKED = 0.3
"""The factor for prompts without answers if other columns have content: certain only if the YAML asks for prompts."""


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield candidates for prompts without answers."""
    columns = columns_of(paths)
    spoken = [match for match in ranked(columns, "messages", fits_messages) if asks(match.profile)]
    for prompt in (*ranked(columns, "prompt", fits_reply, 0.85), *spoken)[:1]:
        beside = SETTINGS if is_spoken(prompt.profile) else SETTINGS | AROUND_TEXT
        roles = {"prompt": prompt, **optional(columns, [prompt], **beside)}
        doubts = {"prompt": doubt.unknown_roles(prompt.profile)}
        found = candidate(paths, "prompts", "prompt_only", roles, doubts=doubts)
        beside = found.unused or any(_answers(profile) for profile in columns if profile is not prompt.profile)
        yield replace(found, confidence=round(found.confidence * UNASKED, 3)) if beside else found


def _answers(profile: Profile) -> bool:
    """Return whether a column has the name of answers and values of any kind, such as numbers or bytes."""
    return role_likeness(profile.name, "completion").score >= 0.87 and is_filled(profile)
