"""Content-defined chunking: where to cut follows from the rows' content, not from their position.

A row ends a chunk where a hash of its content falls below a threshold that grows with the row's size, so that
chunks hold `target` bytes on average whatever the rows' lengths. Such a row is passed over when another one
lies within `minimum` bytes before it. Both rules look only at nearby rows, so an edit moves no distant cut.
The file's start counts as a cut.
Where no cut falls within `maximum` bytes one is forced, behind the row that came nearest to being one. The idea is that
of Low-Bandwidth File System (Muthitacharoen et al., SOSP 2001), with rows in place of a rolling window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from blake3 import blake3

from tokenloom.resources.ragged import Ints, one_array

Hashes = npt.NDArray[np.uint64]

_HASHED = 1 << 22
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)


@dataclass(frozen=True)
class ChunkSize:
    """Sizes of chunks in bytes."""

    target: int = 4 << 20
    minimum: int = 1 << 20
    maximum: int = 16 << 20


def cut(hashes: Hashes, sizes: Ints, size: ChunkSize, previous: int = 0) -> Ints:
    """Bounds [chunks + 1] in rows: chunk i holds rows bounds[i]:bounds[i + 1].

    Args:
        hashes: uint64 [rows], of each row's content.
        sizes: int64 [rows], bytes of each row.
        previous: where, in bytes from the first row (so not above 0), the last candidate before it ended.
    """
    if not len(hashes):
        return np.zeros(1, np.int64)
    position = np.cumsum(sizes)
    candidates = _candidates(hashes, sizes, size)
    apart = np.diff(position[candidates], prepend=previous) >= size.minimum
    bounds = np.unique(np.concatenate([[0], candidates[apart] + 1, [len(hashes)]]))
    return _force(bounds, np.concatenate([[0], position]), hashes, size)


def _candidates(hashes: Hashes, sizes: Ints, size: ChunkSize) -> Ints:
    """The rows whose content ends a chunk."""
    threshold = np.minimum(sizes, size.target).astype(np.uint64) * np.uint64((1 << 64) // (size.target + 1))
    return np.flatnonzero(hashes < threshold)


def _force(bounds: Ints, offsets: Ints, hashes: Hashes, size: ChunkSize) -> Ints:
    """Cut chunks of more than `maximum` bytes behind the row with the lowest hash for its size, no less than `minimum`
    and no more than `maximum` from their begin; a larger single row stays whole."""
    forced: list[Ints] = []
    for chunk in np.flatnonzero(np.diff(offsets[bounds]) > size.maximum):
        row, end, cuts = int(bounds[chunk]), int(bounds[chunk + 1]), []
        while offsets[end] - offsets[row] > size.maximum:
            first = max(int(np.searchsorted(offsets, offsets[row] + size.minimum)), row + 1)
            last = int(np.searchsorted(offsets, offsets[row] + size.maximum, side="right")) - 1
            sizes = np.diff(offsets[first - 1 : last + 1]).astype(np.uint64)
            row = first + int(np.argmin(hashes[first - 1 : last] // sizes)) if last >= first else max(last, row + 1)
            if row < end:
                cuts.append(row)
        forced.append(np.array(cuts, np.int64))
    return np.unique(np.concatenate([bounds, *forced])) if forced else bounds


def hash_records(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> Hashes:
    """uint64 [records]: a hash of each record's bytes; memory is bounded by `_HASHED` bytes of records at a time."""
    lengths = ends - starts
    hashes = np.empty(len(lengths), np.uint64)
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    for record in np.flatnonzero(lengths > _HASHED):
        digest = blake3(data[starts[record] : ends[record]].data).digest(8)
        hashes[record] = np.frombuffer(digest, "<u8")[0]
    short = np.flatnonzero(lengths <= _HASHED)
    group = np.cumsum(lengths[short]) // _HASHED
    for begin, end in pairwise([0, *(np.flatnonzero(np.diff(group)) + 1), len(short)]):
        members = short[begin:end]
        hashes[members] = _hash_short(padded, starts[members], lengths[members])
    return hashes


def _hash_short(padded: npt.NDArray[np.uint8], starts: Ints, lengths: Ints) -> Hashes:
    """Hashes of records by their words of 8 bytes, each mixed with its place and added up."""
    if not len(starts):
        return np.zeros(0, np.uint64)
    counts = np.maximum((lengths + 7) >> 3, 1)
    first = np.cumsum(counts) - counts
    place = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(first, counts)
    words = np.ndarray((len(padded) - 7,), "<u8", padded.data, strides=(1,))[(place << 3) + np.repeat(starts, counts)]
    tail = lengths - ((counts - 1) << 3)
    beyond = np.where(tail < 8, np.uint64(2**64 - 1) << (np.minimum(tail, 7) << 3).astype(np.uint64), np.uint64(0))
    words[first + counts - 1] &= ~beyond
    words ^= (place.view(np.uint64) + np.uint64(1)) * _MULTIPLIER
    return _mix(np.add.reduceat(_mix(words), first) ^ lengths.astype(np.uint64))


