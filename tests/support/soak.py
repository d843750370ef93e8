"""Whether this is a soak, which has time for every case, and the cases that other runs take."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

SOAK = os.environ.get("TOKENLOOM_SOAK") == "1"


def some(cases: Iterable[Any], step: int) -> list[Any]:
    """Return all cases in a soak, else the first of every `step` cases, for cases that take seconds each."""
    return [*cases][:: 1 if SOAK else step]
