"""Sources that are tables already: Parquet and Arrow files, and `datasets`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, product
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.raw.formats.parsed_chunk import ParsedChunk, check_columns, reject_too_large
from tokenloom.assets.raw.formats.text import is_utf8
from tokenloom.assets.stage.rejects import reject_rows
from tokenloom.errors import SourceError
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.sources.large_file import READERS, changed, spread, stamp_if_large, stamp_of
from tokenloom.resources.sources.source_file import SourceFile
from tokenloom.resources.tables.hashes import Hashes, hash_rows
from tokenloom.resources.tables.json_text import is_json
from tokenloom.resources.tables.nested_paths import is_list
from tokenloom.resources.tables.ragged import Flags, Ints, compact, offsets_of, one_array
from tokenloom.resources.tables.stored_texts import with_class_names

BATCH_ROWS = 10_000
BATCH_BYTES = 4 << 20
_PARQUET_ROWS = 1000
"""Rows per batch of Parquet, which can store a large value once for many rows, so that sizes say little."""

_MANY_GROUPS, _TINY_GROUP_ROWS = 256, 8
"""Parquet files of at least so many row groups, of fewer rows on average, are read several groups at a time."""

_MANY_VALUES, _VALUES_PER_BYTE = 1 << 24, 1 << 16
"""Most values of a column inside lists, per row group and per stored byte; one row can hold all of them. Rows of a few
hundred thousand equal values stay below the second limit, because each takes a few bytes."""

_MANY_ROWS, _ROWS_PER_BYTE = 1 << 22, 64
"""Most rows of a file, and per byte of its values: rows of nothing, or of one value, can be any number."""

_UNPACKED, _UNPACKED_PER_BYTE, _BATCH_UNPACKED = 2 << 30, 1 << 10, 256 << 20
"""Most bytes that the texts of a row group take, which Parquet stores once for many rows, and per stored byte if that
is more; and of a batch, if its texts are measured."""

_PART_BYTES, _DECODED_BYTES, _PARTS_BYTES = 16 << 20, 64 << 20, 1 << 30
"""Bytes of values of Parquet that a task reads at least; that their rows can take in memory, unless the values are
larger; and that those of all tasks can take."""

_MAX_NAME_CHARACTERS = 1 << 22
"""Most characters in the names of all columns and fields of a file together."""

_CAST_INCORRECTLY = re.compile(r"list_view|list<\w+: null")
"""Types whose values Arrow's casts damage: views of lists after a null, and lists that hold only nulls."""


@dataclass(frozen=True)
class TableBlock:
    """Rows of a table, with the hashes and sizes that cutting needs."""

    table: pa.Table

    @cached_property
    def _hashed(self) -> tuple[Hashes, Ints]:
        return hash_rows(self.table)

    @property
    def rows(self) -> Flags:
        """bool [rows]: all."""
        return np.ones(self.table.num_rows, bool)

    @property
    def hashes(self) -> Hashes:
        """uint64 [rows]: hashes of the rows' values."""
        return self._hashed[0]

    @property
    def sizes(self) -> Ints:
        """int64 [rows]: the rows' sizes in bytes."""
        return self._hashed[1]

    @property
    def offsets(self) -> Ints:
        """int64 [rows + 1]: the bytes at which rows start."""
        return offsets_of(self.sizes)

    def slice(self, start: int, end: int) -> TableBlock:
        """Return the rows [start, end)."""
        part = TableBlock(compact(self.table.slice(start, end - start)))
        part.__dict__["_hashed"] = (self.hashes[start:end], self.sizes[start:end])
        return part

    @staticmethod
    def join(blocks: list[TableBlock]) -> TableBlock:
        """Concatenate several blocks; types that differ are promoted."""
        tables = [block.table for block in blocks]
        whole = TableBlock(pa.concat_tables(tables, promote_options="permissive").combine_chunks())
        hashed = [block._hashed for block in blocks]
        whole.__dict__["_hashed"] = tuple(np.concatenate(parts) for parts in zip(*hashed, strict=True))
        return whole


