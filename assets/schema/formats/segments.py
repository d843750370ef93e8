"""Texts in segments with a label each, which says whether the segment is trained (axolotl's `input_output`)."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.assets.schema.evidence.name_similarity import likeness
from tokenloom.assets.schema.evidence.profiles import fits_flag
from tokenloom.assets.schema.formats.candidate import FormatCandidate, Match, Profiles, candidate, columns_of


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield candidates for lists of structs with a text and a flag."""
    for profile in columns_of(paths):
        name, item = likeness(profile.name, ("segments",)), profile.items
        text, label = (item.field(field) if item else None for field in ("text", "label"))
        if name.score >= 0.87 and text and text.kind == "text" and label and fits_flag(label):
            match = Match(profile.source, name.score, f"{name.reason}, lists of text and label", profile)
            yield candidate(paths, "segments", "segments", {"segments": match})
