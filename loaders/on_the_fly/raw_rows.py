"""Raw rows of whatever holds them: Hugging Face datasets as Arrow tables, anything else as mappings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Union

import pyarrow as pa

from tokenloom.resources.tables.ragged import Ints

Rows = Union[pa.Table, list[Any]]
"""Some rows: a table, or mappings."""

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
"""What a Hugging Face stream may be made of so that its shards hold its rows: `take` takes others of each shard."""


def rows_at(rows: Any, numbers: Ints) -> Rows:
    """The rows with these numbers, int64, of a table, a Hugging Face dataset, or anything with `__getitem__`."""
    if isinstance(rows, pa.Table):
        return rows.take(pa.array(numbers))
    if hasattr(rows, "with_format"):
        return _rows_of(rows[numbers.tolist()])
    return [rows[number] for number in numbers.tolist()]


def blocks_of(source: Any, size: int) -> Iterator[Rows]:
    """All rows of a source, `size` at a time. A Hugging Face stream is not divided among worker processes here."""
    if isinstance(source, pa.Table):
        yield from (source.slice(begin, size) for begin in range(0, source.num_rows, size))
    elif hasattr(source, "with_format"):
        yield from map(_rows_of, source.iter(batch_size=size))
    else:
        rows = iter(source)
        while block := list(islice(rows, size)):
            yield block


def in_columns(source: Any) -> Any:
    """The source; a Hugging Face dataset so that it gives Arrow tables, where it holds such.

    Raises:
        ValueError: it is no single dataset, or can be read only once.
    """
    if isinstance(source, Mapping):
        raise ValueError(f"this is several datasets: choose one of {', '.join(map(repr, source))}")
    if isinstance(source, Iterator):
        raise ValueError(
            "an iterator can be read only once: give what makes one anew, such as "
            "datasets.IterableDataset.from_generator"
        )
    if isinstance(source, (str, bytes)) or not (hasattr(source, "__iter__") or hasattr(source, "__getitem__")):
        raise ValueError(f"a {type(source).__name__} is no dataset: give rows as mappings, or a Hugging Face dataset")
    if not hasattr(source, "with_format"):
        return source
    if not _is_stream(source):
        transformed = source.format["type"] == "custom"
        return source if transformed else source.with_format("arrow")
    # a stream of Python rows would be converted in blocks that fail as a whole
    return _at_epoch(source.with_format("arrow" if source._ex_iterable.iter_arrow else None), source.epoch)


def shards_of(source: Any) -> int:
    """How many shards a Hugging Face stream has that together hold its rows; 1 where that is not known."""
    return source.num_shards if _is_stream(source) and _is_read_by_shard(source._ex_iterable) else 1


def shard_of(stream: Any, number: int) -> Any:
    """A shard of a Hugging Face stream."""
    return _at_epoch(stream.shard(stream.num_shards, number), stream.epoch)


def to_table(rows: Rows) -> pa.Table:
    """A table of rows, with every column that any of them has.

    Raises:
        TypeError: a row is no mapping.
        pyarrow.ArrowInvalid: the values of a column have no common type.
    """
    if isinstance(rows, pa.Table):
        return rows
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"a row is a mapping from columns to values, not {type(row).__name__}")
    names = dict.fromkeys(chain.from_iterable(rows))
    return pa.table({str(name): [row.get(name) for row in rows] for name in names})


def _is_stream(source: Any) -> bool:
    return hasattr(source, "_ex_iterable")


def _is_read_by_shard(examples: Any) -> bool:
    inner = getattr(examples, "ex_iterables", None) or [getattr(examples, "ex_iterable", None)]
    known = type(examples).__name__ in _SHARD_BY_SHARD and not getattr(examples, "with_indices", False)
    return known and all(_is_read_by_shard(each) for each in inner if each is not None)


def _at_epoch(stream: Any, epoch: int) -> Any:
    """A stream just derived from another, at that one's epoch."""
    stream.set_epoch(epoch)
    return stream


def _rows_of(found: pa.Table | Mapping[str, Sequence[Any]] | Iterable[Any]) -> Rows:
    """What a Hugging Face dataset gives of several rows."""
    if isinstance(found, pa.Table):
        return found
    if isinstance(found, Mapping):
        return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
    return list(found)
