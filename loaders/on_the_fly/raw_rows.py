"""Reads raw rows from any source: Hugging Face datasets as Arrow tables, anything else as mappings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Union

import pyarrow as pa

from tokenloom.resources.tables.json_text import rows_table
from tokenloom.resources.tables.ragged import Ints

Rows = Union[pa.Table, list[Any]]
"""Raw rows: a table, or a list of mappings."""

_SHARD_BY_SHARD = {
    "ArrowExamplesIterable",
    "BufferShuffledExamplesIterable",
    "ExamplesIterable",
    "FilteredExamplesIterable",
    "FormattedExamplesIterable",
    "MappedExamplesIterable",
    "RebatchedArrowExamplesIterable",
    "SelectColumnsIterable",
    "VerticallyConcatenatedMultiSourcesExamplesIterable",
}
"""Parts of a Hugging Face stream that allow it to be read shard by shard. Others, such as `take`, do not."""


def rows_at(rows: Any, numbers: Ints) -> Rows:
    """Return the rows with these numbers, int64, from a table, a Hugging Face dataset, or any map-style dataset."""
    if isinstance(rows, pa.Table):
        return rows.take(pa.array(numbers))
    if hasattr(rows, "with_format"):
        return _rows_of(rows[numbers.tolist()])
    return [rows[number] for number in numbers.tolist()]


def blocks_of(source: Any, size: int) -> Iterator[Rows]:
    """Yield all rows of a source, `size` at a time. Does not divide a Hugging Face stream among worker processes."""
    if isinstance(source, pa.Table):
        yield from (source.slice(begin, size) for begin in range(0, source.num_rows, size))
    elif hasattr(source, "with_format"):
        yield from map(_rows_of, source.iter(batch_size=size))
    else:
        rows = iter(source)
        while block := list(islice(rows, size)):
            yield block


def in_columns(source: Any) -> Any:
    """Check a source, and return it. Hugging Face datasets that store Arrow tables are set to return them.

    Raises:
        ValueError: it is not a dataset, is several datasets, or can be read only once.
    """
    if isinstance(source, Mapping):
        raise ValueError(f"got several datasets: pass one of {', '.join(map(repr, source))}")
    if isinstance(source, Iterator):
        raise ValueError(
            "an iterator can be read only once: pass an iterable that can be read again, such as "
            "datasets.IterableDataset.from_generator"
        )
    if isinstance(source, (str, bytes)) or not (hasattr(source, "__iter__") or hasattr(source, "__getitem__")):
        raise ValueError(f"expected rows that are mappings, or a Hugging Face dataset, got a {type(source).__name__}")
    if not hasattr(source, "with_format"):
        return source
    if not _is_stream(source):
        transformed = source.format["type"] == "custom"
        return source if transformed else source.with_format("arrow")
    # converting a stream of Python rows to Arrow would fail for whole blocks at a time
    return _at_epoch(source.with_format("arrow" if source._ex_iterable.iter_arrow else None), source.epoch)


def shards_of(source: Any) -> int:
    """Return the number of shards of a Hugging Face stream, or 1 if it cannot be read shard by shard."""
    return source.num_shards if _is_stream(source) and _is_read_by_shard(source._ex_iterable) else 1


def shard_of(stream: Any, number: int) -> Any:
    """Return one shard of a Hugging Face stream."""
    return _at_epoch(stream.shard(stream.num_shards, number), stream.epoch)


def to_table(rows: Rows, as_json: bool = False) -> pa.Table:
    """Return rows as a table with every column that any row has.

    Args:
        as_json: whether mappings get JSON columns for lists, objects and values of several kinds, which hold
            them unchanged; else Arrow infers a common type.

    Raises:
        TypeError: a row is not a mapping.
        pyarrow.ArrowInvalid: the values of a column have no common type.
    """
    if isinstance(rows, pa.Table):
        return rows
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"a row must be a mapping from columns to values, got {type(row).__name__}")
    if as_json:
        return rows_table(rows)
    names = dict.fromkeys(chain.from_iterable(rows))
    return pa.table({str(name): [row.get(name) for row in rows] for name in names})


def _is_stream(source: Any) -> bool:
    return hasattr(source, "_ex_iterable")


def _is_read_by_shard(examples: Any) -> bool:
    inner = getattr(examples, "ex_iterables", None) or [getattr(examples, "ex_iterable", None)]
    known = type(examples).__name__ in _SHARD_BY_SHARD and not getattr(examples, "with_indices", False)
    return known and all(_is_read_by_shard(each) for each in inner if each is not None)


def _at_epoch(stream: Any, epoch: int) -> Any:
    """Set the epoch of a stream that was just derived from another, and return it."""
    stream.set_epoch(epoch)
    return stream


def _rows_of(block: pa.Table | Mapping[str, Sequence[Any]] | Iterable[Any]) -> Rows:
    """Return the rows in what a Hugging Face dataset returns for several rows."""
    if isinstance(block, pa.Table):
        return block
    if isinstance(block, Mapping):
        return [dict(zip(block, values, strict=True)) for values in zip(*block.values(), strict=True)]
    return list(block)
