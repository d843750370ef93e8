"""The chunks of a manifest, as columns of an Arrow table, and the actions that they state.

A manifest can have millions of chunks. Its object is memory-mapped, a column that is not read takes no memory, and a
`ManifestChunk` or an `Action` is built when it is asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.resources.digest import BLOCK_DIGEST_BYTES, canonical_json, digest_parts
from tokenloom.resources.store.actions import MAX_COUNT, MAX_ROWS, Action, Outcome, parse_json
from tokenloom.resources.store.objects import IMAGES
from tokenloom.resources.tables.ragged import Ints, flat_numbers, offsets_of, one_array, text_parts

DIGEST_BYTES = 32

DIGESTS = ("input", "key", "output", "rejects", "lengths", "engine")
"""Columns of digests, stored as bytes and shown in hexadecimal."""

COUNTS = ("table_rows", "rows_in", "rows_out", "rejected", "filtered", "bytes", "tokens")

NULLABLE = ("rejects", "lengths", "counters")
"""Fields of a chunk that can be None."""

RUN = pa.struct([("source", pa.string()), ("first", pa.int64()), ("offset", pa.int64())])

SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("runs", pa.list_(RUN)),
        ("unit", pa.string()),
        ("input", pa.binary()),
        ("key", pa.binary()),
        ("output", pa.binary()),
        ("bytes", pa.int64()),
        ("rejects", pa.binary()),
        ("lengths", pa.binary()),
        ("rows_in", pa.int64()),
        ("rows_out", pa.int64()),
        ("rejected", pa.int64()),
        ("filtered", pa.int64()),
        ("tokens", pa.int64()),
        ("table_rows", pa.int64()),
        ("blocks", pa.large_binary()),
        ("counters", pa.large_binary()),
        ("engine", pa.binary()),
    ]
)

_AT_ONCE = 1024
"""Chunks that iteration builds at once."""

_BLOCK = 1 << 16
"""Chunks of which digests are read at once."""


class Run(NamedTuple):
    """Consecutive raw rows of a chunk that come from one source.

    Args:
        source: the raw file, or the split of a hub dataset.
        first: position of the run's first raw row within the chunk.
        offset: position of that row in the source, counted from 0; -1 if unknown.
    """

    source: str
    first: int = 0
    offset: int = -1


def source_place(runs: Sequence[Run], unit: str, position: int) -> str:
    """Return the place in the source of a row of a chunk, as `ManifestChunk.place` does."""
    source, first, offset = runs[bisect_right(runs, position, key=lambda run: run.first) - 1]
    if offset < 0:
        return source
    row = offset + position - first
    return f"{source}:{row + 1}" if unit == "line" else f"{source} row {row}"


@dataclass(frozen=True, kw_only=True)
class ManifestChunk(Outcome):
    """One chunk of a stage's output.

    Args:
        split: the split that it belongs to.
        runs: where its raw rows come from, in order; the first run begins at row 0. Small files share a chunk.
        unit: what `offset` of the runs counts, "line" or "row".
        input: digest of the input chunk.
        key: key of its action.
        counters: counters of its action, or None if they are unknown.
        engine: key of the certificate that its action relies on, or "".
    """

    split: str
    runs: tuple[Run, ...]
    unit: str
    input: str
    key: str
    counters: dict[str, int] | None = None
    engine: str = ""

    def place(self, position: int) -> str:
        """Return the source position of a raw row of the chunk, such as `train.jsonl:17` or `train.parquet row 16`.

        Lines are counted from 1, as in editors, rows from 0.

        Args:
            position: the row's position within the chunk.
        """
        return source_place(self.runs, self.unit, position)

    @property
    def action(self) -> Action | None:
        """The chunk's action, or None if its counters are unknown."""
        if self.counters is None:
            return None
        outcome = {field.name: getattr(self, field.name) for field in fields(Outcome)}
        return Action(**outcome, counters=self.counters, engine=self.engine)


