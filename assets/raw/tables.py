"""Tables that come as Arrow: Parquet and Arrow files, `datasets`; cut by the hashes of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.assets.raw.cut import Hashes, hash_rows
from tokenloom.errors import SourceError
from tokenloom.resources.ragged import Ints
from tokenloom.resources.source_file import SourceFile

BATCH_ROWS = 10_000
BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class TableBlock:
    """Rows of a table, ready to be cut."""

    table: pa.Table

    @cached_property
    def _hashed(self) -> tuple[Hashes, Ints]:
        return hash_rows(self.table)

    @property
    def hashes(self) -> Hashes:
        return self._hashed[0]

    @property
    def sizes(self) -> Ints:
        return self._hashed[1]

    def slice(self, begin: int, end: int) -> TableBlock:
        part = TableBlock(self.table.slice(begin, end - begin).combine_chunks())
        part.__dict__["_hashed"] = (self.hashes[begin:end], self.sizes[begin:end])
        return part

    @staticmethod
    def join(blocks: list[TableBlock]) -> TableBlock:
        tables = [block.table for block in blocks]
        whole = TableBlock(pa.concat_tables(tables, promote_options="permissive").combine_chunks())
        hashed = [block._hashed for block in blocks]
        whole.__dict__["_hashed"] = tuple(np.concatenate(parts) for parts in zip(*hashed, strict=True))
        return whole


def read_tables(file: SourceFile) -> Iterator[pa.Table]:
    """The batches of a Parquet or Arrow file; memory is bounded by its row groups.

    Raises:
        SourceError: it is not readable as what its format says.
    """
    try:
        with file.seekable() as opened:
            yield from _parquet(opened) if file.format == "parquet" else _arrow(opened)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise SourceError(f"{file.name}: not readable as {file.format}: {str(error).splitlines()[0]}") from error


def _parquet(opened: Any) -> Iterator[pa.Table]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(opened, pre_buffer=False)
    for group in range(file.num_row_groups):  # batches across groups cannot hold nested dictionaries
        held = file.metadata.row_group(group)
        for batch in file.iter_batches(_rows(held.num_rows, held.total_byte_size), [group], use_threads=False):
            yield pa.Table.from_batches([batch])


def _arrow(opened: Any) -> Iterator[pa.Table]:
    try:
        batches: Any = pa.ipc.open_file(opened)
    except pa.ArrowInvalid:
        opened.seek(0)
        yield from (pa.Table.from_batches([batch]) for batch in pa.ipc.open_stream(opened))
        return
    for index in range(batches.num_record_batches):
        whole = pa.Table.from_batches([batches.get_batch(index)])
        step = _rows(whole.num_rows, whole.nbytes)
        for start in range(0, whole.num_rows, step):
            yield whole.slice(start, step)


def _rows(rows: int, size: int) -> int:
    """How many of some rows make a batch."""
    return min(max(rows * BATCH_BYTES // max(size, 1), 1), BATCH_ROWS)


def dataset_tables(dataset: Any) -> Iterator[pa.Table]:
    """A `datasets.Dataset`, or an iterable one, as tables of blocks of rows."""
    first = next(iter(dataset.with_format("arrow").iter(100)), None)
    if first is not None:
        yield from dataset.with_format("arrow").iter(_rows(first.num_rows, first.nbytes))
