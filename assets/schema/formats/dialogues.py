"""Prompts and completions of which one holds messages, or that have tools."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.assets.schema.evidence import doubts as doubt
from tokenloom.assets.schema.evidence.profiles import fits_messages
from tokenloom.assets.schema.evidence.unused_columns import is_spoken
from tokenloom.assets.schema.formats.candidate import (
    AROUND_TEXT,
    SETTINGS,
    FormatCandidate,
    Profiles,
    asks,
    candidate,
    columns_of,
    fits_reply,
    is_rejected,
    optional,
    ranked,
)


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield candidates for prompts and completions of which one holds messages, or that have tools."""
    columns = [profile for profile in columns_of(paths) if not is_rejected(profile)]
    asked = ranked(columns, "prompt", fits_reply)[:2]
    spoken = [match for match in ranked(columns, "messages", fits_messages)[:1] if match not in asked]
    for prompt in (*asked, *spoken):
        for completion in ranked(columns, "completion", fits_reply)[:2]:
            taken, talks = [prompt, completion], is_spoken(prompt.profile) or is_spoken(completion.profile)
            extra = optional(columns, taken, **SETTINGS)
            if prompt.source == completion.source or not (talks or {"tools", "template_kwargs"} & extra.keys()):
                continue
            if not is_spoken(prompt.profile):
                extra |= optional(columns, [*taken, *extra.values()], **AROUND_TEXT)
            answered = None if prompt in asked or asks(prompt.profile) else "it may end with an answer of its own"
            doubts = {
                "prompt": doubt.unknown_roles(prompt.profile) or answered,
                "completion": doubt.unknown_roles(completion.profile) or doubt.unanswered(completion.profile),
            }
            roles = {"prompt": prompt, **extra, "completion": completion}
            yield candidate(paths, "prompt/completion", "dialogue", roles, doubts=doubts)
