"""Manifests: one stage's output as a table of chunks, in order, with what a reader needs to know about them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.actions import Outcome

MANIFEST_VERSION = 3

WEIGHTED = "weighted_chunks"
"""Counter of `sequences`: chunks that hold weights."""

TRAINED = "tokens_trained"
"""Counter of `sequences`: tokens that are trained, at whatever weight."""

MIXTURE = "mixture"
"""Stands for the stage of what mixes datasets: its facts name them, its notes the manifests that they had."""

_SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("source", pa.string()),
        ("offset", pa.int64()),
        ("unit", pa.string()),
        ("input", pa.string()),
        ("key", pa.string()),
        ("output", pa.string()),
        ("bytes", pa.int64()),
        ("rejects", pa.string()),
        ("rows_in", pa.int64()),
        ("rows_out", pa.int64()),
        ("rejected", pa.int64()),
        ("filtered", pa.int64()),
        ("tokens", pa.int64()),
        ("table_rows", pa.int64()),
        ("blocks", pa.string()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class ManifestChunk(Outcome):
    """One chunk of a stage's output: its outcome, where its raw rows stand, the digest of its input, its action's key.

    `source` is the raw file, or the split of a dataset; the chunk begins `offset` lines or rows (`unit`) behind its
    begin, or at an unknown place where that is -1.
    """

    split: str
    source: str
    offset: int
    unit: str
    input: str
    key: str

    def place(self, position: int) -> str:
        """Where the raw row at a position within the chunk stands, such as `train.jsonl:17` or `train.parquet row 16`.

        Lines are counted from 1, as editors do, rows from 0.
        """
        if self.offset < 0:
            return self.source
        at = self.offset + position
        return f"{self.source}:{at + 1}" if self.unit == "line" else f"{self.source} row {at}"


@dataclass(frozen=True)
class Manifest:
    """A stage's output: chunks in order, and `facts` about it (JSON), such as the pad id of sequences.

    `parts`, `counters` and `notes` (JSON) tell of how it was made and are no part of its digest: what the keys of its
    chunks have in common, counts, and what else is worth telling.
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
        """Hex BLAKE3 of the content: the splits and object digests in order, and the facts."""
        return digest_json({"chunks": [(chunk.split, chunk.output) for chunk in self.chunks], "facts": self.facts})

    def total(self, count: str) -> int:
        """The sum over all chunks of `rows_in`, `rows_out`, `rejected`, `filtered` or `tokens`."""
        return sum(getattr(chunk, count) for chunk in self.chunks)

    @property
    def droppable(self) -> bool:
        """Whether `gc` may drop the outputs, since they can be made anew where they are needed."""
        return self.notes.get("keep") == "sequences"

    @property
    def pinned(self) -> dict[str, str]:
        """By dataset, the object digest of the manifest that a mixture reads."""
        return self.notes.get("manifests", {})

    @property
    def splits(self) -> list[str]:
        """The splits, in the order in which they first occur."""
        return list(dict.fromkeys(chunk.split for chunk in self.chunks))

    def of_split(self, split: str) -> list[ManifestChunk]:
        return [chunk for chunk in self.chunks if chunk.split == split]

    def to_table(self) -> pa.Table:
        head = {"version": MANIFEST_VERSION, "dataset": self.dataset, "stage": self.stage}
        head |= {"facts": self.facts, "counters": self.counters, "notes": self.notes, "parts": self.parts}
        table = pa.Table.from_pylist([asdict(chunk) for chunk in self.chunks], _SCHEMA)
        return table.replace_schema_metadata({"tokenloom": json.dumps(head, sort_keys=True)})

    @classmethod
    def from_table(cls, table: pa.Table) -> Manifest:
        """
        Raises:
            StoreError: the table is not a manifest of this version.
        """
        head = json.loads((table.schema.metadata or {}).get(b"tokenloom", b"{}"))
        if head.get("version") != MANIFEST_VERSION:
            raise StoreError(
                f"manifest version {head.get('version')} is not the {MANIFEST_VERSION} that this version reads"
            )
        chunks: Sequence[dict[str, Any]] = table.to_pylist()
        try:
            found = tuple(ManifestChunk(**chunk) for chunk in chunks)
            told = (head[name] for name in ("facts", "counters", "notes", "parts"))
            return cls(head["dataset"], head["stage"], found, *told)
        except (TypeError, KeyError) as error:
            raise StoreError(
                f"a manifest has another layout than this version's: {error}; build the dataset"
            ) from error
