"""Samples of MDS and litdata: the files that an `index.json` lists, read a few MiB at a time.

A shard is a uint32 number of samples, uint32 bounds of each in the file, and their bytes. A sample of MDS is a uint32
size of each value whose size varies, then the values (`streaming/base/format/mds`); one of litdata is its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.assets.raw.formats.parsed_chunk import check_columns
from tokenloom.assets.raw.formats.tables import BATCH_BYTES, BATCH_ROWS, spans
from tokenloom.config import PipelineConfig
from tokenloom.errors import SourceError, escaped
from tokenloom.resources.exceptions import first_line
from tokenloom.resources.sources.shard_index import Column, Shard, shards_of
from tokenloom.resources.sources.source_file import SourceFile
from tokenloom.resources.tables.json_text import read_json_value
from tokenloom.resources.tables.ragged import Ints, list_array, offsets_of, text_array

_CODES = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4", 64: "<u8", 65: "<i8"}
_CODES[66] = "<f8"
_DTYPES = {np.dtype(code).name: np.dtype(code) for code in _CODES.values()}
_SCALARS = _DTYPES | {"int": np.dtype("<i8")}
_PLAIN = ("str", "bytes", "json")
_ARRAY = re.compile(f"ndarray(?::({'|'.join(_DTYPES)})?(?::([1-9][0-9]{{0,8}}))?)?")

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def shard_tables(config: PipelineConfig, file: SourceFile) -> Iterator[pa.Table]:
    """Yield the samples of the shards that an index lists, in its order.

    Args:
        file: the `index.json`.

    Raises:
        SourceError: a shard is damaged, not what the index states, or has values that are not read; or a sample is
            larger than `reader.max_record_bytes`.
    """
    reader = config.dataset.reader
    ids = None if reader.dtype is None else np.dtype(reader.dtype).newbyteorder("<")
    for shard in shards_of(file):
        check_columns(len(shard.columns), file.name)
        if file.format == "mds":
            _check_encodings(file.name, shard.columns)
        if not shard.file.exists():
            raise SourceError(f"{file.name}: lists {shard.file.name}, which is not there")
        for bounds, data in _samples(shard, reader.max_record_bytes):
            try:
                yield (
                    _values(shard.columns, bounds, data, ids) if file.format == "mds" else _tokens(shard, bounds, data)
                )
            except (pa.ArrowException, ValueError, RecursionError, OverflowError) as error:
                raise SourceError(
                    f"{shard.file.name}: a sample cannot be read: {escaped(first_line(error))}"
                ) from error


def _check_encodings(name: str, columns: tuple[Column, ...]) -> None:
    """Refuse columns that are not read.

    Raises:
        SourceError: the message names the first one.
    """
    for column in columns:
        shown, encoding = escaped(column.name[:80]), column.encoding
        array = _ARRAY.fullmatch(encoding)
        size = _SCALARS[encoding].itemsize if encoding in _SCALARS else None
        if array is None and size is None and encoding not in _PLAIN:
            reason = f"has the encoding {escaped(encoding[:80])}, which is not read; write the dataset without it"
            raise SourceError(f"{name}: the column {shown} {reason}")
        if array is not None and array[1] and array[2]:
            size = _DTYPES[array[1]].itemsize * int(array[2])
        if size != column.size:
            raise SourceError(f"{name}: the column {shown} is {encoding}, but states {column.size} bytes a value")


def _samples(shard: Shard, limit: int) -> Iterator[tuple[Ints, Bytes]]:
    """Yield the bounds of some samples, from 0, and their bytes.

    Args:
        limit: of the bytes of a sample.
    """
    name, count = shard.file.name, shard.samples
    with shard.file.seekable(shard.size) as opened:
        size, last = opened.size(), 8 + 4 * count
        found = int.from_bytes(opened.read_at(4, 0), "little")
        if found != count or size != shard.size or size < last:
            raise SourceError(
                f"{name}: has {found:,} samples in {size:,} bytes, but its index states {count:,} in {shard.size:,}"
            )
        for first in range(0, count, BATCH_ROWS):
            rows = min(BATCH_ROWS, count - first)
            bounds = np.frombuffer(opened.read_at(4 * rows + 4, 4 + 4 * first), "<u4").astype(np.int64)
            if len(bounds) <= rows or bounds[0] < last or (first and bounds[0] != last) or (np.diff(bounds) < 0).any():
                raise SourceError(f"{name}: its samples are not one after the other; it is damaged")
            if (last := int(bounds[-1])) > size or (first + rows == count and last != size):
                raise SourceError(f"{name}: has {size:,} bytes, but its samples end at {last:,}; it is damaged")
            for start, end in spans(bounds, BATCH_BYTES):
                begin, length = int(bounds[start]), int(bounds[end] - bounds[start])
                if end == start + 1 and length > limit:
                    raise SourceError(
                        f"{name}: sample {first + start:,} has {length:,} bytes, more than dataset.reader."
                        f"max_record_bytes {limit:,}; raise it"
                    )
                data = np.frombuffer(opened.read_at(length, begin), np.uint8)
                if len(data) < length:
                    raise SourceError(f"{name}: ends before byte {begin + length:,}; it changed while it was read")
                yield bounds[start : end + 1] - begin, data


def _tokens(shard: Shard, bounds: Ints, data: Bytes) -> pa.Table:
    (column,) = shard.columns
    return pa.table({column.name: _lists(data, np.diff(bounds), np.dtype(column.encoding))})


def _values(columns: tuple[Column, ...], bounds: Ints, data: Bytes, ids: np.dtype[Any] | None) -> pa.Table:
    """Return samples as a table.

    Raises:
        ValueError: the sizes of their values do not add up to theirs, or a value is damaged.
    """
    count, head = len(bounds) - 1, 4 * sum(column.size is None for column in columns)
    if (np.diff(bounds) < head).any():
        raise ValueError("it is shorter than the sizes of its values")
    stated = iter(_numbers(data, bounds[:-1], head, np.dtype("<u4")).reshape(count, -1).astype(np.int64).T)
    begins, places = bounds[:-1] + head, list[tuple[Ints, Ints]]()
    for column in columns:
        sizes = next(stated) if column.size is None else np.full(count, column.size)
        places.append((begins, sizes))
        begins = begins + sizes
    if (begins != bounds[1:]).any():
        raise ValueError("the sizes of its values do not add up to its own")
    parts = ((column, _cut(data, *place), place[1]) for column, place in zip(columns, places, strict=True))
    return pa.table({column.name: _column(column.encoding, part, sizes, ids) for column, part, sizes in parts})


def _cut(data: Bytes, begins: Ints, sizes: Ints) -> Bytes:
    """Return the bytes [begin, begin + size) of ascending places, joined."""
    edges = np.stack([begins, begins + sizes], 1).reshape(-1)
    steps = np.diff(edges, prepend=0, append=len(data))
    return data[np.repeat(np.arange(len(steps)) % 2 == 1, steps)]


def _numbers(data: Bytes, begins: Ints, size: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return the numbers in `size` bytes at each of some places, joined."""
    return _cut(data, begins, np.full(len(begins), size)).view(dtype)


