"""What people see of sequences: rows that splits share, and which tokens of its rows a sequence lacks.

Rows are compared by a hash of their tokens in the sequences, all parts of a row joined, so that neither packing nor the
pieces of `split` matter. Only the hashes of the splits other than `train` are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.assets.prompts.truncation_order import TruncationOrder
from tokenloom.assets.raw.chunks import TRAIN
from tokenloom.assets.sequences.packing import to_sequences, with_pair_lengths
from tokenloom.assets.sequences.trees import begin_branches, unfolded
from tokenloom.assets.stage.rejects import ROW, no_rejects
from tokenloom.assets.stage.rows import in_pairs
from tokenloom.config import LengthConfig
from tokenloom.resources.digest import digest_json
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import Action, ArtifactStore, Manifest
from tokenloom.resources.tables.hashes import Hashes, hash_records, mix
from tokenloom.resources.tables.ragged import Ints, flat_numbers, list_parts, offsets_of, ranges, sides
from tokenloom.resources.tables.sequence_schema import DOCUMENT_LENGTHS, INPUT_IDS, POSITIONS, ROWS, without_padding

LOSSES = ("tokens_cut", "tokens_left_out")
"""Counters of the tokens that rows in the sequences lost."""


class Gap(NamedTuple):
    """Tokens of a row that its sequences lack.

    Args:
        position: the number of tokens of the sequence before the gap.
        ids: int [dropped tokens].
        ends: whether the gap is after the row's last token.
    """

    position: int
    ids: np.ndarray
    ends: bool = False


Gaps = dict[str, dict[int, list[Gap]]]
"""The gaps of a chunk of sequences, by side and number of the sequence."""


def dropped_tokens(tokens: pa.Table, sequences: pa.Table, settings: Mapping[str, Any]) -> Gaps:
    """Return the gaps of the sequences of a chunk.

    Every token that a row of a sequence lost is in one gap: before the row's next token, or after its last.
    `drop_turns` renders rows again, so there a gap is what the row has between the start and the end that both share.

    Args:
        tokens: the chunk of tokens.
        sequences: its sequences. Positions in gaps do not count the padding of documents.
        settings: those of the stage `sequences`, as its manifest has them.
    """
    sequences = without_padding(sequences)
    if settings["length.strategy"] == "drop_turns":
        found = {side: _without_turns(sides(tokens)[side], stored) for side, stored in sides(sequences).items()}
    else:
        names = ("strategy", "packing", "stride", "media_budget", "document_multiple")
        given = {name: settings.get(f"length.{name}") for name in names}
        length = LengthConfig.model_validate({name: value for name, value in given.items() if value is not None})
        order = settings.get("order") and TruncationOrder(**settings["order"])
        longest, trained = settings["tokenizer.max_length"], settings.get("trained", True)
        pack = in_pairs(lambda table: to_sequences(table, length, longest, order, trained, places=True))
        origins = sides(without_padding(pack(with_pair_lengths(tokens) if order else tokens).table))
        found = {side: _gaps(sides(tokens)[side], stored, origins[side]) for side, stored in sides(sequences).items()}
    gaps: Gaps = {}
    for side, of_side in found.items():
        for number, gap in of_side:
            gaps.setdefault(side, {}).setdefault(number, []).append(gap)
    return gaps


def _gaps(tokens: pa.Table, sequences: pa.Table, origins: pa.Table) -> Iterator[tuple[int, Gap]]:
    """Find where the sequences of one side lack tokens. Yields the number of the sequence, and the gap."""
    (texts, ids), (starts, stored) = list_parts(tokens["input_ids"]), list_parts(sequences["input_ids"])
    ids, origin = ids.to_numpy(), list_parts(origins["input_ids"])[1].to_numpy().astype(np.int64)
    if not np.array_equal(ids[origin], stored.to_numpy()):
        return  # sequences of other tokens
    places_left = np.unique(origin)
    text = np.searchsorted(texts, origin, side="right") - 1
    at = np.searchsorted(places_left, origin)
    before = np.maximum(np.append(-1, places_left)[at] + 1, texts[text])  # the first token after the kept one before
    last = np.append(places_left, len(ids))[at + 1] >= texts[text + 1]
    after = np.where(last, texts[text + 1], origin + 1)
    if POSITIONS in sequences.column_names:  # what a branch shares is stored once, in front of it
        lengths, positions = (flat_numbers(list_parts(sequences[name])[1]) for name in (DOCUMENT_LENGTHS, POSITIONS))
        branches = offsets_of(lengths)[:-1][begin_branches(positions, lengths) & (positions > 0)]
        before[branches] = origin[branches]
    for index in np.flatnonzero((before < origin) | (origin + 1 < after)).tolist():
        number = int(np.searchsorted(starts, index, side="right")) - 1
        position = index - int(starts[number])
        if before[index] < origin[index]:
            yield number, Gap(position, ids[before[index] : origin[index]])
        if origin[index] + 1 < after[index]:
            yield number, Gap(position + 1, ids[origin[index] + 1 : after[index]], ends=True)


def _without_turns(tokens: pa.Table, sequences: pa.Table) -> Iterator[tuple[int, Gap]]:
    """Yield the gaps of one side after `drop_turns`; none for rows that have several texts or documents."""
    (texts, ids), (_, stored) = list_parts(tokens["input_ids"]), list_parts(sequences["input_ids"])
    pieces, rows = list_parts(sequences["rows"])
    ends = offsets_of(list_parts(sequences["document_lengths"])[1].to_numpy())
    row_of_text, rows, ids, stored = tokens[ROW].to_numpy(), rows.to_numpy(), ids.to_numpy(), stored.to_numpy()
    text, first = np.searchsorted(row_of_text, rows), list_parts(sequences["input_ids"])[0]
    single = (np.searchsorted(row_of_text, rows, side="right") - text == 1) & (np.bincount(rows)[rows] == 1)
    shorter = np.diff(ends) < np.diff(texts)[text]
    for document in np.flatnonzero(single & shorter).tolist():
        number = int(np.searchsorted(pieces, document, side="right")) - 1
        whole = ids[texts[text[document]] : texts[text[document] + 1]]
        left = stored[ends[document] : ends[document + 1]]
        # the dropped turns are between what row and document share at both ends
        head = _shared(whole, left)
        tail = _shared(whole[head:][::-1], left[head:][::-1])
        yield number, Gap(int(ends[document] - first[number]) + head, whole[head : len(whole) - tail])


def _shared(a: Ints, b: Ints) -> int:
    size = min(len(a), len(b))
    return int(np.argmin(np.append(a[:size] == b[:size], False)))


_VERSION = 1
_EXAMPLES = 5
"""Maximum number of shared rows of each split that are named."""
_SCHEMA = pa.schema([(name, pa.int32()) for name in ("chunk", "row", "train_chunk", "train_row")])


@dataclass(frozen=True)
class SharedRows:
    """The rows of one split that `train` has too.

    Args:
        rows: all rows of the split.
        shared: those that `train` has too.
        examples: places in the source of some of them: in the split, and in `train`.
    """

    split: str
    rows: int
    shared: int
    examples: list[tuple[str, str]]


def shared_rows(store: ArtifactStore, engine: ComputeEngine, manifest: Manifest) -> list[SharedRows]:
    """Return what each split but `train` shares with it; nothing if there is no `train`, or nothing else.

    The result is stored as an action, so that it is computed once for the same sequences. It reads all of them.

    Args:
        manifest: of sequences.
    """
    splits = [split for split in manifest.splits if split != TRAIN]
    if not splits or len(splits) == len(manifest.splits):
        return []
    key = digest_json(["shared rows", _VERSION, [(chunk.split, chunk.output) for chunk in manifest.chunks]])
    action = store.find_action(key)
    if action is None or not store.objects.is_intact(action.output):
        with store.building():
            action = _stored(store, engine, manifest, splits, key)
    named = [manifest.chunks[number].split for number in range(len(manifest.chunks))]
    places = store.objects.get(action.output).to_pylist()
    found = []
    for split in splits:
        examples = [
            (manifest.chunks[at["chunk"]].place(at["row"]), manifest.chunks[at["train_chunk"]].place(at["train_row"]))
            for at in places
            if named[at["chunk"]] == split
        ]
        found.append(SharedRows(split, action.counters[f"rows/{split}"], action.counters[f"shared/{split}"], examples))
    return found


def row_hashes(table: pa.Table) -> tuple[npt.NDArray[np.int32], Hashes]:
    """Return the raw rows of a chunk of sequences, ascending, and a hash of the tokens of each, uint64 [rows].

    For pairs, the hash is that of both sides.
    """
    table = unfolded(table) if POSITIONS in table.column_names else table
    rows, hashes = np.zeros(0, np.int32), None
    for side in sides(without_padding(table)).values():
        ids = flat_numbers(list_parts(side[INPUT_IDS])[1])
        row, lengths = (flat_numbers(list_parts(side[name])[1]) for name in (ROWS, DOCUMENT_LENGTHS))
        if not (np.diff(row) >= 0).all():
            # the pieces of a split or packed row are joined in their order, so that its hash is that of its tokens
            order = np.argsort(row, kind="stable")
            ids = ids[ranges(offsets_of(lengths)[:-1][order], lengths[order])]
            row, lengths = row[order], lengths[order]
        first = np.flatnonzero(np.diff(row, prepend=-1))
        rows, size = row[first], ids.itemsize
        bounds = np.append(offsets_of(lengths)[:-1][first], len(ids)) * size
        of_side = hash_records(ids.view(np.uint8), bounds[:-1], bounds[1:])
        hashes = of_side if hashes is None else mix(hashes) + of_side
    return rows, np.zeros(0, np.uint64) if hashes is None else hashes


def _stored(store: ArtifactStore, engine: ComputeEngine, manifest: Manifest, splits: Sequence[str], key: str) -> Action:
    others = [number for number, chunk in enumerate(manifest.chunks) if chunk.split != TRAIN]
    trained = [number for number, chunk in enumerate(manifest.chunks) if chunk.split == TRAIN]
    chunk, row, hashes = map(np.concatenate, zip(*_hashed(store, engine, manifest, others), strict=True))
    # the rows of the other splits are few, and held by hash; train is streamed past them
    known, place = np.unique(hashes, return_inverse=True)
    seen = np.full((2, len(known)), -1, np.int64)  # chunk and row of train
    for numbers, rows, found in _hashed(store, engine, manifest, trained):
        at = np.minimum(np.searchsorted(known, found), len(known) - 1)
        same = known[at] == found if len(known) else np.zeros(len(found), bool)
        same[same] = seen[0, at[same]] < 0
        seen[:, at[same][::-1]] = np.stack([numbers[same], rows[same]])[:, ::-1]  # the first row of each hash remains
    train_chunk, train_row = seen[:, place]
    shared, examples, counters = train_chunk >= 0, list[Ints](), dict[str, int]()
    of_split = np.array([splits.index(item.split) if item.split != TRAIN else -1 for item in manifest.chunks])[chunk]
    for number, split in enumerate(splits):
        in_split = of_split == number
        counters |= {f"rows/{split}": int(in_split.sum()), f"shared/{split}": int((in_split & shared).sum())}
        examples.append(np.flatnonzero(in_split & shared)[:_EXAMPLES])
    chosen = np.concatenate(examples)
    columns = [pa.array(column[chosen], pa.int32()) for column in (chunk, row, train_chunk, train_row)]
    counts = {"rows_in": len(row), "rows_out": len(row), "rejected": 0, "filtered": 0, "tokens": 0}
    return store.put_action(key, pa.table(columns, _SCHEMA), no_rejects(), counts, counters, compressed=True)


def _hashed(
    store: ArtifactStore, engine: ComputeEngine, manifest: Manifest, numbers: Sequence[int]
) -> Iterator[tuple[Ints, npt.NDArray[np.int32], Hashes]]:
    """Hash the rows of some chunks. Yields, for each chunk: its number and the raw row for each row, and the hashes."""
    found = engine.map(partial(_hash_chunk, store, manifest), numbers, store)
    for number, (rows, hashes) in zip(numbers, found, strict=True):
        yield np.full(len(rows), number, np.int64), rows, hashes


def _hash_chunk(store: ArtifactStore, manifest: Manifest, number: int) -> tuple[npt.NDArray[np.int32], Hashes]:
    return row_hashes(store.objects.get(manifest.chunks[number].output))
