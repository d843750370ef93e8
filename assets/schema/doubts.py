"""Reasons to doubt a format that the columns' names and values suggest, and the columns that it leaves unused.

Either a build would reject rows, or other columns indicate that the rows are incomplete without them.
Each function returns the reason in words, or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import prod

from tokenloom.assets.schema.profiles import (
    SPEAKERS,
    Profile,
    Steps,
    fits_few,
    fits_flag,
    fits_messages,
    is_message,
    is_time,
    likeness,
    names_metadata,
    role_likeness,
    role_of,
    speakers_of,
    unknown_speakers,
    usual_values,
    words,
)
from tokenloom.assets.stage.forms import form_named
from tokenloom.config import ValidationConfig

FLAGS = (
    *("label", "kto_tag", "desirable", "accepted", "preferred", "correct", "good", "feedback", "vote", "liked"),
    *("helpful", "thumbs_up", "score", "rating", "reward", "passed", "resolved", "verified", "solved", "success"),
)
"""Names of columns that rate an answer, if their values are flags."""
LABELS = ("label", "kto_tag", "desirable")
"""Those that also do if their values are other numbers, such as 0.9, 5 of 5 stars, or the number of a class."""

PROMPTS = ("prompt", "instruction", "question", "query")
PASSAGES = ("context", "passage", "background", "paragraph", "document", "evidence")
MEDIA = {"image", "images", "audio", "audios", "video", "videos"}
REQUEST_SETTINGS = {"parallel_tool_calls"}
"""Settings of a request to a model, which are not part of the conversation."""

_MESSAGE_TEXT = re.compile(
    r"""\s*(?:\[\s*\{\s*(?P<quote>["'])(?:role|content|from|value|human|user)|\{\s*(?P<other>["'])(?:role|from|content|value))"""
    r"""(?:(?P=quote)|(?P=other))\s*:""",
    re.IGNORECASE,
)


def unused_columns(paths: Mapping[Steps, Profile], used: Collection[Steps]) -> list[Profile]:
    """Return what has content but is not used: texts, lists, structs and flags, except metadata.

    Args:
        paths: all profiles by their steps.
        used: columns and nested paths. Of a struct with a used field, the other fields are returned.
    """
    # A used path uses its column, but not the other fields of the struct around it.
    columns = {steps[:1] for steps in used}
    unused = [profile for profile in paths.values() if profile.is_column and profile.steps not in columns]
    for steps in used:
        if len(steps) > 1 and steps[:-1] in paths and paths[steps[:-1]].kind == "struct":
            siblings = (paths[(*steps[:-1], name)] for name in paths[steps[:-1]].fields)
            unused += [field for field in siblings if not any(_within(field.steps, other) for other in used)]
    return [profile for profile in {profile.steps: profile for profile in unused}.values() if _has_content(profile)]


def _within(one: Steps, other: Steps) -> bool:
    """Return whether one of two paths leads into the other."""
    return all(a == b for a, b in zip(one, other, strict=False))


def repeated_in(profile: Profile, used: Collection[Steps]) -> str | None:
    """Return the used column whose conversations start with the prompts of an unused one in every row, if any."""
    return next((name for name in profile.facts.get("repeats") or () if (name,) in used), None)


def could_change(form: str, roles: Collection[str], unused: Sequence[Profile]) -> dict[str, str]:
    """Return why unused columns could change the text or its sign: one reason per role that they resemble.

    Args:
        form: the canonical form of the reading.
        roles: the roles that the reading fills.
    """
    reasons: dict[str, str] = {}
    for profile in unused:
        for role, (resembles, reason) in _SIGNS.items():
            if role not in roles and role not in form_named(form).covered and resembles(profile):
                reasons.setdefault(role, f"it does not use {profile.source!r}, {reason}")
                break
    return reasons


def is_filled(profile: Profile) -> bool:
    """Return whether any value is neither null nor empty."""
    rows, is_empty = profile.facts.get("rows"), profile.kind == "struct" and profile.type == "struct<>"
    return (
        profile.kind != "null"
        and not is_empty
        and (rows is None or profile.facts["nulls"] + profile.facts["empty"] < rows)
    )


def rates_answers(profile: Profile) -> bool:
    """Return whether a column is a flag, a number, or one of two words that could say whether an answer is wanted."""
    if fits_flag(profile):
        return likeness(profile.name, FLAGS).score >= 0.7
    two = profile.kind == "text" and len(profile.facts.get("values") or ()) == 2
    return (profile.kind == "number" or two) and likeness(profile.name, LABELS).score >= 0.87


def is_spoken(profile: Profile) -> bool:
    """Return whether values are messages: a conversation, one message, or a conversation as JSON text."""
    return bool(fits_messages(profile)) or is_message(profile) or is_message_text(profile)


def is_message_text(profile: Profile) -> bool:
    """Return whether values are conversations as JSON text."""
    examples = profile.facts.get("examples") or ()
    return profile.kind == "text" and 2 * sum(bool(_MESSAGE_TEXT.match(text)) for text in examples) > len(examples)


def _has_content(profile: Profile) -> bool:
    if rates_answers(profile):
        return is_filled(profile)
    nested_or_text = profile.kind in ("text", "list", "struct", "other") and profile.name not in REQUEST_SETTINGS
    return nested_or_text and not names_metadata(profile.name) and is_filled(profile)


def _named(role: str, min_score: float = 0.87) -> Callable[[Profile], bool]:
    return lambda profile: role_likeness(profile.name, role).score >= min_score


def _is_prompt(profile: Profile) -> bool:
    return likeness(profile.name, PROMPTS).score >= 0.87 and (profile.kind == "text" or is_spoken(profile))


def _is_answer(profile: Profile) -> bool:
    return role_likeness(profile.name, "completion").score >= 0.87 and (profile.kind == "text" or is_spoken(profile))


def _is_context(profile: Profile) -> bool:
    if profile.kind == "text":
        return role_likeness(profile.name, "context").score >= 0.7
    return profile.kind in ("list", "struct") and likeness(profile.name, PASSAGES).score >= 0.7


_MEDIA = "and images need tokenizer.processor; audio and video cannot be read"

_SIGNS: Mapping[str, tuple[Callable[[Profile], bool], str]] = {
    "label": (rates_answers, "which could say whether the answer is wanted"),
    "rejected": (_named("rejected", 0.7), "which could hold unwanted answers"),
    "history": (_named("history", 0.85), "which could hold earlier turns"),
    "messages": (lambda profile: bool(fits_messages(profile)) or is_message_text(profile), "which holds messages"),
    "prompt": (_is_prompt, "which could belong to the prompt"),
    "completion": (_is_answer, "which could be the answer"),
    "context": (_is_context, "which could be the source of answers"),
    "system": (_named("system"), "which could hold system prompts"),
    "tools": (_named("tools"), "which could declare tools"),
    "template_kwargs": (_named("template_kwargs"), "which could hold settings of the chat template"),
    "choices": (lambda profile: profile.kind == "list" and _named("choices")(profile), "which could hold the choices"),
    "media": (lambda profile: bool(MEDIA & {*words(profile.name)}), _MEDIA),
}
"""For each role, which unused columns resemble it, and what they could hold."""


REJECTED = float(ValidationConfig.model_fields["max_reject_fraction"].default)
"""The fraction of rejected rows above which a build fails."""

FEW_ROWS = 4
"""The number of rejected rows that is never a reason for doubt, whatever their fraction."""

SPAN_WORDS = {"start", "end", "offset", "offsets", "position", "span"}


def emptiness(profile: Profile) -> str | None:
    """Doubt a path that is null or empty, or the first item of an empty list, in more rows than a build tolerates."""
    levels = [profile.within[profile.steps[: depth + 1]] for depth in range(len(profile.steps))]
    # A value is there only if every level above it is; levels are taken as independent.
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
    numbers = sorted(_numbers(usual_values(key)))
    if numbers and numbers[0] != 0 and 0 not in _numbers(key.facts.get("values") or ()):
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


def _numbers(values: Collection[str]) -> Iterator[float]:
    for value in values:
        try:
            yield float(value)
        except ValueError:
            continue


def _too_many(rejected: float, column: Profile) -> bool:
    return rejected > max(FEW_ROWS, REJECTED * column.facts.get("rows", 0))
