"""Which columns hold pre-tokenized rows, by their names and types."""

from __future__ import annotations

from collections.abc import Mapping

from tokenloom.assets.schema.evidence.profiles import Profile, Steps
from tokenloom.assets.stage.forms import LAYOUT, TRAINED_BY

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
    found = dict[str, Profile]()
    for role in ("input_ids", *TRAINED_BY, *LAYOUT):
        fits = is_number if role in _NUMBERS else is_token_list
        named = (columns[name] for name in _NAMES.get(role, (role,)) if name in columns)
        if (profile := next(filter(fits, named), None)) is not None:
            found[role] = profile
    return found if "input_ids" in found else {}


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
