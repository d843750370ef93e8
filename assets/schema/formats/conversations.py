"""Conversations: one column of messages."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.assets.schema.evidence import doubts as doubt
from tokenloom.assets.schema.evidence.name_similarity import likeness, role_likeness
from tokenloom.assets.schema.evidence.profiles import fits_messages, message_fields, pair_fields
from tokenloom.assets.schema.evidence.unused_columns import is_message_text
from tokenloom.assets.schema.formats.candidate import (
    SETTINGS,
    FormatCandidate,
    Match,
    Profiles,
    asks,
    candidate,
    columns_of,
    is_rejected,
    optional,
)


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = columns_of(paths)
    for profile in columns:
        fit = max(fits_messages(profile), float(is_message_text(profile)))
        if not fit or asks(profile) or is_rejected(profile):
            continue
        speaker_field, text_field = message_fields(profile)
        name = role_likeness(profile.name, "messages")
        part = max(role_likeness(profile.name, "chosen").score, likeness(profile.name, ("prompt", "completion")).score)
        score = fit * (0.9 + 0.1 * name.score) * (1 - 0.5 * part)
        fields = f"lists of messages with {speaker_field} and {text_field}" if text_field else "messages as JSON text"
        fields = f"lists of {{{', '.join(pair)}}}" if (pair := pair_fields(profile)) else fields
        match = Match(profile.source, score, f"{name.reason or repr(profile.name)}, {fields}", profile)
        extra = optional(columns, [match], **SETTINGS)
        format_name = {"from": "ShareGPT", "role": "OpenAI messages"}.get(speaker_field or "", "conversation")
        doubts = {"messages": doubt.unknown_roles(profile) or doubt.unanswered(profile)}
        yield candidate(paths, format_name, "messages", {"messages": match, **extra}, doubts=doubts)
