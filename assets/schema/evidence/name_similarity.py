"""Compares a column's name with the usual names of a role, by whole words instead of letters inside words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rapidfuzz.fuzz import ratio
from rapidfuzz.process import extract

ALIASES: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations", "conversation", "chat", "turns", "dialog", "dialogue"),
    "prompt": ("prompt", "instruction", "question", "query", "problem", "user", "human", "input"),
    "context": ("input", "context", "passage", "background", "paragraph", "article"),
    "completion": (
        *("completion", "output", "response", "answer", "target", "assistant", "summary", "solution", "generation"),
    ),
    "system": ("system", "system_prompt", "system_message"),
    "text": ("text", "content", "document", "article", "body", "story"),
    "chosen": ("chosen", "preferred", "accepted", "winner"),
    "rejected": ("rejected", "non_preferred", "dispreferred", "loser"),
    "label": ("label", "category", "class", "intent", "sentiment", "emotion"),
    "choices": ("choices", "options", "endings"),
    "tools": ("tools", "functions"),
    "template_kwargs": ("chat_template_kwargs", "template_kwargs"),
    "history": ("history", "previous_turns", "past_messages"),
}
"""For each role, its usual column names, the most specific first."""

_METADATA = {
    *("id", "ids", "idx", "uuid", "hash", "count", "counts", "num", "number", "length", "len", "score", "scores"),
    *("rating", "url", "link", "lang", "language", "type", "time", "date", "timestamp", "tokens", "token", "source"),
    *("start", "end", "offset", "path", "file", "name", "fname", "author", "split", "version", "model"),
}
_DESCRIPTIONS = {"title", "meta", "metadata", "subset", "license", "domain", "topic", "key"}
_POSITIVE = {"best", "gold", "golden", "final", "correct", "reference", "expected", "true"}
_NEGATIVE = {"incorrect", "wrong", "bad", "negative", "invalid", "false", "worst", "non"}
_BORDER = re.compile(r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])|(?<=[A-Z])(?=[A-Z][a-z])")
_MIN_TYPO_RATIO, _MIN_TYPO_LENGTH = 88.0, 5
MAX_CHARACTERS = 200
_KEPT = 1 << 14


@dataclass(frozen=True)
class Likeness:
    """How similar a name is to the names of a role: `score` from 0 to 1, and the reason in words."""

    score: float
    reason: str


_UNLIKE = Likeness(0.0, "")


@dataclass(frozen=True)
class _Name:
    """A name: its words, the words in the singular, in order and as a set, and all words joined."""

    words: tuple[str, ...]
    singular: tuple[str, ...]
    distinct: frozenset[str]
    joined: str


@lru_cache(maxsize=_KEPT)
def _name(name: str) -> _Name:
    found = tuple(word.lower() for word in _BORDER.split(name) if word)
    singular = tuple(map(_singular, found))
    return _Name(found, singular, frozenset(singular), "".join(found))


def words(name: str) -> tuple[str, ...]:
    """Return the words of a name: "userQuestion_2" is user, question, 2."""
    return _name(name).words


@lru_cache(maxsize=_KEPT)
def likeness(name: str, aliases: Sequence[str]) -> Likeness:
    """Return how similar a name is to the most similar alias; earlier aliases count slightly more.

    Names of more than `MAX_CHARACTERS` are like none.
    """
    if len(name) > MAX_CHARACTERS:
        return _UNLIKE
    own, index = _name(name), _index(aliases)
    ranks = {rank for word in own.distinct for rank in index.by_word.get(word, ())}
    if len(own.joined) >= _MIN_TYPO_LENGTH:
        typos = extract(own.joined, index.joined, scorer=ratio, score_cutoff=_MIN_TYPO_RATIO, limit=None)
        ranks.update(rank for _, _, rank in typos)
    scores = [(_similarity(own, _name(aliases[rank])) - 0.01 * rank, aliases[rank]) for rank in sorted(ranks)]
    score, alias = max(scores, key=lambda scored: scored[0], default=(0.0, ""))
    if score <= 0.2:
        return _UNLIKE
    return Likeness(score, f"named {name!r}" if own.words == words(alias) else f"{name!r} is like {alias!r}")


@dataclass(frozen=True)
class _Index:
    """Finds the aliases that a name can be like: the ranks of those with a word, and all as joined words by rank."""

    by_word: dict[str, list[int]]
    joined: dict[int, str]


@lru_cache(maxsize=_KEPT)
def _index(aliases: Sequence[str]) -> _Index:
    by_word: dict[str, list[int]] = {}
    for rank, alias in enumerate(aliases):
        for word in _name(alias).distinct:
            by_word.setdefault(word, []).append(rank)
    return _Index(by_word, {rank: _name(alias).joined for rank, alias in enumerate(aliases)})


@lru_cache(maxsize=_KEPT)
def _by_role(name: str) -> tuple[dict[str, Likeness], float]:
    """Return how similar a name is to the names of each role, and the highest score."""
    found = {role: likeness(name, aliases) for role, aliases in ALIASES.items()}
    return found, max(one.score for one in found.values())


def role_likeness(name: str, role: str) -> Likeness:
    """Return how similar a name is to the names of a role. A name of another role counts less."""
    found, best = _by_role(name)
    own = found[role]
    return Likeness(0.4 * own.score, own.reason) if own.score < 0.87 <= best else own


def is_metadata(name: str) -> bool:
    """Return whether a name is that of metadata, such as an id, a URL, a date, or a title."""
    return bool({*words(name)} & (_METADATA | _DESCRIPTIONS))


def names_metadata(name: str) -> bool:
    """Return whether the last word of a name is that of metadata: `source_url`, but not `source_text` or `title`."""
    last = next((word for word in reversed(words(name)) if not word.isdigit()), "")
    return bool({last, _singular(last)} & (_METADATA | _DESCRIPTIONS - {"title"}))


def _similarity(name: _Name, alias: _Name) -> float:
    if alias.distinct.isdisjoint(name.distinct):
        return _typo_similarity(name.joined, alias.joined)
    if name.words == alias.words:
        return 1.0
    if name.singular == alias.singular:
        return 0.92
    size = len(alias.words)
    starts = [at for at in range(len(name.words) - size + 1) if name.singular[at : at + size] == alias.singular]
    if starts:
        rest = {*name.words[: starts[0]], *name.words[starts[0] + size :]}
        if rest & (_METADATA | _NEGATIVE):
            return 0.0
        plural = name.words[starts[0] : starts[0] + size] != alias.words
        return 0.85 + 0.1 * bool(rest & _POSITIVE) - 0.3 * plural - 0.1 * any(word.isdigit() for word in rest)
    return _typo_similarity(name.joined, alias.joined)


def _typo_similarity(name: str, alias: str) -> float:
    if len(name) < _MIN_TYPO_LENGTH or len(alias) < _MIN_TYPO_LENGTH:
        return 0.0
    return 0.8 * ratio(name, alias, score_cutoff=_MIN_TYPO_RATIO) / 100


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
