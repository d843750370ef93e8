"""Candidates for the role of a column and for the format of a dataset, and the choice among formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tokenloom.assets.schema import doubts as doubt
from tokenloom.assets.schema.doubts import could_change, is_spoken, repeated_in, unused_columns
from tokenloom.assets.schema.profiles import (
    ALIASES,
    Profile,
    Steps,
    fits_answer,
    fits_context,
    fits_flag,
    fits_history,
    fits_label,
    fits_messages,
    fits_settings,
    fits_text,
    fits_tools,
    is_message,
    likeness,
    profiles,
    role_likeness,
)
from tokenloom.assets.stage.forms import FORMS
from tokenloom.resources.tables.nested_paths import quoted
from tokenloom.resources.tables.sequence_schema import PAIR

MAX_CONFIDENCE, MIN_SCORE, DOUBT_FACTOR = 0.95, 0.3, 0.6
"""The highest confidence; the lowest score of a source for a role; the factor for candidates with doubts."""

OPTIONAL = ("system", "tools", "template_kwargs", "context", "history")
"""Roles that do not affect the confidence."""


@dataclass(frozen=True)
class FormatCandidate:
    """A format that a dataset could have.

    Args:
        format: the name of the format.
        form: its canonical form, a key of `FORMS`; empty for a table, and for a format that cannot be trained on.
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
class Match:
    """A source for a role, with its score from 0 to 1 and the reason in words."""

    source: str
    score: float
    reason: str
    profile: Profile
    also: tuple[Profile, ...] = ()
    """Other paths that the source reads."""


Profiles = Mapping[Steps, Profile]
Fit = Callable[[Profile], float]

SETTINGS: dict[str, Fit] = {"system": fits_context, "tools": fits_tools, "template_kwargs": fits_settings}
"""The optional roles of conversations."""

AROUND_TEXT: dict[str, Fit] = {"context": fits_context, "history": fits_history}
"""The optional roles of prompts of text."""


