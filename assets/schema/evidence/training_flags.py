"""Fields of messages and content parts, and columns, that say what is trained and with which weight.

The names are those of training tools, among them `train`, `training` and `weight` (axolotl), `loss` and `loss_scale`
(ms-swift), and `masked` (torchtune); others say the same in other words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tokenloom.assets.schema.evidence.name_similarity import names_metadata, words

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
    found = {
        name: _value(kind, name, value)
        for name, value in item.items()
        if (kind := kind_of(name)) is not None and value is not None
    }
    if len(found) < 2:
        return next(iter(found.values()), None)
    numbers = {value for name, value in found.items() if kind_of(name) == "number"}
    if len(numbers) > 1 or len({value > 0 for value in found.values()}) > 1:
        named = ", ".join(f"{name}: {item[name]}" for name in found)
        raise ValueError(f"declares several weights: {named}")
    return next(iter(numbers or found.values()))


def _value(kind: str, name: str, value: Any) -> float:
    """Return a field's value as a weight."""
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
