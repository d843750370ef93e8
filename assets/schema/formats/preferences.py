"""Pairs of a chosen and a rejected answer."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.assets.schema.evidence import doubts as doubt
from tokenloom.assets.schema.evidence.name_similarity import role_likeness
from tokenloom.assets.schema.evidence.profiles import fits_messages
from tokenloom.assets.schema.evidence.unused_columns import is_spoken
from tokenloom.assets.schema.formats.candidate import (
    AROUND_TEXT,
    SETTINGS,
    FormatCandidate,
    Match,
    Profiles,
    candidate,
    columns_of,
    fits_reply,
    optional,
    ranked,
    siblings,
)


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = columns_of(paths)
    for chosen in ranked(columns, "chosen", fits_reply)[:2]:
        for rejected in ranked(columns, "rejected", fits_reply)[:2]:
            if chosen.profile.kind != rejected.profile.kind or chosen.source == rejected.source:
                continue
            pair = {"chosen": chosen, "rejected": rejected}
            prompts = [match for match in _asked(paths) if match.source not in (chosen.source, rejected.source)]
            first = {"prompt": prompts[0]} if prompts else {}
            others = SETTINGS
            if first and not is_spoken(prompts[0].profile):
                others = SETTINGS | AROUND_TEXT
            beside = siblings(paths, prompts[0].profile) if first else []
            extra = optional([*beside, *columns], [*pair.values(), *first.values()], **others)
            doubts = {
                role: doubt.unknown_roles(match.profile) or doubt.unanswered(match.profile)
                for role, match in pair.items()
            }
            doubts["prompt"] = (
                doubt.unknown_roles(prompts[0].profile) if first else doubt.missing_prompt(chosen.profile)
            )
            yield candidate(paths, "preference", "preference", {**first, **pair, **extra}, doubts=doubts)


def _asked(paths: Profiles) -> list[Match]:
    """Return what can be the prompt of a preference pair: columns of prompts, then conversations."""
    columns = columns_of(paths)
    inside = [
        Match(profile.source, 0.95 * name.score, f"{name.reason}, {profile.shape()}", profile)
        for profile in paths.values()
        if len(profile.steps) == 2 and fits_messages(profile)
        if (name := role_likeness(profile.column.name, "prompt")).score >= 0.7
    ]
    return [*ranked(columns, "prompt", fits_reply, 0.7), *inside, *ranked(columns, "messages", fits_messages, 0.7)]
