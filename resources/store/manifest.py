"""Manifests: a stage's output as a table of its chunks, in order, with facts that readers need."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.actions import MAX_COUNT, MAX_ROWS, Outcome
from tokenloom.resources.store.blobs.object_names import DIGEST_CHARACTERS, is_digest
from tokenloom.resources.store.records import parse_json
from tokenloom.resources.tables.ragged import flat_numbers, offsets_of, one_array, text_parts

MANIFEST_VERSION = 4

WEIGHTED = "weighted_chunks"
"""Counter of `sequences`: chunks that have weights."""

TRAINED = "tokens_trained"
"""Counter of `sequences`: trained tokens, at any weight."""

SIDECARS = "sidecars"
"""Stage name in the manifest of sidecars: the columns that are kept next to each chunk of sequences."""

MIXTURE = "mixture"
"""Stage name in the manifest of a mixture. Its facts name the mixed datasets, its notes their manifests."""

_NULLABLE = ("rejects", "lengths")
"""Fields of a chunk that can be None."""

_COUNTS = ("table_rows", "rows_in", "rows_out", "rejected", "filtered", "bytes", "tokens")

_IS_HEX = np.zeros(256, bool)
_IS_HEX[list(b"0123456789abcdef")] = True

_JSON_FIELDS = ("facts", "counters", "notes", "parts")

_SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("runs", pa.list_(pa.struct([("source", pa.string()), ("first", pa.int64()), ("offset", pa.int64())]))),
        ("unit", pa.string()),
        ("input", pa.string()),
        ("key", pa.string()),
        ("output", pa.string()),
        ("bytes", pa.int64()),
        ("rejects", pa.string()),
        ("lengths", pa.string()),
        ("rows_in", pa.int64()),
        ("rows_out", pa.int64()),
        ("rejected", pa.int64()),
        ("filtered", pa.int64()),
        ("tokens", pa.int64()),
        ("table_rows", pa.int64()),
        ("blocks", pa.string()),
    ]
)
_RUNS = _SCHEMA.get_field_index("runs")


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
    """

    split: str
    runs: tuple[Run, ...]
    unit: str
    input: str
    key: str

    def place(self, position: int) -> str:
        """Return the source position of a raw row of the chunk, such as `train.jsonl:17` or `train.parquet row 16`.

        Lines are counted from 1, as in editors, rows from 0.

        Args:
            position: the row's position within the chunk.
        """
        return source_place(self.runs, self.unit, position)


