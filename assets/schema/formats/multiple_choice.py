"""Questions with choices, and the index, letter or label of the right one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tokenloom.assets.schema.evidence import doubts as doubt
from tokenloom.assets.schema.evidence.name_similarity import ALIASES
from tokenloom.assets.schema.evidence.profiles import Profile, fits_text
from tokenloom.assets.schema.formats.candidate import (
    FormatCandidate,
    Match,
    Profiles,
    candidate,
    column_name,
    columns_of,
    ranked,
)

_LETTER = re.compile(r"[A-Ha-h]|\d{1,2}")


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = columns_of(paths)
    for choices in ranked(columns, "choices", fits_choices)[:1]:
        answers = ranked(columns, ("answer", "answer_key", "label", "target", "gold"), _fits_choice)
        for answer in answers[:2]:
            for prompt in ranked(columns, (*ALIASES["prompt"], "ctx", "context", "sentence"), fits_text)[:2]:
                items = choices.profile.field("text") or choices.profile
                by_label = f"{column_name(choices)}.label=" if items is not choices.profile else ""
                texts = f"{column_name(choices)}.text" if by_label else column_name(choices)
                question = f"{{{column_name(prompt)}}}\n\n{{{texts}:letters}}"
                choice = f"{texts}[{by_label}{{{column_name(answer)}}}]"
                score = (prompt.score * choices.score) ** 0.5
                shown = (choices.profile,)
                roles = {
                    "prompt": Match(question, score, f"{prompt.reason}, with the choices", prompt.profile, shown),
                    "completion": Match(choice, answer.score, f"{answer.reason}, picks a choice", answer.profile),
                }
                doubts = {"completion": None if by_label else doubt.wrong_indices(answer.profile, items)}
                yield candidate(paths, "multiple choice", "completion", roles, doubts=doubts)


def fits_choices(profile: Profile) -> float:
    """Return how well values fit choices: a list of texts, or a struct of one with the labels."""
    texts = profile.field("text") if profile.kind == "struct" and profile.field("label") else profile
    return float(bool(texts and texts.kind == "list" and (texts.items is None or texts.items.kind == "text")))


def _fits_choice(profile: Profile) -> float:
    """Return how well values fit the index or the letter of a choice."""
    if profile.kind == "number":
        return 1.0
    values = profile.facts.get("values") or ()
    return float(bool(values) and all(_LETTER.fullmatch(value) for value in values))
