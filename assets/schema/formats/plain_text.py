"""Plain text."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.assets.schema.evidence import doubts as doubt
from tokenloom.assets.schema.evidence.name_similarity import is_metadata, likeness
from tokenloom.assets.schema.evidence.profiles import Profile, fits_text
from tokenloom.assets.schema.evidence.unused_columns import PROMPTS, is_message_text
from tokenloom.assets.schema.formats.candidate import (
    FormatCandidate,
    Match,
    Profiles,
    candidate,
    columns_of,
    is_rejected,
    ranked,
)


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = [profile for profile in columns_of(paths) if profile.kind != "null"]
    doubts = {"text": doubt.single_messages(columns) or doubt.unused_label(columns)}
    for text in (match for match in ranked(columns, "text", fits_text)[:2] if not _is_other(match.profile)):
        others = [profile for profile in columns if profile is not text.profile and not is_metadata(profile.name)]
        notes = [f"{len(others)} other columns would go unused"] if others else []
        yield candidate(paths, "plain text", "text", {"text": text}, 0.85 ** len(others), notes, doubts)
    content = [profile for profile in columns if not is_metadata(profile.name)]
    if len(content) == 1 and content[0].kind == "text" and not _is_other(content[0]):
        only = content[0]
        rivals = max((profile.trait("sentences") for profile in columns if profile is not only), default=0.0)
        asks = likeness(only.name, PROMPTS).score
        score = (0.6 + 0.3 * only.trait("sentences")) * fits_text(only) * (1 - 0.5 * rivals) * (1 - 0.5 * asks)
        match = Match(only.source, score, f"the only column of text, {only.shape()}", only)
        yield candidate(paths, "plain text", "text", {"text": match}, doubts=doubts)


def _is_other(profile: Profile) -> bool:
    """Return whether texts are conversations, or rejected answers."""
    return is_message_text(profile) or is_rejected(profile)
