"""What names say by the conventions of tools: which text is trained and with which weight, which columns hold token
ids, and in which dialect an API or an agent recorded messages.

The names of flags and weights are those of training tools, among them `train`, `training` and `weight` (axolotl),
`loss` and `loss_scale` (ms-swift), and `masked` (torchtune); others say the same in other words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

from tokenloom.assets.schema.profiles import Profile, Steps, message_fields, names_metadata, words
from tokenloom.assets.stage.forms import LAYOUT, TRAINED_BY
from tokenloom.resources.tables.nested_paths import quoted

NUMBERS = ("weight", "loss_weight", "loss_scale")
"""Loss weights: 0 is not trained, 1 is trained, any other number that is not negative multiplies the loss."""

TRAINED = (
    *("train", "trained", "training", "trainable", "is_trained", "is_trainable", "train_turn", "learn"),
    *("loss", "loss_mask", "step_loss_mask", "with_loss", "output_with_loss", "compute_loss", "calculate_loss"),
)
"""Flags that are true if the text is trained."""

MASKED = ("masked", "is_masked", "no_loss", "ignore_loss", "no_train")
"""Flags that are true if the text is not trained."""

UNCLEAR = ("mask", "ignore", "ignored")
"""Flags that tools use in both senses, or in none that they document."""

KNOWN = ("role", "content", "tool_calls", "function_call", "name", "tool_call_id")
"""Fields of messages that are read as what they are, or name something."""

ROW_WEIGHTS = (
    *("weight", "weights", "loss_weight", "row_weight", "sample_weight", "instance_weight", "example_weight"),
    *("importance_weight", "train_weight", "training_weight", "loss_scale", "loss_multiplier"),
)
"""Names of columns with a loss weight for each row."""

LARGEST = 1e9
"""Weights up to this can be multiplied with each other as float32."""

_WORDS = {"true": True, "false": False}
FLAG_WORDS = {
    *("train", "trained", "training", "trainable", "learn", "loss", "mask", "masked", "weight", "weights"),
    *("supervise", "supervised", "backprop", "gradient"),
}
"""Words in names of fields that could be flags."""
_KINDS = {
    **dict.fromkeys(NUMBERS, "number"),
    **dict.fromkeys(TRAINED, "trained"),
    **dict.fromkeys(MASKED, "masked"),
    **dict.fromkeys(UNCLEAR, "unclear"),
}
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str | None:
    """Return what a field's name says of its values: number, trained, masked or unclear; None if it is not a flag."""
    return _KINDS.get(_CAPITAL.sub("_", name).replace("-", "_").lower())


def loss_weight(item: Mapping[str, Any]) -> float | None:
    """Return the loss weight that the fields of a message or part declare, or None.

    Raises:
        ValueError: a value is not understood, or two fields contradict each other.
    """
    declared = {
        name: _value(kind, name, value)
        for name, value in item.items()
        if (kind := kind_of(name)) is not None and value is not None
    }
    if len(declared) < 2:
        return next(iter(declared.values()), None)
    numbers = {value for name, value in declared.items() if kind_of(name) == "number"}
    # Fields can say the same twice, a number and a flag: they must agree whether the text is trained at all.
    if len(numbers) > 1 or len({value > 0 for value in declared.values()}) > 1:
        named = ", ".join(f"{name}: {item[name]}" for name in declared)
        raise ValueError(f"declares several weights: {named}")
    return next(iter(numbers or declared.values()))


