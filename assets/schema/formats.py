"""The formats that datasets come in, each read from the columns' names and from the shape of their values.

Each reading yields candidates; a column found for a role has a score, the product of how well its name and its values
fit, and a format's confidence follows from the geometric mean of its roles' scores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import prod

from tokenloom.assets.schema import doubts as doubt
from tokenloom.assets.schema.names import ALIASES, is_beside, likeness, role_likeness
from tokenloom.assets.schema.profiles import (
    Profile,
    Steps,
    fits_answer,
    fits_context,
    fits_flag,
    fits_label,
    fits_messages,
    fits_text,
    fits_tools,
    is_key,
    message_fields,
    profiles,
    ramp,
)
from tokenloom.resources.tables.nested_paths import quoted

CERTAIN, LEAST, DOUBTED = 0.95, 0.3, 0.6
"""The highest confidence; the least score of a source for a role; what a doubt leaves of a confidence."""

FILLED = {
    "completion": ("completion",),
    "text": ("text",),
    "messages": ("messages",),
    "preference": ("chosen", "rejected"),
    "kto": ("prompt", "completion", "label"),
}
"""For each form, the roles whose empty rows are rejected."""

SUMMARIZED = ("dialogue", "dialog", "article", "document", "passage", "transcript", "conversation", "report", "text")
SUMMARIES = ("summary", "highlights", "tldr", "abstract")
CLASSIFIED = ("text", "sentence", "utterance", "review", "tweet", "headline", "comment", "query", "content", "title")
_GENERIC = re.compile(r"(?:column|col|field|f|c|_c|v)?_?\d+", re.IGNORECASE)
_LETTER = re.compile(r"[A-Ha-h]|\d{1,2}")


@dataclass(frozen=True)
class FormatCandidate:
    """One way to read a dataset.

    Args:
        format: what the format is called.
        form: the canonical form that it becomes: text, completion, messages, preference or kto; empty for a table.
        roles: for each of the form's roles, a source expression.
        confidence: from 0 to 1.
        evidence: what speaks for it, in words.
        doubts: by role, what speaks against it; a candidate with doubts is never sure.
    """

    format: str
    form: str
    roles: dict[str, str]
    confidence: float
    evidence: tuple[str, ...]
    doubts: dict[str, str] = field(default_factory=dict)

    @property
    def plausible(self) -> float:
        """The confidence that it would have without doubts."""
        return self.confidence / DOUBTED if self.doubts else self.confidence


@dataclass(frozen=True)
class _Found:
    """A source for a role."""

    source: str
    score: float
    reason: str
    profile: Profile


Profiles = Mapping[Steps, Profile]
Fit = Callable[[Profile], float]


def format_candidates(columns: Sequence[Mapping[str, object]]) -> list[FormatCandidate]:
    """Every way to read a dataset, the likeliest first; of several with the same roles only the likeliest.

    Args:
        columns: as `tokenloom.assets.schema.sketch.merge` describes them.
    """
    found = profiles(columns)
    best: dict[tuple[str, tuple[tuple[str, str], ...]], FormatCandidate] = {}
    for candidate in (candidate for reading in READINGS for candidate in reading(found)):
        key = candidate.form, tuple(sorted(candidate.roles.items()))
        if key not in best or candidate.confidence > best[key].confidence:
            best[key] = candidate
    return sorted(best.values(), key=lambda candidate: -candidate.confidence)


def _candidate(
    format: str,
    form: str,
    found: Mapping[str, _Found],
    factor: float = 1.0,
    notes: Sequence[str] = (),
    doubts: Mapping[str, str | None] | None = None,
) -> FormatCandidate:
    """A candidate whose roles are all found; optional ones do not weigh on its confidence."""
    scores = [one.score for role, one in found.items() if role not in ("system", "tools", "context")]
    against = {role: reason for role in FILLED[form] if (reason := doubt.emptiness(found[role].profile))}
    against |= {role: reason for role, reason in (doubts or {}).items() if reason}
    mean = prod(scores) ** (1 / len(scores)) * (DOUBTED if against else 1.0)
    roles = {role: one.source for role, one in found.items()}
    evidence = (*(f"{role}: {one.reason}" for role, one in found.items()), *notes)
    return FormatCandidate(format, form, roles, round(CERTAIN * mean * factor, 3), evidence, against)


def _columns(found: Profiles) -> list[Profile]:
    return [profile for profile in found.values() if profile.is_column]


def _ranked(candidates: Sequence[Profile], role: str | tuple[str, ...], fit: Fit, least: float = LEAST) -> list[_Found]:
    """Sources for a role among some paths, the best first."""
    ranked = []
    for profile in candidates:
        like = role_likeness(profile.name, role) if isinstance(role, str) else likeness(profile.name, role)
        score = like.score * fit(profile) if like.score else 0.0
        if score >= least:
            ranked.append(_Found(profile.source, score, f"{like.reason}, {profile.shape()}", profile))
    return sorted(ranked, key=lambda one: -one.score)


def _optional(candidates: Sequence[Profile], taken: Sequence[_Found], **fits: Fit) -> dict[str, _Found]:
    """The best sources for roles that a form may have, among columns not taken."""
    found: dict[str, _Found] = {}
    for role, fit in fits.items():
        used = {one.source for one in (*taken, *found.values())}
        best = next((one for one in _ranked(candidates, role, fit, 0.7) if one.source not in used), None)
        if best is not None:
            found[role] = best
    return found


def _conversations(found: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(found)
    for profile in columns:
        if not (fit := fits_messages(profile)):
            continue
        speaker, said = message_fields(profile)
        like = role_likeness(profile.name, "messages")
        pair = max(role_likeness(profile.name, role).score for role in ("chosen", "rejected"))
        score = fit * (0.9 + 0.1 * like.score) * (1 - 0.5 * pair)
        reason = f"{like.reason or repr(profile.name)}, lists of messages with {speaker} and {said}"
        one = _Found(profile.source, score, reason, profile)
        extra = _optional(columns, [one], system=fits_context, tools=fits_tools)
        name = {"from": "ShareGPT", "role": "OpenAI messages"}.get(speaker or "", "conversation")
        silent = doubt.unanswered(profile)
        doubts = {"messages": doubt.strangers(profile) or silent}
        yield _candidate(name, "messages", {"messages": one, **extra}, 0.6 if silent else 1.0, doubts=doubts)


def _preferences(found: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(found)

    def fits_reply(profile: Profile) -> float:
        return max(fits_text(profile), fits_messages(profile))

    for chosen in _ranked(columns, "chosen", fits_reply)[:2]:
        for rejected in _ranked(columns, "rejected", fits_reply)[:2]:
            if chosen.profile.kind == rejected.profile.kind and chosen.source != rejected.source:
                pair = {"chosen": chosen, "rejected": rejected}
                prompts = [one for one in _ranked(columns, "prompt", fits_reply, 0.7) if one not in (chosen, rejected)]
                first = {"prompt": prompts[0]} if prompts else {}
                extra = _optional(columns, [*pair.values(), *first.values()], system=fits_context)
                asked = doubt.strangers(prompts[0].profile) if first else doubt.unprompted(chosen.profile)
                doubts = {role: doubt.strangers(p := one.profile) or doubt.unanswered(p) for role, one in pair.items()}
                doubts["prompt"] = asked
                yield _candidate("preference", "preference", {**first, **pair, **extra}, doubts=doubts)


def _kto(found: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(found)
    for label in _ranked(columns, "label", fits_flag, 0.5)[:1]:
        for prompt in _ranked(columns, "prompt", fits_text)[:1]:
            for completion in _ranked(columns, "completion", fits_text)[:2]:
                taken = [prompt, completion, label]
                roles = {"prompt": prompt, "completion": completion, "label": label}
                yield _candidate("KTO", "kto", roles | _optional(columns, taken, system=fits_context))


def _answers(found: Profiles) -> Iterator[_Found]:
    """Sources for a completion: columns, fields of structs, and of lists their first item."""
    ranked = _ranked(_columns(found), "completion", fits_answer)
    for profile in found.values():
        if profile.is_column or profile.kind != "text" or fits_messages(profile.column):
            continue
        named = {profile.column.name, profile.name} if profile.name in ("text", "value") else {profile.name}
        like = max((role_likeness(name, "completion") for name in sorted(named)), key=lambda like: like.score)
        if (score := 0.97 * like.score * fits_answer(profile)) >= LEAST:
            first = ", the first of each list" if None in profile.steps else ""
            ranked.append(_Found(profile.source, score, f"{like.reason}, {profile.shape()}{first}", profile))
    yield from islice(sorted(ranked, key=lambda one: -one.score), 3)


def _completions(found: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(found)
    flag = any(_ranked(columns, "label", fits_flag, 0.7))
    lettered = {"a", "b"} <= {profile.name.lower() for profile in columns}
    choices = lettered or any(_ranked(columns, "choices", lambda profile: 1.0))
    for completion in _answers(found):
        taken: list[_Found] = []
        for prompt in _ranked(columns, "prompt", fits_text)[:3]:
            if prompt.source == completion.source or any(prompt.source == one.source for one in taken):
                continue
            beside = [*_siblings(found, completion.profile), *columns]
            extra = _optional(beside, [prompt, completion], context=fits_context, system=fits_context)
            taken += extra.values()
            factor, notes = 1.0, []
            if choices and completion.profile.is_column:
                factor, notes = 0.9 - 0.4 * is_key(completion.profile), ["there are choices beside it"]
            elif flag and completion.profile.is_column:
                factor, notes = 0.8, ["a column of true and false beside it rates the answer"]
            name = _completion_name(prompt.profile, completion.profile, extra)
            roles = {"prompt": prompt, **extra, "completion": completion}
            left = None if "context" in extra else doubt.passages(columns)
            guess = doubt.several(completion.profile)
            yield _candidate(name, "completion", roles, factor, notes, {"prompt": left, "completion": guess})


def _siblings(found: Profiles, profile: Profile) -> list[Profile]:
    """The other fields of the struct that a nested path is a field of."""
    above = profile.steps[:-1]
    return [field for name in found[above].fields if (field := found[(*above, name)]) is not profile] if above else []


def _completion_name(prompt: Profile, completion: Profile, extra: Mapping[str, _Found]) -> str:
    if "context" in extra and likeness(completion.column.name, ("answer",)).score and not completion.is_column:
        return "reading comprehension"
    if likeness(prompt.name, ("instruction",)).score:
        return "alpaca"
    asks = likeness(prompt.name, ("question", "query", "problem")).score
    return "question/answer" if asks else "prompt/completion"


def _fits_choices(profile: Profile) -> float:
    """A list of texts, or a struct of one and the labels beside it."""
    texts = profile.field("text") if profile.kind == "struct" and profile.field("label") else profile
    return float(bool(texts and texts.kind == "list" and (texts.items is None or texts.items.kind == "text")))


def _fits_choice(profile: Profile) -> float:
    """The index or the letter of a choice."""
    if profile.kind == "number":
        return 1.0
    values = profile.facts.get("values") or ()
    return float(bool(values) and all(_LETTER.fullmatch(value) for value in values))


def _multiple_choice(found: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(found)
    for choices in _ranked(columns, "choices", _fits_choices)[:1]:
        answers = _ranked(columns, ("answer", "answer_key", "label", "target", "gold"), _fits_choice)
        for answer in answers[:2]:
            for prompt in _ranked(columns, (*ALIASES["prompt"], "ctx", "context", "sentence"), fits_text)[:2]:
                items = choices.profile.field("text") or choices.profile
                by = f"{_inside(choices)}.label=" if items is not choices.profile else ""
                inner = f"{_inside(choices)}.text" if by else _inside(choices)
                asked = f"{{{_inside(prompt)}}}\n\n{{{inner}:letters}}"
                picked = f"{inner}[{by}{{{_inside(answer)}}}]"
                both = (prompt.score * choices.score) ** 0.5
                roles = {
                    "prompt": _Found(asked, both, f"{prompt.reason}, with the choices", prompt.profile),
                    "completion": _Found(picked, answer.score, f"{answer.reason}, picks a choice", answer.profile),
                }
                counted = None if by else doubt.miscounted(answer.profile, items)
                yield _candidate("multiple choice", "completion", roles, doubts={"completion": counted})


def _inside(found: _Found) -> str:
    """A column's name as it stands inside an expression."""
    return quoted(found.profile.name)


