"""Profiles of paths, as `merge` returns them, and how well the name and the values of a path fit a role.

A fit is a number from 0 to 1 that changes gradually with the values: a few more rows change it only a little.
Conversations are recognized by the names of speakers and fields that published datasets have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from rapidfuzz.fuzz import ratio
from rapidfuzz.process import extract

from tokenloom.resources.tables.nested_paths import quoted

CALL_ROLES = ("function_call", "tool_call", "tool_calls")
"""Speakers whose message is the JSON text of one tool call, or of a list of calls, by the assistant."""

ROLE_NAMES: dict[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "customer": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "chatbot": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    **dict.fromkeys(CALL_ROLES, "assistant"),
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "observation": "tool",
    "ipython": "tool",
}
"""Names of speakers in lower case, and the role of each."""

SPEAKING_PAIR = ("human", "user")
"""Names of the first text of a pair that say that the pair is two turns of a conversation."""

_ASKED = (*SPEAKING_PAIR, "prompt", "instruction", "input", "question", "query")
_ANSWERED = (
    *("assistant", "gpt", "bot", "ai", "chatbot", "chatgpt", "response", "output", "answer", "completion", "reply"),
)

SPEAKERS, SAID = ("role", "from", "speaker"), ("content", "value", "text", "message")
"""Fields that identify a struct as a message: the speaker, and the text."""


def role_of(name: str) -> str | None:
    """Return the role of a speaker's name, or None if it is unknown."""
    return ROLE_NAMES.get(name.strip().lower())


def pair_of(names: Collection[str]) -> tuple[str, str] | None:
    """Find the two fields of an object with what a user says and what is answered; None for other objects."""
    asked, answered = ([name for name in names if name.lower() in known] for known in (_ASKED, _ANSWERED))
    named = len(asked) == len(answered) == 1 and not {*SPEAKERS, *SAID} & {*names}
    return (asked[0], answered[0]) if named else None


def columns_of_turns(names: Collection[str]) -> tuple[str, str] | None:
    """Return the two fields of an object of lists that hold the speakers and their texts; None for other objects."""
    fields = [next((name for name in known if name in names), "") for known in (SPEAKERS, SAID)]
    return (fields[0], fields[1]) if all(fields) else None


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
    lowered = tuple(word.lower() for word in _BORDER.split(name) if word)
    singular = tuple(map(_singular, lowered))
    return _Name(lowered, singular, frozenset(singular), "".join(lowered))


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
    # Only aliases that share a word, or nearly all letters, are compared: a table can have thousands of columns.
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
    """An index of aliases: the ranks of those that contain a word, and by rank, each alias as its words joined."""

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
    by_role = {role: likeness(name, aliases) for role, aliases in ALIASES.items()}
    return by_role, max(one.score for one in by_role.values())


def role_likeness(name: str, role: str) -> Likeness:
    """Return how similar a name is to the names of a role. A name of another role counts less."""
    by_role, best = _by_role(name)
    alike = by_role[role]
    # `input_text` is like `text`, but more like the prompt's `input`: the better role keeps most of the score.
    return Likeness(0.4 * alike.score, alike.reason) if alike.score < 0.87 <= best else alike


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
        # `prompt_id` and `wrong_answer` are not a prompt and an answer.
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


_SURE = {
    **dict.fromkeys(("true", "yes", "1", "+1", "1.0", "desirable", "good", "chosen", "accepted"), True),
    **dict.fromkeys(("false", "no", "0", "-1", "0.0", "-1.0", "undesirable", "bad", "rejected"), False),
}
_WORDS = {
    **_SURE,
    **dict.fromkeys(("preferred", "positive", "correct", "right", "like", "liked", "up", "upvote", "win"), True),
    **dict.fromkeys(("winner", "pos", "pass", "success", "thumbs_up", "t", "y"), True),
    **dict.fromkeys(("dispreferred", "negative", "incorrect", "wrong", "dislike", "disliked", "down"), False),
    **dict.fromkeys(("downvote", "lose", "loser", "neg", "fail", "failure", "thumbs_down", "f", "n"), False),
}
TRUE_WORDS = tuple(word for word, wanted in _WORDS.items() if wanted)
FALSE_WORDS = tuple(word for word, wanted in _WORDS.items() if not wanted)