def _value(kind: str, name: str, value: Any) -> float:
    try:
        number = float(_WORDS.get(value.strip().lower(), value) if type(value) is str else value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if kind == "unclear":
        raise ValueError(f"has the field {name}, which trains in some tools and masks in others; write train or masked")
    is_number = kind == "number"
    if not 0 <= number <= LARGEST or (not is_number and number not in (0.0, 1.0)):
        expected = "a number from 0 on" if is_number else "true or false"
        raise ValueError(f"has the field {name} that is not {expected}: {value!r:.40}")
    return 1.0 - number if kind == "masked" else number


def is_flag_like(name: str, value: Any) -> bool:
    """Return whether a field that is not in the vocabulary could say what is trained, or holds ranges with flags."""
    if isinstance(value, list):
        return any(isinstance(item, dict) and any(map(kind_of, item)) for item in value)
    return isinstance(value, bool | int | float) and kind_of(name) is None and bool({*words(name)} & FLAG_WORDS)


def has_text(value: Any) -> bool:
    """Return whether a value is or contains text that is not blank."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, dict):
        return any(has_text(inner) for name, inner in value.items() if name not in ("id", "type", "format", "role"))
    return isinstance(value, list) and any(map(has_text, value))


def is_unknown(name: str, value: Any) -> bool:
    """Return whether a field that no template reads is worth naming: it is like a flag, or holds text."""
    return is_flag_like(name, value) or (has_text(value) and not names_metadata(name))


RANGE_FIELDS = {"begin_offset", "end_offset"}

Profiles = Mapping[Steps, Profile]


def weight_columns(paths: Profiles, used: Collection[Steps]) -> list[str]:
    """Return the columns of numbers or flags that have the name of a weight of rows, and that nothing uses."""
    columns = (profile for profile in paths.values() if profile.is_column and profile.steps not in used)
    return [profile.name for profile in columns if _weighs_rows(profile)]


def _weighs_rows(profile: Profile) -> bool:
    if profile.kind == "boolean":
        return kind_of(profile.name) == "trained"
    return profile.numbers >= 0.9 and "_".join(words(profile.name)) in ROW_WEIGHTS


def weight_question(name: str) -> str:
    """Return the sentence that asks about such a column."""
    return (
        f"the column {name} could be the weight of each row's loss, and is not used; to multiply the loss weights of "
        f"the row's trained tokens by it, set dataset.column_mapping: {{weight: {name}, …}}"
    )


RATINGS = {
    *("score", "scores", "rating", "ratings", "stars", "star", "reward", "rewards", "quality", "grade", "votes"),
    *("helpfulness", "correctness", "coherence", "accuracy", "preference", "vote", "upvotes", "likes"),
}
"""Words in names of columns that rate answers."""


def rating_questions(paths: Profiles, used: Collection[Steps], filters: Collection[str]) -> list[str]:
    """Return a sentence about columns with numbers or few values that could rate the answers and that nothing uses.

    Args:
        filters: the conditions of `dataset.filters`.
    """
    rated = [
        one.name
        for one in paths.values()
        if one.is_column and one.steps not in used and RATINGS & {*words(one.name)} and not _weighs_rows(one)
        if one.kind == "number" or one.facts.get("values")
        if not any(one.name in condition for condition in filters)
    ]
    if not rated:
        return []
    return [
        f"columns that could rate the answers and are not used: {', '.join(rated[:8])}; all answers are trained. To "
        f'drop some, set dataset.filters: ["{quoted(rated[0])} >= …"]; to weigh them, map weight in column_mapping'
    ]


def segment_questions(segments: Profile | None) -> list[str]:
    """Return sentences about flags of labelled segments that are not read."""
    items = segments.items if segments is not None else None
    flags = [field for name in items.fields if kind_of(name) and (field := items.field(name))] if items else []
    named = _listed({field.name: _count(field) for field in flags if _count(field)})
    return [f"the label of a segment decides whether it is trained; not used are {named}"] if named else []


def range_fields(paths: Profiles, used: Collection[Steps]) -> dict[str, int]:
    """Return the fields of messages that hold ranges to train, each with its number of messages."""
    counts = {}
    for field in _fields(paths, used):
        if field.items is not None and {*field.items.fields} >= RANGE_FIELDS:
            counts[field.name] = _count(field)
    return counts


def message_questions(paths: Profiles, used: Collection[Steps], ranges: str | None = None) -> list[str]:
    """Return sentences about the fields of messages that could change what is trained.

    Args:
        used: the columns and paths that are read as messages.
        ranges: the setting `prompt_template.train_ranges`.
    """
    asked = [
        f"{count:,} messages have ranges of text to train in the field {name}; to train only these, set "
        f"prompt_template.train_ranges: {name}"
        for name, count in range_fields(paths, used).items()
        if name != ranges
    ]
    unclear, unknown = {}, {}
    for field in _fields(paths, used):
        count = _count(field)
        if count and kind_of(field.name) == "unclear":
            unclear[field.name] = count
        elif count and _is_unknown(field) and field.name not in range_fields(paths, used):
            unknown[field.name] = count
    if unclear:
        asked.append(
            f"fields of messages that train in some tools and mask in others, so that their rows are rejected: "
            f"{_listed(unclear)}; rename them to train or masked"
        )
    if unknown:
        asked.append(
            f"fields of messages that are used only if the chat template reads them: {_listed(unknown)}; rename a flag "
            "to train or weight. Answers that lose their text with such a field are rejected"
        )
    return asked


def _fields(paths: Profiles, used: Collection[Steps]) -> Iterator[Profile]:
    """Yield the fields of messages other than speaker and text."""
    for steps in used:
        profile = paths.get(steps)
        if profile is not None and dialect_of(profile) not in (None, "anthropic"):
            continue  # its messages are converted, and their own fields are read
        said = message_fields(profile) if profile is not None else ()
        if profile is not None and profile.items is not None and all(said):
            inner = (profile.items.field(name) for name in profile.items.fields if name not in said)
            yield from (field for field in inner if field is not None)


def _count(field: Profile) -> int:
    return field.facts["rows"] - field.facts["nulls"]


def _is_unknown(field: Profile) -> bool:
    if field.name in KNOWN or kind_of(field.name):
        return False
    if field.kind in ("boolean", "number"):
        return bool({*words(field.name)} & FLAG_WORDS)
    holds = _count(field) > field.facts["empty"]
    return holds and field.name not in _READ and not names_metadata(field.name)


_READ = {"reasoning_content", "reasoning", "thinking"}


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in counts.items())


DIALECTS = {
    "responses": "OpenAI Responses items",
    "harmony": "harmony",
    "swe_agent": "SWE-agent messages",
    "anthropic": "Anthropic messages with signed reasoning",
}
"""What each dialect is called."""

_CHANNELS = {"analysis", "commentary", "final"}
_ITEM_FIELDS = {"call_id", "encrypted_content", "summary"}
_ITEMS = re.compile(r'\s*\[\s*\{.*"type"\s*:\s*"(reasoning|(function|custom_tool)_call(_output)?)"', re.DOTALL)
_HARMONY = re.compile(r"\s*<\|start\|>(system|developer|user|assistant)\b")


def dialect_of(profile: Profile) -> str | None:
    """Return the dialect of a column of conversations, a key of `DIALECTS`; None for any other column."""
    item = profile.within.get((*profile.steps, None))
    if item is None:
        return _of_text(profile)
    fields, channel = {*item.fields}, item.field("channel")
    if "type" in fields and fields & _ITEM_FIELDS:
        return "responses"
    if channel is not None and fields & {"role", "author"} and {*(channel.facts.get("values") or ())} <= _CHANNELS:
        return "harmony"
    if "role" in fields and {"thought", "action"} <= fields:
        return "swe_agent"
    signed = profile.within.get((*item.steps, "content", None, "signature"))
    return "anthropic" if signed is not None and "role" in fields else None


def _of_text(profile: Profile) -> str | None:
    """Return the dialect of texts: of trajectories of SWE-smith, by the columns beside them."""
    examples = profile.facts.get("examples") or ()
    if profile.kind != "text" or not profile.is_column or not examples:
        return None
    if all(map(_HARMONY.match, examples)):
        return "harmony"
    if all(map(_ITEMS.match, examples)):
        return "responses"
    # Its texts are plain JSON of messages; only the columns beside them name the tool.
    beside = {("traj_id",), ("instance_id",)} <= profile.within.keys()
    return "swe_agent" if beside and all(text.lstrip().startswith("[") for text in examples) else None


_NAMES = {
    "input_ids": ("input_ids", "token_ids", "tokens"),
    "loss_mask": ("loss_mask", "loss_masks", "labels_mask", "label_mask"),
    "assistant_masks": ("assistant_masks", "assistant_mask"),
    "completion_mask": ("completion_mask", "completion_masks"),
    "weights": ("weights", "loss_weights", "token_weights"),
    "prompt_length": ("prompt_length", "prompt_len"),
}
"""Names of the columns of some roles; others have only their own."""

_NUMBERS = ("prompt_length", "num_actions")

OF_ANSWERS = {
    *("chosen_ids", "rejected_ids", "chosen_input_ids", "rejected_input_ids"),
    *("completion_input_ids", "answer_input_ids", "KL_completion_input_ids"),
}
"""Columns of pre-tokenized rows for preference losses."""


def token_columns(paths: Mapping[Steps, Profile]) -> dict[str, Profile]:
    """Return the column of each role of the form `tokens` that the data has; empty without token ids."""
    columns = {profile.name: profile for profile in paths.values() if profile.is_column}
    by_role = dict[str, Profile]()
    for role in ("input_ids", *TRAINED_BY, *LAYOUT):
        fits = is_number if role in _NUMBERS else is_token_list
        named = (columns[name] for name in _NAMES.get(role, (role,)) if name in columns)
        if (profile := next(filter(fits, named), None)) is not None:
            by_role[role] = profile
    return by_role if "input_ids" in by_role else {}


def is_number(profile: Profile) -> bool:
    """Return whether values are numbers."""
    return profile.kind == "number"


def is_token_list(profile: Profile) -> bool:
    """Return whether values are lists of numbers, or of flags."""
    return profile.items is not None and profile.items.kind in ("number", "boolean")


def conflict(roles: Mapping[str, object]) -> str | None:
    """Return why roles say in two ways what is trained, or None.

    Masks of the assistant and of the completion are multiplied, and weights with all others; `num_actions` places a
    `loss_mask`.
    """
    given = [role for role in TRAINED_BY if role in roles and role != "weights"]
    if {*given} <= {"assistant_masks", "completion_mask"} or {*given} <= {"num_actions", "loss_mask"} or len(given) < 2:
        return None
    return f"{' and '.join(given)} both say what is trained"
