"""Rows that are lists of two values, and conversations that are lists of texts."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.assets.schema.evidence.name_similarity import role_likeness
from tokenloom.assets.schema.evidence.profiles import Profile, fits_history
from tokenloom.assets.schema.evidence.unused_columns import unused_columns
from tokenloom.assets.schema.formats.candidate import (
    SETTINGS,
    FormatCandidate,
    Match,
    Profiles,
    candidate,
    columns_of,
    optional,
)
from tokenloom.resources.tables.nested_paths import quoted


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield candidates for rows that are lists of two values, such as `["text", "label"]`, and for lists of turns."""
    columns = unused_columns(paths, ())
    for profile in columns:
        if _is_alternating(profile) and (len(columns) == 1 or role_likeness(profile.name, "messages").score >= 0.7):
            match = Match(
                f"{{{quoted(profile.name)}:turns}}", 1.0, "texts without the names of their speakers", profile
            )
            settings = optional(columns_of(paths), [match], **SETTINGS)
            doubts = {"messages": "the first text would be read as the user's, the second as the assistant's, in turn"}
            yield candidate(paths, "turns without speakers", "messages", {"messages": match, **settings}, doubts=doubts)
    for profile in columns if len(columns) == 1 else ():
        pair = (profile.facts.get("lengths") or {}).get("longest") == 2 == profile.typical_length
        is_flat = profile.kind == "list" and (profile.items is None or profile.items.kind != "struct")
        if pair and is_flat:
            name = quoted(profile.name)
            roles = {
                role: Match(f"{name}[{index}]", 1.0, f"item {index} of each list", profile)
                for index, role in enumerate(("prompt", "completion"))
            }
            doubts = {"prompt": "the items of the lists have no names"}
            yield candidate(paths, "lists of two", "completion", roles, doubts=doubts)


def _is_alternating(profile: Profile) -> bool:
    """Return whether values are lists of texts, or of [question, answer]."""
    items = profile.items
    texts = items is not None and items.kind == "text" and profile.typical_length >= 2
    return bool(texts or (items is not None and items.kind == "list" and fits_history(profile)))
