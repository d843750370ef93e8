"""What length management did, in lines for the terminal: tokens accounted for, and lengths before and after."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.assets.building.build import StageReport
from tokenloom.assets.sequences.length_histogram import AFTER, BEFORE, Histogram, fill
from tokenloom.resources.store.manifest import TRAINED

_FATES = {
    "tokens_repeated": "repeated as overlap",
    "tokens_cut": "cut",
    "tokens_dropped": "dropped with their rows",
    "tokens_rejected": "rejected with theirs",
    "tokens_left_out": "left out for training nothing",
}


def length_lines(report: StageReport, max_length: int) -> Iterator[str]:
    """Lines about the sequences stage; `max_length` is in tokens."""
    counters = report.counters
    fates = [f"{counters[name]:,} {words}" for name, words in _FATES.items() if counters.get(name)]
    share = fill(counters, report.tokens, max_length)
    stored = f"{report.tokens:,} in sequences, {counters[TRAINED]:,} of them trained"
    kept = ", ".join([f"{counters['tokens_in']:,} tokens in, {stored}", *fates])
    yield f"{kept}; {counters['sequences']:,} sequences, {share:.2%} full"
    before, after = (Histogram.of(counters, name, max_length) for name in (BEFORE, AFTER))
    within, beyond = len(before.bounds) - 2, 2 * max_length
    for title, found in (("rows", before), ("sequences", after)):
        bars = found.bars()
        yield f"{title:>9} {bars[:within]}│{bars[within:]}"
    yield f"{'':>9} lengths up to {max_length:,}│{beyond:,}, {2 * beyond:,} and more"