def candidate(
    paths: Profiles,
    format: str,
    form: str,
    matches: Mapping[str, Match],
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
    filled = {role: matches[role].profile for role in FORMS[form].filled or FORMS[form].required if role in matches}
    used = {part.steps for match in matches.values() for part in (match.profile, *match.also)}
    unused = unused_columns(paths, used)
    repeated = {profile.source: name for profile in unused if (name := repeated_in(profile, used))}
    against = could_change(form, matches.keys(), [profile for profile in unused if profile.source not in repeated])
    against |= {role: reason for role, profile in filled.items() if (reason := doubt.emptiness(profile))}
    against |= {role: reason for role, reason in (doubts or {}).items() if reason}
    # A geometric mean: one role that does not fit cannot be made up for by others.
    mean = prod(scores) ** (1 / len(scores)) * (DOUBT_FACTOR if against else 1.0)
    roles = {role: match.source for role, match in matches.items()}
    evidence = [*(f"{role}: {match.reason}" for role, match in matches.items()), *notes]
    evidence += [f"unused {column!r} repeats the start of {talk!r} in every row" for column, talk in repeated.items()]
    confidence, names = round(MAX_CONFIDENCE * mean * factor, 3), tuple(profile.source for profile in unused)
    return FormatCandidate(format, form, roles, confidence, tuple(evidence), against, names)


def columns_of(paths: Profiles) -> list[Profile]:
    """Return the profiles of the columns, without those of paths inside them."""
    return [profile for profile in paths.values() if profile.is_column]


def ranked(
    candidates: Sequence[Profile], role: str | tuple[str, ...], fit: Fit, min_score: float = MIN_SCORE
) -> list[Match]:
    """Return the matches for a role among some paths, the best first.

    Args:
        role: a role, or the names that its column usually has.
    """
    matches = []
    for profile in candidates:
        name = role_likeness(profile.name, role) if isinstance(role, str) else likeness(profile.name, role)
        score = name.score * fit(profile) if name.score else 0.0
        if score >= min_score:
            matches.append(Match(profile.source, score, f"{name.reason}, {profile.shape()}", profile))
    return sorted(matches, key=lambda match: -match.score)


def optional(candidates: Sequence[Profile], taken: Sequence[Match], **fits: Fit) -> dict[str, Match]:
    """Return the best matches for optional roles, among columns that are not taken."""
    matches: dict[str, Match] = {}
    for role, fit in fits.items():
        used = {match.source for match in (*taken, *matches.values())}
        best = next((match for match in ranked(candidates, role, fit, 0.7) if match.source not in used), None)
        if best is not None:
            matches[role] = best
    return matches


def pairs(firsts: Sequence[Match], seconds: Sequence[Match]) -> list[tuple[Match, Match]]:
    """Return all pairs of different sources."""
    return [(first, second) for first in firsts for second in seconds if first.source != second.source]


def beside_prompt(columns: Sequence[Profile], taken: Sequence[Match], prompt: Match | None) -> dict[str, Match]:
    """Return the best matches for the optional roles of conversations, and, if the prompt is text, of such prompts."""
    around = {} if prompt is None or is_spoken(prompt.profile) else AROUND_TEXT
    return optional(columns, taken, **SETTINGS, **around)


def siblings(paths: Profiles, profile: Profile) -> list[Profile]:
    """Return the other fields of the struct that contains a nested path."""
    struct = profile.steps[:-1]
    if not struct:
        return []
    return [field for name in paths[struct].fields if (field := paths[(*struct, name)]) is not profile]


def column_name(match: Match) -> str:
    """Return a column's name as written inside an expression."""
    return quoted(match.profile.name)


def fits_reply(profile: Profile) -> float:
    """Return how well values fit a prompt or an answer: text, a conversation, or one message."""
    return max(fits_text(profile), fits_messages(profile), float(is_message(profile)))


def is_rejected(profile: Profile) -> bool:
    """Return whether a column has the name of rejected answers, which must never be trained as wanted ones."""
    return role_likeness(profile.name, "rejected").score >= 0.7


def asks(profile: Profile) -> bool:
    """Return whether values are conversations without an answer, by speakers that are all known."""
    known = fits_messages(profile) and not doubt.unknown_roles(profile)
    return bool(known and doubt.unanswered(profile))


MIN_CONFIDENCE, MIN_LEAD = 0.6, 0.1


@dataclass(frozen=True)
class Ambiguity:
    """No candidate is certain.

    Args:
        close: the candidates that the data does not decide between, the most likely first; empty if none fits.
        unread: a known format that no form can hold, with the reason; it has no roles.
    """

    close: tuple[FormatCandidate, ...]
    unread: FormatCandidate | None = None

    def __str__(self) -> str:
        """Return what is uncertain, in one sentence."""
        if self.unread:
            return f"the rows are {self.unread.format}, which cannot be read: {'; '.join(self.unread.doubts.values())}"
        if not self.close:
            return "no column matches a known format by its name or values"
        shown = list[str]()
        for one in self.close:
            roles = ", ".join(f"{role}: {source!r}" for role, source in one.roles.items())
            doubts = "".join(f"; but {role}: {reason}" for role, reason in one.doubts.items())
            shown.append(f"{one.format} ({roles}{doubts})")
        if len(shown) == 1:
            return f"the format could be {shown[0]}, but this is not certain"
        return f"the format could be {', '.join(shown[:-1])} or {shown[-1]}"


def choose(
    candidates: Sequence[FormatCandidate], min_confidence: float = MIN_CONFIDENCE
) -> FormatCandidate | Ambiguity:
    """Return the most likely candidate if it is certain, else an `Ambiguity`.

    It is certain with a confidence of at least `min_confidence` and a lead of at least `MIN_LEAD` over all others. The
    confidence of the others is taken without their doubts, because a doubt about one candidate is not evidence for
    another. A candidate is ignored if a certain one uses the same columns and more, or if it leaves out the rejected
    answers of a preference pair that is certain and without doubts.

    Args:
        candidates: as `format_candidates` returns them, in any order.
    """
    if unread := next((one for one in candidates if not one.form and one.doubts), None):
        return Ambiguity((), unread)
    ranked = sorted((one for one in candidates if one.form), key=lambda candidate: -candidate.confidence)
    # Of two readings, the one that uses the same columns and more is what the data means.
    sure = [set(one.unused) for one in ranked if one.confidence >= min_confidence]
    ranked = [one for one in ranked if not any(fewer < set(one.unused) for fewer in sure)]
    sure_pairs = (one for one in ranked if FORMS[one.form].batch == PAIR and not one.doubts)
    if any(one.confidence >= min_confidence for one in sure_pairs):
        ranked = [one for one in ranked if "rejected" not in one.doubts]
    if not ranked:
        return Ambiguity(())
    best = ranked[0]
    close = tuple(candidate for candidate in ranked if best.confidence - candidate.plausible < MIN_LEAD)
    return best if best.confidence >= min_confidence and len(close) == 1 else Ambiguity(close)


MIN_ROLE_CONFIDENCE = 0.2


@dataclass(frozen=True)
class RoleCandidate:
    """A role that a source could have.

    Args:
        role: the role.
        source: a source expression.
        confidence: from 0 to 1.
        evidence: in words.
    """

    role: str
    source: str
    confidence: float
    evidence: str


def role_candidates(columns: Sequence[Mapping[str, object]]) -> list[RoleCandidate]:
    """Return the roles that each column, and text nested in columns, could have, the most likely first.

    Args:
        columns: profiles as `tokenloom.assets.schema.merge` returns them.
    """
    ranked = (
        sorted(_roles_of(profile), key=lambda role: -role.confidence)
        for profile in profiles(columns).values()
        if profile.is_column or profile.kind == "text"
    )
    return [role for roles in ranked for role in roles]


def _roles_of(profile: Profile) -> list[RoleCandidate]:
    candidates = []
    for role in ALIASES:
        name, by_values = role_likeness(profile.name, role), _fit_by_values(role, profile)
        confidence = max(name.score * _FITS.get(role, fits_text)(profile) if name.score else 0.0, by_values)
        if confidence >= MIN_ROLE_CONFIDENCE:
            evidence = ", ".join(part for part in (name.reason, profile.shape()) if part)
            candidates.append(RoleCandidate(role, profile.source, round(confidence, 3), evidence))
    return candidates


_FITS: Mapping[str, Fit] = {
    "messages": fits_messages,
    **dict.fromkeys(("chosen", "rejected"), lambda profile: max(fits_text(profile), fits_messages(profile))),
    "label": lambda profile: max(fits_label(profile), fits_flag(profile)),
    "choices": lambda profile: float(profile.kind == "list"),
    "completion": fits_answer,
    "context": fits_context,
    "system": fits_context,
    "tools": fits_tools,
    "history": fits_history,
}
"""How well values fit a role that the name suggests; other roles are texts."""

_FITS_BY_VALUES: Mapping[str, Fit] = {
    "prompt": lambda profile: 0.4 * profile.trait("question"),
    "label": lambda profile: 0.4 * profile.trait("identifier") * fits_label(profile),
    "text": lambda profile: 0.4 * profile.trait("sentences") * fits_text(profile),
}
"""How well columns of text fit a role regardless of their name."""


def _fit_by_values(role: str, profile: Profile) -> float:
    if role == "messages":
        return 0.9 * fits_messages(profile)
    is_text = profile.kind == "text" and profile.is_column
    return _FITS_BY_VALUES[role](profile) if is_text and role in _FITS_BY_VALUES else 0.0
