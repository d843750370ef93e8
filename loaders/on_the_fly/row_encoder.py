"""Reads raw rows from any source, encodes them, and reports for each row without a sequence why it has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol, Union

import numpy as np
import pyarrow as pa

from tokenloom.errors import DataValidationError, TokenloomError
from tokenloom.loaders.reading.batch import IGNORED, Batch, PaddingPolicy
from tokenloom.loaders.reading.reader import InMemory, SequenceReader, per_token
from tokenloom.resources.tables.json_text import rows_table
from tokenloom.resources.tables.ragged import Ints, list_array, list_parts, sides
from tokenloom.resources.tables.sequence_schema import (
    DOCUMENT_LENGTHS,
    INPUT_IDS,
    LABEL,
    OF_TOKENS,
    PADDING,
    PER_TOKEN,
    POSITIONS,
    ROWS,
    TRAINED,
    WEIGHTS,
)

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
    # an unknown kind of step may count rows across shards
    by_shard = type(examples).__name__ in _SHARD_BY_SHARD and not getattr(examples, "with_indices", False)
    return by_shard and all(_is_read_by_shard(each) for each in inner if each is not None)


def _at_epoch(stream: Any, epoch: int) -> Any:
    """Set the epoch of a stream that was just derived from another, and return it."""
    stream.set_epoch(epoch)
    return stream


def _rows_of(block: pa.Table | Mapping[str, Sequence[Any]] | Iterable[Any]) -> Rows:
    if isinstance(block, pa.Table):
        return block
    if isinstance(block, Mapping):
        return [dict(zip(block, values, strict=True)) for values in zip(*block.values(), strict=True)]
    return list(block)


ROW = "_row"
FILTERED = "filtered"
"""Code of a row that the engine dropped without a reason, as `length.strategy: drop` does."""

HEAD_ROWS = 256
"""Number of first rows from which an engine learns the columns."""

_EXCERPT = 60
"""Characters of a rejected value that a message shows."""


class Encoder(Protocol):
    """Turns raw rows into sequences: a `PromptEngine`, or any object with such an `encode`.

    `encode` returns a table with one row per sequence and these columns:

    - `input_ids`: lists of integers.
    - `trained`: lists of 0 and 1; or `labels`: lists of `input_ids` or -100. Default: all tokens are trained.
    - `weights`: lists of float32. Default: 1 where trained.
    - `rows`: lists with the rows of `table` that the sequence consists of. Required unless each row is one sequence.
    - `document_lengths`: lists with the number of tokens of each of these rows.
    - `padding`: lists with how many of them, at the end, are padding. Default: none.
    - `label`: bool, for labelled rows.

    Pairs have all columns but `rows` twice, prefixed with `chosen_` and `rejected_`.

    These attributes are read if present: `rejects`, a table of the rows that the last call rejected, with `_row` (the
    row in `table`), `code` and `message`; `packed`, whether a sequence can consist of several rows; `whole_chunks`,
    whether the result for a row depends on the other rows of its table; `reads_json`, whether the lists and objects of
    rows that are mappings come as JSON columns (`pa.json_()`).
    """

    def encode(self, table: pa.Table) -> pa.Table: ...


@dataclass(frozen=True)
class SkippedRow:
    """A raw row without a sequence.

    Args:
        row: the row's number in the dataset or stream, or in its shard.
        code: the reject code, `filtered`, or the name of an exception.
        message: the reason.
        shard: the shard of the stream, if processes read whole shards; else None.
    """

    row: int
    code: str
    message: str
    shard: int | None = None

    def __str__(self) -> str:
        place = f"row {self.row}" if self.shard is None else f"row {self.row} of shard {self.shard}"
        return f"{place}: {self.code}: {self.message}"


class RowEncoder:
    """An engine that encodes raw rows with a fixed set of columns.

    Args:
        engine: an `Encoder`.
        head: the first rows of the data. They are encoded on construction, so that the engine can learn the columns
            before it is sent to other processes.
        loss_weights: whether rows have `loss_weights`; None: only if the first rows need them.

    Raises:
        ValueError: the engine has no `encode`.
        ConfigError: the engine's settings do not fit the columns.
    """

    def __init__(self, engine: Encoder, head: Rows, loss_weights: bool | None = None):
        if not callable(getattr(engine, "encode", None)):
            raise ValueError(f"prompt_engine must have a method encode(table); a {type(engine).__name__} has none")
        self.engine, self._weighted = engine, True
        self.packed = bool(getattr(engine, "packed", False))
        self.whole_chunks = bool(getattr(engine, "whole_chunks", False)) or self.packed
        tables = self.encode(head, np.arange(len(head)))[0] if len(head) else []
        self._weighted = any(map(_has_weights, tables)) if loss_weights is None else loss_weights

    def encode(self, rows: Rows, numbers: Ints, shard: int | None = None) -> tuple[list[pa.Table], list[SkippedRow]]:
        """Encode rows in one call; if that fails, halve them until the failing rows are isolated.

        Args:
            rows: the raw rows.
            numbers: the rows' numbers, int64 [rows].
            shard: the rows' shard, for messages.

        Returns:
            tables of sequences, whose `rows` contain these numbers, int64; and the rows without a sequence.

        Raises:
            TokenloomError: encoding fails for a reason other than the rows.
        """
        if not len(rows):
            return [], []
        try:
            table = to_table(rows, getattr(self.engine, "reads_json", False))
            encoded = self.engine.encode(table.drop_columns([ROW]) if ROW in table.column_names else table)
        except Exception as error:
            if isinstance(error, TokenloomError) and error.exit_code != DataValidationError.exit_code:
                raise
            # an engine raises for a batch: halving finds its bad rows in about log2(rows) calls each
            if len(rows) == 1:
                return [], [SkippedRow(int(numbers[0]), type(error).__name__, str(error), shard)]
            half = len(rows) // 2
            parts = [slice(0, half), slice(half, len(rows))]
            halves = [self.encode(rows[part], numbers[part], shard) for part in parts]
            return [table for tables, _ in halves for table in tables], [row for _, rows in halves for row in rows]
        sequences = _completed(encoded, len(rows))
        offsets, positions = list_parts(sequences[ROWS])
        used = positions.to_numpy()
        sequences = sequences.set_column(sequences.column_names.index(ROWS), ROWS, list_array(offsets, numbers[used]))
        return [self._with_weights(sequences)], self._skipped(used, numbers, shard)

    def reader(self, tables: Sequence[pa.Table]) -> SequenceReader:
        """Return a reader of tables that `encode` returned."""
        held = tuple(tables)
        names = per_token(held)
        rows = [table.num_rows for table in held]
        return SequenceReader(rows, lambda chunk: InMemory(held[chunk]), self._weighted, of_tokens=names)

    def batch(self, reader: SequenceReader, sequences: Ints) -> Batch:
        """Return sequences of a reader as a batch, padded to the longest."""
        return reader.batch(sequences, PaddingPolicy(0, "longest", "right", 1, self.packed))

    def _skipped(self, used: Any, numbers: Ints, shard: int | None) -> list[SkippedRow]:
        missing = np.ones(len(numbers), bool)
        missing[used] = False
        if not missing.any():
            return []
        rejects: Any = getattr(self.engine, "rejects", None)
        reasons = dict[int, tuple[str, str]]()
        if isinstance(rejects, pa.Table) and {ROW, "code", "message"} <= {*rejects.column_names}:
            for reject in rejects.to_pylist():
                field = f"{reject['field']}: " if reject.get("field") else ""
                excerpt = f" ({reject['excerpt'][:_EXCERPT]!r})" if reject.get("excerpt") else ""
                reasons[reject[ROW]] = (reject["code"], f"{field}{reject['message']}{excerpt}")
        no_reason = (FILTERED, "the engine built no sequence from it")
        positions = np.flatnonzero(missing).tolist()
        return [SkippedRow(int(numbers[at]), *reasons.get(at, no_reason), shard) for at in positions]

    def _with_weights(self, sequences: pa.Table) -> pa.Table:
        """Return sequences with weights if all tables have them, else without; a DataValidationError for weights that
        the first rows did not have."""
        if not self._weighted:
            if _has_weights(sequences):
                first = list_parts(sequences[ROWS])[1][0].as_py()
                raise DataValidationError(
                    f"rows from {first} on have token weights other than 0 and 1, but the first rows had none: pass "
                    "loss_weights=True"
                )
            return sequences
        for side in sides(sequences):
            prefix = f"{side}_" if side else ""
            if f"{prefix}{WEIGHTS}" not in sequences.column_names:
                weights = sequences[f"{prefix}{TRAINED}"].cast(pa.list_(pa.float32()))
                # tables that are merged need one order of columns
                place = sequences.column_names.index(f"{prefix}{DOCUMENT_LENGTHS}")  # as in tables that have weights
                sequences = sequences.add_column(place, f"{prefix}{WEIGHTS}", weights)
        return sequences


def _has_weights(sequences: pa.Table) -> bool:
    flat = [
        list_parts(side[WEIGHTS])[1].to_numpy() for side in sides(sequences).values() if WEIGHTS in side.column_names
    ]
    return any(bool(((weights != 0) & (weights != 1)).any()) for weights in flat)


def _completed(encoded: Any, rows: int) -> pa.Table:
    """Return an engine's result, with all columns of sequences; a DataValidationError if it is not such a table."""
    if not isinstance(encoded, pa.Table):
        raise DataValidationError(f"the engine's encode must return a pyarrow.Table, got a {type(encoded).__name__}")
    if POSITIONS in encoded.column_names:
        raise DataValidationError(
            "trees need a build, but these rows are encoded on the fly; set length.packing: best_fit"
        )
    columns: dict[str, pa.Array] = {}
    for side, part in sides(encoded).items():
        prefix = f"{side}_" if side else ""
        if INPUT_IDS not in part.column_names:
            raise DataValidationError(
                f"the engine's encode returned no column {prefix}{INPUT_IDS}, only {', '.join(encoded.column_names)}"
            )
        columns |= {f"{prefix}{name}": column for name, column in _sequence_columns(part, prefix).items()}
    if LABEL in encoded.column_names:
        columns[LABEL] = encoded[LABEL].cast(pa.bool_())
    if ROWS in encoded.column_names:
        columns[ROWS] = encoded[ROWS].cast(pa.list_(pa.int64()))
        positions = list_parts(columns[ROWS])[1].to_numpy()
        if len(positions) and not 0 <= positions.min() <= positions.max() < rows:
            raise DataValidationError(f"the engine's column rows has numbers outside the {rows} rows of its table")
    elif encoded.num_rows == rows:
        columns[ROWS] = list_array(np.arange(rows + 1), np.arange(rows))
    else:
        raise DataValidationError(
            f"the engine returned {encoded.num_rows} sequences for {rows} rows: it must list the rows of each in a "
            "column rows"
        )
    return pa.table(columns)


