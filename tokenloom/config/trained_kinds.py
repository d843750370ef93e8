"""`prompt_template.train_on`: the roles that it trains, and its weights of kinds of text in the assistant's turns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tokenloom.errors import did_you_mean

MESSAGE_ROLES = ("system", "user", "assistant", "tool")
KINDS = ("content", "reasoning", "tool_calls", "stop")
"""The kinds of text that the assistant generates; together they are all of it."""

_LARGEST, _SMALLEST = 1e6, 1e-6


def checked_weights(given: Mapping[Any, Any]) -> dict[str, float]:
    """Return the weights that a mapping names.

    Raises:
        ValueError: a name or a weight is not valid, or it is not clear what the mapping trains.
    """
    for name, weight in given.items():
        if name not in (*KINDS, *MESSAGE_ROLES):
            hint = (
                did_you_mean(str(name), (*KINDS, *MESSAGE_ROLES))
                or f"; the names are {', '.join((*KINDS, *MESSAGE_ROLES))}"
            )
            raise ValueError(f"{name!r} is not a kind or a role{hint}")
        number = weight if isinstance(weight, int | float) and not isinstance(weight, bool) else math.nan
        if number != 0 and not _SMALLEST <= number <= _LARGEST:
            shown = str(weight).lower() if isinstance(weight, bool) else repr(weight)
            remedy = f"write {name}: {int(weight)}" if isinstance(weight, bool) else "0 masks, 1 trains"
            raise ValueError(f"the weight of {name} must be 0 or a number from 1e-6 to 1e6, got {shown}; {remedy}")
    kinds = {kind: given[kind] for kind in KINDS if kind in given}
    others = [kind for kind in KINDS if kind not in given]
    if not kinds and "assistant" not in given:
        named = ", ".join(map(str, given)) or "nothing"
        raise ValueError(f"names {named}, but not the assistant; add assistant: 1, or assistant: 0")
    if not others and "assistant" in given:
        message = "assistant is the weight of the kinds that are not named, but all are named; remove it"
        raise ValueError(message)
    if others and "assistant" not in given and set(kinds.values()) == {1}:
        message = f"{', '.join(others)} would have weight 1 too; name them, for example {others[0]}: 0, or assistant: 0"
        raise ValueError(message)
    if not any(completed_weights(given).values()):
        raise ValueError("all weights are 0, so that nothing would be trained")
    return {name: float(weight) for name, weight in given.items()}


def completed_weights(given: Mapping[str, float]) -> dict[str, float]:
    """Return the weight of each kind and of each role but the assistant.

    A kind that is not named has the weight of `assistant`, by default 1. A role that is not named has weight 0.
    """
    assistant = given.get("assistant", 1.0)
    roles = {role: given.get(role, 0.0) for role in MESSAGE_ROLES if role != "assistant"}
    return {kind: given.get(kind, assistant) for kind in KINDS} | roles


def roles_trained(train_on: Any) -> frozenset[str]:
    """Return the roles whose messages `train_on` trains; of `last`, only the last message of these is trained."""
    if train_on == "all":
        return frozenset(MESSAGE_ROLES)
    if isinstance(train_on, tuple):
        return frozenset(train_on)
    weights = completed_weights(train_on) if isinstance(train_on, dict) else {"assistant": 1.0}
    return frozenset("assistant" if name in KINDS else name for name, weight in weights.items() if weight)


def trains_only_answers(train_on: Any) -> bool:
    """Return whether `train_on` trains no more than what the model writes at inference, as `turns: exact` needs it."""
    return train_on in ("completions", "last") or roles_trained(train_on) == {"assistant"}


def weights_in_words(given: Mapping[str, float]) -> str:
    """Return what a mapping trains, in words: `train_on: content 1, reasoning 0 (masked), …`."""
    weights = completed_weights(given)
    shown = [name for name in weights if name in KINDS or weights[name]]
    return "train_on: " + ", ".join(f"{name} {weights[name]:g}{'' if weights[name] else ' (masked)'}" for name in shown)