def fits_flag_words(values: Collection[str]) -> float:
    """Return how well values, as text, fit a flag: 0.75, or 0.7 if they could also mean something else."""
    lowered = {value.strip().lower() for value in values}
    if not lowered or not lowered <= _WORDS.keys():
        return 0.0
    return 0.75 if lowered <= _SURE.keys() and not (lowered & {"0", "0.0"} and lowered & {"-1", "-1.0"}) else 0.7


def unsure_flags(values: Collection[str]) -> str | None:
    """Explain how values would be read as flags, if it is unsure that they are flags; otherwise None."""
    if fits_flag_words(values) != 0.7:
        return None
    wanted = [value for value in values if _WORDS[value.strip().lower()]]
    unwanted = [value for value in values if value not in wanted]
    return f"{' and '.join(wanted) or 'none'} would be read as wanted, {' and '.join(unwanted) or 'none'} as unwanted"


FEW_ODD, MOST_ODD = 4, 0.01
"""Values unlike all others that do not change how a path is read: up to a number, or a fraction."""

Steps = tuple[str | None, ...]


@dataclass(frozen=True)
class Profile:
    """The profile of one path.

    Args:
        facts: the profile as JSON.
        within: the profiles of all paths of the dataset, by their steps.
    """

    facts: Mapping[str, Any]
    within: Mapping[Steps, Profile]

    @cached_property
    def steps(self) -> Steps:
        """The column, then field names, with None for a list's items."""
        return tuple(self.facts.get("steps") or [self.facts["column"]])

    @property
    def column(self) -> Profile:
        """The profile of the column that contains the path."""
        return self.within[self.steps[:1]]

    @property
    def kind(self) -> str:
        """The kind of the values, as in `sketch.kind_of`, or of all but a few odd ones; `other` for several kinds."""
        return self.facts["kind"]

    @property
    def kinds(self) -> Sequence[str]:
        """All kinds of the values; `json` are values of any kind, which are not described."""
        return self.facts.get("kinds") or (self.kind,)

    @property
    def type(self) -> str:
        """The types as text, those inside JSON too."""
        items, fields = self.field(None), (field for name in self.fields if (field := self.field(name)))
        nested = {"list": f"list<item: {items.type if items else 'null'}>"}
        nested["struct"] = f"struct<{', '.join(f'{field.name}: {field.type}' for field in fields)}>"
        types: list[str] = self.facts["type"].split(" | ")
        return " | ".join(nested.get(one, one) for one in types)

    @property
    def innermost(self) -> Profile:
        """The profile of the values that are inside lists of any depth."""
        return items.innermost if (items := self.field(None)) else self

    @property
    def source(self) -> str:
        """The source expression: the name of a column, or a path with the first item in place of a list's items."""
        if self.is_column:
            return self.name
        first, *rest = self.steps
        return quoted(first or "") + "".join("[0]" if step is None else f".{quoted(step)}" for step in rest)

    @cached_property
    def name(self) -> str:
        """The name of the column or of the innermost field on the path."""
        return next(step for step in reversed(self.steps) if step is not None)

    @property
    def is_column(self) -> bool:
        """Whether the path is a column instead of nested in one."""
        return len(self.steps) == 1

    @property
    def fields(self) -> list[str]:
        """The names of a struct's fields."""
        depth = len(self.steps)
        inside = [steps[depth] for steps in self.within if steps[:depth] == self.steps and len(steps) == depth + 1]
        return [name for name in inside if name is not None]

    @property
    def items(self) -> Profile | None:
        """The profile of a list's items."""
        return self.within.get((*self.steps, None)) if self.kind == "list" else None

    def field(self, name: str | None) -> Profile | None:
        """Return the profile of a struct's field, or of a list's items, whatever other kinds of values there are."""
        return self.within.get((*self.steps, name))

    def fraction(self, count: str) -> float:
        """Return the fraction of occurrences that are `nulls` or `empty`."""
        return self.facts.get(count, 0) / max(self.facts.get("rows", 1), 1)

    def trait(self, name: str) -> float:
        """Return the fraction of sampled texts that have a trait."""
        return self.facts.get("traits", {}).get(name, 0.0)

    @property
    def numbers(self) -> float:
        """The fraction of values that are numbers."""
        return 1.0 if self.kind == "number" else self.trait("number")

    @property
    def variety(self) -> float:
        """The number of distinct values per occurrence; 1 if unknown."""
        distinct = self.facts.get("distinct")
        return 1.0 if distinct is None else distinct / max(self.facts.get("rows", 1), 1)

    @property
    def typical_length(self) -> int:
        """The median length of the values; 0 if unknown."""
        return (self.facts.get("lengths") or {}).get("p50", 0)

    def shape(self) -> str:
        """Return what the values look like, in a few words."""
        lengths = self.facts.get("lengths")
        if self.kind == "text" and lengths:
            shown = {"question": "questions", "transcript": "transcripts", "turns": "dialogues", "number": "numbers"}
            traits = [f"{self.trait(name):.0%} {plural}" for name, plural in shown.items() if self.trait(name) >= 0.2]
            size = f"text of about {lengths['p50']:,} characters" if lengths["p50"] else "often empty text"
            return ", ".join([size, *traits])
        if self.kind == "list" and lengths:
            return f"lists of up to {lengths['longest']:,}"
        return self.kind


