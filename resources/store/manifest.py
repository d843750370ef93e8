"""Manifests: a stage's output as a table of its chunks, in order, with facts that readers need."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.actions import Outcome
from tokenloom.resources.store.blobs.object_names import is_digest
from tokenloom.resources.store.records import parse_json

MANIFEST_VERSION = 4

WEIGHTED = "weighted_chunks"
"""Counter of `sequences`: chunks that have weights."""

TRAINED = "tokens_trained"
"""Counter of `sequences`: trained tokens, at any weight."""

SIDECARS = "sidecars"
"""Stage name in the manifest of sidecars: the columns that are kept next to each chunk of sequences."""

MIXTURE = "mixture"
"""Stage name in the manifest of a mixture. Its facts name the mixed datasets, its notes their manifests."""

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

    def check(self) -> None:
        """Check every field.

        Raises:
            ValueError: a field is not valid.
        """
        super().check()
        texts = [self.split, self.unit, self.input, self.key, *(run.source for run in self.runs)]
        if {*map(type, texts)} != {str} or not is_digest(self.key):
            raise ValueError(f"has a split, unit, input, key or source that is not valid: {str(texts)[:200]}")
        starts = [run.first for run in self.runs]
        if starts[:1] != [0] or starts != sorted(starts):
            raise ValueError(f"has runs that start at rows {str(starts)[:100]}")
        if min(run.offset for run in self.runs) < -1:
            raise ValueError("has runs with a negative offset")

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
        rows = [{**asdict(chunk), "runs": [run._asdict() for run in chunk.runs]} for chunk in self.chunks]
        table = pa.Table.from_pylist(rows, _SCHEMA)
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
            if not table.schema.equals(_SCHEMA):
                raise ValueError(f"its columns are {', '.join(table.column_names)[:200]}")
            rows: list[dict[str, Any]] = table.to_pylist()
            chunks = tuple(ManifestChunk(**{**row, "runs": tuple(Run(**run) for run in row["runs"])}) for row in rows)
            for chunk in chunks:
                chunk.check()
            return cls(head["dataset"], head["stage"], chunks, *(head[name] for name in _JSON_FIELDS))
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise StoreError(
                f"the manifest does not have the fields that this version of tokenloom expects ({str(error)[:200]}); "
                "build the dataset again"
            ) from error


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
