"""Profiles of paths, as `sketch.merge` gives them, asked for their shape: how well do a path's values fit a role?

A fit is a share from 0 to 1 that follows the values' own shares without steps: a few rows more change it a little.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenloom.assets.schema.speakers import SAID, SPEAKERS, role_of
from tokenloom.resources.tables.nested_paths import quoted

_FIELD = re.compile(r"[<,]\s*([^<>:,]+):")

Steps = tuple[str | None, ...]


@dataclass(frozen=True)
class Profile:
    """One path's profile."""

    facts: Mapping[str, Any]
    within: Mapping[Steps, Profile]
    """All paths of the same dataset."""

    @property
    def steps(self) -> Steps:
        return tuple(self.facts.get("steps") or [self.facts["column"]])

    @property
    def column(self) -> Profile:
        """The profile of the column that it lies in."""
        return self.within[self.steps[:1]]

    @property
    def kind(self) -> str:
        """As in `sketch.kind_of`; from the type where the profile holds no more."""
        if "kind" in self.facts:
            return self.facts["kind"]
        arrow = self.facts["type"]
        kinds = {"list": "list", "large_list": "list", "struct": "struct", "bool": "boolean", "null": "null"}
        numbers = ("int", "uint", "float", "double", "decimal")
        return kinds.get(arrow.partition("<")[0], "number" if arrow.startswith(numbers) else "text")

    @property
    def source(self) -> str:
        """The source expression: a column's name as it is, further in a path, a list's first item for its items."""
        if self.is_column:
            return self.name
        first, *rest = self.steps
        return quoted(first or "") + "".join("[0]" if step is None else f".{quoted(step)}" for step in rest)

    @property
    def name(self) -> str:
        """The name of the column, or of the innermost field, that it is or is an item of."""
        return next(step for step in reversed(self.steps) if step is not None)

    @property
    def is_column(self) -> bool:
        return len(self.steps) == 1

    @property
    def fields(self) -> list[str]:
        """The names of a struct's fields."""
        depth = len(self.steps)
        inside = [steps[depth] for steps in self.within if steps[:depth] == self.steps and len(steps) == depth + 1]
        return [name for name in inside if name is not None]

    @property
    def items(self) -> Profile | None:
        """What a list holds."""
        return self.within.get((*self.steps, None)) if self.kind == "list" else None

    def field(self, name: str) -> Profile | None:
        """A struct's field."""
        return self.within.get((*self.steps, name))

    def share(self, count: str) -> float:
        """The share of `nulls` or `empty` places."""
        return self.facts.get(count, 0) / max(self.facts.get("rows", 1), 1)

    def trait(self, name: str) -> float:
        return self.facts.get("traits", {}).get(name, 0.0)

    @property
    def numbers(self) -> float:
        """The share of values that are numbers."""
        return 1.0 if self.kind == "number" else self.trait("number")

    @property
    def variety(self) -> float:
        """Distinct values for each place."""
        distinct = self.facts.get("distinct")
        return 1.0 if distinct is None else distinct / max(self.facts.get("rows", 1), 1)

    @property
    def typical_length(self) -> int:
        """The median length of its values; 0 where it is not known."""
        return (self.facts.get("lengths") or {}).get("p50", 0)

    def shape(self) -> str:
        """What the values look like, in a few words."""
        lengths = self.facts.get("lengths")
        if self.kind == "text" and lengths:
            told = {"question": "questions", "transcript": "transcripts", "turns": "dialogues", "number": "numbers"}
            shares = [f"{self.trait(name):.0%} {plural}" for name, plural in told.items() if self.trait(name) >= 0.2]
            size = f"text of about {lengths['p50']:,} characters" if lengths["p50"] else "often empty text"
            return ", ".join([size, *shares])
        if self.kind == "list" and lengths:
            return f"lists of up to {lengths['longest']:,}"
        return self.kind


def profiles(columns: Sequence[Mapping[str, Any]]) -> dict[Steps, Profile]:
    """Profiles by their steps."""
    found: dict[Steps, Profile] = {}
    for facts in columns:
        profile = Profile(facts, found)
        found.setdefault(profile.steps, profile)
    return found


