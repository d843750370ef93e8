"""Answers with a label that says whether they are wanted."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.assets.schema.evidence import doubts as doubt
from tokenloom.assets.schema.evidence.flag_words import unsure_flags
from tokenloom.assets.schema.evidence.name_similarity import likeness
from tokenloom.assets.schema.evidence.profiles import fits_flag, fits_messages
from tokenloom.assets.schema.evidence.unused_columns import FLAGS, is_spoken
from tokenloom.assets.schema.formats.candidate import (
    AROUND_TEXT,
    SETTINGS,
    FormatCandidate,
    Profiles,
    candidate,
    columns_of,
    fits_reply,
    is_rejected,
    optional,
    ranked,
)

KTO_LABELS = ("label", "kto_tag", "desirable")


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = [profile for profile in columns_of(paths) if not is_rejected(profile)]
    for label in ranked(columns, FLAGS, fits_flag, 0.5)[:1]:
        rates = likeness(label.profile.name, KTO_LABELS).score >= 0.87
        doubts = {"label": None if rates else "it may rate something other than the answer"}
        doubts["label"] = doubts["label"] or unsure_flags(label.profile.facts.get("values") or ())
        asked = ranked(columns, "prompt", fits_reply)[:1]
        for prompt in asked:
            for completion in ranked(columns, "completion", fits_reply)[:2]:
                roles = {"prompt": prompt, "completion": completion, "label": label}
                beside = SETTINGS if is_spoken(prompt.profile) else SETTINGS | AROUND_TEXT
                extra = optional(columns, list(roles.values()), **beside)
                yield candidate(paths, "KTO", "kto", roles | extra, doubts=doubts)
        talks = [*ranked(columns, "messages", fits_messages), *ranked(columns, "completion", fits_messages)]
        for talk in talks[:1]:
            doubts["completion"] = doubt.unknown_roles(talk.profile) or doubt.missing_prompt(talk.profile)
            doubts["completion"] = doubts["completion"] or doubt.unanswered(talk.profile)
            roles = {"completion": talk, "label": label} | optional(columns, [talk, label], **SETTINGS)
            notes = ["prompt: each conversation up to its last answer"]
            yield candidate(paths, "KTO", "kto", roles, 1.0, notes, doubts)