def table_blocks(file: SourceFile, engine: ComputeEngine) -> Iterator[TableBlock]:
    """Yield the batches of a Parquet or Arrow file. Memory is bounded by its row groups or record batches.

    Several workers of the engine read the row groups of a large Parquet file.

    Raises:
        SourceError: the file is not a readable file of its format, or it changed meanwhile.
    """
    with _readable(file), file.seekable() as opened:
        if file.format != "parquet":
            yield from (TableBlock(_ordinary(table, file.name)) for table in _arrow(opened))
            return
        parquet = _parquet(opened)
        stamp = stamp_if_large(file, engine)
        parts = [*_task_parts(_row_groups(parquet, opened))] if stamp else []
        room = max([_DECODED_BYTES, *(2 * sum(groups.size for groups in part) for part in parts)])
        # each task may hold its stored and its decoded bytes: so many that all stay within `_PARTS_BYTES`
        most, done = min(READERS, _PARTS_BYTES // (2 * room)), 0
        if stamp and len(parts) > 1 and most > 1:
            read = partial(_of_part, file, stamp, parquet.metadata, room)
            with closing(spread(engine, read, parts, file, most)) as read_parts:
                for blocks in read_parts:
                    if not blocks:  # its rows take far more memory than its bytes
                        break
                    yield from blocks
                    done += 1
            if done == len(parts) and stamp_of(file) != stamp:
                raise changed(file)
        rest = chain.from_iterable(parts[done:]) if stamp else _row_groups(parquet, opened)
        yield from map(TableBlock, _batches(parquet, rest, file.name))


@contextmanager
def _readable(file: SourceFile) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise SourceError(f"{file.name}: cannot be read as {file.format}: {str(error).splitlines()[0]}") from error


def _ordinary(table: pa.Table, name: str) -> pa.Table:
    """Return the table with views as ordinary lists and strings, JSON as strings, and unknown time zones as UTC.

    Raises:
        SourceError: two columns have the same name, or there are too many columns and fields.
        ArrowInvalid: the buffers are damaged, or views of lists hold far more than they take. Whether text is UTF-8 is
            not checked here.
    """
    _check_fields(table.schema, name)
    table = with_class_names(table)
    column, count = max(Counter(table.column_names).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise SourceError(f"{name}: two columns are named {column}")
    for column in table.columns:
        for array in column.chunks:
            _viewed_values(array)
        # as bytes, because text that is not UTF-8 must reject its row, not the file
        _of_type(column, _mapped(column.type, _as_bytes)).validate(full=_is_validatable(column.type))
    schema = pa.schema([field.with_type(_mapped(field.type, _plain)) for field in table.schema])
    return table if schema == table.schema else pa.table([_of_type(table[f.name], f.type) for f in schema], schema)


def _check_fields(schema: pa.Schema, name: str) -> None:
    """Refuse a table with too many columns and fields of structs, or with names that are too long: SourceError."""
    check_columns(len(schema), name)
    fields, count, characters = [*schema], 0, 0
    while fields:
        field = fields.pop()
        count, characters, kind = count + 1, characters + len(field.name), field.type
        while is_list(kind) and not pa.types.is_map(kind):
            kind = kind.value_type
        if pa.types.is_struct(kind):
            fields += kind
    check_columns(count, name, kind="columns and fields")
    if characters > _MAX_NAME_CHARACTERS:
        raise SourceError(
            f"{name}: the names of columns and fields have {characters:,} characters, but at most "
            f"{_MAX_NAME_CHARACTERS:,} are supported; shorten them"
        )


def _viewed_values(array: pa.Array) -> float:
    """Return how many innermost values views of lists hold, each counted as often as it is viewed; raise ArrowInvalid
    if these are far more than are stored."""
    kind = array.type
    if pa.types.is_struct(kind):
        return max([_viewed_values(array.field(index)) for index in range(kind.num_fields)], default=0.0)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _viewed_values(array.values)
    if not (pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)):
        return float(len(array))
    array.validate()  # sizes of buffers, before they are read
    stored, viewed = len(array.values), pc.sum(array.sizes).as_py() or 0
    # a list view can refer to the same values any number of times
    values = _viewed_values(array.values) * (viewed / max(stored, 1))
    if values > max(_MANY_VALUES, 2 * stored):
        raise pa.ArrowInvalid(f"views of lists hold {values:,.0f} values, but only {stored:,} are stored")
    return values


def _is_validatable(kind: pa.DataType) -> bool:
    """Return whether values can be fully validated. Dictionary indices below a null struct can be arbitrary."""
    return "dictionary" not in str(kind)


def _of_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    try:
        if not _CAST_INCORRECTLY.search(str(column.type)):
            return column.cast(kind)
    except pa.ArrowNotImplementedError:
        pass
    # slow, but right for the few types that Arrow's casts damage or lack
    return pa.chunked_array([pa.array(column.to_pylist(), kind)])


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.binary() if pa.types.is_string(kind) else pa.large_binary()
    return kind


def _plain(kind: pa.DataType) -> pa.DataType:
    if is_json(kind):
        return pa.string()
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return pa.string() if pa.types.is_string_view(kind) else pa.binary()
    if pa.types.is_timestamp(kind) and kind.tz:
        try:
            pa.scalar(0, kind).as_py()
        except (KeyError, ValueError):
            return pa.timestamp(kind.unit, "UTC")
    return kind


def _mapped(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with its leaves mapped, and list views as lists."""
    if pa.types.is_list_view(kind) or pa.types.is_list(kind):
        return pa.list_(_mapped(kind.value_type, leaf))
    if pa.types.is_large_list_view(kind) or pa.types.is_large_list(kind):
        return pa.large_list(_mapped(kind.value_type, leaf))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_mapped(field.type, leaf)) for field in kind])
    return leaf(kind)


def parse_table(table: pa.Table, name: str, large: Ints, limit: int) -> ParsedChunk:
    """Return a table's rows; rows that are too large, or have text that is not UTF-8, are rejected.

    Args:
        name: the file or split, for messages.
        large: int64, the rows that are larger than `limit` bytes.

    Raises:
        SourceError: nested values are damaged.
    """
    bad = np.zeros(table.num_rows, bool)
    for column in table.column_names:
        array = one_array(table[column])
        if (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)) and not _is_valid(array):
            values = array.cast(pa.binary()).to_pylist()
            bad |= np.array([value is not None and not is_utf8(value) for value in values], bool)
    # a row is rejected once: for its size, if it is too large
    bad[large] = False
    rejected = np.flatnonzero(bad)
    bad[large] = True
    rows = np.flatnonzero(~bad)
    kept = table.take(pa.array(rows)) if bad.any() else table
    try:
        for column in kept.columns:
            column.validate(full=_is_validatable(column.type))
    except pa.ArrowInvalid as error:
        raise SourceError(f"{name}: cannot be read: {str(error).splitlines()[0]}") from error
    message, excerpts = "a text value is not UTF-8", [""] * len(rejected)
    rejects = [reject_rows(rejected, "raw", "invalid_utf8", "", message, excerpts)] if len(rejected) else []
    if len(large):
        rejects.append(reject_too_large(large, limit, [""] * len(large)))
    return ParsedChunk.of(kept, rows, rejects)


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


class _Groups(NamedTuple):
    """Consecutive row groups that are read together, the rows per batch, and the bytes of their values."""

    groups: range
    rows: int
    size: int


def _parquet(opened: Any, metadata: Any = None) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(opened, metadata=metadata, pre_buffer=False)


def _batches(file: Any, row_groups: Iterable[_Groups], name: str) -> Iterator[pa.Table]:
    for groups in row_groups:
        for batch in file.iter_batches(groups.rows, groups.groups, use_threads=False):
            yield _ordinary(pa.Table.from_batches([batch]), name)


def _row_groups(file: Any, opened: Any) -> Iterator[_Groups]:
    inside = [index for index in range(len(file.schema)) if file.schema.column(index).max_repetition_level]
    # Only absurd files are read across groups: it changes the bytes of chunks, and fails for nested dictionaries.
    tiny = file.num_row_groups >= _MANY_GROUPS and file.metadata.num_rows < _TINY_GROUP_ROWS * file.num_row_groups
    step = _MANY_GROUPS if tiny and "dictionary" not in str(file.schema_arrow) else 1
    rows = size = 0
    for start in range(0, file.num_row_groups, step):
        groups = range(start, min(start + step, file.num_row_groups))
        described = [file.metadata.row_group(group) for group in groups]
        for group, index in product(range(len(described)), inside):
            _check_values(described[group].column(index), start + group)
        rows_here = sum(group.num_rows for group in described)
        size_here = sum(group.total_byte_size for group in described)
        rows, size = rows + rows_here, size + size_here
        _check_extent(rows, size)
        most = min(_rows(rows_here, size_here), _PARQUET_ROWS)
        yield _Groups(groups, min([most, *(_measured(file, opened, group) for group in groups)]), size_here)


def _measured(file: Any, opened: Any, group: int) -> int:
    """Return how many rows of a row group a batch can have; refuse texts that take far more than in the file."""
    described = file.metadata.row_group(group)
    columns = [described.column(index) for index in range(described.num_columns)]
    texts = [each for each in columns if each.physical_type == "BYTE_ARRAY"]
    if sum(each.num_values * each.total_uncompressed_size for each in texts) <= _UNPACKED:
        return BATCH_ROWS
    # a dictionary stores a text once for all rows that have it: a small file can hold more than fits into memory
    most = max(_UNPACKED, _UNPACKED_PER_BYTE * sum(each.total_compressed_size for each in columns))
    longest, total = 0, described.total_byte_size
    for each in texts:
        path = each.path_in_schema
        # the first value brings the whole dictionary; where the first rows have none, any text can be as long as all
        read = (next(_in_dictionaries(opened, file.metadata, group, path, rows), None) for rows in (1, _PARQUET_ROWS))
        lengths = next((pc.binary_length(part.dictionary) for part in read if part and len(part.dictionary)), None)
        longest_here = each.total_uncompressed_size if lengths is None else pc.max(lengths).as_py() or 0
        unpacked = longest_here * each.num_values
        if total + unpacked > most:
            parts = _in_dictionaries(opened, file.metadata, group, path, 1 << 16)
            sizes = (pc.sum(pc.binary_length(part.dictionary).take(part.indices)).as_py() for part in parts)
            unpacked = sum(size or 0 for size in sizes)
        longest, total = longest + longest_here, total + unpacked
        if total > most:
            raise pa.ArrowInvalid(
                f"row group {group} holds {total:,} bytes of {path} and others in {described.total_byte_size:,} bytes, "
                "too many to unpack; write the file without these columns, or as several"
            )
    return max(_BATCH_UNPACKED // max(longest, 1), 1)


def _in_dictionaries(opened: Any, metadata: Any, group: int, path: str, rows: int) -> Iterator[pa.DictionaryArray]:
    """Yield the texts of a column as indices into a dictionary, of `rows` rows at a time."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(opened, metadata=metadata, read_dictionary=[path], buffer_size=1 << 16, pre_buffer=False)
    for batch in file.iter_batches(rows, [group], columns=[path], use_threads=False):
        array: Any = batch.column(0)
        while not pa.types.is_dictionary(array.type):
            if not pa.types.is_nested(array.type):
                return  # not texts, such as decimals
            array = array.field(0) if pa.types.is_struct(array.type) else array.values
        yield array


def _task_parts(row_groups: Iterable[_Groups]) -> Iterator[list[_Groups]]:
    part, size = list[_Groups](), 0
    for groups in row_groups:
        part.append(groups)
        size += groups.size
        if size >= _PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _of_part(file: SourceFile, stamp: Sequence[Any], metadata: Any, room: int, part: list[_Groups]) -> list[TableBlock]:
    """Return the batches of some row groups, hashed; none if they take more than `room` bytes of memory."""
    if not file.remote and stamp_of(file) != stamp:
        raise changed(file)
    blocks = list[TableBlock]()
    with _readable(file), file.seekable() as opened:
        for table in _batches(_parquet(opened, metadata), part, file.name):
            blocks.append(TableBlock(table))
            room -= max(table.nbytes, int(blocks[-1].offsets[-1]))
            if room < 0:
                return []
    return blocks


def _check_extent(rows: int, size: int) -> None:
    """Refuse rows of far fewer bytes than rows of different values take: ArrowInvalid."""
    if rows > max(_MANY_ROWS, size * _ROWS_PER_BYTE):
        raise pa.ArrowInvalid(
            f"it holds {rows:,} rows in {size:,} bytes, too many to unpack; leave out rows that are empty or equal"
        )


def _check_values(column: Any, group: int) -> None:
    """Refuse a column inside lists that is many times larger than its bytes, as reading takes 16 bytes per value."""
    values, stored = column.num_values, max(column.total_uncompressed_size, 1)
    if values > max(_MANY_VALUES, stored * _VALUES_PER_BYTE):
        raise pa.ArrowInvalid(
            f"row group {group} holds {values:,} values of {column.path_in_schema} in {stored:,} bytes, too many to "
            "unpack; write the file without this column"
        )


def _arrow(opened: Any) -> Iterator[pa.Table]:
    try:
        batches: Any = pa.ipc.open_file(opened)
    except pa.ArrowInvalid:
        opened.seek(0)
        # a stream has no footer, and is read from the start
        yield from _record_batches(pa.ipc.open_stream(opened))
        return
    for whole in _record_batches(batches.get_batch(index) for index in range(batches.num_record_batches)):
        step = _rows(whole.num_rows, whole.nbytes)
        for start in range(0, whole.num_rows, step):
            yield whole.slice(start, step)


def _record_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    rows = size = 0
    for batch in batches:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        _check_extent(rows, size)
        yield pa.Table.from_batches([batch])


def _rows(rows: int, size: int) -> int:
    """Return the number of rows per batch, given the number and total bytes of some rows."""
    return min(max(rows * BATCH_BYTES // max(size, 1), 1), BATCH_ROWS)


def spans(bounds: Ints, room: int) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of consecutive rows of at most `room` units and `BATCH_ROWS` rows together, or one row.

    Args:
        bounds: int64 [rows + 1], ascending.
    """
    start, last = 0, len(bounds) - 1
    while start < last:
        end = max(int(np.searchsorted(bounds, bounds[start] + room, side="right")) - 1, start + 1)
        end = min(end, start + BATCH_ROWS, last)
        yield start, end
        start = end


def dataset_tables(dataset: Any) -> Iterator[pa.Table]:
    """Yield the rows of a `datasets.Dataset` or `IterableDataset` as tables."""
    first = next(iter(dataset.with_format("arrow").iter(100)), None)
    if first is not None:
        yield from map(with_class_names, dataset.with_format("arrow").iter(_rows(first.num_rows, first.nbytes)))
