"""Candidates for the format of a dataset, by the names and values of its columns.

The score of a column for a role is the product of how well its name and its values fit. The confidence of a format is
based on the geometric mean of the scores of its roles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    fits_settings,
    fits_text,
    fits_tools,
    is_message,
    message_fields,
    profiles,
    ramp,
)
from tokenloom.assets.schema.unused_columns import (
    FLAGS,
    PROMPTS,
    could_change,
    is_message_text,
    is_spoken,
    unused_columns,
)
from tokenloom.resources.tables.nested_paths import quoted

MAX_CONFIDENCE, MIN_SCORE, DOUBT_FACTOR = 0.95, 0.3, 0.6
"""The highest confidence; the lowest score of a source for a role; the factor for candidates with doubts."""

FILLED = {
    "completion": ("completion",),
    "dialogue": ("prompt", "completion"),
    "text": ("text",),
    "messages": ("messages",),
    "preference": ("chosen", "rejected"),
    "kto": ("prompt", "completion", "label"),
    "prompt_only": ("prompt",),
}
"""For each form, the roles that must not be empty: rows without them are rejected."""

OPTIONAL = ("system", "tools", "template_kwargs", "context")
"""Roles that do not affect the confidence."""

UNASKED = 0.3
"""The factor for prompts without answers if other columns have content: certain only if the YAML asks for prompts."""

KTO_LABELS = ("label", "kto_tag", "desirable")

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
        form: its canonical form, a key of `FILLED`; empty for a table, and for a format that cannot be trained on.
        roles: the source expression of each role.
        confidence: from 0 to 1.
        evidence: reasons for it, in words.
        doubts: reasons against it, by role; a candidate with doubts is never certain.
        unused: columns and fields with content that no role uses, except metadata.
    """

    format: str
    form: str
    roles: dict[str, str]
    confidence: float
    evidence: tuple[str, ...]
    doubts: dict[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()

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
    also: tuple[Profile, ...] = ()
    """Other paths that the source reads."""


Profiles = Mapping[Steps, Profile]
Fit = Callable[[Profile], float]

SETTINGS: Mapping[str, Fit] = {"system": fits_context, "tools": fits_tools, "template_kwargs": fits_settings}
"""The optional roles of conversations."""


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
    paths: Profiles,
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
        doubts: reasons against it, by role. Roles that are null or empty too often are added, and unused columns that
            could change the text or its sign.
    """
    scores = [match.score for role, match in matches.items() if role not in OPTIONAL]
    filled = {role: matches[role].profile for role in FILLED[form] if role in matches}
    unused = unused_columns(paths, {used.steps for match in matches.values() for used in (match.profile, *match.also)})
    against = could_change(form, matches.keys(), unused)
    against |= {role: reason for role, profile in filled.items() if (reason := doubt.emptiness(profile))}
    against |= {role: reason for role, reason in (doubts or {}).items() if reason}
    mean = prod(scores) ** (1 / len(scores)) * (DOUBT_FACTOR if against else 1.0)
    roles = {role: match.source for role, match in matches.items()}
    evidence = (*(f"{role}: {match.reason}" for role, match in matches.items()), *notes)
    confidence, names = round(MAX_CONFIDENCE * mean * factor, 3), tuple(profile.source for profile in unused)
    return FormatCandidate(format, form, roles, confidence, evidence, against, names)


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


def _fits_reply(profile: Profile) -> float:
    """Return how well values fit a prompt or an answer: text, a conversation, or one message."""
    return max(fits_text(profile), fits_messages(profile), float(is_message(profile)))


def _conversations(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(paths)
    for profile in columns:
        fit = max(fits_messages(profile), float(is_message_text(profile)))
        if not fit or _asks(profile) or role_likeness(profile.name, "rejected").score >= 0.7:
            continue
        speaker_field, text_field = message_fields(profile)
        name = role_likeness(profile.name, "messages")
        part = max(role_likeness(profile.name, "chosen").score, likeness(profile.name, ("prompt", "completion")).score)
        score = fit * (0.9 + 0.1 * name.score) * (1 - 0.5 * part)
        fields = f"lists of messages with {speaker_field} and {text_field}" if text_field else "messages as JSON text"
        match = _Match(profile.source, score, f"{name.reason or repr(profile.name)}, {fields}", profile)
        extra = _optional(columns, [match], **SETTINGS)
        format_name = {"from": "ShareGPT", "role": "OpenAI messages"}.get(speaker_field or "", "conversation")
        doubts = {"messages": doubt.unknown_roles(profile) or doubt.unanswered(profile)}
        yield _candidate(paths, format_name, "messages", {"messages": match, **extra}, doubts=doubts)


def _asks(profile: Profile) -> bool:
    """Return whether values are conversations without an answer, by speakers that are all known."""
    known = fits_messages(profile) and not doubt.unknown_roles(profile)
    return bool(known and doubt.unanswered(profile))


def _dialogues(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield candidates for prompts and completions of which one holds messages, or that have tools."""
    columns = _columns(paths)
    asked = _ranked(columns, "prompt", _fits_reply)[:2]
    spoken = [match for match in _ranked(columns, "messages", fits_messages)[:1] if match not in asked]
    for prompt in (*asked, *spoken):
        for completion in _ranked(columns, "completion", _fits_reply)[:2]:
            taken, talks = [prompt, completion], is_spoken(prompt.profile) or is_spoken(completion.profile)
            extra = _optional(columns, taken, **SETTINGS)
            if prompt.source == completion.source or not (talks or {"tools", "template_kwargs"} & extra.keys()):
                continue
            if not is_spoken(prompt.profile):
                extra |= _optional(columns, [*taken, *extra.values()], context=fits_context)
            answered = None if prompt in asked or _asks(prompt.profile) else "it may end with an answer of its own"
            doubts = {
                "prompt": doubt.unknown_roles(prompt.profile) or answered,
                "completion": doubt.unknown_roles(completion.profile) or doubt.unanswered(completion.profile),
            }
            roles = {"prompt": prompt, **extra, "completion": completion}
            yield _candidate(paths, "prompt/completion", "dialogue", roles, doubts=doubts)


def _prompts(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield candidates for prompts without answers."""
    columns = _columns(paths)
    spoken = [match for match in _ranked(columns, "messages", fits_messages) if _asks(match.profile)]
    for prompt in (*_ranked(columns, "prompt", _fits_reply, 0.85), *spoken)[:1]:
        optional = SETTINGS if is_spoken(prompt.profile) else {**SETTINGS, "context": fits_context}
        roles = {"prompt": prompt, **_optional(columns, [prompt], **optional)}
        doubts = {"prompt": doubt.unknown_roles(prompt.profile)}
        found = _candidate(paths, "prompts", "prompt_only", roles, doubts=doubts)
        yield replace(found, confidence=round(found.confidence * UNASKED, 3)) if found.unused else found


def _preferences(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(paths)
    for chosen in _ranked(columns, "chosen", _fits_reply)[:2]:
        for rejected in _ranked(columns, "rejected", _fits_reply)[:2]:
            if chosen.profile.kind != rejected.profile.kind or chosen.source == rejected.source:
                continue
            pair = {"chosen": chosen, "rejected": rejected}
            prompts = [match for match in _asked(paths) if match.source not in (chosen.source, rejected.source)]
            first = {"prompt": prompts[0]} if prompts else {}
            optional = SETTINGS
            if first and not is_spoken(prompts[0].profile):
                optional = {**SETTINGS, "context": fits_context}
            beside = _siblings(paths, prompts[0].profile) if first else []
            extra = _optional([*beside, *columns], [*pair.values(), *first.values()], **optional)
            doubts = {
                role: doubt.unknown_roles(match.profile) or doubt.unanswered(match.profile)
                for role, match in pair.items()
            }
            doubts["prompt"] = (
                doubt.unknown_roles(prompts[0].profile) if first else doubt.missing_prompt(chosen.profile)
            )
            yield _candidate(paths, "preference", "preference", {**first, **pair, **extra}, doubts=doubts)


def _asked(paths: Profiles) -> list[_Match]:
    """Return what can be the prompt of a preference pair: columns of prompts, then conversations."""
    columns = _columns(paths)
    inside = [
        _Match(profile.source, 0.95 * name.score, f"{name.reason}, {profile.shape()}", profile)
        for profile in paths.values()
        if len(profile.steps) == 2 and fits_messages(profile)
        if (name := role_likeness(profile.column.name, "prompt")).score >= 0.7
    ]
    return [*_ranked(columns, "prompt", _fits_reply, 0.7), *inside, *_ranked(columns, "messages", fits_messages, 0.7)]


def _kto(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(paths)
    for label in _ranked(columns, FLAGS, fits_flag, 0.5)[:1]:
        rates = likeness(label.profile.name, KTO_LABELS).score >= 0.87
        doubts = {"label": None if rates else "it may rate something other than the answer"}
        asked = _ranked(columns, "prompt", _fits_reply)[:1]
        for prompt in asked:
            for completion in _ranked(columns, "completion", _fits_reply)[:2]:
                roles = {"prompt": prompt, "completion": completion, "label": label}
                optional = SETTINGS if is_spoken(prompt.profile) else {**SETTINGS, "context": fits_context}
                extra = _optional(columns, list(roles.values()), **optional)
                yield _candidate(paths, "KTO", "kto", roles | extra, doubts=doubts)
        talks = [*_ranked(columns, "messages", fits_messages), *_ranked(columns, "completion", fits_messages)]
        for talk in talks[:1]:
            doubts["completion"] = doubt.unknown_roles(talk.profile) or doubt.missing_prompt(talk.profile)
            doubts["completion"] = doubts["completion"] or doubt.unanswered(talk.profile)
            roles = {"completion": talk, "label": label} | _optional(columns, [talk, label], **SETTINGS)
            notes = ["prompt: each conversation up to its last answer"]
            yield _candidate(paths, "KTO", "kto", roles, 1.0, notes, doubts)


def _answers(paths: Profiles) -> Iterator[_Match]:
    """Yield the best matches for a completion: columns, fields of structs, and the first items of lists."""
    columns = _columns(paths)
    chosen, rejected = (_ranked(columns, role, _fits_reply, 0.7) for role in ("chosen", "rejected"))
    paired = {match.source for match in (*rejected, *(chosen if rejected else ()))}
    ranked = [match for match in _ranked(columns, "completion", fits_answer) if match.source not in paired]
    for profile in paths.values():
        if profile.is_column or profile.kind != "text" or is_spoken(profile.column) or profile.column.name in paired:
            continue
        names = {profile.column.name, profile.name} if profile.name in ("text", "value") else {profile.name}
        best = max((role_likeness(name, "completion") for name in sorted(names)), key=lambda name: name.score)
        if (score := 0.97 * best.score * fits_answer(profile)) >= MIN_SCORE:
            first = ", the first of each list" if None in profile.steps else ""
            ranked.append(_Match(profile.source, score, f"{best.reason}, {profile.shape()}{first}", profile))
    yield from islice(sorted(ranked, key=lambda match: -match.score), 3)


def _completions(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(paths)
    listed = _ranked(columns, "choices", _fits_choices)
    listed = [match for match in listed if match.profile.kind == "list"]
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
            if listed and "context" not in extra and completion.profile.is_column:
                choice = listed[0]
                extra["context"] = replace(choice, source=f"{{{_column(choice)}:letters}}")
            factor, notes = 1.0, []
            if choices and completion.profile.is_column:
                factor, notes = 0.9 - 0.4 * fits_key(completion.profile), ["there are choices beside it"]
            name = _completion_name(prompt.profile, completion.profile, extra)
            roles = {"prompt": prompt, **extra, "completion": completion}
            doubts = {"completion": doubt.first_of_several(completion.profile)}
            yield _candidate(paths, name, "completion", roles, factor, notes, doubts)


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
                shown = (choices.profile,)
                roles = {
                    "prompt": _Match(question, score, f"{prompt.reason}, with the choices", prompt.profile, shown),
                    "completion": _Match(choice, answer.score, f"{answer.reason}, picks a choice", answer.profile),
                }
                doubts = {"completion": None if by_label else doubt.wrong_indices(answer.profile, items)}
                yield _candidate(paths, "multiple choice", "completion", roles, doubts=doubts)


def _column(match: _Match) -> str:
    """Return a column's name as written inside an expression."""
    return quoted(match.profile.name)


def _classification(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(paths)
    for text in _ranked(columns, CLASSIFIED, fits_text)[:2]:
        for label in _ranked(columns, "label", fits_label, 0.25)[:2]:
            if text.source != label.source:
                names = f"{label.profile.facts.get('distinct', 'several')} labels"
                roles = {"prompt": text, "completion": label}
                yield _candidate(paths, "classification", "completion", roles, 1.0, [names])


def _summaries(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = _columns(paths)
    for document in _ranked(columns, SUMMARIZED, fits_text)[:2]:
        for summary in _ranked(columns, SUMMARIES, fits_text)[:2]:
            long, short = document.profile.typical_length, summary.profile.typical_length
            factor = 1 - 0.4 * ramp(short / long, 0.5, 1.5) if long and short else 1.0
            dialogue = document.profile.trait("turns") >= 0.5 or likeness(document.profile.name, SUMMARIZED[:2]).score
            name = "dialogue summary" if dialogue else "summary"
            if document.source != summary.source:
                yield _candidate(paths, name, "completion", {"prompt": document, "completion": summary}, factor)


def _texts(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = [profile for profile in _columns(paths) if profile.kind != "null"]
    doubts = {"text": doubt.single_messages(columns) or doubt.unused_label(columns)}
    for text in (match for match in _ranked(columns, "text", fits_text)[:2] if not is_message_text(match.profile)):
        others = [profile for profile in columns if profile is not text.profile and not is_metadata(profile.name)]
        notes = [f"{len(others)} other columns would go unused"] if others else []
        yield _candidate(paths, "plain text", "text", {"text": text}, 0.85 ** len(others), notes, doubts)
    content = [profile for profile in columns if not is_metadata(profile.name)]
    if len(content) == 1 and content[0].kind == "text" and not is_message_text(content[0]):
        only = content[0]
        rivals = max((profile.trait("sentences") for profile in columns if profile is not only), default=0.0)
        asks = likeness(only.name, PROMPTS).score
        score = (0.6 + 0.3 * only.trait("sentences")) * fits_text(only) * (1 - 0.5 * rivals) * (1 - 0.5 * asks)
        match = _Match(only.source, score, f"the only column of text, {only.shape()}", only)
        yield _candidate(paths, "plain text", "text", {"text": match}, doubts=doubts)


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
            yield _candidate(paths, "question/answer", "completion", roles)


def _lists(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield the candidate for rows that are lists of two values, such as `["text", "label"]`."""
    columns = unused_columns(paths, ())
    for profile in columns if len(columns) == 1 else ():
        pair = (profile.facts.get("lengths") or {}).get("longest") == 2 == profile.typical_length
        if pair and profile.kind == "list" and not fits_messages(profile):
            name = quoted(profile.name)
            roles = {
                role: _Match(f"{name}[{index}]", 1.0, f"item {index} of each list", profile)
                for index, role in enumerate(("prompt", "completion"))
            }
            doubts = {"prompt": "the items of the lists have no names"}
            yield _candidate(paths, "lists of two", "completion", roles, doubts=doubts)


def _unread(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield known formats that no form can hold. They have no roles, and the reason is their doubt."""
    columns = {profile.name: profile for profile in _columns(paths)}

    def kinds(name: str) -> tuple[str, str]:
        items = columns[name].items if name in columns else None
        return (columns[name].kind, items.kind if items else "") if name in columns else ("", "")

    segments = columns["segments"].items if "segments" in columns else None
    name = found = ""
    if kinds("completions") == ("list", "text") and kinds("labels") in (("list", "boolean"), ("list", "number")):
        name = "stepwise supervision"
        found = "completions holds steps and labels rates each of them, which no form can hold"
    elif segments is not None and {"label", "text"} <= {*segments.fields}:
        name = "segments"
        found = "each of the segments has its own label; convert them to messages, with train: false for those to mask"
    elif kinds("input_ids") == ("list", "number") and not any(column.kind == "text" for column in columns.values()):
        name, found = "token ids", "the rows are already tokenized (input_ids); tokenloom.loaders reads such datasets"
    if found:
        yield FormatCandidate(name, "", {}, MAX_CONFIDENCE, (found,), {"rows": found})


def _table(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield the candidate for a table without a known format, which has no roles."""
    columns = [profile for profile in _columns(paths) if profile.kind != "null"]
    if columns:
        evidence = f"{len(columns)} columns; map those to train on"
        yield FormatCandidate("table", "", {}, 0.5 if len(columns) > 2 else 0.3, (evidence,))


DETECTORS = (
    _unread,
    _conversations,
    _dialogues,
    _prompts,
    _preferences,
    _kto,
    _completions,
    _multiple_choice,
    _classification,
    _summaries,
    _texts,
    _unnamed,
    _lists,
    _table,
)
