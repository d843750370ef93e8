"""Cron lines: five fields, as Dagster takes them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_NAMES = re.compile(r"(?i)jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|sun|mon|tue|wed|thu|fri|sat")


def is_cron(line: str) -> bool:
    """Whether a line has five cron fields, each a list of `*`, numbers, names or ranges, with optional steps."""
    fields = line.split()
    if len(fields) != len(_RANGES):
        return False
    for field, (low, high) in zip(fields, _RANGES, strict=True):
        for part in _NAMES.sub(str(low), field).split(","):
            found = re.fullmatch(r"(?:\*|(\d+)(?:-(\d+))?)(?:/([1-9]\d*))?", part)
            if not found or any(not low <= int(number) <= high for number in found.groups()[:2] if number):
                return False
    return True


def _checked(line: str) -> str:
    if not is_cron(line):
        raise ValueError(f"{line!r} is not a cron line of five fields, such as 0 3 * * *")
    return line


Cron = Annotated[str, AfterValidator(_checked)]
