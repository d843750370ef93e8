"""Prompts and completions of text: alpaca, questions and answers, reading comprehension."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from tokenloom.assets.schema.evidence import doubts as doubt
from tokenloom.assets.schema.evidence.name_similarity import likeness, role_likeness
from tokenloom.assets.schema.evidence.profiles import (
    Profile,
    fits_answer,
    fits_context,
    fits_history,
    fits_key,
    fits_text,
)
from tokenloom.assets.schema.evidence.unused_columns import is_spoken
from tokenloom.assets.schema.formats.candidate import (
    MIN_SCORE,
    Fit,
    FormatCandidate,
    Match,
    Profiles,
    candidate,
    column_name,
    columns_of,
    fits_reply,
    is_rejected,
    optional,
    ranked,
    siblings,
)
from tokenloom.assets.schema.formats.multiple_choice import fits_choices


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = columns_of(paths)
    listed = ranked(columns, "choices", fits_choices)
    listed = [match for match in listed if match.profile.kind == "list"]
    lettered = {"a", "b"} <= {profile.name.lower() for profile in columns}
    choices = lettered or any(ranked(columns, "choices", lambda profile: 1.0))
    around: dict[str, Fit] = {"context": fits_context, "system": fits_context, "history": fits_history}
    for completion in _answers(paths):
        taken: list[Match] = []
        for prompt in ranked(columns, "prompt", fits_text)[:3]:
            if prompt.source == completion.source or any(prompt.source == match.source for match in taken):
                continue
            others = [*siblings(paths, completion.profile), *columns]
            extra = optional(others, [prompt, completion], **around)
            taken += extra.values()
            if listed and "context" not in extra and completion.profile.is_column:
                choice = listed[0]
                extra["context"] = replace(choice, source=f"{{{column_name(choice)}:letters}}")
            factor, notes = 1.0, []
            if choices and completion.profile.is_column:
                factor, notes = 0.9 - 0.4 * fits_key(completion.profile), ["there are choices beside it"]
            name = _completion_name(prompt.profile, completion.profile, extra)
            roles = {"prompt": prompt, **extra, "completion": completion}
            doubts = {"completion": doubt.first_of_several(completion.profile) or doubt.other_words(completion.profile)}
            yield candidate(paths, name, "completion", roles, factor, notes, doubts)


def _answers(paths: Profiles) -> Iterator[Match]:
    """Yield the best matches for a completion: columns, fields of structs, and the first items of lists."""
    columns = columns_of(paths)
    rejected = [profile.source for profile in columns if is_rejected(profile)]
    chosen = [match.source for match in ranked(columns, "chosen", fits_reply, 0.7)]
    paired = {*rejected, *(chosen if rejected else ())}
    matches = [match for match in ranked(columns, "completion", fits_answer) if match.source not in paired]
    for profile in paths.values():
        if profile.is_column or profile.kind != "text" or is_spoken(profile.column) or profile.column.name in paired:
            continue
        names = {profile.column.name, profile.name} if profile.name in ("text", "value") else {profile.name}
        best = max((role_likeness(name, "completion") for name in sorted(names)), key=lambda name: name.score)
        if (score := 0.97 * best.score * fits_answer(profile)) >= MIN_SCORE:
            first = ", the first of each list" if None in profile.steps else ""
            matches.append(Match(profile.source, score, f"{best.reason}, {profile.shape()}{first}", profile))
    yield from islice(sorted(matches, key=lambda match: -match.score), 3)


def _completion_name(prompt: Profile, completion: Profile, extra: Mapping[str, Match]) -> str:
    """Return the name of a format with prompts and completions."""
    if "context" in extra and likeness(completion.column.name, ("answer",)).score and not completion.is_column:
        return "reading comprehension"
    if likeness(prompt.name, ("instruction",)).score:
        return "alpaca"
    is_question = likeness(prompt.name, ("question", "query", "problem")).score
    return "question/answer" if is_question else "prompt/completion"