class ManifestChunks(Sequence[ManifestChunk]):
    """Chunks of a manifest, or some of them.

    Args:
        table: a table of `SCHEMA`, one row per chunk.
        rows: the rows of the table that are included, ascending; default: all.
    """

    def __init__(self, table: pa.Table, rows: Ints | None = None):
        self.table, self._rows = table, rows

    @classmethod
    def of(cls, chunks: Iterable[ManifestChunk]) -> ManifestChunks:
        """Return some chunks as columns, all of their table."""
        if isinstance(chunks, ManifestChunks) and chunks._rows is None:
            return chunks
        chunks = list(chunks)
        columns: dict[str, pa.Array] = {}
        for field in SCHEMA:
            values = [getattr(chunk, field.name) for chunk in chunks]
            if field.name == "runs":
                columns[field.name] = _runs_array(values)
                continue
            if field.name in (*DIGESTS, "blocks"):
                values = [value if value is None else bytes.fromhex(value) for value in values]
            elif field.name == "counters":
                values = [value if value is None else canonical_json(value) for value in values]
            columns[field.name] = pa.array(values, field.type)
        return cls(pa.table(columns, SCHEMA))

    def __len__(self) -> int:
        return self.table.num_rows if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, index: int) -> ManifestChunk: ...
    @overload
    def __getitem__(self, index: slice) -> ManifestChunks: ...
    def __getitem__(self, index: int | slice) -> ManifestChunk | ManifestChunks:
        if isinstance(index, slice):
            return ManifestChunks(self.table, self.rows[index])
        row = range(len(self))[index]
        return self._built(row if self._rows is None else int(self._rows[row]), 1)[0]

    def __iter__(self) -> Iterator[ManifestChunk]:
        for begin in range(0, self.table.num_rows, _AT_ONCE):
            count = min(_AT_ONCE, self.table.num_rows - begin)
            if self._rows is None:
                yield from self._built(begin, count)
                continue
            first, last = np.searchsorted(self._rows, [begin, begin + count])
            if first < last:
                # a block that rows of the split are in is built as a whole, once
                built = self._built(begin, count)
                yield from (built[row] for row in (self._rows[first:last] - begin).tolist())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"ManifestChunks({len(self):,} chunks)"

    @property
    def rows(self) -> Ints:
        """The rows of the table that are included, ascending."""
        return np.arange(self.table.num_rows) if self._rows is None else self._rows

    def numbers(self, name: str) -> Ints:
        """Return one of the counts of each chunk, int64 [chunks]."""
        values = flat_numbers(self._columns[name])
        return values if self._rows is None else values[self._rows]

    def total(self, name: str) -> int:
        """Return the sum of one of the counts, which can exceed an int64."""
        values = self.numbers(name)
        # in two halves: a sum of int64 would overflow where one of Python's integers does not
        return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())

    def digests(self, name: str) -> list[str]:
        """Return one of the digests of each chunk in hexadecimal, "" if it has none."""
        rows = range(self.table.num_rows) if self._rows is None else self._rows.tolist()
        if not rows:
            return []
        first = rows[0]
        offsets, content = text_parts(self._columns[name].slice(first, rows[-1] + 1 - first))
        text, ends = content.tobytes().hex(), (2 * offsets).tolist()
        return [text[ends[row - first] : ends[row - first + 1]] for row in rows]

    def starts(self, name: str) -> npt.NDArray[np.uint64]:
        """Return the first 8 bytes of one of the digests of each chunk, uint64 [chunks], 0 if it has none: 8 times
        smaller than digests as text, and as distinct."""
        offsets, content = text_parts(self._columns[name])
        starts = np.zeros(self.table.num_rows, np.uint64)
        has = np.diff(offsets) == DIGEST_BYTES
        starts[has] = np.ascontiguousarray(content.reshape(-1, DIGEST_BYTES)[:, :8]).view(">u8").ravel()
        return starts if self._rows is None else starts[self._rows]

    def pairs_json(self) -> Iterator[bytes]:
        """Yield the parts of the canonical JSON of `[[split, output], …]`, digests in hexadecimal, without brackets."""
        comma = b""
        for name, begin, end in self._runs_of_splits():
            part = ManifestChunks(self.table.slice(begin, end - begin))
            yield from (comma, part._outputs_json(b"[" + canonical_json(name) + b",", b"]"))
            comma = b","

    @property
    def outputs_digest(self) -> str:
        """Hex BLAKE3 of the JSON array of the digests of outputs."""
        begins = range(0, len(self), _BLOCK)
        parts = (self[begin : begin + _BLOCK]._outputs_json() for begin in begins)
        joined = chain.from_iterable((b"," if begin else b"[", part) for begin, part in zip(begins, parts, strict=True))
        return digest_parts(chain(joined, [b"]" if len(self) else b"[]"]))

    def _outputs_json(self, before: bytes = b"", after: bytes = b"") -> bytes:
        """Return the digests of outputs in hexadecimal and quotes, joined by commas, each with `before` and `after`."""
        rows, first_row = self.rows, int(self.rows[0])
        _, content = text_parts(self._columns["output"].slice(first_row, int(rows[-1]) + 1 - first_row))
        digests = content.reshape(-1, DIGEST_BYTES)[rows - first_row].tobytes()
        text = np.frombuffer(digests.hex().encode(), np.uint8).reshape(len(rows), 2 * DIGEST_BYTES)
        edges = [np.frombuffer(edge, np.uint8) for edge in (before + b'"', b'"' + after + b",")]
        first, last = (np.broadcast_to(edge, (len(self), len(edge))) for edge in edges)
        return np.concatenate([first, text, last], axis=1).tobytes()[:-1]

    @cached_property
    def splits(self) -> list[str]:
        """Names of the splits, in order of first occurrence."""
        return list(dict.fromkeys(name for name, _, _ in self._runs_of_splits()))

    def of_split(self, split: str) -> ManifestChunks:
        """Return the chunks of a split, in order."""
        rows = [np.arange(begin, end) for name, begin, end in self._runs_of_splits() if name == split]
        return ManifestChunks(self.table, np.concatenate([np.zeros(0, np.int64), *rows]))

    def _runs_of_splits(self) -> Iterator[tuple[str, int, int]]:
        """Yield runs of rows of the table that have the same split, of at most 65,536 rows: its name, begin and end."""
        for first in range(0, self.table.num_rows, _BLOCK):
            column = self._columns["split"].slice(first, _BLOCK)
            offsets, content = text_parts(column)
            sizes = np.diff(offsets)
            before = np.concatenate([[-1], sizes[:-1]])
            differs = sizes != before
            # each byte with that of the name before it; a name of another length is a change anyway
            compared = np.arange(len(content)) - np.repeat(np.where(differs, 0, before), sizes)
            changed = np.concatenate([[0], np.cumsum(content != content[compared])])
            differs |= changed[offsets[1:]] > changed[offsets[:-1]]
            for begin, end in pairwise([*np.flatnonzero(differs).tolist(), len(sizes)]):
                yield column[begin].as_py(), first + begin, first + end

    @cached_property
    def _columns(self) -> dict[str, pa.Array]:
        return {name: one_array(self.table[name]) for name in self.table.column_names}

    def _built(self, begin: int, count: int) -> list[ManifestChunk]:
        """Build the chunks of consecutive rows of the table; a StoreError if their counters are not valid."""
        columns: dict[str, Sequence[Any]] = {}
        for name, array in self._columns.items():
            part = array.slice(begin, count)
            if name == "runs":
                columns[name] = _runs_of(part)
                continue
            values = part.to_pylist()
            if name in (*DIGESTS, "blocks"):
                values = [value if value is None else value.hex() for value in values]
            elif name == "counters":
                values = list(map(_counters, values))
            columns[name] = values
        return [ManifestChunk(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_columns"}


class GatheredChunks:
    """Chunks that become a manifest. They are kept as columns, except for the last few."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._recent: list[ManifestChunk] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, chunk: ManifestChunk) -> None:
        """Add a chunk after all others."""
        self._recent.append(chunk)
        self._count += 1
        if len(self._recent) == _AT_ONCE:
            self._tables.append(ManifestChunks.of(self._recent).table)
            self._recent = []

    def all(self) -> ManifestChunks:
        """Return all chunks, in order."""
        tables = [*self._tables, ManifestChunks.of(self._recent).table]
        return ManifestChunks(pa.concat_tables(tables).combine_chunks())


def check_chunks(table: pa.Table) -> None:
    """Check the columns of a manifest, as `Action.check` checks an action, and the runs of its chunks.

    Bytes of digests are not read, and `counters` only when a chunk is built.

    Raises:
        ValueError: a field is not valid.
    """
    if not table.schema.equals(SCHEMA):
        raise ValueError(f"its columns are {', '.join(table.column_names)[:200]}")
    columns = {name: one_array(table[name]) for name in table.column_names}
    runs = one_array(columns["runs"].values)
    for name, array in {**columns, **dict(zip(Run._fields, runs.flatten(), strict=True)), "runs": runs}.items():
        if array.null_count and name not in NULLABLE:
            raise ValueError(f"has no {name}")
    for name in (*DIGESTS, "blocks"):
        sizes = np.diff(text_parts(columns[name])[0])
        right = sizes == DIGEST_BYTES * is_valid(columns[name])
        if name in ("blocks", "engine"):
            right = sizes % BLOCK_DIGEST_BYTES == 0 if name == "blocks" else right | (sizes == 0)
        if not right.all():
            raise ValueError(f"has {name} that are not digests")
    counts = [flat_numbers(columns[name]) for name in COUNTS]
    if any(values.min(initial=0) < 0 or values.max(initial=0) > MAX_COUNT for values in counts):
        raise ValueError("has counts that are negative or too large")
    table_rows, rows_in, rows_out, rejected, filtered, *_ = counts
    accounted = rows_out + rejected + filtered
    if (most := table_rows.max(initial=0)) > MAX_ROWS:
        raise ValueError(f"has {most:,} rows, more than a chunk can have")
    if len(wrong := np.flatnonzero(rows_in != accounted)):
        raise ValueError(f"has {rows_in[wrong[0]]:,} rows, but accounts for {accounted[wrong[0]]:,}")
    begins, (_, firsts, offsets) = flat_numbers(columns["runs"].offsets), runs.flatten()
    firsts, offsets = flat_numbers(firsts), flat_numbers(offsets)
    if (begins[1:] == begins[:-1]).any() or offsets.min(initial=0) < -1:
        raise ValueError("has chunks without runs, or runs with negative offsets")
    rising = np.diff(firsts, prepend=0) >= 0
    # the first run of a chunk begins at row 0, below the last run of the chunk before
    rising[begins[:-1]] = firsts[begins[:-1]] == 0
    if not rising.all():
        raise ValueError("has runs that do not begin at row 0 and ascend")


def is_valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return bool [rows], True where a value is not null. The array must not be a slice.

    `Array.is_valid` would import Arrow's compute kernels, which reading needs nowhere else.
    """
    bitmap = array.buffers()[0]
    if bitmap is None:
        return np.ones(len(array), bool)
    return np.unpackbits(np.frombuffer(bitmap, np.uint8), count=len(array), bitorder="little").astype(bool)


def _counters(stored: bytes | None) -> dict[str, int] | None:
    if stored is None:
        return None
    try:
        counters = parse_json(stored)
        if isinstance(counters, dict) and all(type(count) is int for count in counters.values()):
            return counters
    except ValueError:
        pass
    raise StoreError("the manifest has counters that are not valid; build the dataset again")


def _runs_array(lists: Sequence[Sequence[Run]]) -> pa.Array:
    columns = zip(*chain.from_iterable(lists), strict=True) if any(lists) else ([], [], [])
    values = [pa.array(column, field.type) for column, field in zip(columns, RUN, strict=True)]
    structs = pa.StructArray.from_arrays(values, fields=list(RUN))
    return pa.ListArray.from_arrays(pa.array(offsets_of(np.array([*map(len, lists)], np.int64)), pa.int32()), structs)


def _runs_of(array: pa.Array) -> list[tuple[Run, ...]]:
    offsets = flat_numbers(array.offsets)
    first = int(offsets[0]) if len(offsets) else 0
    values = one_array(array.values).slice(first, int(offsets[-1]) - first if len(offsets) else 0)
    flat = list(map(Run._make, zip(*(column.to_pylist() for column in values.flatten()), strict=True)))
    return [tuple(flat[start:end]) for start, end in pairwise((offsets - first).tolist())]


_ACTIONS = 1 << 10
"""Chunks of a manifest that are built at once: keys are asked for in about the order of the manifest."""


class KnownActions:
    """Known actions, by key.

    Args:
        chunks: the chunks of a manifest, all of their table.
        is_stored: whether the store has what an action under a key names; not asked again once it has.
    """

    def __init__(self, chunks: ManifestChunks | None = None, is_stored: Callable[[str, Action], bool] | None = None):
        self._chunks = chunks if chunks is not None else ManifestChunks.of(())
        self._is_stored = is_stored or (lambda key, action: True)
        self._found: dict[str, Action] = {}
        self._stored = bytearray(len(self._chunks))
        self._built: tuple[int, list[ManifestChunk]] = -1, []

    def __bool__(self) -> bool:
        return bool(self._found) or len(self._chunks) > 0

    def get(self, key: str) -> Action | None:
        """Return the action under a key, or None if it is not known, or not all that it names is stored.

        One whose output refers to images is not known: an image can be missing.
        """
        if key in self._found:
            return self._found[key]
        if (row := self._row(bytes.fromhex(key))) < 0:
            return None
        block, chunks = self._built
        if row // _ACTIONS != block:
            block = row // _ACTIONS
            chunks = [*self._chunks[block * _ACTIONS : (block + 1) * _BLOCK]]
            self._built = block, chunks
        action = chunks[row % _ACTIONS].action
        if action is not None and not self._stored[row]:
            if action.counters.get(IMAGES) or not self._is_stored(key, action):
                return None
            self._stored[row] = True
        return action

    def add(self, key: str, action: Action) -> None:
        """Add an action that was found."""
        self._found[key] = action

    @cached_property
    def _keys(self) -> tuple[np.ndarray, np.ndarray, Ints]:
        """Return all keys, uint8 [chunks, 32]; their first 8 bytes as numbers, ascending; and the chunk of each."""
        _, content = text_parts(one_array(self._chunks.table["key"]))
        starts = self._chunks.starts("key")
        order = np.argsort(starts, kind="stable")
        return content.reshape(-1, DIGEST_BYTES), starts[order], order

    def _row(self, key: bytes) -> int:
        keys, starts, order = self._keys
        start = np.frombuffer(key, ">u8", 1)[0]
        at = int(np.searchsorted(starts, np.uint64(start)))
        # keys can share their first 8 bytes: compare the whole key
        while at < len(starts) and starts[at] == start:
            if keys[order[at]].tobytes() == key:
                return int(order[at])
            at += 1
        return -1
