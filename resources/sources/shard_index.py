"""`index.json` of sharded datasets: which files have the samples, and how they are encoded.

- MDS of MosaicML Streaming, version 2 (`streaming/base/format`): columns with names and encodings. A shard is there as
  it is, compressed, or both.
- litdata (`litdata/streaming/writer.py`): chunks that its `TokensLoader` wrote. An item is an array of tokens.

What an index states is believed only where the files agree with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from tokenloom.config.yaml_file import read_small_file
from tokenloom.errors import SourceError, escaped
from tokenloom.resources.sources.source_file import SHARDED, SourceFile

INDEX = "index.json"
LARGEST_INDEX = 32 << 20
"""Bytes: more than 50,000 shards."""

_NAME = re.compile(r"(?:[\w-][\w.-]*/)*[\w-][\w.-]*")
_COMPRESSIONS = ("zstd", "gz", "bz2")
_TORCH = {11: "u1", 12: "i1", 13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 20: "<u2"}
_NUMPY = {0: "i1", 1: "<i2", 2: "<i4", 3: "<i8", 4: "u1", 5: "<u2", 6: "<u4", 7: "<u8"}


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class _Data(msgspec.Struct):
    basename: str
    bytes: _Count


class _MdsShard(msgspec.Struct):
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[_Count | None]
    format: Literal["mds"]
    raw_data: _Data
    samples: _Count
    version: Literal[2]
    compression: str | None = None
    zip_data: _Data | None = None


class _Mds(msgspec.Struct):
    shards: list[_MdsShard]


class _Chunk(msgspec.Struct):
    filename: str
    chunk_size: _Count
    dim: int | None


class _Config(msgspec.Struct):
    data_format: list[str]
    compression: str | None = None
    encryption: Any = None
    item_loader: str = "TokensLoader"


class _Litdata(msgspec.Struct):
    chunks: list[_Chunk]
    config: _Config


class _LitdataLike(msgspec.Struct):
    chunks: msgspec.Raw
    config: msgspec.Raw


class Column(NamedTuple):
    """A column of a shard.

    Args:
        encoding: MDS's name of it; for litdata, the dtype of its tokens.
        size: the bytes of each value; None: each sample states them.
    """

    name: str
    encoding: str
    size: int | None = None


class Shard(NamedTuple):
    """A file of samples: their number, the bounds of each in the file, and their bytes.

    Args:
        size: its bytes, decompressed.
    """

    file: SourceFile
    samples: int
    size: int
    columns: tuple[Column, ...]


def index_format(folder: Path, names: Sequence[str]) -> str | None:
    """Return the format of a folder whose files an `index.json` lists; None if it is not such a folder.

    Args:
        names: the files below the folder.
    """
    for name in (name for name in names if name.rpartition("/")[2] == INDEX):
        beside = [other for other in names if other.startswith(name.removesuffix(INDEX))]
        if any(re.search(r"\.mds(\.\w+)?$", other) for other in beside):
            return "mds"
        if any(other.endswith(".bin") for other in beside):
            try:
                index = msgspec.json.decode(read_small_file(folder / name, LARGEST_INDEX), type=_LitdataLike)
            except (OSError, msgspec.DecodeError, RecursionError):
                continue
            if bytes(index.chunks).startswith(b"[") and bytes(index.config).startswith(b"{"):
                return "litdata"
    return None


def outer_indices(names: Sequence[str]) -> list[str]:
    """Return the indices among files, without those of folders inside that of another one, whose shards it lists."""
    indices = [name for name in names if name.rpartition("/")[2] == INDEX]
    folders = {PurePosixPath(name).parent for name in indices}
    return [name for name in indices if folders.isdisjoint(PurePosixPath(name).parents[1:])]


def shards_of(file: SourceFile) -> list[Shard]:
    """Return the shards that an `index.json` lists; none for files of other formats.

    Raises:
        SourceError: it is not a valid index, or its shards are of a kind that is not read.
    """
    if file.format not in SHARDED:
        return []
    content = b""
    for block in file.blocks(1 << 20):
        content += block
        if len(content) > LARGEST_INDEX:
            raise SourceError(f"{file.name}: is larger than {LARGEST_INDEX >> 20} MiB; divide the folder")
    try:  # the first fault ends it: an index can have a million
        if file.format == "mds":
            return _mds(file, msgspec.json.decode(content, type=_Mds))
        return _litdata(file, msgspec.json.decode(content, type=_Litdata))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = escaped(str(error))
        raise SourceError(f"{file.name}: is not an index of {file.format}: {reason}") from None


def _listed(file: SourceFile, name: str) -> SourceFile:
    """Return a file that an index lists, below the folder of the index; a SourceError if the name leads elsewhere."""
    if not _NAME.fullmatch(name):
        reason = f"{escaped(name[:80])!r} is not the name of a file in the folder"
        raise SourceError(f"{file.name}: is not an index of {file.format}: {reason}")
    return file.beside("^.*$", name)


def _mds(file: SourceFile, index: _Mds) -> list[Shard]:
    shards = list[Shard]()
    for each in index.shards:
        names, encodings, sizes = each.column_names, each.column_encodings, each.column_sizes
        if not len(names) == len(encodings) == len(sizes) or len({*names}) < len(names):
            raise SourceError(
                f"{file.name}: the columns of {each.raw_data.basename} differ in number, or have equal names"
            )
        columns = tuple(Column(*one) for one in zip(names, encodings, (size or None for size in sizes), strict=True))
        data = _listed(file, each.raw_data.basename)
        # a folder can have both: what is decompressed is read
        if each.zip_data is not None and not data.exists():
            if (kind := (each.compression or "").partition(":")[0]) not in _COMPRESSIONS:
                reason = f"compressed with {escaped(kind[:80])}, which is not read; only {', '.join(_COMPRESSIONS)} are"
                raise SourceError(f"{file.name}: {each.zip_data.basename} is {reason}")
            data = _listed(file, each.zip_data.basename)
        shards.append(Shard(data, each.samples, each.raw_data.bytes, columns))
    return shards


def _litdata(file: SourceFile, index: _Litdata) -> list[Shard]:
    config = index.config
    packed = config.compression or (config.encryption and "encryption")
    if packed:
        raise SourceError(f"{file.name}: its chunks are written with {escaped(packed[:80])}; write them without")
    kind, _, code = (config.data_format[0] if len(config.data_format) == 1 else "").partition(":")
    dtypes = {"no_header_tensor": _TORCH, "no_header_numpy": _NUMPY}.get(kind, {})
    dtype = dtypes.get(int(code) if code.isdecimal() and len(code) < 3 else -1)
    if dtype is None or config.item_loader != "TokensLoader" or any(each.dim is None for each in index.chunks):
        shown = escaped(", ".join(config.data_format)[:80])
        raise SourceError(
            f"{file.name}: its items are {shown}, not arrays of integers written with item_loader=TokensLoader(); "
            "write them so, or as Parquet"
        )
    columns = (Column("input_ids", dtype),)
    width = int(dtype[-1])
    return [
        Shard(_listed(file, each.filename), each.chunk_size, 8 + 4 * each.chunk_size + (each.dim or 0) * width, columns)
        for each in index.chunks
    ]
