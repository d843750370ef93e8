"""Candidates for the format of a dataset, by the names and values of its columns.

The score of a column for a role is the product of how well its name and its values fit. The confidence of a format is
based on the geometric mean of the scores of its roles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import prod

from tokenloom.assets.schema import doubts as doubt
from tokenloom.assets.schema.name_similarity import ALIASES, is_metadata, likeness, role_likeness
from tokenloom.assets.schema.profiles import (
    Profile,
    Steps,
    fits_answer,
    fits_context,
    fits_flag,
    fits_key,
    fits_label,
    fits_messages,
    fits_text,
    fits_tools,
    message_fields,
    profiles,
    ramp,
)
from tokenloom.resources.tables.nested_paths import quoted

MAX_CONFIDENCE, MIN_SCORE, DOUBT_FACTOR = 0.95, 0.3, 0.6
"""The highest confidence; the lowest score of a source for a role; the factor for candidates with doubts."""

FILLED = {
    "completion": ("completion",),
    "text": ("text",),
    "messages": ("messages",),
    "preference": ("chosen", "rejected"),
    "kto": ("prompt", "completion", "label"),
}
"""For each form, the roles that must not be empty: rows without them are rejected."""

SUMMARIZED = ("dialogue", "dialog", "article", "document", "passage", "transcript", "conversation", "report", "text")
SUMMARIES = ("summary", "highlights", "tldr", "abstract")
CLASSIFIED = ("text", "sentence", "utterance", "review", "tweet", "headline", "comment", "query", "content", "title")
_GENERIC = re.compile(r"(?:column|col|field|f|c|_c|v)?_?\d+", re.IGNORECASE)
_LETTER = re.compile(r"[A-Ha-h]|\d{1,2}")


@dataclass(frozen=True)
class FormatCandidate:
    """A format that a dataset could have.

    Args:
        format: the name of the format.
        form: its canonical form: text, completion, messages, preference or kto; empty for a table.
        roles: the source expression of each role.
        confidence: from 0 to 1.
        evidence: reasons for it, in words.
        doubts: reasons against it, by role; a candidate with doubts is never certain.
    """

    format: str
    form: str
    roles: dict[str, str]
    confidence: float
    evidence: tuple[str, ...]
    doubts: dict[str, str] = field(default_factory=dict)

    @property
    def plausible(self) -> float:
        """The confidence without the doubts."""
        return self.confidence / DOUBT_FACTOR if self.doubts else self.confidence


@dataclass(frozen=True)
class _Match:
    """A source for a role, with its score from 0 to 1 and the reason in words."""

    source: str
    score: float
    reason: str
    profile: Profile


Profiles = Mapping[Steps, Profile]
Fit = Callable[[Profile], float]


def format_candidates(columns: Sequence[Mapping[str, object]]) -> list[FormatCandidate]:
    """Return all formats that a dataset could have, the most likely first; one per mapping of roles.

    Args:
        columns: profiles as `tokenloom.assets.schema.sketch.merge` returns them.
    """
    paths = profiles(columns)
    best: dict[tuple[str, tuple[tuple[str, str], ...]], FormatCandidate] = {}
    for candidate in (candidate for detect in DETECTORS for candidate in detect(paths)):
        key = candidate.form, tuple(sorted(candidate.roles.items()))
        if key not in best or candidate.confidence > best[key].confidence:
            best[key] = candidate
    return sorted(best.values(), key=lambda candidate: -candidate.confidence)


def _candidate(
    format: str,
    form: str,
    matches: Mapping[str, _Match],
    factor: float = 1.0,
    notes: Sequence[str] = (),
    doubts: Mapping[str, str | None] | None = None,
) -> FormatCandidate:
    """Return a candidate with a match for each role; optional roles do not affect its confidence.

    Args:
        factor: multiplied with the confidence.
        notes: further evidence.
        doubts: reasons against it, by role; a role that is null or empty too often is added.
    """
    scores = [match.score for role, match in matches.items() if role not in ("system", "tools", "context")]
    against = {role: reason for role in FILLED[form] if (reason := doubt.emptiness(matches[role].profile))}
    against |= {role: reason for role, reason in (doubts or {}).items() if reason}
    mean = prod(scores) ** (1 / len(scores)) * (DOUBT_FACTOR if against else 1.0)
    roles = {role: match.source for role, match in matches.items()}
    evidence = (*(f"{role}: {match.reason}" for role, match in matches.items()), *notes)
    return FormatCandidate(format, form, roles, round(MAX_CONFIDENCE * mean * factor, 3), evidence, against)


def _columns(paths: Profiles) -> list[Profile]:
    return [profile for profile in paths.values() if profile.is_column]


def _ranked(
    candidates: Sequence[Profile], role: str | tuple[str, ...], fit: Fit, min_score: float = MIN_SCORE
) -> list[_Match]:
    """Return the matches for a role among some paths, the best first.

    Args:
        role: a role, or the names that its column usually has.
    """
    ranked = []
    for profile in candidates:
        name = role_likeness(profile.name, role) if isinstance(role, str) else likeness(profile.name, role)
        score = name.score * fit(profile) if name.score else 0.0
        if score >= min_score:
            ranked.append(_Match(profile.source, score, f"{name.reason}, {profile.shape()}", profile))
    return sorted(ranked, key=lambda match: -match.score)


def _optional(candidates: Sequence[Profile], taken: Sequence[_Match], **fits: Fit) -> dict[str, _Match]:
    """Return the best matches for optional roles, among columns that are not taken."""
    matches: dict[str, _Match] = {}
    for role, fit in fits.items():
        used = {match.source for match in (*taken, *matches.values())}
        best = next((match for match in _ranked(candidates, role, fit, 0.7) if match.source not in used), None)
        if best is not None:
            matches[role] = best
    return matches


def _conversations(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(paths)
    for profile in columns:
        if not (fit := fits_messages(profile)):
            continue
        speaker_field, text_field = message_fields(profile)
        name = role_likeness(profile.name, "messages")
        pair = max(role_likeness(profile.name, role).score for role in ("chosen", "rejected"))
        score = fit * (0.9 + 0.1 * name.score) * (1 - 0.5 * pair)
        reason = f"{name.reason or repr(profile.name)}, lists of messages with {speaker_field} and {text_field}"
        match = _Match(profile.source, score, reason, profile)
        extra = _optional(columns, [match], system=fits_context, tools=fits_tools)
        format_name = {"from": "ShareGPT", "role": "OpenAI messages"}.get(speaker_field or "", "conversation")
        unanswered = doubt.unanswered(profile)
        doubts = {"messages": doubt.unknown_roles(profile) or unanswered}
        factor = 0.6 if unanswered else 1.0
        yield _candidate(format_name, "messages", {"messages": match, **extra}, factor, doubts=doubts)


def _preferences(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(paths)

    def fits_reply(profile: Profile) -> float:
        return max(fits_text(profile), fits_messages(profile))

    for chosen in _ranked(columns, "chosen", fits_reply)[:2]:
        for rejected in _ranked(columns, "rejected", fits_reply)[:2]:
            if chosen.profile.kind == rejected.profile.kind and chosen.source != rejected.source:
                pair = {"chosen": chosen, "rejected": rejected}
                ranked = _ranked(columns, "prompt", fits_reply, 0.7)
                prompts = [match for match in ranked if match not in (chosen, rejected)]
                first = {"prompt": prompts[0]} if prompts else {}
                extra = _optional(columns, [*pair.values(), *first.values()], system=fits_context)
                doubts = {
                    role: doubt.unknown_roles(match.profile) or doubt.unanswered(match.profile)
                    for role, match in pair.items()
                }
                doubts["prompt"] = (
                    doubt.unknown_roles(prompts[0].profile) if first else doubt.missing_prompt(chosen.profile)
                )
                yield _candidate("preference", "preference", {**first, **pair, **extra}, doubts=doubts)


def _kto(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(paths)
    for label in _ranked(columns, "label", fits_flag, 0.5)[:1]:
        for prompt in _ranked(columns, "prompt", fits_text)[:1]:
            for completion in _ranked(columns, "completion", fits_text)[:2]:
                taken = [prompt, completion, label]
                roles = {"prompt": prompt, "completion": completion, "label": label}
                yield _candidate("KTO", "kto", roles | _optional(columns, taken, system=fits_context))


def _answers(paths: Profiles) -> Iterator[_Match]:
    """Yield the best matches for a completion: columns, fields of structs, and the first items of lists."""
    ranked = _ranked(_columns(paths), "completion", fits_answer)
    for profile in paths.values():
        if profile.is_column or profile.kind != "text" or fits_messages(profile.column):
            continue
        names = {profile.column.name, profile.name} if profile.name in ("text", "value") else {profile.name}
        best = max((role_likeness(name, "completion") for name in sorted(names)), key=lambda name: name.score)
        if (score := 0.97 * best.score * fits_answer(profile)) >= MIN_SCORE:
            first = ", the first of each list" if None in profile.steps else ""
            ranked.append(_Match(profile.source, score, f"{best.reason}, {profile.shape()}{first}", profile))
    yield from islice(sorted(ranked, key=lambda match: -match.score), 3)


def _completions(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(paths)
    flag = any(_ranked(columns, "label", fits_flag, 0.7))
    lettered = {"a", "b"} <= {profile.name.lower() for profile in columns}
    choices = lettered or any(_ranked(columns, "choices", lambda profile: 1.0))
    for completion in _answers(paths):
        taken: list[_Match] = []
        for prompt in _ranked(columns, "prompt", fits_text)[:3]:
            if prompt.source == completion.source or any(prompt.source == match.source for match in taken):
                continue
            others = [*_siblings(paths, completion.profile), *columns]
            extra = _optional(others, [prompt, completion], context=fits_context, system=fits_context)
            taken += extra.values()
            factor, notes = 1.0, []
            if choices and completion.profile.is_column:
                factor, notes = 0.9 - 0.4 * fits_key(completion.profile), ["there are choices beside it"]
            elif flag and completion.profile.is_column:
                factor, notes = 0.8, ["a column of true and false beside it rates the answer"]
            name = _completion_name(prompt.profile, completion.profile, extra)
            roles = {"prompt": prompt, **extra, "completion": completion}
            doubts = {
                "prompt": None if "context" in extra else doubt.unused_passages(columns),
                "completion": doubt.first_of_several(completion.profile),
            }
            yield _candidate(name, "completion", roles, factor, notes, doubts)


def _siblings(paths: Profiles, profile: Profile) -> list[Profile]:
    """Return the other fields of the struct that contains a nested path."""
    struct = profile.steps[:-1]
    if not struct:
        return []
    return [field for name in paths[struct].fields if (field := paths[(*struct, name)]) is not profile]


def _completion_name(prompt: Profile, completion: Profile, extra: Mapping[str, _Match]) -> str:
    """Return the name of a format with prompts and completions."""
    if "context" in extra and likeness(completion.column.name, ("answer",)).score and not completion.is_column:
        return "reading comprehension"
    if likeness(prompt.name, ("instruction",)).score:
        return "alpaca"
    asks = likeness(prompt.name, ("question", "query", "problem")).score
    return "question/answer" if asks else "prompt/completion"


def _fits_choices(profile: Profile) -> float:
    """Return how well values fit choices: a list of texts, or a struct of one with the labels."""
    texts = profile.field("text") if profile.kind == "struct" and profile.field("label") else profile
    return float(bool(texts and texts.kind == "list" and (texts.items is None or texts.items.kind == "text")))


def _fits_choice(profile: Profile) -> float:
    """Return how well values fit the index or the letter of a choice."""
    if profile.kind == "number":
        return 1.0
    values = profile.facts.get("values") or ()
    return float(bool(values) and all(_LETTER.fullmatch(value) for value in values))


def _multiple_choice(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(paths)
    for choices in _ranked(columns, "choices", _fits_choices)[:1]:
        answers = _ranked(columns, ("answer", "answer_key", "label", "target", "gold"), _fits_choice)
        for answer in answers[:2]:
            for prompt in _ranked(columns, (*ALIASES["prompt"], "ctx", "context", "sentence"), fits_text)[:2]:
                items = choices.profile.field("text") or choices.profile
                by_label = f"{_column(choices)}.label=" if items is not choices.profile else ""
                texts = f"{_column(choices)}.text" if by_label else _column(choices)
                question = f"{{{_column(prompt)}}}\n\n{{{texts}:letters}}"
                choice = f"{texts}[{by_label}{{{_column(answer)}}}]"
                score = (prompt.score * choices.score) ** 0.5
                roles = {
                    "prompt": _Match(question, score, f"{prompt.reason}, with the choices", prompt.profile),
                    "completion": _Match(choice, answer.score, f"{answer.reason}, picks a choice", answer.profile),
                }
                doubts = {"completion": None if by_label else doubt.wrong_indices(answer.profile, items)}
                yield _candidate("multiple choice", "completion", roles, doubts=doubts)


def _column(match: _Match) -> str:
    """Return a column's name as written inside an expression."""
    return quoted(match.profile.name)


