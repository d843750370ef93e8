"""The order in which `length.strategy: smart` truncates the parts of a row, and checks of the length settings.

Both depend only on the YAML and the column mapping, so they run before any row is rendered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tokenloom.assets.stage.forms import FIELDS, TRAINED_BY, form_named
from tokenloom.config import PipelineConfig
from tokenloom.errors import did_you_mean
from tokenloom.resources.tables.sequence_schema import SEQUENCE

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
_LEAST_LIKENESS = 0.6
_ANSWER = "answer"


@dataclass(frozen=True)
class TruncationOrder:
    """The order in which the parts of a row are truncated.

    Args:
        ranks: the rank of each part, from 0 for the part that is truncated first; -1 for parts that are never
            truncated. Parts are the template's columns, by their number in spans, or those of `SPOKEN`.
        columns: whether parts are columns.
        by_role: whether answers are recognized by their role, because everything is trained; else by their weight.
        keep: which end of a truncated part is kept, "start" or "end".
    """

    ranks: tuple[int, ...]
    columns: bool
    by_role: bool
    keep: str

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ranks": list(self.ranks)}


Strategy = Literal["truncate_right", "truncate_left", "truncate_middle", "smart", "drop_turns", "split", "drop"]


def length_strategy(config: PipelineConfig, mapping: Mapping[str, Any]) -> Strategy:
    """Return `length.strategy`, by default `split` for plain text (`truncate_right` if it can have images) and `smart`
    for other rows. Pre-tokenized rows have no named parts: `split` where all tokens are trained, else `truncate_right`.
    """
    if config.length.strategy or form_named(mapping["form"]).parts:
        return config.length.strategy or "smart"
    return "split" if config.media is None and {*TRAINED_BY}.isdisjoint(mapping.get("roles", ())) else "truncate_right"


def check_length_settings(config: PipelineConfig, mapping: Mapping[str, Any]) -> None:
    """Check that the length settings fit the form of the rows.

    Raises:
        ConfigError: they do not.
    """
    length, form, strategy = config.length, form_named(mapping["form"]), length_strategy(config, mapping)
    if form.batch != SEQUENCE:
        if length.document_multiple:
            message = f"{form.name} data cannot be padded to a multiple of tokens; omit it"
            raise config.fault("length.document_multiple", message)
        if length.packing != "none":
            raise config.fault("length.packing", f"{form.name} data cannot be packed; set packing: none")
        if strategy == "split":
            message = f"split would cut {form.name} data inside prompts; use smart, drop_turns or drop"
            raise config.fault("length.strategy", message)
    if strategy == "drop_turns" and not form.spoken:
        other = "truncate_right" if form.encoded else "smart"
        message = f"drop_turns needs conversations, but these rows have the form {form.name}; use {other}"
        raise config.fault("length.strategy", message)
    if strategy == "drop_turns" and config.prompt_template.few_shot.count:
        message = "drop_turns renders shortened rows without the rows that few_shot draws from; use smart"
        raise config.fault("length.strategy", message)
    if strategy == "smart" and form.encoded:
        message = "smart shortens named parts of rows, which token ids do not have; use truncate_right, split or drop"
        raise config.fault("length.strategy", message)
    if length.stride and strategy != "split":
        message = f"has no effect with strategy: {strategy}, the default for these rows; set strategy: split"
        raise config.fault("length.stride", message)
    if strategy == "smart":
        truncation_order(config, mapping)


def truncation_order(config: PipelineConfig, mapping: Mapping[str, Any]) -> TruncationOrder:
    """Return the truncation order that `length.give_up` declares for this dataset.

    A name in `give_up` is a column of the template, or a role of the conversation. `context`, `system` and `question`
    can also refer to columns, if none has that name: the columns whose names look like context or system, and all
    others.

    Raises:
        ConfigError: a name is unknown, or is the answer.
    """
    of_columns, trained = form_named(mapping["form"]) is FIELDS, config.prompt_template.trained_columns
    parts: list[str] = sorted(mapping["roles"]) if of_columns else list(SPOKEN)
    named = _of_columns(parts, trained) if of_columns else _OF_CONVERSATIONS
    answers = {*trained} if of_columns else {"completion", "chosen", "rejected"}
    ranks = [-1] * len(parts)
    for rank, name in enumerate(config.length.give_up):
        if name in answers or (name == _ANSWER and name not in named):
            message = f"{name} is the answer, which is always truncated last; remove it from the list"
            raise config.fault("length.give_up", message)
        if name not in named:
            hint = did_you_mean(name, named) or f"; the parts are {', '.join(named)}"
            raise config.fault("length.give_up", f"no part of the rows is named {name}{hint}")
        for part in named[name]:
            place = parts.index(part)
            ranks[place] = rank if ranks[place] < 0 else ranks[place]
    return TruncationOrder(tuple(ranks), of_columns, config.prompt_template.train_on == "all", config.length.keep)


def _of_columns(columns: Collection[str], trained: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the columns that each name in `give_up` refers to."""
    from tokenloom.assets.schema.profiles import ALIASES, likeness

    def meaning(column: str) -> str:
        scores = {name: likeness(column, ALIASES[name]).score for name in ("context", "system")}
        best = max(scores, key=lambda name: scores[name])
        return best if scores[best] >= _LEAST_LIKENESS else "question"

    others = [column for column in columns if column not in trained]
    by_meaning = {name: tuple(column for column in others if meaning(column) == name) for name in _MEANINGS}
    return by_meaning | {column: (column,) for column in others}
