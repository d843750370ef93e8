"""Checks of arguments that are integers, so that each loader refuses a wrong one by its name."""

from __future__ import annotations

from operator import index
from typing import Any

LARGEST_COUNT = (1 << 31) - 1
"""Largest number of rows, batches, workers or steps that an argument can ask for."""

POSITIONS = 1 << 62
"""Positions that a loader can count: those of all epochs together are int64, with room for a block after the last."""

_SHOWN = 24


def integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return an argument that must be an integer, also one of NumPy, as an int.

    Args:
        name: the argument's name, for the message.
        least, most: limits; None: no limit.

    Raises:
        ValueError: the value is not an integer, or is out of range.
    """
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is not None and (least is None or number >= least) and (most is None or number <= most):
        return number
    limits = "" if least is None else f" of at least {least}"
    if number is not None and most is not None and number > most:
        limits += f" and at most {most}"
    raise ValueError(f"{name} must be an integer{limits}, got {short(value)}")


def epoch_number(value: Any, rows: int) -> int:
    """Return an epoch's number as an int.

    Args:
        rows: rows per epoch.

    Raises:
        ValueError: it is not an integer, is below 0, or its positions cannot be counted.
    """
    return integer("epoch", value, 0, POSITIONS // max(rows, 1) - 1)


def short(value: Any) -> str:
    """Return a value for a message, in at most 24 characters or so; of a container, only its type."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if value is not None and not isinstance(value, str | int | float):
        return f"a {type(value).__name__}"
    text = repr(value[: 2 * _SHOWN]) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…"
