"""Compares two built datasets, or two versions of one: rows, tokens, and the settings of each stage.

Rows are equal if their contents have the same hash. Rows are compared as multisets: a row that occurs m times in A and
n times in B is kept min(m, n) times, the first occurrences on each side. All other rows of A were removed, all other
rows of B were added. A removed and an added row count as one changed row if they have the same place: between the same
two kept neighbours (or the start or end of the split), at the same distance from the first of them. A row that only
moved is not a difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow.compute as pc

from tokenloom.assets.stage.images import IMAGES_COLUMN
from tokenloom.assets.stage.names import DECONTAMINATE, DEDUP, MEDIA, RAW, STAGES, TOKENS
from tokenloom.assets.stage.rejects import OVERLAP, ROW
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk, Version
from tokenloom.resources.tables.hashes import Hashes, hash_rows, mix
from tokenloom.resources.tables.ragged import Ints, list_parts

EXAMPLES = 5
"""Maximum number of examples listed per kind."""

_START, _END = np.uint64(1), np.uint64(2)


@dataclass(frozen=True)
class SplitDiff:
    """The differences in one split. Counts are None if the objects they need are no longer in the store.

    Args:
        rows: number of source rows in `a` and `b`, and of `added`, `removed` and `changed` rows; and, if there are
            any, of rows of both that `decontaminate` or `dedup` drops only in B, `dropped`, or only in A, `restored`,
            and of those whose files have other images, `images`.
        tokens: number of tokens in sequences of `a` and `b`; and, before truncation and packing, of tokens in rows
            `added`, `removed`, `changed_from` and `changed_to`.
        examples: places in the source, by kind; for a changed row in A, and in B if it differs.
    """

    split: str
    rows: dict[str, int | None]
    tokens: dict[str, int | None]
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether no difference was found."""
        counts = (self.rows, self.tokens)
        return all(c["a"] == c["b"] and not any(c[name] for name in c if name not in ("a", "b")) for c in counts)


@dataclass(frozen=True)
class SettingDiff:
    """A part of a stage's keys that differs; None for a side that does not have it."""

    stage: str
    name: str
    a: Any
    b: Any


