"""Hashes of rows by their content. They decide chunk boundaries and validation splits, and count distinct values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from tokenloom.resources.tables.json_text import is_json, json_texts
from tokenloom.resources.tables.json_values import FLOAT, TEXT, kinds_of, typed
from tokenloom.resources.tables.ragged import Ints, one_array

Hashes = npt.NDArray[np.uint64]

_LONG_RECORD = 1 << 22
"""Bytes beyond which a record has another hash function, which needs no memory."""
_GROUP_BYTES = 1 << 18
"""Bytes that are hashed at a time, so that the arrays stay in the processor's cache."""
_MANY_WORDS = 1 << 16
"""Words of 8 bytes up to which the products with their numbers are kept: most groups have no more."""
_FEW_ROWS = 64
"""Rows up to which the texts of all columns are hashed together: a call per column takes longer than the hashing."""
_MANY_NUMBERS = 1 << 12
"""Integers from which on it pays off to look for equal ones."""
_EMPTY_RECORD = np.uint64(0x7C2FE70AB6585B7A)
"""The hash of a record without bytes, as `_hash_short` computes it."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)


def hash_records(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> Hashes:
    """Return a hash of each record's bytes, uint64 [records]."""
    lengths = ends - starts
    if lengths.sum() <= _GROUP_BYTES and lengths.all():  # one group, as in tables of few rows and many columns
        return _hash_short(data, starts, lengths)
    hashes = np.full(len(lengths), _EMPTY_RECORD)
    for record in np.flatnonzero(lengths > _LONG_RECORD):
        digest = blake3(data[starts[record] : ends[record]].data).digest(8)
        hashes[record] = np.frombuffer(digest, "<u8")[0]
    short = np.flatnonzero((lengths > 0) & (lengths <= _LONG_RECORD))
    group = np.cumsum(lengths[short]) // _GROUP_BYTES
    for start, end in pairwise([0, *(np.flatnonzero(np.diff(group)) + 1), len(short)]):
        members = short[start:end]
        hashes[members] = _hash_short(data, starts[members], lengths[members])
    return hashes


def _hash_short(data: npt.NDArray[np.uint8], starts: Ints, lengths: Ints) -> Hashes:
    """Hash records as the sum of their 8-byte words, each mixed with its position."""
    if not len(starts):
        return np.zeros(0, np.uint64)
    if (starts + lengths).max() + 8 > len(data):  # a word can reach beyond the end
        data, starts = np.concatenate([data[starts.min() :], np.zeros(8, np.uint8)]), starts - starts.min()
    counts = np.maximum((lengths + 7) >> 3, 1)
    first = np.cumsum(counts) - counts
    bytes_before, products = _of_words(int(counts.sum()))
    unaligned = np.ndarray((len(data) - 7,), "<u8", data.data, strides=(1,))
    places = np.repeat(starts - (first << 3), counts)
    places += bytes_before
    words = unaligned[places]
    tail = lengths - ((counts - 1) << 3)
    beyond = np.where(tail < 8, np.uint64(2**64 - 1) << (np.minimum(tail, 7) << 3).astype(np.uint64), np.uint64(0))
    words[first + counts - 1] &= ~beyond
    # The position within the record, plus 1, times the multiplier: the product wraps around as the difference does.
    positions = np.repeat((1 - first).view(np.uint64) * _MULTIPLIER, counts)
    positions += products
    words ^= positions
    return mix(np.add.reduceat(mix(words), first) ^ lengths.astype(np.uint64))


def _of_words(count: int) -> tuple[Ints, Hashes]:
    """Return 8 × n and n × `_MULTIPLIER` for each n below a count, int64 and uint64 [count]."""
    if count > _MANY_WORDS:
        word = np.arange(count, dtype=np.int64)
        return word << 3, word.view(np.uint64) * _MULTIPLIER
    eights, products = _of_few_words()
    return eights[:count], products[:count]


@cache
def _of_few_words() -> tuple[Ints, Hashes]:
    """Return the same for `_MANY_WORDS`."""
    word = np.arange(_MANY_WORDS, dtype=np.int64)
    return word << 3, word.view(np.uint64) * _MULTIPLIER


def hash_rows(table: pa.Table) -> tuple[Hashes, Ints]:
    """Return a hash of each row's content, uint64 [rows], and its size in bytes, int64 [rows].

    Neither the order of columns nor columns that are null in a row affect its hash.
    """
    columns = [one_array(column) for column in table.columns]
    hashes, sizes = _hash_fields(table.column_names, columns, table.num_rows)
    return hashes, np.maximum(sizes, 1)


