"""Sizes and durations as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

from tokenloom.errors import ConfigError, Fault

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def size(count: int) -> str:
    """Bytes in words: `512 bytes`, `1.5 MiB`."""
    if count < 1024:
        return f"{count:,} bytes"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:,.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def duration(option: str, text: str) -> timedelta:
    """`90s`, `30m`, `12h`, `1d` or `2w`.

    Raises:
        ConfigError: it is none of these.
    """
    if not (found := re.fullmatch(r"(\d{1,6})([smhdw])", text)):
        raise ConfigError([Fault(option, f"{text!r} is no time such as 90s, 30m, 12h, 1d or 2w")])
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