def fits_text(profile: Profile) -> float:
    """A prompt, a context, a document: text, not mostly numbers, URLs or nothing."""
    if profile.kind != "text":
        return 0.0
    return (1 - 0.7 * profile.numbers) * (1 - 0.7 * profile.trait("url")) * (1 - 0.6 * _gone(profile))


def fits_context(profile: Profile) -> float:
    """As `fits_text`, but may be empty."""
    return (1 - 0.7 * profile.trait("url")) * float(profile.kind == "text")


def fits_tools(profile: Profile) -> float:
    """Text, or a list of descriptions."""
    if profile.kind == "list":
        return float(profile.items is None or profile.items.kind == "struct" or profile.items.trait("json") >= 0.5)
    return fits_context(profile)


def fits_answer(profile: Profile) -> float:
    """Text, or a number, or, less so, true and false."""
    fit = {"text": 1.0, "number": 0.9, "boolean": 0.6}.get(profile.kind, 0.0)
    return fit * (1 - 0.8 * profile.trait("url")) * (1 - 0.8 * _gone(profile))


def is_key(profile: Profile) -> float:
    """How much values look like letters or small numbers that stand for something else: very short, and few."""
    short = 1 - ramp(profile.typical_length, 1, 3) if profile.kind == "text" else 1.0
    words = profile.trait("identifier") if profile.kind == "text" else float(profile.kind == "number")
    return short * words * (1 - ramp(profile.variety, 0.05, 0.3))


def fits_flag(profile: Profile) -> float:
    """True and false, or what says so."""
    if profile.kind == "boolean":
        return 1.0
    said = {str(value).lower() for value in profile.facts.get("values") or ()}
    return 0.75 if said and said <= {"0", "1", "true", "false", "yes", "no", "good", "bad"} else 0.0


def fits_label(profile: Profile) -> float:
    """One of few names; numbers and flags name nothing."""
    fit = {"text": 1.0 - 0.65 * profile.numbers, "number": 0.35, "boolean": 0.35}.get(profile.kind, 0.0)
    return fit * fits_few(profile) * (1 - 0.8 * _gone(profile))


def fits_few(profile: Profile) -> float:
    """Few values for many places."""
    return 1 - ramp(profile.variety, 0.2, 0.8)


def fits_messages(profile: Profile) -> float:
    """A list of structs of which one field says who speaks, and one what is said."""
    speaker, said = message_fields(profile)
    if not (speaker and said):
        return 0.0
    spoken = profile.items.field(speaker) if profile.items else None
    places = spoken.facts.get("rows", 0) if spoken else 0
    return 1 - 0.5 * unknown_speakers(profile)[0] / max(places, 1)


def unknown_speakers(conversation: Profile) -> tuple[int, list[str]]:
    """How many messages are spoken by none whose role is known, and by whom; no names where there are many."""
    speaker, _ = message_fields(conversation)
    spoken = conversation.items.field(speaker or "") if conversation.items else None
    if spoken is None:
        return 0, []
    if spoken.facts.get("values") is None:
        return spoken.facts["rows"], []
    counts = dict(zip(spoken.facts["values"], spoken.facts["counts"], strict=True))
    unknown = [name for name in counts if role_of(name) is None]
    return spoken.facts["nulls"] + sum(counts[name] for name in unknown), unknown


def message_fields(profile: Profile) -> tuple[str | None, str | None]:
    """The fields of a conversation's messages that hold who speaks and what is said."""
    if profile.kind != "list":
        return None, None
    if profile.items is not None:
        names = profile.items.fields if profile.items.kind == "struct" else []
    else:
        names = _FIELD.findall(profile.facts["type"])
    return next((name for name in SPEAKERS if name in names), None), next(
        (name for name in SAID if name in names), None
    )


def ramp(value: float, low: float, high: float) -> float:
    """0 up to `low`, 1 from `high` on, straight between."""
    return min(max((value - low) / (high - low), 0.0), 1.0)


def _gone(profile: Profile) -> float:
    return profile.share("nulls") + profile.share("empty")