def _hash_fields(names: Sequence[str], fields: Sequence[pa.Array], rows: int) -> tuple[Hashes, Ints]:
    hashes, sizes = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
    for name, array, (value_hashes, size) in zip(names, fields, _hash_each(fields, rows), strict=True):
        name_hash = np.frombuffer(blake3(name.encode()).digest(8), "<u8")[0]
        valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), bool)
        hashes += np.where(valid, mix(value_hashes ^ name_hash), np.uint64(0))
        sizes += size
    return mix(hashes), sizes


def _hash_each(arrays: Sequence[pa.Array], rows: int) -> Iterator[tuple[Hashes, Ints]]:
    """Yield `hash_array` of each array. Texts of few rows are hashed together."""
    texts = [array for array in arrays if pa.types.is_string(array.type)] if rows <= _FEW_ROWS else []
    together = len(texts) > 1 and sum(array.nbytes for array in texts) <= _GROUP_BYTES
    hashes, sizes = hash_array(pa.concat_arrays(texts)) if together else (np.zeros(0, np.uint64), np.zeros(0, np.int64))
    start = 0
    for array in arrays:
        if together and pa.types.is_string(array.type):
            yield hashes[start : start + rows], sizes[start : start + rows]
            start += rows
        else:
            yield hash_array(array)


def hash_array(array: pa.Array) -> tuple[Hashes, Ints]:
    """Return a hash of each value's content, uint64 [rows], and its size in bytes, int64 [rows].

    A null hashes like an empty value.
    """
    kind = array.type
    if is_json(kind):
        return hash_array(_as_if_typed(json_texts(array)))
    if isinstance(array, pa.ExtensionArray):
        return hash_array(array.storage)
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
        return _hash_fields(kind.names, array.flatten(), len(array))
    if pa.types.is_fixed_size_list(kind):
        return hash_array(array.cast(pa.list_(kind.value_type)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _hash_lists(array)
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.uint64), np.zeros(len(array), np.int64)
    if pa.types.is_integer(kind) and len(array) > _MANY_NUMBERS and not array.null_count:
        coded = array.dictionary_encode()  # token ids and masks are few numbers: their texts are made once
        if 2 * len(coded.dictionary) < len(array):
            hashes, sizes = hash_array(coded.dictionary.cast(pa.string()))
            indices = coded.indices.to_numpy()
            return hashes[indices], sizes[indices]
    if pa.types.is_timestamp(kind):
        return hash_array(array.cast(pa.int64()))  # a cast to text needs the time zone database
    if (pa.types.is_primitive(kind) and not pa.types.is_interval(kind)) or pa.types.is_decimal(kind):
        return hash_array(array.cast(pa.string()).fill_null(""))
    return hash_array(pa.array([repr(value) for value in array.to_pylist()], pa.string()))  # rare types, such as maps


def _as_if_typed(texts: pa.Array) -> pa.Array:
    """Return JSON texts so that scalars hash like those of typed columns."""
    kinds = kinds_of(texts)
    for kind in (TEXT, FLOAT):
        rows = kinds == kind
        values = typed(texts.filter(pa.array(rows)))
        if rows.any() and not is_json(values.type):
            texts = pc.replace_with_mask(texts, pa.array(rows), values.cast(pa.string()))
    return texts


def _hash_lists(array: pa.Array) -> tuple[Hashes, Ints]:
    lengths = np.asarray(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    item_hashes, item_sizes = hash_array(array.flatten())
    position = np.arange(len(item_hashes), dtype=np.int64) - np.repeat(offsets[:-1], lengths)
    mixed = mix(item_hashes ^ mix(position.astype(np.uint64)))
    totals = np.concatenate([[np.uint64(0)], np.cumsum(mixed, dtype=np.uint64)])
    bytes_before = np.concatenate([[0], np.cumsum(item_sizes)])
    hashes = mix(totals[offsets[1:]] - totals[offsets[:-1]] ^ lengths.astype(np.uint64))
    return hashes, bytes_before[offsets[1:]] - bytes_before[offsets[:-1]]


def mix(words: Hashes) -> Hashes:
    """Mix the bits of each word bijectively, with two rounds of multiply and xor-shift."""
    mixed = words >> _SHIFT
    mixed ^= words
    mixed *= _MULTIPLIER
    mixed ^= mixed >> np.uint64(29)
    mixed *= _MULTIPLIER
    return mixed