@dataclass(frozen=True)
class DatasetDiff:
    """The differences between A and B; `notes` are sentences about what could not be compared."""

    a: DatasetVersion
    b: DatasetVersion
    splits: list[SplitDiff]
    settings: list[SettingDiff]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the differences as JSON."""
        return {
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "same": self.a.version.digest == self.b.version.digest,
            "splits": [vars(split) for split in self.splits],
            "settings": [vars(setting) for setting in self.settings],
            "notes": self.notes,
        }


class DatasetVersion:
    """One version of a dataset.

    Args:
        name: `dataset`, or `dataset@version` with a digest prefix or a date.

    Raises:
        DatasetNotFoundError: the dataset or version does not exist; the message lists those that do.
    """

    def __init__(self, store: ArtifactStore, name: str):
        self.store, self.dataset = store, name
        version = None
        if name not in store.datasets() and "@" in name:
            self.dataset, _, version = name.rpartition("@")
        store.manifest_digest(self.dataset)
        known = store.versions.of(self.dataset)
        self.version: Version = (
            known[-1] if version is None and known else store.versions.find(self.dataset, version or "")
        )

    @cached_property
    def manifests(self) -> dict[str, Manifest]:
        """The manifests that are still in the store, by stage.

        Raises:
            StoreError: one is damaged, or that of `sequences` is missing.
        """
        manifests = {}
        for stage, digest in self.version.stages.items():
            if stage == STAGES[-1] or self.store.objects.size(digest) is not None:
                manifests[stage] = self.store.manifest_at(digest)
        return manifests

    def chunks(self, stage: str, split: str) -> Sequence[ManifestChunk]:
        return self.manifests[stage].of_split(split) if stage in self.manifests else []

    def to_json(self) -> dict[str, Any]:
        version = self.version
        return {"dataset": self.dataset, "version": version.digest, "published": version.published.isoformat()}


def diff_datasets(store: ArtifactStore, a: str, b: str) -> DatasetDiff:
    """Compare two datasets. Only opens chunks whose raw rows are not the same on both sides.

    Args:
        a, b: `dataset`, or `dataset@version` with a digest prefix or a date.

    Raises:
        DatasetNotFoundError: a dataset or version does not exist; the message lists those that do.
        StoreError: an object that must be read is damaged.
    """
    version_a, version_b = DatasetVersion(store, a), DatasetVersion(store, b)
    notes: dict[str, None] = {}
    splits = list(dict.fromkeys([*version_a.manifests[STAGES[-1]].splits, *version_b.manifests[STAGES[-1]].splits]))
    split_diffs = [_diff_split(version_a, version_b, split, notes) for split in splits]
    return DatasetDiff(version_a, version_b, split_diffs, list(_settings(version_a, version_b)), list(notes))


def _diff_split(a: DatasetVersion, b: DatasetVersion, split: str, notes: dict[str, None]) -> SplitDiff:
    sides = {"a": a, "b": b}
    raw = RAW if all(RAW in side.manifests for side in sides.values()) else STAGES[-1]
    rows: dict[str, int | None] = {n: sum(c.rows_out for c in s.chunks(raw, split)) for n, s in sides.items()}
    tokens: dict[str, int | None] = {
        name: sum(chunk.tokens for chunk in side.chunks(STAGES[-1], split)) for name, side in sides.items()
    }
    common = Counter(c.output for c in a.chunks(RAW, split)) & Counter(c.output for c in b.chunks(RAW, split))
    opened = {name: _DifferingChunks(side, split, Counter(common)) for name, side in sides.items()}
    if raw != RAW or any(side.is_gone(RAW) for side in opened.values()):
        notes["the raw rows of chunks that differ are no longer in the store; only numbers of rows are compared"] = None
        rows |= dict.fromkeys(("added", "removed", "changed"))
        return SplitDiff(split, rows, tokens | dict.fromkeys(_TOKENS))
    diff = diff_rows(opened["a"].side, opened["b"].side)
    kinds = {"added": (opened["b"], diff.added), "removed": (opened["a"], diff.removed)}
    kinds |= {"changed_from": (opened["a"], diff.changed[0]), "changed_to": (opened["b"], diff.changed[1])}
    rows |= {"added": len(diff.added), "removed": len(diff.removed), "changed": len(diff.changed[0])}
    if any(side.is_gone(TOKENS) for side in opened.values()):
        notes["the tokens of chunks that differ are no longer in the store; only those in sequences are counted"] = None
        tokens |= dict.fromkeys(_TOKENS)
    else:
        tokens |= {kind: int(side.tokens[items].sum()) for kind, (side, items) in kinds.items()}
    # rows of chunks that both sides have can still be dropped on one side only, or have other images
    lost = [_dropped(side, split) for side in (a, b)]
    only_a, only_b = ({key: one[key] for key in one if key not in other} for one, other in (lost, lost[::-1]))
    moved = {
        kind: [place for (chunk, _), place in found.items() if chunk in common]
        for kind, found in (("dropped", only_b), ("restored", only_a))
    }
    moved["images"] = _redrawn(a, b, split)
    rows |= {kind: len(found) for kind, found in moved.items() if found}
    places = {kind: side.places(items[:EXAMPLES]) for kind, (side, items) in kinds.items()}
    pairs = zip(places.pop("changed_from"), places.pop("changed_to"), strict=True)
    places["changed"] = [was if was == now else f"{was} → {now}" for was, now in pairs]
    places |= {kind: found[:EXAMPLES] for kind, found in moved.items() if found}
    return SplitDiff(split, rows, tokens, places)


def _redrawn(a: DatasetVersion, b: DatasetVersion, split: str) -> list[str]:
    """Return the places of rows, of chunks that both have, whose images are others in B."""
    places = list[str]()
    of_a = {raw.output: chunk.output for raw, chunk in zip(a.chunks(RAW, split), a.chunks(MEDIA, split), strict=False)}
    for raw, chunk in zip(b.chunks(RAW, split), b.chunks(MEDIA, split), strict=False):
        outputs = of_a.get(raw.output, chunk.output), chunk.output
        if outputs[0] != outputs[1] and all(b.store.objects.size(output) is not None for output in outputs):
            both = (b.store.objects.get_intact(output).select([ROW, IMAGES_COLUMN]) for output in outputs)
            before, after = (dict(zip(*(each.to_pylist() for each in table.columns), strict=True)) for table in both)
            places += [raw.place(row) for row in before if row in after and before[row] != after[row]]
    return places


def _dropped(side: DatasetVersion, split: str) -> dict[tuple[str, int], str]:
    """Return the rows that were dropped for what they contain or repeat: raw chunk and position, and place."""
    places: dict[tuple[str, int], str] = {}
    for stage in (DECONTAMINATE, DEDUP):
        for raw, chunk in zip(side.chunks(RAW, split), side.chunks(stage, split), strict=False):
            if chunk.rejects and side.store.objects.size(chunk.rejects) is not None:
                table = side.store.objects.get_intact(chunk.rejects)
                rows = table.filter(pc.not_equal(table["code"], OVERLAP))[ROW].to_pylist()
                places |= {(raw.output, row): raw.place(row) for row in rows}
    return places


_TOKENS = ("added", "removed", "changed_from", "changed_to")


class _DifferingChunks:
    """The chunks of a split whose raw rows the other side lacks; `common`, how often both have an object, is counted
    down."""

    def __init__(self, state: DatasetVersion, split: str, common: Counter[str]):
        self._objects, self._chunks = state.store.objects, state.chunks(RAW, split)
        self._tokenized = state.chunks(TOKENS, split)
        self._known = []
        for chunk in self._chunks:
            self._known.append(common[chunk.output] > 0)
            common[chunk.output] -= 1

    def is_gone(self, stage: str) -> bool:
        """Whether the store lacks a stage's output for one of the differing chunks."""
        chunks = self._chunks if stage == RAW else self._tokenized
        if len(chunks) != len(self._chunks):
            return True
        differing = [chunk for chunk, known in zip(chunks, self._known, strict=True) if not known]
        return any(self._objects.size(chunk.output) is None for chunk in differing)

    @cached_property
    def _items(self) -> tuple[Side, Ints, Ints]:
        """The items to compare, with the chunk number and row position of each; the position is -1 for whole chunks."""
        hashes, known, number, position = [np.zeros(0, np.uint64)], [], [], [np.zeros(0, np.int64)]
        for at, (chunk, is_known) in enumerate(zip(self._chunks, self._known, strict=True)):
            if is_known:
                # a chunk that both sides have is one item, and its rows need not be read
                hashes.append(np.array([int(chunk.output[:16], 16)], np.uint64))
                position.append(np.array([-1]))
            else:
                table = self._objects.get_intact(chunk.output)
                hashes.append(hash_rows(table.drop_columns([ROW]))[0])
                position.append(table[ROW].to_numpy().astype(np.int64))
            known.append(np.full(len(hashes[-1]), is_known))
            number.append(np.full(len(hashes[-1]), at))
        side = Side(np.concatenate(hashes), np.concatenate([np.zeros(0, bool), *known]))
        return side, np.concatenate([np.zeros(0, np.int64), *number]), np.concatenate(position)

    @property
    def side(self) -> Side:
        return self._items[0]

    @cached_property
    def tokens(self) -> Ints:
        """int64 [items]: number of tokens of each row; 0 for rejected rows, and for whole chunks."""
        _, number, position = self._items
        counts = np.zeros(len(number), np.int64)
        for at, (chunk, known) in enumerate(zip(self._tokenized, self._known, strict=True)):
            if not known:
                table = self._objects.get_intact(chunk.output)
                lengths = np.zeros(table.num_rows, np.int64)
                for name in table.column_names:
                    if name.endswith("input_ids"):  # both sides of a pair
                        lengths += np.diff(list_parts(table[name])[0])
                members = np.flatnonzero(number == at)
                index = np.searchsorted(position[members], table[ROW].to_numpy().astype(np.int64))
                np.add.at(counts, members[index], lengths)  # a row can have several texts
        return counts

    def places(self, items: Ints) -> list[str]:
        """Return the places of rows in the source."""
        _, number, position = self._items
        return [self._chunks[int(number[item])].place(int(position[item])) for item in items.tolist()]