def _classification(found: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(found)
    for text in _ranked(columns, CLASSIFIED, fits_text)[:2]:
        for label in _ranked(columns, "label", fits_label, 0.25)[:2]:
            if text.source != label.source:
                names = f"{label.profile.facts.get('distinct', 'several')} labels"
                yield _candidate("classification", "completion", {"prompt": text, "completion": label}, 1.0, [names])


def _summaries(found: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(found)
    for document in _ranked(columns, SUMMARIZED, fits_text)[:2]:
        for summary in _ranked(columns, SUMMARIES, fits_text)[:2]:
            long, short = document.profile.typical_length, summary.profile.typical_length
            shorter = 1 - 0.4 * ramp(short / long, 0.5, 1.5) if long and short else 1.0
            talk = document.profile.trait("turns") >= 0.5 or likeness(document.profile.name, SUMMARIZED[:2]).score
            name = "dialogue summary" if talk else "summary"
            if document.source != summary.source:
                yield _candidate(name, "completion", {"prompt": document, "completion": summary}, shorter)


def _texts(found: Profiles) -> Iterator[FormatCandidate]:
    columns = [profile for profile in _columns(found) if profile.kind != "null"]
    beside = doubt.thread(columns) or doubt.labelled(columns)
    for text in _ranked(columns, "text", fits_text)[:2]:
        others = [one for one in columns if one is not text.profile and not is_beside(one.name)]
        notes = [f"{len(others)} other columns would go unused"] if others else []
        yield _candidate("plain text", "text", {"text": text}, 0.85 ** len(others), notes, {"text": beside})
    told = [profile for profile in columns if not is_beside(profile.name)]
    if len(told) == 1 and told[0].kind == "text":
        only = told[0]
        rivals = max((one.trait("sentences") for one in columns if one is not only), default=0.0)
        score = (0.6 + 0.3 * only.trait("sentences")) * fits_text(only) * (1 - 0.5 * rivals)
        reason = f"the only column of text, {only.shape()}"
        yield _candidate(
            "plain text", "text", {"text": _Found(only.source, score, reason, only)}, doubts={"text": beside}
        )


def _unnamed(found: Profiles) -> Iterator[FormatCandidate]:
    """Two columns without names, of which one asks and the other is a number that varies."""
    columns = [profile for profile in _columns(found) if profile.kind != "null"]
    if len(columns) != 2 or not all(_GENERIC.fullmatch(profile.name) for profile in columns):
        return
    for prompt, answer in (columns, columns[::-1]):
        asks, counts = prompt.trait("question"), answer.numbers * ramp(answer.variety, 0.02, 0.2)
        if prompt.kind == "text" and (score := 0.8 * asks * counts) >= 0.2:
            roles = {
                "prompt": _Found(prompt.source, score, f"no name, {prompt.shape()}", prompt),
                "completion": _Found(answer.source, score, f"no name, {answer.shape()}, varied", answer),
            }
            yield _candidate("question/answer", "completion", roles)


def _table(found: Profiles) -> Iterator[FormatCandidate]:
    columns = [profile for profile in _columns(found) if profile.kind != "null"]
    if columns:
        named = f"{len(columns)} columns; map those to train on"
        yield FormatCandidate("table", "", {}, 0.5 if len(columns) > 2 else 0.3, (named,))


READINGS = (
    _conversations,
    _preferences,
    _kto,
    _completions,
    _multiple_choice,
    _classification,
    _summaries,
    _texts,
    _unnamed,
    _table,
)
