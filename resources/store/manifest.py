"""Manifests: a stage's output as a table of its chunks, in order, with facts that readers need."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tokenloom.errors import StoreError
from tokenloom.resources.digest import canonical_json, digest_parts
from tokenloom.resources.store.actions import OBJECT_KINDS, parse_json
from tokenloom.resources.store.blobs.blobs import is_digest
from tokenloom.resources.store.manifest_chunks import ManifestChunk, ManifestChunks, check_chunks

MANIFEST_VERSION = 5

WEIGHTED = "weighted_chunks"
"""Counter of `sequences`: chunks that have weights."""

TRAINED = "tokens_trained"
"""Counter of `sequences`: trained tokens, at any weight."""

TOKENIZERS = "tokenizer"
"""Stage name in the manifest of the tokenizer, whose files are in a folder of the store too."""

SIDECARS = "sidecars"
"""Stage name in the manifest of sidecars: the columns that are kept next to each chunk of sequences."""

LENGTHS = "lengths"
"""Stage name in the manifest of the lengths of sequences, joined for many chunks each."""

NAMED = (SIDECARS, LENGTHS)
"""Stages whose manifests are named in the notes of that of sequences."""

MIXTURE = "mixture"
"""Stage name in the manifest of a mixture. Its facts name the mixed datasets, its notes their manifests."""

_JSON_FIELDS = ("facts", "counters", "notes", "parts")


@dataclass(frozen=True)
class Manifest:
    """A stage's output.

    Only `chunks` and `facts` are covered by its digest; the other fields (JSON) record how it was computed.

    Args:
        chunks: its chunks, in order; kept as columns.
        facts: what readers need to know (JSON), such as the pad id of sequences.
        counters: counts over all chunks.
        notes: anything else worth reporting.
        parts: the `KeyParts` that the keys of its chunks share.
    """

    dataset: str
    stage: str
    chunks: ManifestChunks
    facts: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)

    if TYPE_CHECKING:

        def __init__(
            self,
            dataset: str,
            stage: str,
            chunks: Sequence[ManifestChunk],
            facts: dict[str, Any] = ...,
            counters: dict[str, int] = ...,
            notes: dict[str, Any] = ...,
            parts: dict[str, Any] = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunks", ManifestChunks.of(self.chunks))

    @cached_property
    def digest(self) -> str:
        """Hex BLAKE3 of the content: splits and object digests in order, and facts."""
        facts = canonical_json(self.facts)
        return digest_parts(chain([b'{"chunks":['], self.chunks.pairs_json(), [b'],"facts":' + facts + b"}"]))

    def total(self, count: str) -> int:
        """Return the sum of a count (`rows_in`, `rows_out`, `rejected`, `filtered` or `tokens`) over all chunks."""
        return self.chunks.total(count)

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
    def named(self) -> dict[str, str]:
        """For sequences: the object digests of the manifests of their lengths and of their sidecars, by stage. There
        are no sidecars if no columns are kept."""
        return {stage: self.notes[stage] for stage in NAMED if self.notes.get(stage)}

    def inventory(self) -> Iterator[tuple[str, list[str]]]:
        """Yield all that the manifest names besides other manifests, kind by kind: there can be millions of chunks. A
        `key` is that of an action, an `engine` a certificate, a `tokenizer` an object and a folder of files."""
        for kind in ("key", "engine", *OBJECT_KINDS):
            yield kind, [*filter(None, self.chunks.digests(kind))]
        tokenizers = self.chunks.digests("output") if self.stage == TOKENIZERS else [self.facts.get("tokenizer")]
        yield "tokenizer", [digest for digest in tokenizers if isinstance(digest, str) and is_digest(digest)]

    @property
    def splits(self) -> list[str]:
        """Names of the splits, in order of first occurrence."""
        return self.chunks.splits

    def of_split(self, split: str) -> ManifestChunks:
        """Return the chunks of a split, in order."""
        return self.chunks.of_split(split)

    def to_table(self) -> pa.Table:
        """Encode the manifest as a table: one row per chunk, everything else as JSON in the schema's metadata."""
        head = {"version": MANIFEST_VERSION, "dataset": self.dataset, "stage": self.stage}
        head |= {name: getattr(self, name) for name in _JSON_FIELDS}
        return self.chunks.table.replace_schema_metadata({"tokenloom": json.dumps(head, sort_keys=True)})

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
            check_chunks(table)
            fields = (head[name] for name in _JSON_FIELDS)
            return cls(head["dataset"], head["stage"], ManifestChunks(table), *fields)
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise StoreError(
                f"the manifest does not have the fields that this version of tokenloom expects ({str(error)[:200]}); "
                "build the dataset again"
            ) from error


def manifests(
    roots: Iterable[tuple[str, str]], read: Callable[[str, str], Manifest | None]
) -> Iterator[tuple[str, str, Manifest]]:
    """Yield stage, object digest and content of manifests, each followed by those that it names. `read` returns a
    manifest, given stage and digest; None leaves it out."""
    for stage, digest in roots:
        if (manifest := read(stage, digest)) is not None:
            yield stage, digest, manifest
            yield from manifests(manifest.named.items(), read)


def is_manifest(table: pa.Table) -> bool:
    """Return whether a table is a manifest, of any version.

    Raises:
        StoreError: its metadata are not valid.
    """
    return "version" in _head(table)


def _head(table: pa.Table) -> dict[str, Any]:
    """Return the JSON in a manifest's metadata, with the types that every reader relies on; a StoreError if they
    differ."""
    try:
        head = parse_json((table.schema.metadata or {}).get(b"tokenloom", b"{}"))
        fields = {name: head.get(name, {}) for name in _JSON_FIELDS}
        notes = fields["notes"]
        pinned = notes.get("manifests", {})
        # they become blob names: a crafted one must not lead elsewhere
        digests = [*pinned.values(), *(notes[name] for name in NAMED if notes.get(name) is not None)]
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
