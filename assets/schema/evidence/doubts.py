"""Reasons to doubt a format that the columns' names and values suggest.

Either a build would reject rows, or other columns indicate that the rows are incomplete without them.
Each function returns the reason in words, or None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tokenloom.assets.schema.evidence.name_similarity import role_likeness, words
from tokenloom.assets.schema.evidence.profiles import (
    Profile,
    fits_few,
    fits_messages,
    is_time,
    speakers_of,
    unknown_speakers,
)
from tokenloom.assets.schema.evidence.speakers import SPEAKERS, role_of
from tokenloom.config import ValidationConfig

REJECTED = float(ValidationConfig.model_fields["max_reject_fraction"].default)
"""The fraction of rejected rows above which a build fails."""

FEW_ROWS = 4
"""The number of rejected rows that is never a reason for doubt, whatever their fraction."""

SPAN_WORDS = {"start", "end", "offset", "offsets", "position", "span"}


def emptiness(profile: Profile) -> str | None:
    """Doubt a path that is null or empty, or the first item of an empty list, in more rows than a build tolerates."""
    levels = [profile.within[profile.steps[: depth + 1]] for depth in range(len(profile.steps))]
    missing = 1 - prod(1 - level.fraction("nulls") - level.fraction("empty") for level in levels)
    if _too_many(missing * profile.column.facts.get("rows", 0), profile.column):
        return f"{missing:.0%} of rows have nothing there and would be rejected"
    return None


def unknown_roles(conversation: Profile) -> str | None:
    """Doubt conversations with speakers whose role is unknown."""
    unknown, names = unknown_speakers(conversation)
    if _too_many(unknown, conversation):
        return f"who speaks is not known{': ' * bool(names)}{', '.join(names[:4])}"
    return None


def unanswered(conversation: Profile) -> str | None:
    """Doubt conversations without a message of the assistant."""
    speakers = _speakers(conversation)
    answered = not speakers or any(role_of(speaker) == "assistant" for speaker in speakers)
    return None if answered else "no message is an assistant's"


def other_words(answer: Profile) -> str | None:
    """Doubt answers that could be meant to be written otherwise than Python writes them."""
    if answer.kind == "boolean":
        return "its values true and false would be written True and False"
    return "its times would be written as Python's str does, such as 2024-01-31 09:30:00" if is_time(answer) else None


def first_of_several(profile: Profile) -> str | None:
    """Doubt the first item of a list that usually has several, unless they are spans of a text, which agree."""
    depths = [depth for depth, step in enumerate(profile.steps) if step is None]
    typical = max((profile.within[profile.steps[:depth]].typical_length for depth in depths), default=0)
    if typical < 2:
        return None
    steps = profile.steps[:-1] if profile.steps[-1] is None else profile.steps
    struct = profile.within.get(steps[:-1])
    siblings = {word for name in (struct.fields if struct else ()) for word in words(name)}
    return None if siblings & SPAN_WORDS else f"most rows hold {typical} or more of them, of which it is the first"


def single_messages(columns: Sequence[Profile]) -> str | None:
    """Doubt texts next to a column that names the speaker of each, or the message that it answers."""
    for profile in columns:
        is_speaker = profile.name.lower() in SPEAKERS and profile.facts.get("values")
        if is_speaker or "parent" in words(profile.name):
            return f"{profile.name!r} beside it says that each is one message of a conversation"
    return None


def unused_label(columns: Sequence[Profile]) -> str | None:
    """Doubt texts next to a column with few values that has the name of a label."""
    for profile in columns:
        if role_likeness(profile.name, "label").score >= 0.7 and fits_few(profile) >= 0.5:
            return f"{profile.name!r} beside it may be what to tell from it"
    return None


def wrong_indices(key: Profile, choices: Profile) -> str | None:
    """Doubt indices of choices that do not start at 0, or that exceed the longest list."""
    longest = (choices.facts.get("lengths") or {}).get("longest", 0)
    numbers = sorted(_numbers(key))
    if numbers and numbers[0] != 0:
        lowest = f"counts from {numbers[0]:g}" if numbers[0] > 0 else f"holds {numbers[0]:g}"
        return f"{key.name!r} {lowest}, indices from 0"
    if numbers and longest and numbers[-1] >= longest:
        return f"{key.name!r} goes up to {numbers[-1]:g}, the choices' index to {longest - 1}"
    return None


def missing_prompt(chosen: Profile) -> str | None:
    """Doubt answers that hold no prompt, for datasets without a column of prompts."""
    if chosen.kind == "text" and chosen.trait("transcript") + chosen.trait("json") >= 0.5:
        return None
    asked = any(role_of(value) == "user" for value in _speakers(chosen) or ("user",))
    return None if fits_messages(chosen) and asked else "there is no prompt for the answers"


def _speakers(conversation: Profile) -> Sequence[str]:
    """Return the names of the speakers; empty if they are unknown or many."""
    speaker = speakers_of(conversation)
    return (speaker.facts.get("values") or ()) if speaker else ()


def _numbers(key: Profile) -> Iterator[float]:
    for value in key.facts.get("values") or ():
        try:
            yield float(value)
        except ValueError:
            continue


def _too_many(rejected: float, column: Profile) -> bool:
    return rejected > max(FEW_ROWS, REJECTED * column.facts.get("rows", 0))
