"""Lines about the sequences stage: what happened to the tokens and answers, and lengths of rows and sequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tokenloom.assets.building.stage_report import StageReport
from tokenloom.assets.prompts.spans import CONTENT, REASONING, STOP, TOOL_CALL
from tokenloom.assets.sequences.answers import ANSWERS, CUT, EMPTIED, TRAINED_OF, WITHOUT_STOP
from tokenloom.assets.sequences.length_histogram import AFTER, BEFORE, Histogram, fill
from tokenloom.resources.store.manifest import TRAINED

_LOSSES = {
    "tokens_repeated": "repeated as overlap",
    "tokens_cut": "truncated",
    "tokens_dropped": "dropped with their rows",
    "tokens_rejected": "rejected with their rows",
    "tokens_left_out": "omitted with sequences that train nothing",
}


def length_lines(report: StageReport, max_length: int) -> Iterator[str]:
    """Yield lines about the sequences stage.

    Args:
        max_length: in tokens.
    """
    counters = report.counters
    losses = [f"{counters[name]:,} {words}" for name, words in _LOSSES.items() if counters.get(name)]
    filled = fill(counters, report.tokens, max_length)
    stored = f"{report.tokens:,} in sequences, {counters[TRAINED]:,} of them trained"
    tokens = ", ".join([f"{counters['tokens_in']:,} tokens in, {stored}", *losses])
    yield f"{tokens}; {counters['sequences']:,} sequences, {filled:.2%} full"
    yield from answer_lines(counters)
    before, after = (Histogram.of(counters, name, max_length) for name in (BEFORE, AFTER))
    within, beyond = len(before.bounds) - 2, 2 * max_length
    for title, histogram in (("rows", before), ("sequences", after)):
        bars = histogram.bars()
        yield f"{title:>9} {bars[:within]}│{bars[within:]}"
    yield f"{'':>9} lengths up to {max_length:,}│{beyond:,}, {2 * beyond:,} and more"


def answer_lines(counters: Mapping[str, int]) -> Iterator[str]:
    """Yield lines about answers that lost tokens, and trained tokens by role, part and turn; none without answers."""
    if not counters.get(ANSWERS):
        return
    cut, unstopped, emptied = (counters[name] for name in (CUT, WITHOUT_STOP, EMPTIED))
    yield f"{counters[ANSWERS]:,} answers; {cut:,} cut, {unstopped:,} without their stop, {emptied:,} prompts emptied"
    roles, turns = (
        {name: f"{count:,} {name.replace('_', ' ')}" for name, count in found.items()}
        for found in trained_counts(counters)
    )
    if parts := [roles.pop(part) for part in (CONTENT, REASONING, TOOL_CALL, STOP) if part in roles]:
        roles["assistant"] += f" ({', '.join(parts)})"
    yield f"trained tokens: {'; '.join(', '.join(found.values()) for found in (roles, turns) if found)}"


def trained_counts(counters: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the trained tokens by role and part of answers, and by turn in order."""
    counts = {name.removeprefix(TRAINED_OF): count for name, count in counters.items() if name.startswith(TRAINED_OF)}
    turns = {name: counts.pop(name) for name in sorted(counts, key=_turn_number) if name.startswith("turn_")}
    return counts, turns


def _turn_number(name: str) -> int:
    return int(name.split("_")[1]) if name.startswith("turn_") else 0