def _column(encoding: str, data: Bytes, sizes: Ints, ids: np.dtype[Any] | None) -> pa.Array:
    """Decode the values of a column.

    Args:
        data: their bytes, joined.
        ids: the dtype of ids in columns of bytes.
    """
    if encoding in _SCALARS:
        return pa.array(data.view(_SCALARS[encoding]))
    if encoding == "str":
        return text_array(offsets_of(sizes), data)
    if encoding == "bytes" and ids is not None:
        return _lists(data, sizes, ids)
    if encoding in ("bytes", "json"):
        parts = text_array(offsets_of(sizes), data).view(pa.binary())
        return parts if encoding == "bytes" else pa.array([read_json_value(part) for part in parts.to_pylist()])
    _, dtype, axis, *_ = f"{encoding}::".split(":")
    return _arrays(data, sizes, _DTYPES.get(dtype), int(axis) if axis else None)


def _lists(data: Bytes, sizes: Ints, dtype: np.dtype[Any]) -> pa.Array:
    if (sizes % dtype.itemsize).any():
        raise ValueError(f"its bytes are not a multiple of {dtype.itemsize}, those of {dtype}")
    return list_array(offsets_of(sizes // dtype.itemsize), data.view(dtype))


def _arrays(data: Bytes, sizes: Ints, dtype: np.dtype[Any] | None, count: int | None) -> pa.Array:
    """Decode MDS's `ndarray`: a code of the dtype and the axes, unless the encoding states them, then the numbers.

    Args:
        count: of the numbers in each; None: each states it.
    """
    begins, ends = offsets_of(sizes)[:-1], offsets_of(sizes)[1:]
    if (sizes < (dtype is None) + (count is None)).any():
        raise ValueError("an array is shorter than its description")
    codes = data[begins] if dtype is None else np.zeros(len(sizes), np.uint8)
    kinds = {int(code): dtype or np.dtype(_CODES.get(int(code), "V")) for code in np.unique(codes)}
    if any(kind.kind == "V" for kind in kinds.values()):
        raise ValueError("an array has an unknown dtype")
    begins = begins + (dtype is None)
    counts = np.full(len(sizes), count or 0)
    if count is None:
        widths = np.int64(1) << (data[begins] & 3)
        if (data[begins] >> 2 != 1).any():
            raise ValueError("an array has not one axis")
        if (begins + 1 + widths > ends).any():
            raise ValueError("an array is shorter than its description")
        for width in np.unique(widths):
            rows = widths == width
            counts[rows] = _numbers(data, begins[rows] + 1, width, np.dtype(f"<u{width}"))
        begins = begins + 1 + widths
    room = ends - begins
    width = np.array([kind.itemsize for kind in kinds.values()])[np.searchsorted([*kinds], codes)]
    if (room // width != counts).any() or (room % width).any():
        raise ValueError("the bytes of an array are not those of its shape")
    values = np.empty(int(counts.sum()), np.result_type(*kinds.values()))
    for code, kind in kinds.items():
        rows = codes == code
        values[np.repeat(rows, counts)] = _cut(data, begins[rows], room[rows]).view(kind)
    return list_array(offsets_of(counts), values)