def _classification(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(paths)
    for text in _ranked(columns, CLASSIFIED, fits_text)[:2]:
        for label in _ranked(columns, "label", fits_label, 0.25)[:2]:
            if text.source != label.source:
                names = f"{label.profile.facts.get('distinct', 'several')} labels"
                yield _candidate("classification", "completion", {"prompt": text, "completion": label}, 1.0, [names])


def _summaries(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(paths)
    for document in _ranked(columns, SUMMARIZED, fits_text)[:2]:
        for summary in _ranked(columns, SUMMARIES, fits_text)[:2]:
            long, short = document.profile.typical_length, summary.profile.typical_length
            factor = 1 - 0.4 * ramp(short / long, 0.5, 1.5) if long and short else 1.0
            dialogue = document.profile.trait("turns") >= 0.5 or likeness(document.profile.name, SUMMARIZED[:2]).score
            name = "dialogue summary" if dialogue else "summary"
            if document.source != summary.source:
                yield _candidate(name, "completion", {"prompt": document, "completion": summary}, factor)


def _texts(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = [profile for profile in _columns(paths) if profile.kind != "null"]
    doubts = {"text": doubt.single_messages(columns) or doubt.unused_label(columns)}
    for text in _ranked(columns, "text", fits_text)[:2]:
        others = [profile for profile in columns if profile is not text.profile and not is_metadata(profile.name)]
        notes = [f"{len(others)} other columns would go unused"] if others else []
        yield _candidate("plain text", "text", {"text": text}, 0.85 ** len(others), notes, doubts)
    content = [profile for profile in columns if not is_metadata(profile.name)]
    if len(content) == 1 and content[0].kind == "text":
        only = content[0]
        rivals = max((profile.trait("sentences") for profile in columns if profile is not only), default=0.0)
        score = (0.6 + 0.3 * only.trait("sentences")) * fits_text(only) * (1 - 0.5 * rivals)
        match = _Match(only.source, score, f"the only column of text, {only.shape()}", only)
        yield _candidate("plain text", "text", {"text": match}, doubts=doubts)


def _unnamed(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield candidates for two columns without names: one with questions, the other with numbers that vary."""
    columns = [profile for profile in _columns(paths) if profile.kind != "null"]
    if len(columns) != 2 or not all(_GENERIC.fullmatch(profile.name) for profile in columns):
        return
    for prompt, answer in (columns, columns[::-1]):
        questions, numbers = prompt.trait("question"), answer.numbers * ramp(answer.variety, 0.02, 0.2)
        if prompt.kind == "text" and (score := 0.8 * questions * numbers) >= 0.2:
            roles = {
                "prompt": _Match(prompt.source, score, f"no name, {prompt.shape()}", prompt),
                "completion": _Match(answer.source, score, f"no name, {answer.shape()}, varied", answer),
            }
            yield _candidate("question/answer", "completion", roles)


def _table(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield the candidate for a table without a known format, which has no roles."""
    columns = [profile for profile in _columns(paths) if profile.kind != "null"]
    if columns:
        evidence = f"{len(columns)} columns; map those to train on"
        yield FormatCandidate("table", "", {}, 0.5 if len(columns) > 2 else 0.3, (evidence,))


DETECTORS = (
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
