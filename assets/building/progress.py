"""Progress of a build, reported after every chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """State of a stage after one more chunk: chunks done so far, how many of them were reused, and their rows."""

    stage: str
    chunks: int
    reused: int
    rows: int


OnProgress = Callable[[Progress], None]