def _sequence_columns(part: pa.Table, prefix: str) -> dict[str, pa.Array]:
    """Return input_ids, trained, document_lengths and, if present, weights of one side."""
    ids_column = part[INPUT_IDS]
    kind = ids_column.type.value_type if pa.types.is_list(ids_column.type) else pa.int64()
    lists = {INPUT_IDS: ids_column.cast(pa.list_(kind))}
    offsets, ids = list_parts(lists[INPUT_IDS])
    if TRAINED in part.column_names:
        lists[TRAINED] = part[TRAINED].cast(pa.list_(pa.uint8()))
    elif "labels" in part.column_names:
        lists["labels"] = part["labels"].cast(pa.list_(pa.int64()))
    else:
        lists[TRAINED] = list_array(offsets, np.ones(len(ids), np.uint8))
    if WEIGHTS in part.column_names:
        lists[WEIGHTS] = part[WEIGHTS].cast(pa.list_(pa.float32()))
    lists |= {name: part[name].cast(OF_TOKENS) for name in part.column_names if name.startswith(PER_TOKEN)}
    for name, column in lists.items():
        if column.null_count or list_parts(column)[1].null_count:
            raise DataValidationError(f"the engine's column {prefix}{name} has nulls")
        if not np.array_equal(list_parts(column)[0], offsets):
            raise DataValidationError(f"the engine's column {prefix}{name} differs in length from {prefix}{INPUT_IDS}")
    if "labels" in lists:
        labels = list_parts(lists.pop("labels"))[1].to_numpy()
        trained = labels != IGNORED
        # shifted labels would be trained one token off, without an error
        if not np.array_equal(labels[trained], ids.to_numpy()[trained]):
            raise DataValidationError(f"the engine's {prefix}labels must be {IGNORED} or equal to {prefix}{INPUT_IDS}")
        lists[TRAINED] = list_array(offsets, trained.view(np.uint8))
    if DOCUMENT_LENGTHS in part.column_names:
        lists[DOCUMENT_LENGTHS] = part[DOCUMENT_LENGTHS].cast(pa.list_(pa.int32()))
    else:
        lists[DOCUMENT_LENGTHS] = list_array(np.arange(len(offsets)), np.diff(offsets).astype(np.int32))
    if PADDING in part.column_names:
        lists[PADDING] = part[PADDING].cast(pa.list_(pa.int32()))
        if not np.array_equal(list_parts(lists[PADDING])[0], list_parts(lists[DOCUMENT_LENGTHS])[0]):
            raise DataValidationError(
                f"the engine's column {prefix}{PADDING} differs in length from {prefix}{DOCUMENT_LENGTHS}"
            )
    return lists
