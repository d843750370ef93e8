"""What a build reports of each stage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageReport:
    """The result of one stage.

    Args:
        rows_in, rows_out, rejected, filtered: rows; the first is the sum of the others.
        tokens: tokens in the output.
        chunks: all chunks of the output.
        chunks_reused: chunks whose output the store already had.
        seconds: wall time.
        digest: digest of the output's content.
        counters: the stage's own counts, summed over chunks.
        explanation: sentences about what changed since the previous build.
        notices: sentences about what the data or the template can make a model learn wrong.
    """

    name: str
    rows_in: int
    rows_out: int
    rejected: int
    filtered: int
    tokens: int
    chunks: int
    chunks_reused: int
    seconds: float
    digest: str
    counters: dict[str, int]
    explanation: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