def hash_rows(table: pa.Table) -> tuple[Hashes, Ints]:
    """uint64 [rows] hashes of each row's content, and int64 [rows] sizes in bytes."""
    hashes, sizes = np.zeros(table.num_rows, np.uint64), np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        column_hashes, column_sizes = hash_array(one_array(column))
        hashes = _mix(hashes ^ column_hashes)
        sizes += column_sizes
    return hashes, np.maximum(sizes, 1)


def hash_array(array: pa.Array) -> tuple[Hashes, Ints]:
    """uint64 [rows] hashes of each value's content, null hashing as empty, and int64 [rows] sizes in bytes."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return hash_array(array.dictionary_decode())
    if (
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    ):
        wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        _, offset_buffer, data = array.buffers()
        bounds = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)[
            array.offset : array.offset + len(array) + 1
        ].astype(np.int64)
        values = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        return hash_records(values, bounds[:-1], bounds[1:]), np.diff(bounds)
    if pa.types.is_struct(kind):
        hashes, sizes = np.zeros(len(array), np.uint64), np.zeros(len(array), np.int64)
        for field in array.flatten():
            field_hashes, field_sizes = hash_array(field)
            hashes, sizes = _mix(hashes ^ field_hashes), sizes + field_sizes
        return hashes, sizes
    if pa.types.is_fixed_size_list(kind):
        return hash_array(array.cast(pa.list_(kind.value_type)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _hash_lists(array)
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.uint64), np.zeros(len(array), np.int64)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return hash_array(array.cast(pa.string()).fill_null(""))
    return hash_array(pa.array([repr(value) for value in array.to_pylist()], pa.string()))  # rare types, such as maps


def _hash_lists(array: pa.Array) -> tuple[Hashes, Ints]:
    lengths = np.asarray(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    item_hashes, item_sizes = hash_array(array.flatten())
    place = np.arange(len(item_hashes), dtype=np.int64) - np.repeat(offsets[:-1], lengths)
    mixed = _mix(item_hashes ^ _mix(place.astype(np.uint64)))
    totals = np.concatenate([[np.uint64(0)], np.cumsum(mixed, dtype=np.uint64)])
    bytes_before = np.concatenate([[0], np.cumsum(item_sizes)])
    hashes = _mix(totals[offsets[1:]] - totals[offsets[:-1]] ^ lengths.astype(np.uint64))
    return hashes, bytes_before[offsets[1:]] - bytes_before[offsets[:-1]]


def _mix(words: Hashes) -> Hashes:
    """A bijective mix of 64 bits (two rounds of multiply and fold)."""
    mixed = words ^ (words >> _SHIFT)
    mixed *= _MULTIPLIER
    mixed ^= mixed >> np.uint64(29)
    mixed *= _MULTIPLIER
    return mixed


B = TypeVar("B", bound="Block")


class Block(Protocol):
    """Rows that can be cut: hashes uint64 [rows] of their content, sizes int64 [rows] in bytes."""

    @property
    def hashes(self) -> Hashes: ...

    @property
    def sizes(self) -> Ints: ...

    def slice(self: B, begin: int, end: int) -> B: ...

    @staticmethod
    def join(blocks: list[Any]) -> Any: ...


def cut_blocks(blocks: Iterator[B], size: ChunkSize) -> Iterator[B]:
    """Cut a stream of rows into chunks, the same whatever its blocks; holds little more than the largest chunk."""
    pending: list[B] = []
    held = previous = 0
    for block in blocks:
        pending.append(block)
        held += int(block.sizes.sum())
        if held >= 2 * size.target:
            *whole, (rest, previous) = _chunks(pending[0].join(pending), size, previous)
            yield from (chunk for chunk, _ in whole)
            pending, held = [rest], int(rest.sizes.sum())
    if pending:
        yield from (chunk for chunk, _ in _chunks(pending[0].join(pending), size, previous))


def _chunks(block: B, size: ChunkSize, previous: int) -> list[tuple[B, int]]:
    """Chunks, each with where the last candidate before it ended, in bytes from its first row."""
    position = np.concatenate([[0], np.cumsum(block.sizes)])
    ended = np.concatenate([[previous], position[_candidates(block.hashes, block.sizes, size) + 1]])
    bounds = cut(block.hashes, block.sizes, size, previous)
    starts = position[bounds[:-1]]
    latest = ended[np.searchsorted(ended, starts, side="right") - 1] - starts
    return [
        (block.slice(begin, end), int(before)) for (begin, end), before in zip(pairwise(bounds), latest, strict=True)
    ]
