"""Columns that a reading of the rows leaves unused, and which of them could change what is trained."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from tokenloom.assets.schema.evidence.name_similarity import likeness, names_metadata, role_likeness, words
from tokenloom.assets.schema.evidence.profiles import Profile, Steps, fits_flag, fits_messages, is_message
from tokenloom.assets.stage.forms import form_named

FLAGS = (
    *("label", "kto_tag", "desirable", "accepted", "preferred", "correct", "good", "feedback", "vote", "liked"),
    *("helpful", "thumbs_up", "score", "rating", "reward"),
)
"""Names of columns that rate an answer, if their values are flags."""

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
    columns = {steps[:1] for steps in used}
    unused = [profile for profile in paths.values() if profile.is_column and profile.steps not in columns]
    for steps in used:
        if len(steps) > 1 and steps[:-1] in paths and paths[steps[:-1]].kind == "struct":
            siblings = (paths[(*steps[:-1], name)] for name in paths[steps[:-1]].fields)
            unused += [field for field in siblings if not any(_within(field.steps, other) for other in used)]
    return [profile for profile in {profile.steps: profile for profile in unused}.values() if _has_content(profile)]


def _within(one: Steps, other: Steps) -> bool:
    """Return whether one path leads into what the other leads to, or the other way round."""
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
    rows = profile.facts.get("rows")
    return profile.kind != "null" and (rows is None or profile.facts["nulls"] + profile.facts["empty"] < rows)


def rates_answers(profile: Profile) -> bool:
    """Return whether a column is a flag that could say whether an answer is wanted."""
    return bool(fits_flag(profile)) and likeness(profile.name, FLAGS).score >= 0.7


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
    "media": (lambda profile: bool(MEDIA & {*words(profile.name)}), "and images, audio and video cannot be read"),
}
"""For each role, which unused columns resemble it, and what they could hold."""