@dataclass(frozen=True)
class Manifest:
    """A stage's output.

    Only `chunks` and `facts` are covered by its digest; the other fields (JSON) record how it was computed.

    Args:
        chunks: its chunks, in order.
        facts: what readers need to know (JSON), such as the pad id of sequences.
        counters: counts over all chunks.
        notes: anything else worth reporting.
        parts: the `KeyParts` that the keys of its chunks share.
    """

    dataset: str
    stage: str
    chunks: tuple[ManifestChunk, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Hex BLAKE3 of the content: splits and object digests in order, and facts."""
        return digest_json({"chunks": [(chunk.split, chunk.output) for chunk in self.chunks], "facts": self.facts})

    def total(self, count: str) -> int:
        """Return the sum of a count (`rows_in`, `rows_out`, `rejected`, `filtered` or `tokens`) over all chunks."""
        return sum(getattr(chunk, count) for chunk in self.chunks)

    @property
    def droppable(self) -> bool:
        """Whether `gc` can drop the outputs, because a build recomputes them when they are needed."""
        return self.notes.get("keep") == "sequences"

    @property
    def pinned(self) -> dict[str, str]:
        """For a mixture: the object digest of each dataset's manifest, by the dataset's name."""
        return self.notes.get("manifests", {})

    @property
    def sidecars(self) -> str | None:
        """For sequences: the object digest of the manifest of their sidecars, or None if no columns are kept."""
        return self.notes.get(SIDECARS)

    @property
    def splits(self) -> list[str]:
        """Names of the splits, in order of first occurrence."""
        return list(dict.fromkeys(chunk.split for chunk in self.chunks))

    def of_split(self, split: str) -> list[ManifestChunk]:
        """Return the chunks of a split, in order."""
        return [chunk for chunk in self.chunks if chunk.split == split]

    def to_table(self) -> pa.Table:
        """Encode the manifest as a table: one row per chunk, everything else as JSON in the schema's metadata."""
        head = {"version": MANIFEST_VERSION, "dataset": self.dataset, "stage": self.stage}
        head |= {name: getattr(self, name) for name in _JSON_FIELDS}
        table = pa.Table.from_pylist([vars(chunk) for chunk in self.chunks], _SCHEMA.remove(_RUNS))
        table = table.add_column(_RUNS, _SCHEMA.field(_RUNS), _list_array([chunk.runs for chunk in self.chunks]))
        return table.replace_schema_metadata({"tokenloom": json.dumps(head, sort_keys=True)})

    @classmethod
    def from_table(cls, table: pa.Table) -> Manifest:
        """Decode a manifest.

        Raises:
            StoreError: the table is not a manifest of this version.
        """
        head = _head(table)
        if head.get("version") != MANIFEST_VERSION:
            raise StoreError(
                f"the manifest has version {str(head.get('version'))[:20]}, but this version of tokenloom reads "
                f"version {MANIFEST_VERSION}; build the dataset again"
            )
        try:
            _check_chunks(table)
            rows: list[dict[str, Any]] = table.remove_column(_RUNS).to_pylist()
            listed = zip(rows, _lists_of(one_array(table["runs"])), strict=True)
            chunks = tuple(ManifestChunk(**row, runs=runs) for row, runs in listed)
            return cls(head["dataset"], head["stage"], chunks, *(head[name] for name in _JSON_FIELDS))
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise StoreError(
                f"the manifest does not have the fields that this version of tokenloom expects ({str(error)[:200]}); "
                "build the dataset again"
            ) from error


def _list_array(lists: Sequence[Sequence[Run]]) -> pa.Array:
    """Return the runs of each chunk as an array; there can be many thousands."""
    kind = _SCHEMA.field(_RUNS).type
    columns = zip(*chain.from_iterable(lists), strict=True) if lists else ([], [], [])
    values = [pa.array(column, field.type) for column, field in zip(columns, kind.value_type, strict=True)]
    structs = pa.StructArray.from_arrays(values, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(
        pa.array(offsets_of(np.array(list(map(len, lists)), np.int64)), pa.int32()), structs
    )


def _lists_of(array: pa.Array) -> list[tuple[Run, ...]]:
    """Return the runs of each chunk."""
    flat = list(map(Run._make, zip(*(column.to_pylist() for column in one_array(array.values).flatten()), strict=True)))
    return [tuple(flat[start:end]) for start, end in pairwise(flat_numbers(array.offsets).tolist())]


def _check_chunks(table: pa.Table) -> None:
    """Check every field of the chunks in a manifest, as `Action.check` checks an action, and their runs.

    Raises:
        ValueError: a field is not valid.
    """
    if not table.schema.equals(_SCHEMA):
        raise ValueError(f"its columns are {', '.join(table.column_names)[:200]}")
    columns = {name: one_array(table[name]) for name in table.column_names}
    runs = one_array(columns["runs"].values)
    for name, array in {**columns, **dict(zip(Run._fields, runs.flatten(), strict=True)), "runs": runs}.items():
        if array.null_count and name not in _NULLABLE:
            raise ValueError(f"has no {name}")
    for name in ("output", "key", *_NULLABLE, "blocks"):
        offsets, characters = text_parts(columns[name])
        lengths = np.diff(offsets)
        right = lengths % 2 == 0 if name == "blocks" else lengths == DIGEST_CHARACTERS * _is_valid(columns[name])
        if not (right.all() and _IS_HEX[characters].all()):
            raise ValueError(f"has {name} that are not hexadecimal digests")
    counts = np.stack([flat_numbers(columns[name]) for name in _COUNTS])
    if counts.min(initial=0) < 0 or counts.max(initial=0) > MAX_COUNT:
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
    rising[begins[:-1]] = firsts[begins[:-1]] == 0
    if not rising.all():
        raise ValueError("has runs that do not begin at row 0 and ascend")


def _is_valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return bool [rows], True where a value is not null. The array must not be a slice.

    `Array.is_valid` would import Arrow's compute kernels, which reading needs nowhere else.
    """
    bitmap = array.buffers()[0]
    if bitmap is None:
        return np.ones(len(array), bool)
    return np.unpackbits(np.frombuffer(bitmap, np.uint8), count=len(array), bitorder="little").astype(bool)


def is_manifest(table: pa.Table) -> bool:
    """Return whether a table is a manifest, of any version.

    Raises:
        StoreError: its metadata are not valid.
    """
    return "version" in _head(table)


def _head(table: pa.Table) -> dict[str, Any]:
    """Return the JSON in a manifest's metadata, with the types that every reader relies on.

    Raises:
        StoreError: it is not valid.
    """
    try:
        head = parse_json((table.schema.metadata or {}).get(b"tokenloom", b"{}"))
        fields = {name: head.get(name, {}) for name in _JSON_FIELDS}
        notes = fields["notes"]
        pinned = notes.get("manifests", {})
        digests = [*pinned.values(), *(notes[name] for name in (SIDECARS,) if notes.get(name) is not None)]
        valid = [
            all(isinstance(head.get(name, ""), str) for name in ("dataset", "stage")),
            all(isinstance(value, dict) for value in (*fields.values(), pinned)),
            all(map(is_digest, digests)),
            all(type(count) is int for count in fields["counters"].values()),
        ]
    except (ValueError, AttributeError, TypeError) as error:
        raise StoreError(f"the manifest has no valid JSON: {str(error)[:200]}; build the dataset again") from error
    if not all(valid):
        raise StoreError("the manifest has fields of other types than expected; build the dataset again")
    return head