def profiles(columns: Sequence[Mapping[str, Any]]) -> dict[Steps, Profile]:
    """Return profiles by their steps, given profiles as JSON."""
    by_steps: dict[Steps, Profile] = {}
    for facts in columns:
        profile = Profile(facts, by_steps)
        by_steps.setdefault(profile.steps, profile)
    return by_steps


def fits_text(profile: Profile) -> float:
    """Return how well values fit a prompt, context or document: text that is not mostly numbers, URLs or empty."""
    if profile.kind != "text":
        return 0.0
    return (1 - 0.7 * profile.numbers) * (1 - 0.7 * profile.trait("url")) * (1 - 0.6 * _missing(profile))


def fits_context(profile: Profile) -> float:
    """Return how well values fit a context that can be empty: text that is not mostly URLs."""
    return (1 - 0.7 * profile.trait("url")) * float(profile.kind == "text")


def fits_tools(profile: Profile) -> float:
    """Return how well values fit tool definitions: text, or a list of structs or JSON text."""
    if profile.kind == "other":
        return 1.0
    if profile.kind == "list":
        return float(profile.items is None or profile.items.kind == "struct" or profile.items.trait("json") >= 0.5)
    return fits_context(profile)


def fits_history(profile: Profile) -> float:
    """Return how well values fit earlier turns: lists of pairs of texts, or conversations."""
    pair = profile.items
    if pair is None or pair.items is None:
        return fits_messages(profile)
    return float(pair.items.kind == "text" and pair.typical_length == 2)


def fits_settings(profile: Profile) -> float:
    """Return how well values fit settings of a chat template: structs, maps or JSON text."""
    is_map = profile.items is not None and profile.items.fields == ["key", "value"]
    if is_map or profile.kind in ("struct", "other"):
        return 1.0
    return profile.trait("json") * float(profile.kind == "text")


def fits_answer(profile: Profile) -> float:
    """Return how well values fit an answer: text, numbers or, less so, booleans and times."""
    fit = {"text": 1.0, "number": 0.9, "boolean": 0.6}.get(profile.kind, 0.6 * is_time(profile))
    return fit * (1 - 0.8 * profile.trait("url")) * (1 - 0.8 * _missing(profile))


def is_time(profile: Profile) -> bool:
    """Return whether values are dates, times or durations."""
    return str(profile.facts["type"]).startswith(("date", "time", "duration"))


def fits_key(profile: Profile) -> float:
    """Return how well values fit letters or small numbers that refer to something else: very short, few distinct."""
    short = 1 - ramp(profile.typical_length, 1, 3) if profile.kind == "text" else 1.0
    words = profile.trait("identifier") if profile.kind == "text" else float(profile.kind == "number")
    return short * words * (1 - ramp(profile.variety, 0.05, 0.3))


def fits_flag(profile: Profile) -> float:
    """Return how well values fit a flag: booleans, or words and numbers for them; a few other values do not count."""
    if profile.kind == "boolean":
        return 1.0
    values, counts = (profile.facts.get(name) or () for name in ("values", "counts"))
    words = [str(value) for value in values if fits_flag_words([str(value)])]
    known = sum(count for value, count in zip(values, counts, strict=False) if str(value) in words)
    most = FEW_ODD if profile.kind == "number" else max(FEW_ODD, MOST_ODD * known)
    return fits_flag_words(words) if sum(counts) - known <= min(most, known / 10) else 0.0


