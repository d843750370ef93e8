"""What the length settings ask of a dataset's form: checked before anything is rendered."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tokenloom.config import PipelineConfig

SPOKEN = ("system", "earlier", "question", "tool", "assistant")
"""Parts of a conversation other than its answers: `question` is the last user message, `earlier` those before it."""

_OF_CONVERSATIONS: Mapping[str, tuple[str, ...]] = {
    "context": ("earlier", "tool", "assistant"),
    "question": ("question",),
    "system": ("system",),
    "user": ("earlier", "question"),
    "prompt": ("earlier", "question"),
    "tool": ("tool",),
    "assistant": ("assistant",),
}
_MEANINGS = ("context", "question", "system")
_CALLED = 0.6
_ANSWER = "answer"


@dataclass(frozen=True)
class TruncationOrder:
    """In which order the parts of a row give up tokens.

    Args:
        ranks: for each part, when its turn is, from 0; -1: never. Parts are the columns of a template by number, as
            spans give them, or those of `SPOKEN`.
        columns: whether parts are columns.
        by_role: whether answers are told by their roles, because everything is trained; else by being trained.
        last: the turn of the answer.
    """

    ranks: tuple[int, ...]
    columns: bool
    by_role: bool
    last: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check_length_settings(config: PipelineConfig, mapping: Mapping[str, Any]) -> None:
    """
    Raises:
        ConfigError: the length settings do not suit the form of the rows; pairs and labels belong to single rows.
    """
    length, form = config.length, mapping["form"]
    if form in ("preference", "kto"):
        if length.packing != "none":
            message = f"length.packing: {form} data are not packed; set packing: none"
            raise config.fault("length.packing", message)
        if length.strategy == "split":
            message = f"split would part {form} answers from their prompts; use smart, drop_turns or drop"
            raise config.fault("length.strategy", f"length.strategy: {message}")
    if length.strategy == "drop_turns" and form not in ("messages", "preference", "kto"):
        message = f"length.strategy: drop_turns needs conversations, these rows are of the form {form}; use smart"
        raise config.fault("length.strategy", message)
    if length.strategy == "drop_turns" and config.prompt_template.few_shot.count:
        message = "drop_turns renders shortened rows anew, without those that few_shot draws from; use smart"
        raise config.fault("length.strategy", f"length.strategy: {message}")
    if length.strategy == "smart":
        truncation_order(config, mapping)


def truncation_order(config: PipelineConfig, mapping: Mapping[str, Any]) -> TruncationOrder:
    """What `length.give_up` says of this dataset's parts.

    A name is a column of the template, or a role of the conversation. Where no column has their name, `context`,
    `question` and `system` stand for the columns that mean it: `question` for all that mean neither of the others.

    Raises:
        ConfigError: a name is none of them, or that of the answer.
    """
    form, label = mapping["form"], config.prompt_template.label_column
    parts: list[str] = sorted(mapping["roles"]) if form == "fields" else list(SPOKEN)
    named = _of_columns(parts, label) if form == "fields" else _OF_CONVERSATIONS
    answers = {label} if form == "fields" else {"completion", "chosen", "rejected"}
    ranks = [-1] * len(parts)
    for rank, name in enumerate(config.length.give_up):
        if name in answers or (name == _ANSWER and name not in named):
            raise config.fault("length.give_up", f"length.give_up: {name} is the answer, which goes last; leave it out")
        if name not in named:
            close = difflib.get_close_matches(name, list(named), n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(named)}"
            raise config.fault("length.give_up", f"length.give_up: no part of the rows is named {name}; {hint}")
        for part in named[name]:
            place = parts.index(part)
            ranks[place] = rank if ranks[place] < 0 else ranks[place]
    return TruncationOrder(tuple(ranks), form == "fields", config.prompt_template.train_on == "all", len(config.length.give_up))


def _of_columns(columns: Collection[str], label: str | None) -> dict[str, tuple[str, ...]]:
    from tokenloom.assets.schema.names import ALIASES, likeness

    def meaning(column: str) -> str:
        found = {name: likeness(column, ALIASES[name]).score for name in ("context", "system")}
        best = max(found, key=lambda name: found[name])
        return best if found[best] >= _CALLED else "question"

    others = [column for column in columns if column != label]
    meant = {name: tuple(column for column in others if meaning(column) == name) for name in _MEANINGS}
    return meant | {column: (column,) for column in others}
