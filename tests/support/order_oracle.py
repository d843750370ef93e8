"""The batches of a loader, computed in plain Python from the formulas of docs/train/order.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import islice
from math import lcm

from blake3 import blake3

Row = int | None
"""Number of a row; None: a row of padding."""
Step = list[list[Row]]
"""A batch of each rank."""
Place = tuple[int, int]
"""Where an epoch continues: the rows that were read, and the batches of the token budget's window."""


def key(*parts: object) -> int:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return int.from_bytes(blake3(text.encode()).digest()[:16], "big")


def permutation(size: int, of: int) -> list[int]:
    stream = blake3(of.to_bytes(16, "little")).digest(8 * size)
    words = [int.from_bytes(stream[8 * row : 8 * row + 8], "little") for row in range(size)]
    return sorted(range(size), key=lambda row: (words[row] >> 16, row))


@cache
def epoch_of(chunks: tuple[int, ...], digest: str, seed: int, shuffle: str, epoch: int) -> list[int]:
    """Return the rows of an epoch; fewer than 16 chunks are a single window."""
    assert len(chunks) < 16
    rows = sum(chunks)

    def key_for(purpose: str) -> int:
        return key("order", seed, digest, epoch, purpose, 0)

    if shuffle == "none":
        return list(range(rows))
    if shuffle == "full":
        return permutation(rows, key_for("rows"))
    numbered = [list(range(sum(chunks[:number]), sum(chunks[: number + 1]))) for number in range(len(chunks))]
    shuffled = [row for number in permutation(len(chunks), key_for("blocks")) for row in numbered[number]]
    return [shuffled[slot] for slot in permutation(rows, key_for("window"))]


@dataclass(frozen=True)
class Source:
    """Rows that are read as a whole or as part of a mixture: their digest, the rows of each chunk, the numbers of the
    rows, and their token counts."""

    digest: str
    chunks: tuple[int, ...]
    numbers: tuple[int, ...]
    lengths: tuple[int, ...]

    def row(self, position: int, seed: int, shuffle: str) -> int:
        """Return the row at a position, counted across epochs."""
        epoch, place = divmod(position, len(self.numbers))
        return self.numbers[epoch_of(self.chunks, self.digest, seed, shuffle, epoch)[place]]


def turns(sources: Sequence[Source], rates: Sequence[Fraction], limits: Sequence[int | None]) -> Iterator[int]:
    """Yield the source at each position, until all sources have given as many rows as their limits."""
    given = [0] * len(sources)
    while left := [number for number, limit in enumerate(limits) if given[number] != limit]:
        shares = shares_of([rates[number] for number in left])
        since = [0] * len(left)
        while not any(given[number] == limits[number] for number in left):
            turn = min(range(len(left)), key=lambda turn: (Fraction(2 * since[turn] + 1, shares[turn]), turn))
            since[turn] += 1
            given[left[turn]] += 1
            yield left[turn]


def shares_of(rates: Sequence[Fraction], period: int = 65_536) -> list[int]:
    """Return integers in the proportion of rates, or of a long period by largest remainders."""
    common = lcm(*(rate.denominator for rate in rates))
    whole = [int(rate * common) for rate in rates]
    divisor = next(number for number in range(min(whole), 0, -1) if not any(share % number for share in whole))
    if sum(whole) // divisor <= period:
        return [share // divisor for share in whole]
    exact = [Fraction(share * period, sum(whole)) for share in whole]
    shares = [int(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda turn: (shares[turn] - exact[turn], turn))
    for turn in by_rest[: period - sum(shares)]:
        shares[turn] += 1
    return shares


def length_of(sources: Sequence[Source], rates: Sequence[Fraction], limits: Sequence[int | None]) -> int:
    """Return the rows per epoch of a mixture."""
    if not any(limits):
        return sum(len(source.numbers) for source in sources)
    left, length = {number: limit for number, limit in enumerate(limits) if limit}, 0
    for number in turns(sources, rates, limits):
        length += 1
        if number in left:
            left[number] -= 1
            if not any(left.values()):
                break
    return length


def rows_of(
    sources: Sequence[Source],
    rates: Sequence[Fraction],
    limits: Sequence[int | None],
    seed: int,
    shuffle: str,
    epochs: int,
) -> list[list[int]]:
    """Return the rows of some epochs in order."""
    length = length_of(sources, rates, limits)
    given, found = [0] * len(sources), list[int]()
    for number in islice(turns(sources, rates, limits), epochs * length):
        found.append(sources[number].row(given[number], seed, shuffle))
        given[number] += 1
    return [found[begin : begin + length] for begin in range(0, len(found), length)]


def fixed_steps(rows: list[int], world: int, size: int, drop_last: bool, begin: int = 0) -> list[Step]:
    """Return the steps from a place on; several ranks fill their last batches with padding rows."""
    found: list[Step] = []
    for first in range(begin, len(rows), world * size):
        step = rows[first : first + world * size]
        if len(step) == world * size or not drop_last:
            ranks: Step = [list(step[rank * size : (rank + 1) * size]) for rank in range(world)]
            found.append([batch + [None] * (size - len(batch)) for batch in ranks] if world > 1 else ranks)
    return found


@dataclass(frozen=True)
class Budget:
    """Batches of a token budget: the rows of each window by length, in batches that the budget holds, shuffled. Ranks
    take those of an epoch in turn.

    Attributes:
        width: the padded length of a batch, by its longest row.
    """

    tokens: int
    window: int
    lengths: dict[int, int]
    width: Callable[[int], int]
    key: tuple[object, ...]

    def windows(self, rows: list[int], epoch: int) -> list[list[list[int]]]:
        found = []
        for begin in range(0, len(rows), self.window):
            cuts: list[list[int]] = [[]]
            for row in sorted(rows[begin : begin + self.window], key=self.lengths.__getitem__):
                if (len(cuts[-1]) + 1) * self.width(self.lengths[row]) > self.tokens:
                    cuts.append([])
                cuts[-1].append(row)
            found.append([cuts[cut] for cut in permutation(len(cuts), key(*self.key, epoch, begin))])
        return found

    def steps(
        self, rows: list[int], epoch: int, world: int, place: Place = (0, 0), aligned: bool = False
    ) -> list[tuple[Step, Place]]:
        """Return the steps from a place on, each with the place after it; `aligned`: as runs of earlier versions, which
        complete the last step of each window."""
        found: list[tuple[Step, Place]] = []
        windows = self.windows(rows, epoch)
        places = [(number, batch) for number, batches in enumerate(windows) for batch in range(len(batches))]
        runs = [[at for at in places if at[0] == number] for number in range(len(windows))] if aligned else [places]
        for run in runs:
            run = [at for at in run if at >= place]
            for begin in range(0, len(run), world):
                step: Step = [[*windows[number][batch]] for number, batch in run[begin : begin + world]]
                step.extend([None] for _ in range(world - len(step)))
                found.append((step, run[begin + world] if begin + world < len(run) else (run[-1][0] + 1, 0)))
        return found