def usual_values(profile: Profile) -> list[str]:
    """Return a path's values, if these are few, without the rarest ones: as many as can be odd."""
    values, counts = (profile.facts.get(name) or () for name in ("values", "counts"))
    # The rarest values go first, until as many rows are gone as can be odd.
    left, usual = min(max(FEW_ODD, MOST_ODD * sum(counts)), sum(counts) / 10), []
    for count, value in sorted(zip(counts, values, strict=False)):
        left -= count
        usual += [str(value)] if left < 0 else []
    return usual


def fits_label(profile: Profile) -> float:
    """Return how well values fit a label: one of few names. Numbers and flags fit less."""
    fit = {"text": 1.0 - 0.65 * profile.numbers, "number": 0.35, "boolean": 0.35}.get(profile.kind, 0.0)
    return fit * fits_few(profile) * (1 - 0.8 * _missing(profile))


def fits_few(profile: Profile) -> float:
    """Return how few distinct values there are per occurrence: 1 for few, 0 for many."""
    return 1 - ramp(profile.variety, 0.2, 0.8)


def fits_messages(profile: Profile) -> float:
    """Return how well values fit a conversation: a list of structs with fields for the speaker and the text."""
    if pair_fields(profile):
        return 1.0
    speaker_field, text_field = message_fields(profile)
    if not (speaker_field and text_field):
        return 0.0
    speakers = speakers_of(profile)
    messages = speakers.facts.get("rows", 0) if speakers else 0
    return 1 - 0.5 * unknown_speakers(profile)[0] / max(messages, 1)


def is_message(profile: Profile) -> bool:
    """Return whether values are single messages: structs with fields for the speaker and the text."""
    names = profile.fields if profile.kind == "struct" and not _holds_lists(profile) else []
    return any(name in names for name in SPEAKERS) and any(name in names for name in SAID)


def _holds_lists(profile: Profile) -> bool:
    """Return whether values are objects of lists of speakers and texts, which `datasets` makes of lists of messages."""
    columns = columns_of_turns(profile.fields) if profile.kind == "struct" else None
    return columns is not None and all((field := profile.field(name)) and field.kind == "list" for name in columns)


def pair_fields(profile: Profile) -> tuple[str, str] | None:
    """Return the fields of lists of {human, assistant} that hold a user's text and the answer; None for other values.

    Pairs such as {question, answer} are turns only in a column with the name of a conversation.
    """
    item = profile.items
    pair = pair_of(item.fields) if item is not None and item.kind == "struct" else None
    if item is None or pair is None or any((field := item.field(name)) and field.kind != "text" for name in pair):
        return None
    named = any(
        role_likeness(profile.name, role).score >= 0.7 for role in ("messages", "history", "chosen", "rejected")
    )
    return pair if named or pair[0].lower() in SPEAKING_PAIR else None


def speakers_of(conversation: Profile) -> Profile | None:
    """Return the profile of the speakers' names; None if it is unknown."""
    speaker_field = message_fields(conversation)[0] or ""
    if _holds_lists(conversation):
        return lists.items if (lists := conversation.field(speaker_field)) else None
    return conversation.items.field(speaker_field) if conversation.items else None


def unknown_speakers(conversation: Profile) -> tuple[int, list[str]]:
    """Return the number of messages without a known speaker role, and the names of unknown speakers if they are few."""
    speakers = speakers_of(conversation)
    if speakers is None:
        return 0, []
    if speakers.facts.get("values") is None:
        return speakers.facts["rows"], []
    counts = dict(zip(speakers.facts["values"], speakers.facts["counts"], strict=True))
    unknown = [name for name in counts if role_of(name) is None]
    return speakers.facts["nulls"] + sum(counts[name] for name in unknown), unknown


def message_fields(profile: Profile) -> tuple[str | None, str | None]:
    """Return the fields of a conversation's messages that hold the speaker and the text."""
    if _holds_lists(profile):
        return columns_of_turns(profile.fields) or (None, None)
    if profile.kind != "list":
        return None, None
    names = profile.items.fields if profile.items is not None and profile.items.kind == "struct" else []
    return next((name for name in SPEAKERS if name in names), None), next(
        (name for name in SAID if name in names), None
    )


def ramp(value: float, low: float, high: float) -> float:
    """Return 0 up to `low`, 1 from `high` on, and a linear interpolation between."""
    return min(max((value - low) / (high - low), 0.0), 1.0)


def _missing(profile: Profile) -> float:
    return profile.fraction("nulls") + profile.fraction("empty")
