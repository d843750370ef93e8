"""How like a column's name is to the names that a role usually has: whole words count, not letters inside words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

ALIASES: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations", "conversation", "chat", "turns", "dialog", "dialogue"),
    "prompt": ("prompt", "instruction", "question", "query", "problem", "user", "human", "input"),
    "context": ("input", "context", "passage", "background", "paragraph"),
    "completion": ("completion", "output", "response", "answer", "target", "assistant", "summary", "solution"),
    "system": ("system", "system_prompt", "system_message"),
    "text": ("text", "content", "document", "article", "body", "story"),
    "chosen": ("chosen", "preferred", "accepted", "winner"),
    "rejected": ("rejected", "dispreferred", "loser"),
    "label": ("label", "category", "class", "intent", "sentiment", "emotion"),
    "choices": ("choices", "options", "endings"),
    "tools": ("tools", "functions"),
}
"""For each role, the column names that stand for it, the most telling first."""

_BESIDES = {
    *("id", "ids", "idx", "uuid", "hash", "count", "counts", "num", "number", "length", "len", "score", "scores"),
    *("rating", "url", "link", "lang", "language", "type", "time", "date", "timestamp", "tokens", "token", "source"),
    *("start", "end", "offset", "path", "file", "name", "fname", "author", "split", "version", "model"),
}
_ABOUT = {"title", "meta", "metadata", "subset", "license", "domain", "topic", "key"}
_PRAISE = {"best", "gold", "golden", "final", "correct", "reference", "expected", "true"}
_BLAME = {"incorrect", "wrong", "bad", "negative", "invalid", "false", "worst"}
_BORDER = re.compile(r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])|(?<=[A-Z])(?=[A-Z][a-z])")
_TYPO = 88.0


@dataclass(frozen=True)
class Likeness:
    """How like a name is to a role's: `score` from 0 to 1, and in words why."""

    score: float
    reason: str


def words(name: str) -> tuple[str, ...]:
    """The words of a name: "userQuestion_2" is user, question, 2."""
    return tuple(word.lower() for word in _BORDER.split(name) if word)


@lru_cache(maxsize=4096)
def likeness(name: str, aliases: Sequence[str]) -> Likeness:
    """How like a name is to the best fitting of some aliases, of which earlier ones tell more."""
    scores = [(_alike(words(name), words(alias)) - 0.01 * place, alias) for place, alias in enumerate(aliases)]
    score, alias = max(scores, key=lambda found: found[0], default=(0.0, ""))
    if score <= 0.2:
        return Likeness(0.0, "")
    same = words(name) == words(alias)
    return Likeness(score, f"named {name!r}" if same else f"{name!r} is like {alias!r}")


def role_likeness(name: str, role: str) -> Likeness:
    """How like a name is to a role's. One that is exactly another role's counts little."""
    found = likeness(name, ALIASES[role])
    best = max(likeness(name, aliases).score for aliases in ALIASES.values())
    return Likeness(0.4 * found.score, found.reason) if found.score < 0.87 <= best else found


def is_beside(name: str) -> bool:
    """Whether a name is that of something beside the text: an id, a URL, a date, a title."""
    return bool({*words(name)} & (_BESIDES | _ABOUT))


def _alike(name: tuple[str, ...], alias: tuple[str, ...]) -> float:
    if name == alias:
        return 1.0
    singular = tuple(_singular(word) for word in name)
    wanted = tuple(_singular(word) for word in alias)
    if singular == wanted:
        return 0.92
    places = [at for at in range(len(name)) if singular[at : at + len(wanted)] == wanted]
    if places:
        rest = {*name[: places[0]], *name[places[0] + len(wanted) :]}
        if rest & (_BESIDES | _BLAME):
            return 0.0
        plural = name[places[0] : places[0] + len(wanted)] != alias
        return 0.85 + 0.1 * bool(rest & _PRAISE) - 0.3 * plural - 0.1 * any(word.isdigit() for word in rest)
    from rapidfuzz import fuzz

    one, other = "".join(name), "".join(alias)
    ratio = fuzz.ratio(one, other) if min(len(one), len(other)) >= 5 else 0.0
    return 0.8 * ratio / 100 if ratio >= _TYPO else 0.0


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
