"""Pairs of a chosen and a rejected answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tokenloom.assets.schema.evidence import doubts as doubt
from tokenloom.assets.schema.evidence.name_similarity import role_likeness
from tokenloom.assets.schema.evidence.profiles import Profile, fits_messages
from tokenloom.assets.schema.evidence.unused_columns import is_spoken
from tokenloom.assets.schema.formats.candidate import (
    AROUND_TEXT,
    SETTINGS,
    FormatCandidate,
    Match,
    Profiles,
    asks,
    candidate,
    columns_of,
    fits_reply,
    is_rejected,
    optional,
    ranked,
    siblings,
)


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = columns_of(paths)
    rejects = ranked(columns, "rejected", fits_reply)[:2]
    for chosen in ranked(columns, "chosen", fits_reply)[:2] or (_beside(columns) if rejects else []):
        for rejected in rejects:
            unlike = chosen.profile.kind != rejected.profile.kind and not is_spoken(chosen.profile)
            if unlike or chosen.source == rejected.source:
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


def _beside(columns: Sequence[Profile]) -> list[Match]:
    """Return what is the chosen answer next to rejected ones if no column is named so: a conversation, or an answer."""
    others = [column for column in columns if not is_rejected(column)]
    talks = [match for match in ranked(others, "messages", fits_messages, 0.7) if not asks(match.profile)]
    found = [*talks, *ranked(others, "completion", fits_reply, 0.7)][:1]
    return [replace(match, reason=f"{match.reason}, next to rejected answers") for match in found]


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