def _settings(a: DatasetVersion, b: DatasetVersion) -> Iterator[SettingDiff]:
    for stage in STAGES:
        parts = [dict(_flat(side.manifests[stage].parts)) if stage in side.manifests else None for side in (a, b)]
        if parts[0] is None or parts[1] is None:
            continue
        for name in sorted({*parts[0], *parts[1]}):
            values = parts[0].get(name), parts[1].get(name)
            if values[0] != values[1]:
                yield SettingDiff(stage, name, *values)


def _flat(parts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in parts.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@dataclass(frozen=True)
class Side:
    """The rows of one side in order.

    Args:
        hashes: uint64 [items]; an item is a row, or a run of rows that both sides are known to have.
        known: bool [items]; True for such a run.
    """

    hashes: Hashes
    known: np.ndarray


@dataclass(frozen=True)
class RowDiff:
    """The differences, as ascending indices of items.

    Args:
        added: items only in B.
        removed: items only in A.
        changed: changed items, as indices into A and into B.
    """

    added: Ints
    removed: Ints
    changed: tuple[Ints, Ints]


def diff_rows(a: Side, b: Side) -> RowDiff:
    """Compare two sides; see the module's docstring for the definition of a difference."""
    kept_a, kept_b = _kept(a, b), _kept(b, a)
    lost_a, lost_b = np.flatnonzero(~kept_a), np.flatnonzero(~kept_b)
    places = _places(a.hashes, kept_a), _places(b.hashes, kept_b)
    _, in_a, in_b = np.intersect1d(*places, assume_unique=True, return_indices=True)
    # pairs are found in the order of their hashes
    order = np.argsort(in_b)
    in_a, in_b = in_a[order], in_b[order]
    return RowDiff(np.delete(lost_b, in_b), np.delete(lost_a, in_a), (lost_a[in_a], lost_b[in_b]))


def _kept(side: Side, other: Side) -> np.ndarray:
    """Return bool [items]: whether the other side also has the item."""
    on_both = side.known.copy()
    mine = side.hashes[~side.known]
    theirs = np.sort(other.hashes[~other.known])
    # of m rows here and n there with one content, the first min(m, n) are on both sides
    matches = np.searchsorted(theirs, mine, side="right") - np.searchsorted(theirs, mine, side="left")
    on_both[~side.known] = _occurrence(mine) < matches
    return on_both


def _places(hashes: Hashes, kept: np.ndarray) -> Hashes:
    """Return uint64 [lost items], all different: hash of the two kept neighbours and the distance from the first."""
    index, end = np.arange(len(hashes)), len(hashes)
    before = np.maximum.accumulate(np.where(kept, index, -1))
    after = np.minimum.accumulate(np.where(kept, index, end)[::-1])[::-1]
    # shifted by one, so that index -1 is the start of the split
    around = np.concatenate([[_START], mix(hashes), [_END]])
    lost = ~kept
    place = mix(mix(around[before[lost] + 1]) + around[after[lost] + 1])
    place = mix(place + (index - before)[lost].astype(np.uint64))
    # several rows can have the same place, as between equal neighbours: their order tells them apart
    return mix(place + _occurrence(place).astype(np.uint64))


def _occurrence(values: Hashes) -> Ints:
    """Return int64 [values]: number of equal values before each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.searchsorted(ordered, ordered, side="left")
    counted = np.empty(len(values), np.int64)
    counted[order] = np.arange(len(values)) - first
    return counted
