"""The row order of one source: a pure function of (rows, digest, seed, shuffle, blocks, position), across epochs.

Up to `TABLE_SIZE` rows it is a table, sorted by random words. Above that it is a generalized Feistel network over two
digits of different bases, with cycle walking for the few values beyond `size` (Black and Rogaway, Ciphers with
Arbitrary Finite Domains, CT-RSA 2002). A block is a chunk of the store where there are chunks, so that each chunk is
read in one window per epoch. docs/train/order.md has the formulas.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from tokenloom.resources.digest import digest_json
from tokenloom.resources.tables.ragged import Ints, offsets_of

TABLE_SIZE = 1 << 16
"""Up to this many rows a table of 2 bytes per row is kept: Feistel rounds shuffle the smallest sizes badly."""

MAXIMUM_SIZE = 1 << 48
"""With digits below 2^24, a digit times 40 bits of a mix fits into 64 bits."""

ROUNDS = 6

Words = npt.NDArray[np.uint64]


def key_of(*parts: Any) -> int:
    """Return a 128-bit key: the first half of the BLAKE3 of the canonical JSON of the list of `parts`."""
    return int(digest_json(list(parts))[:32], 16)


class Permutation:
    """A bijection of [0, size) chosen by `key`, in O(1) memory for any size.

    `permutation(positions)` returns int64 rows in the shape of `positions`; `inverse(rows)` returns the positions.

    Args:
        size: 1 to `MAXIMUM_SIZE`.
        key: 128 bits, from `key_of`.
        rounds: rounds of the Feistel network; fewer than `ROUNDS` shuffle measurably worse.

    Raises:
        ValueError: `size` is out of range.
        IndexError: when called with a number outside [0, size).
    """

    def __init__(self, size: int, key: int, rounds: int = ROUNDS):
        if not 1 <= size <= MAXIMUM_SIZE:
            raise ValueError(f"a permutation needs 1 to {MAXIMUM_SIZE} rows, got {size}")
        self.size, self.key = size, key
        # two digits of about equal base: each mixes the other, and few values are beyond `size`
        self._high = math.isqrt(size - 1) + 1
        self._low = -(-size // self._high)
        words = self._words(3 * rounds).reshape(rounds, 3)
        # odd factors: multiplying by them modulo 2^64 loses no bit
        self._rounds = [(add, first | np.uint64(1), second | np.uint64(1)) for add, first, second in words]

    def __call__(self, positions: npt.ArrayLike) -> Ints:
        if self.size <= TABLE_SIZE:
            return self._table[self._checked(positions)].astype(np.int64)
        return self._walk(self._checked(positions), inverse=False)

    def inverse(self, rows: npt.ArrayLike) -> Ints:
        """Return the positions of `rows`, int64."""
        if self.size <= TABLE_SIZE:
            return self._inverse_table[self._checked(rows)].astype(np.int64)
        return self._walk(self._checked(rows), inverse=True)

    def _checked(self, numbers: npt.ArrayLike) -> Words:
        """Return the numbers as uint64; negative ones become too large and fail the check."""
        words = np.asarray(numbers, np.int64, order="C").view(np.uint64)
        if words.size and int(words.max()) >= self.size:
            raise IndexError(f"a number is outside the permutation's {self.size} rows")
        return words

    def _words(self, count: int) -> Words:
        """Return the first `count` 64-bit words of the key's BLAKE3 stream."""
        return np.frombuffer(blake3(self.key.to_bytes(16, "little")).digest(8 * count), "<u8")

    @cached_property
    def _table(self) -> npt.NDArray[np.uint16]:
        places = np.arange(self.size, dtype=np.uint64)
        # random words with the place in their low bits: sorting by the random bits shuffles the places
        return np.sort(self._words(self.size) & ~np.uint64(0xFFFF) | places).astype(np.uint16)

    @cached_property
    def _inverse_table(self) -> npt.NDArray[np.uint16]:
        inverse = np.empty_like(self._table)
        inverse[self._table] = np.arange(self.size, dtype=np.uint16)
        return inverse

    def _walk(self, numbers: Words, inverse: bool) -> Ints:
        """Apply the network again to every value beyond `size`, until it is in range."""
        moved = self._once(numbers, inverse)
        # by cycle walking: the digits can count a little further than the rows
        if self._high * self._low > self.size:
            # following a bijection's cycle back into the range is a bijection of the range
            flat = moved.reshape(-1)
            beyond = np.flatnonzero(flat >= self.size)
            while len(beyond):
                flat[beyond] = self._once(flat[beyond], inverse)
                beyond = beyond[flat[beyond] >= self.size]
        return moved.view(np.int64)

    def _once(self, numbers: Words, inverse: bool) -> Words:
        """Apply all rounds: alternately shift the low and the high digit, modulo its base, by a mix of the other."""
        high, low = self._digits(numbers)
        mixed, fold = np.empty_like(numbers), np.empty_like(numbers)
        rounds = list(enumerate(self._rounds))
        for number, keys in reversed(rounds) if inverse else rounds:
            # a round changes one digit by a function of the other, which is still there to undo it
            changed, by, base = (high, low, self._high) if number % 2 else (low, high, self._low)
            mixed = _mix(by, keys, base, mixed, fold)
            if inverse:
                changed -= mixed
                np.add(changed, np.uint64(base), out=fold)
            else:
                changed += mixed
                np.subtract(changed, np.uint64(base), out=fold)
            np.minimum(changed, fold, out=changed)  # values below 0 wrap around to large ones
        high *= np.uint64(self._low)
        high += low
        return high

    def _digits(self, numbers: Words) -> tuple[Words, Words]:
        high = np.asarray(numbers // np.uint64(self._low))
        return high, np.asarray(numbers - high * np.uint64(self._low))


def _mix(digit: Words, keys: tuple[np.uint64, ...], base: int, mixed: Words, fold: Words) -> Words:
    """Write a number below `base` for each digit to `mixed`; multiply and shift replace the slower modulo."""
    add, first, second = keys
    np.add(digit, add, out=mixed)
    mixed *= first
    mixed ^= np.right_shift(mixed, np.uint64(32), out=fold)
    mixed *= second
    # the high bits are mixed best; 40 of them times the base fit into 64 bits
    mixed >>= np.uint64(24)
    mixed *= np.uint64(base)
    mixed >>= np.uint64(40)
    return mixed


BLOCK = 8192
"""Positions computed at once; their arrays fit into a core's cache."""

KEPT = 4
"""Number of computed blocks that are kept."""


class BlockwiseOrder(ABC):
    """A pure function from positions to rows. `end` is the number of positions; None: unlimited."""

    end: int | None = None

    def __init__(self, block: int = BLOCK):
        self._block = block
        self._kept: dict[int, Ints] = {}
        self._last: tuple[int, int, Ints] = (0, 0, np.zeros(0, np.int64))

    @abstractmethod
    def take(self, positions: Ints) -> Ints:
        """Return the rows at some positions: int64 [m, …] for int64 [m]."""

    def span(self, begin: int, end: int) -> Ints:
        """Return `take` of the positions [begin, end), as a read-only array. The last few blocks are kept."""
        first, last, values = self._last
        if first <= begin <= end <= last:
            return values[begin - first : end - first]
        if not 0 <= begin <= end or (self.end is not None and end > self.end):
            raise IndexError(f"positions {begin} to {end} are outside the order, which ends at {self.end}")
        # at least one block, so that an empty span has the right shape
        numbers = range(begin // self._block, max(-(-end // self._block), begin // self._block + 1))
        parts = [self._of_block(number, begin, end) for number in numbers]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _of_block(self, number: int, begin: int, end: int) -> Ints:
        """Return the values of the positions in [begin, end) that belong to a block."""
        first = number * self._block
        values = self._kept.get(number)
        if values is None:
            last = first + self._block if self.end is None else min(first + self._block, self.end)
            values = self.take(np.arange(first, last))
            values.setflags(write=False)
            kept = list(self._kept.items())[1 - KEPT :]
            self._kept = dict([*kept, (number, values)])  # replaced, not changed: threads can share an order
        self._last = first, first + len(values), values
        return values[max(begin - first, 0) : end - first]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": {}, "_last": (0, 0, np.zeros(0, np.int64))}


def groups(values: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each distinct value in ascending order, with the indices that hold it, int64 [members]."""
    if not len(values):
        return
    least, most = int(values.min()), int(values.max())
    if least == most:
        yield least, np.arange(len(values))
        return
    small = (values - least).astype(np.uint16) if most - least < 1 << 16 else values  # uint16 uses a radix sort
    order = np.argsort(small, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(values[order])) + 1):
        yield int(values[places[0]]), places


WINDOW_ROWS = 1 << 16
"""A window has about as many rows, if that is at least `WINDOW_BLOCKS` blocks."""

WINDOW_BLOCKS = 8
"""Minimum number of blocks per window, if there are as many."""

BLOCK_ROWS = 256
"""Rows per block where rows are not stored in chunks."""

MOST_BLOCKS = 1 << 14
"""Maximum number of blocks where rows are not stored in chunks; above that, blocks have more rows."""

KEPT_EPOCHS = 2
"""Number of epochs whose blocks are kept in their shuffled order."""

PermutationOf = Callable[[int, int, str, int], Permutation]
"""Returns the permutation of a size, an epoch, a purpose and a number."""


class BlockShuffle:
    """The rows of each epoch, shuffled in blocks. Memory: 24 bytes per block, and 16 more for each kept epoch.

    Args:
        rows: number of rows.
        blocks: int64 [blocks], rows of each block; they sum to `rows`. None: runs of equal length.

    Attributes:
        windows: number of windows per epoch.

    Raises:
        ValueError: the blocks have another number of rows.
    """

    def __init__(self, rows: int, blocks: Ints | None = None):
        if blocks is None:
            size = max(BLOCK_ROWS, -(-rows // MOST_BLOCKS))
            blocks = np.full(-(-rows // size), size, np.int64)
            blocks[-1] -= len(blocks) * size - rows
        self._sizes, self._first_row = np.asarray(blocks, np.int64), offsets_of(blocks)
        if self._first_row[-1] != rows:
            raise ValueError(f"blocks must have {rows} rows in total, got {self._first_row[-1]}")
        count = len(self._sizes)
        # enough rows for a good shuffle, and few enough chunks to have them all mapped or cached at once
        per_window = max(WINDOW_BLOCKS, -(-WINDOW_ROWS * count // rows))
        self.windows = max(count // per_window, 1)
        # windows of equal numbers of blocks, give or take one
        self._bounds = np.arange(self.windows + 1) * count // self.windows  # first block of each window
        self._layouts: dict[int, tuple[Ints, Ints, Ints]] = {}

    def rows(self, epoch: int, places: Ints, permutation: PermutationOf) -> Ints:
        """Return the rows at places of an epoch: int64 [m] for [m]."""
        order, begins, windows = self._layout(epoch, permutation)
        rows = np.empty_like(places)
        for window, members in groups(windows.searchsorted(places, "right") - 1):
            begin, size = int(windows[window]), int(windows[window + 1] - windows[window])
            # within a window only, so that its few chunks are all that must be mapped while it is read
            # slots are places in the shuffled blocks laid end to end; their block gives the row
            slots = begin + permutation(size, epoch, "window", window)(places[members] - begin)
            first = self._bounds[window]
            blocks = first + begins[first : self._bounds[window + 1]].searchsorted(slots, "right") - 1
            rows[members] = self._first_row[order[blocks]] + slots - begins[blocks]
        return rows

    def _layout(self, epoch: int, permutation: PermutationOf) -> tuple[Ints, Ints, Ints]:
        layout = self._layouts.get(epoch)
        if layout is None:
            order = permutation(len(self._sizes), epoch, "blocks", 0)(np.arange(len(self._sizes)))
            begins = offsets_of(self._sizes[order])
            layout = order, begins, begins[self._bounds]
            kept = list(self._layouts.items())[1 - KEPT_EPOCHS :]
            self._layouts = dict([*kept, (epoch, layout)])  # replaced, not changed: threads can share an order
        return layout

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_layouts": {}}


Shuffle = Literal["full", "block", "none"]

SMALLEST_BLOCK = 64
"""Smallest block of positions, so that small sources do not compute many epochs at once."""

KEPT_PERMUTATIONS = 4
"""Number of permutations kept for each purpose."""


class RowOrder(BlockwiseOrder):
    """The rows of one source by position; position p is place p % rows of epoch p // rows.

    Each epoch has each row once. `full` shuffles all rows. `block` is for stores that are read in chunks: it shuffles
    the chunks, then the rows within each window of several chunks. `none` keeps the order. The source's digest and the
    seed are hashed into the order.

    Args:
        rows: number of rows in the source, at least 1.
        digest: digest of the source's content.
        seed: an integer.
        shuffle: `full`, `block` or `none`.
        chunks: for `block`: int64 [chunks], the rows of each chunk, which the digest determines. None: runs of rows.

    Attributes:
        windows: number of parts of an epoch that are each read from chunks of their own: 1 for `full`.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        rows: int,
        digest: str,
        seed: int = 0,
        shuffle: Shuffle = "full",
        chunks: Ints | None = None,
    ):
        if rows < 1:
            raise ValueError(f"an order needs at least 1 row, got {rows}")
        if shuffle not in ("full", "block", "none"):
            raise ValueError(f"shuffle must be 'full', 'block' or 'none', got {shuffle!r}")
        super().__init__(min(BLOCK, max(SMALLEST_BLOCK, rows)))
        self.digest, self.seed, self.shuffle = digest, seed, shuffle
        self._rows = rows
        self._blocks = BlockShuffle(rows, chunks) if shuffle == "block" else None
        self.windows = self._blocks.windows if self._blocks else 1
        self._permutations: dict[str, dict[tuple[int, int], Permutation]] = {}

    def __len__(self) -> int:
        return self._rows

    def rows(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """Return the rows at places of an epoch: int64 [m] for [m].

        Raises:
            IndexError: a place is outside [0, rows).
        """
        places = np.asarray(positions, np.int64)
        if places.size and not 0 <= places.min() <= places.max() < self._rows:
            raise IndexError(f"a place is outside the epoch's {self._rows} rows")
        if self.shuffle == "none" or self._rows == 1:
            return places.copy()
        if self._blocks is None:
            return self._permutation(self._rows, epoch, "rows")(places)
        return self._blocks.rows(epoch, places, self._permutation)

    def take(self, positions: npt.ArrayLike) -> Ints:
        """Return the rows at positions, which are counted across epochs: int64 [m] for [m].

        Raises:
            IndexError: a position is below 0.
        """
        wanted = np.asarray(positions, np.int64)
        if wanted.size and wanted.min() < 0:
            raise IndexError(f"a position must be at least 0, got {wanted.min()}")
        epochs, places = np.divmod(wanted, self._rows)
        if self.shuffle == "none" or self._rows == 1:
            return places
        rows = np.empty_like(places)
        for epoch, members in groups(epochs):
            rows[members] = self.rows(epoch, places[members])
        return rows

    def _key(self, epoch: int, purpose: str, number: int = 0) -> int:
        return key_of("order", self.seed, self.digest, epoch, purpose, number)

    def _permutation(self, size: int, epoch: int, purpose: str, number: int = 0) -> Permutation:
        kept = self._permutations.get(purpose, {})
        permutation = kept.get((epoch, number))
        if permutation is None:
            permutation = Permutation(size, self._key(epoch, purpose, number))
            last = list(kept.items())[1 - KEPT_PERMUTATIONS :]
            self._permutations[purpose] = dict([*last, ((epoch, number), permutation)])
        return permutation

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_permutations": {}}
