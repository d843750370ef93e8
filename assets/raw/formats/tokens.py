"""Token ids that other tools wrote: Megatron's pairs of `.bin` and `.idx`, flat arrays, and shards of MDS and litdata.

Files without columns are read in two steps: first where their documents begin, a block at a time; then the tokens of
some of them. None is mapped or held as a whole. An index is believed only where the sizes of the files agree with it.

- Megatron (`megatron/core/datasets/indexed_dataset.py`): `MMIDIDX`, a version, a code of the dtype, the numbers of
  sequences and of document bounds; int32 lengths, int64 byte positions, int64 document bounds. A second pair, named
  `…_loss_mask`, can hold a 0 or 1 for each token.
- Flat arrays: raw integers (nanoGPT's `.bin`; OLMo-core's `token_ids_part_0000.npy`, which have no NumPy header), with
  documents that end with EOS, or listed as `start,end` in `token_ids_part_0000.csv.gz`. `labels_mask_part_0000.npy` can
  hold a bool for each token. Files with a NumPy header are read too.
- Shards, which an `index.json` lists, are read a few MiB at a time: a uint32 number of samples, uint32 bounds of each
  in the file, and their bytes. A sample of MDS is a uint32 size of each value whose size varies, then the values
  (`streaming/base/format/mds`); one of litdata is its tokens.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, zip_longest
from tokenize import TokenError
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from tokenloom.assets.raw.formats.parsed_chunk import check_columns
from tokenloom.assets.raw.formats.tables import BATCH_BYTES, BATCH_ROWS, spans
from tokenloom.config import PipelineConfig
from tokenloom.errors import SourceError, escaped
from tokenloom.resources.sources.shard_index import Column, Shard, shards_of
from tokenloom.resources.sources.source_file import SHARDED, SourceFile, companion_files
from tokenloom.resources.tables.json_text import read_json_value
from tokenloom.resources.tables.ragged import Ints, list_array, offsets_of, text_array
from tokenloom.resources.tokenizers import TOKENIZER, resolve_tokenizer, token_ids
from tokenloom.resources.visible import first_line

BLOCK = 1 << 16
"""Documents, or sequences, whose places are read at once."""

_MAGIC, _HEADER = b"MMIDIDX\0\0", 34
_INDEX_CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = (6, 7)

Found = Callable[[dict[str, str]], None]
"""Takes what was found out about a file."""


@dataclass(frozen=True)
class Array:
    """Numbers in a file.

    Args:
        name: the file's name in messages.
        opened: the file.
        dtype: the dtype of the numbers.
        begin: where they begin, in bytes.
        count: how many there are.
    """

    name: str
    opened: Any
    dtype: np.dtype[Any]
    begin: int
    count: int

    def read(self, start: int, count: int) -> np.ndarray:
        """Return some of the numbers.

        Raises:
            SourceError: the file became shorter.
        """
        size = self.dtype.itemsize
        data = self.opened.read_at(count * size, self.begin + start * size)
        if len(data) < count * size:
            raise SourceError(f"{self.name}: ends before {start + count:,} numbers; it changed while it was read")
        return np.frombuffer(data, self.dtype)


def token_tables(config: PipelineConfig, file: SourceFile, found: Found) -> Iterator[pa.Table]:
    """Yield the documents of a file in tables of `input_ids` and, if the file has a mask, `loss_mask`.

    The file of shards is their index.

    Raises:
        SourceError: the file is damaged, or holds no ids, or a document is larger than `reader.max_record_bytes`.
        ConfigError: where the documents of a flat array end is not known.
    """
    if file.format in SHARDED:
        yield from _shard_tables(config, file)
        return
    with ExitStack() as stack:
        read = _megatron if file.format == "megatron" else _flat
        columns, bounds = read(config, file, stack, found)
        yield from _documents(columns, bounds, config.dataset.reader.max_record_bytes)


def _documents(columns: dict[str, Array], blocks: Iterator[Ints], limit: int) -> Iterator[pa.Table]:
    """Yield tables of about `BATCH_BYTES`, given bounds in tokens; a block starts with the last bound of the one
    before."""
    ids = columns["input_ids"]
    for bounds in blocks:
        for start, end in spans(bounds, BATCH_BYTES // ids.dtype.itemsize):
            begin, count = int(bounds[start]), int(bounds[end] - bounds[start])
            if end == start + 1 and count * ids.dtype.itemsize > limit:
                raise SourceError(
                    f"{ids.name}: the document at token {begin:,} has {count:,} tokens, more than "
                    f"dataset.reader.max_record_bytes {limit:,}; raise it, or check what ends documents"
                )
            offsets = bounds[start : end + 1] - begin
            yield pa.table({name: list_array(offsets, each.read(begin, count)) for name, each in columns.items()})


_Documents = tuple[dict[str, Array], Iterator[Ints]]
"""The numbers of each column, and the bounds of the documents in them."""


def _megatron(config: PipelineConfig, file: SourceFile, stack: ExitStack, found: Found) -> _Documents:
    index = file if file.name.lower().endswith(".idx") else file.beside(r"\.bin$", ".idx")
    ids, bounds = _pair(index, stack)
    mask = index.beside(r"\.idx$", "_loss_mask.idx")
    if not mask.exists():
        return {"input_ids": ids}, bounds
    values, of_mask = _pair(mask, stack)
    if values.count != ids.count:
        raise SourceError(f"{values.name}: has {values.count:,} values for {ids.count:,} tokens; write it again")
    return {"input_ids": ids, "loss_mask": values}, _same(bounds, of_mask, values.name)


def _same(bounds: Iterator[Ints], of_mask: Iterator[Ints], name: str) -> Iterator[Ints]:
    """Yield bounds that are also those of the mask, or raise SourceError."""
    for own, other in zip_longest(bounds, of_mask):
        if own is None or other is None or not np.array_equal(own, other):
            raise SourceError(f"{name}: has other documents than the tokens; write it again")
        yield own


def _pair(index: SourceFile, stack: ExitStack) -> tuple[Array, Iterator[Ints]]:
    """Open a `.idx` and its `.bin`; return the tokens, and the bounds of the documents."""
    name, opened = index.name, stack.enter_context(index.seekable())
    head, size = bytes(opened.read_at(_HEADER, 0)), opened.size()
    if len(head) < _HEADER or head[:9] != _MAGIC:
        raise SourceError(f"{name}: is not an index of Megatron: it does not start with MMIDIDX")
    version, code = int.from_bytes(head[9:17], "little"), head[17]
    sequences, bounds = (int.from_bytes(head[at : at + 8], "little") for at in (18, 26))
    if version != 1:
        raise SourceError(f"{name}: is version {version} of Megatron's index, but only version 1 is supported")
    if code not in _INDEX_CODES:
        what = "holds floats, not token ids" if code in _FLOATS else f"has the unknown dtype code {code}"
        raise SourceError(f"{name}: {what}")
    expected = _HEADER + 12 * sequences + 8 * bounds
    if size != expected or not bounds:
        also = " (indices with modes of multimodal sequences are not supported)" if size == expected + sequences else ""
        raise SourceError(
            f"{name}: states {sequences:,} sequences and {bounds:,} document bounds, which take {expected:,} bytes, "
            f"but it has {size:,}{also}; write it again"
        )
    data = index.beside(r"\.idx$", ".bin")
    file, dtype = stack.enter_context(data.seekable()), np.dtype(_INDEX_CODES[code])
    count, odd = divmod(file.size(), dtype.itemsize)
    if odd:
        raise SourceError(f"{data.name}: has {file.size():,} bytes, not a multiple of {dtype.itemsize}; it is damaged")
    at = (_HEADER, _HEADER + 4 * sequences, _HEADER + 12 * sequences)
    lengths, pointers, documents = (
        Array(name, opened, np.dtype(kind), begin, number)
        for kind, begin, number in zip(("<i4", "<i8", "<i8"), at, (sequences, sequences, bounds), strict=True)
    )
    ids = Array(data.name, file, dtype, 0, count)
    return ids, _bounds(lengths, pointers, documents, ids)


def _bounds(lengths: Array, pointers: Array, documents: Array, ids: Array) -> Iterator[Ints]:
    """Yield the bounds of the documents, in tokens; raise SourceError if sequences overlap, leave gaps, or do not fit
    them."""
    name, total, before = lengths.name, 0, 0
    for first in range(0, documents.count - 1, BLOCK):
        at = documents.read(first, min(BLOCK + 1, documents.count - first)).astype(np.int64)
        if at[0] != before or (np.diff(at) < 0).any() or at[-1] > lengths.count:
            raise SourceError(f"{name}: the bounds of its documents do not ascend; write it again")
        in_tokens = np.full(len(at), total)
        for start in range(before, int(at[-1]), BLOCK):
            count = min(BLOCK, int(at[-1]) - start)
            sizes = lengths.read(start, count).astype(np.int64)
            if (sizes < 0).any():
                raise SourceError(f"{name}: has a sequence of negative length; write it again")
            # the stated byte positions must be those that follow from the lengths; only the lengths are used
            ends = np.append(total, total + np.cumsum(sizes))
            if (pointers.read(start, count) != ends[:-1] * ids.dtype.itemsize).any():
                raise SourceError(
                    f"{name}: its sequences are not one after the other in {ids.name}; write both files again"
                )
            # documents that begin at one of the sequences of this block: their bounds in tokens are now known
            low, high = np.searchsorted(at, start, side="left"), np.searchsorted(at, start + count, side="right")
            in_tokens[low:high] = ends[at[low:high] - start]
            total = int(ends[-1])
        if total > ids.count:
            raise SourceError(f"{ids.name}: has {ids.count:,} tokens, but its index points to {total:,}; it is cut off")
        before = int(at[-1])
        yield in_tokens
    if before != lengths.count or total != ids.count:
        raise SourceError(
            f"{ids.name}: its index has documents for {total:,} of {ids.count:,} tokens and {before:,} of "
            f"{lengths.count:,} sequences; write both files again"
        )


def _flat(config: PipelineConfig, file: SourceFile, stack: ExitStack, found: Found) -> _Documents:
    reader, opened = config.dataset.reader, stack.enter_context(file.seekable())
    beside = companion_files(file)
    tokenizer = cache(lambda: resolve_tokenizer(config) if config.tokenizer.name_or_path is not None else None)
    masks = (_array(each, stack.enter_context(each.seekable()), np.dtype(bool)) for each in beside[:1])
    mask = next(masks, None) if beside and beside[0].name.endswith(".npy") else None
    dtype = None if reader.dtype is None else np.dtype(reader.dtype).newbyteorder("<")
    if dtype is None and mask is not None:  # of raw ids as many as the mask has: as wide as the file's size says
        dtype = {mask.count * width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}.get(opened.size())
    if dtype is None:
        if (spec := tokenizer()) is None:
            message = f"unknown for {file.name}: set it, e.g. to uint16, or set tokenizer.name_or_path"
            raise config.fault("dataset.reader.dtype", message)
        largest = max(token_ids(spec.files[TOKENIZER]).values())
        dtype = np.min_scalar_type(max(largest, 1 << 8)).newbyteorder("<")
    ids = _array(file, opened, dtype)
    columns = {"input_ids": ids}
    if mask is not None:
        if mask.count != ids.count:
            raise SourceError(
                f"{mask.name}: has {mask.count:,} values for {ids.count:,} tokens of {ids.dtype} in {file.name}; set "
                "dataset.reader.dtype if the tokens have another dtype"
            )
        columns["loss_mask"] = replace(mask, dtype=np.dtype("u1"))
    listed = next((each for each in beside if each.name.endswith(".csv.gz")), None)
    if listed is not None:
        found({"dtype": str(ids.dtype), "documents": listed.name})
        return columns, _listed(listed, ids)
    eos = reader.eos_id
    if eos is None:
        if (spec := tokenizer()) is None or spec.eos is None:
            message = f"unknown for {file.name}: set it to the id that ends each document"
            raise config.fault("dataset.reader.eos_id", message)
        eos = token_ids(spec.files[TOKENIZER])[spec.eos]
    found({"dtype": str(ids.dtype), "documents": f"cut after each id {eos}"})
    return columns, _cut_documents(ids, eos)


def _array(file: SourceFile, opened: Any, dtype: np.dtype[Any]) -> Array:
    """Return the numbers of a file: all of it, or what follows a NumPy header, which states the dtype."""
    size, begin = opened.size(), 0
    head = bytes(opened.read_at(min(size, 1 << 16), 0))
    if head.startswith(b"\x93NUMPY"):
        stream = io.BytesIO(head)
        try:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(stream)
        except (ValueError, SyntaxError, TokenError) as error:
            raise SourceError(f"{file.name}: its NumPy header cannot be read: {str(error).splitlines()[0]}") from error
        begin = stream.tell()
        if len(shape) != 1 or dtype.kind not in "iub" or begin + shape[0] * dtype.itemsize != size:
            raise SourceError(f"{file.name}: is not one list of integers, but {shape} of {dtype}")
    count, odd = divmod(size - begin, dtype.itemsize)
    if odd:
        raise SourceError(
            f"{file.name}: has {size:,} bytes, not a multiple of {dtype.itemsize}; set dataset.reader.dtype if it does "
            f"not hold {dtype}"
        )
    return Array(file.name, opened, dtype, begin, count)


def _cut_documents(ids: Array, eos: int) -> Iterator[Ints]:
    """Yield the bounds of documents that end with an id; after the last one there can be tokens."""
    step, before = BATCH_BYTES // ids.dtype.itemsize, 0
    for start in range(0, ids.count, step):
        block = ids.read(start, min(step, ids.count - start))
        ends = np.flatnonzero(block == eos) + start + 1
        yield np.append(before, ends)
        before = int(ends[-1]) if len(ends) else before
    if before < ids.count:
        yield np.array([before, ids.count])


def _listed(listed: SourceFile, ids: Array) -> Iterator[Ints]:
    """Yield the bounds of documents that lines of `start,end,…` list; raise SourceError if these leave gaps or
    overlap."""
    before, rest = 0, b""
    for block in chain(listed.blocks(1 << 20), [b"\n"]):
        lines, line_end, rest = (rest + block).rpartition(b"\n")
        if len(rest) > 1 << 20:
            raise SourceError(f"{listed.name}: has a line of more than 1 MiB")
        if lines.strip():
            bounds = _of_lines(listed, lines + line_end, before)
            if (before := int(bounds[-1])) > ids.count:
                break
            yield bounds
    if before != ids.count:
        raise SourceError(f"{listed.name}: ends at token {before:,}, but {ids.name} has {ids.count:,}")


def _of_lines(listed: SourceFile, lines: bytes, before: int) -> Ints:
    types = {"f0": pa.int64(), "f1": pa.int64()}
    reading = csv.ReadOptions(autogenerate_column_names=True)
    converting = csv.ConvertOptions(include_columns=[*types], column_types=types)
    try:
        table = csv.read_csv(pa.BufferReader(lines), reading, convert_options=converting)
    except (pa.ArrowInvalid, pa.ArrowKeyError, KeyError) as error:
        raise SourceError(f"{listed.name}: is not a list of start,end: {str(error).splitlines()[0]}") from error
    starts, ends = (column.combine_chunks().fill_null(-1).to_numpy() for column in table.columns)
    # each document starts where the one before ends, so the ends are the bounds
    bounds = np.append(before, ends)
    if (starts != bounds[:-1]).any() or (np.diff(bounds) < 0).any():
        raise SourceError(f"{listed.name}: its documents are not one after the other")
    return bounds


_MDS_CODES = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4", 64: "<u8", 65: "<i8"}
_MDS_CODES[66] = "<f8"
_DTYPES = {np.dtype(code).name: np.dtype(code) for code in _MDS_CODES.values()}
_SCALARS = _DTYPES | {"int": np.dtype("<i8")}
_PLAIN = ("str", "bytes", "json")
_ARRAY = re.compile(f"ndarray(?::({'|'.join(_DTYPES)})?(?::([1-9][0-9]{{0,8}}))?)?")

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def _shard_tables(config: PipelineConfig, file: SourceFile) -> Iterator[pa.Table]:
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
                if file.format == "mds":
                    yield _values(shard.columns, bounds, data, ids)
                else:
                    (column,) = shard.columns
                    yield pa.table({column.name: _lists(data, np.diff(bounds), np.dtype(column.encoding))})
            except (pa.ArrowException, ValueError, RecursionError, OverflowError) as error:
                raise SourceError(
                    f"{shard.file.name}: a sample cannot be read: {escaped(first_line(error))}"
                ) from error


def _check_encodings(name: str, columns: tuple[Column, ...]) -> None:
    """Refuse columns that are not read: SourceError, which names the first one."""
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
    """Yield the bounds of some samples, from 0, and their bytes, of which each has at most `limit`."""
    name, count = shard.file.name, shard.samples
    with shard.file.seekable(shard.size) as opened:
        size, last = opened.size(), 8 + 4 * count
        stated = int.from_bytes(opened.read_at(4, 0), "little")
        if stated != count or size != shard.size or size < last:
            raise SourceError(
                f"{name}: has {stated:,} samples in {size:,} bytes, but its index states {count:,} in {shard.size:,}"
            )
        for first in range(0, count, BATCH_ROWS):
            rows = min(BATCH_ROWS, count - first)
            bounds = np.frombuffer(opened.read_at(4 * rows + 4, 4 + 4 * first), "<u4").astype(np.int64)
            # the first sample begins after the header, which MDS extends; others where the one before ends
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


def _values(columns: tuple[Column, ...], bounds: Ints, data: Bytes, ids: np.dtype[Any] | None) -> pa.Table:
    """Return samples as a table; raise ValueError if the sizes of values do not add up, or one is damaged."""
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
    parts = ((column, _values_at(data, *place), place[1]) for column, place in zip(columns, places, strict=True))
    return pa.table({column.name: _column(column.encoding, part, sizes, ids) for column, part, sizes in parts})


def _values_at(data: Bytes, begins: Ints, sizes: Ints) -> Bytes:
    """Return the bytes [begin, begin + size) of ascending places, joined."""
    # gaps and values alternate between the edges, so every second step is a value
    edges = np.stack([begins, begins + sizes], 1).reshape(-1)
    steps = np.diff(edges, prepend=0, append=len(data))
    return data[np.repeat(np.arange(len(steps)) % 2 == 1, steps)]


def _numbers(data: Bytes, begins: Ints, size: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return the numbers in `size` bytes at each of some places, joined."""
    return _values_at(data, begins, np.full(len(begins), size)).view(dtype)


def _column(encoding: str, data: Bytes, sizes: Ints, ids: np.dtype[Any] | None) -> pa.Array:
    """Decode the values of a column from their joined bytes; `ids` is the dtype of ids in columns of bytes."""
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
    """Decode MDS's `ndarray`: a code of the dtype and the axes, unless the encoding states them, then the numbers."""
    begins, ends = offsets_of(sizes)[:-1], offsets_of(sizes)[1:]
    if (sizes < (dtype is None) + (count is None)).any():
        raise ValueError("an array is shorter than its description")
    codes = data[begins] if dtype is None else np.zeros(len(sizes), np.uint8)
    kinds = {int(code): dtype or np.dtype(_MDS_CODES.get(int(code), "V")) for code in np.unique(codes)}
    if any(kind.kind == "V" for kind in kinds.values()):
        raise ValueError("an array has an unknown dtype")
    begins = begins + (dtype is None)
    counts = np.full(len(sizes), count or 0)
    if count is None:
        # the description of a shape: 2 bits for the width of its numbers, the others count the axes
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
        values[np.repeat(rows, counts)] = _values_at(data, begins[rows], room[rows]).view(kind)
    return list_array(offsets_of(counts), values)
