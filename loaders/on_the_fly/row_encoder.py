"""Encodes raw rows on the fly, and tells what became of each: a sequence, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tokenloom.errors import DataValidationError, TokenloomError
from tokenloom.loaders.collation.batch import IGNORED, Batch, PaddingPolicy
from tokenloom.loaders.on_the_fly.raw_rows import Rows, to_table
from tokenloom.loaders.reading.chunk import InMemory
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.resources.tables.preference_pairs import sides
from tokenloom.resources.tables.ragged import Ints, list_array, list_parts

ROW = "_row"
FILTERED = "filtered"
"""Code of a row of which the engine made nothing and said nothing, as length.strategy: drop does."""

HEAD_ROWS = 256
"""First rows that an engine is shown before any other."""

_EXCERPT = 60


class Encoder(Protocol):
    """What turns raw rows into sequences: a `PromptEngine`, or anything with such a method.

    `encode` returns a table with a row for each sequence: `input_ids`, lists of integers; `trained`, lists of 0 and 1
    (or `labels`, which are `input_ids` or -100; default: all tokens are trained); `weights`, lists of float32 (default:
    1 where trained); `rows`, lists of the positions in `table` that the sequence was made of (needed where these are
    not as many as those); `document_lengths`, lists of the tokens of each of them. Pairs have all but `rows` twice,
    under `chosen_` and `rejected_`; `label` is a bool for each.

    These attributes are read where there are any: `rejects`, a table of the rows that the last call left out, with
    `_row` (the position), `code` and `message`; `packed`, whether sequences hold several rows; `whole_chunks`, whether
    what becomes of a row depends on the others of its table.
    """

    def encode(self, table: pa.Table) -> pa.Table: ...


@dataclass(frozen=True)
class SkippedRow:
    """A raw row without a sequence.

    Args:
        row: its number in the dataset or stream; in the shard, where there is one.
        code: what is wrong with it, in one word.
        message: the same in a sentence.
        shard: of the stream, where processes read shards of their own.
    """

    row: int
    code: str
    message: str
    shard: int | None = None

    def __str__(self) -> str:
        place = f"row {self.row}" if self.shard is None else f"row {self.row} of shard {self.shard}"
        return f"{place}: {self.code}: {self.message}"


class RowEncoder:
    """An engine, and what its rows look like.

    Args:
        engine: an `Encoder`.
        head: the first rows of the data, encoded at once: an engine may learn the columns from them, before it is sent
            to other processes.
        loss_weights: whether rows have `loss_weights`; None: where the first ones need them.

    Raises:
        ValueError: the engine has no `encode`.
        ConfigError: its settings do not suit the columns.
    """

    def __init__(self, engine: Encoder, head: Rows, loss_weights: bool | None = None):
        if not callable(getattr(engine, "encode", None)):
            raise ValueError(f"prompt_engine: a {type(engine).__name__} has no method encode(table)")
        self.engine, self._weighted = engine, True
        self.packed = bool(getattr(engine, "packed", False))
        self.whole_chunks = bool(getattr(engine, "whole_chunks", False)) or self.packed
        tables = self.encode(head, np.arange(len(head)))[0] if len(head) else []
        self._weighted = any(map(_has_weights, tables)) if loss_weights is None else loss_weights

    def encode(self, rows: Rows, numbers: Ints, shard: int | None = None) -> tuple[list[pa.Table], list[SkippedRow]]:
        """Encode rows at once; where that fails, fewer at a time, down to the rows that make it fail.

        Args:
            numbers: int64 [rows], by which they are named.

        Returns:
            tables of sequences, whose `rows` hold those numbers, int64; and the rows without one.

        Raises:
            TokenloomError: it is not for the rows that encoding fails.
        """
        if not len(rows):
            return [], []
        try:
            table = to_table(rows)
            made = self.engine.encode(table.drop_columns([ROW]) if ROW in table.column_names else table)
        except Exception as error:
            if isinstance(error, TokenloomError) and error.exit_code != DataValidationError.exit_code:
                raise
            if len(rows) == 1:
                return [], [SkippedRow(int(numbers[0]), type(error).__name__, str(error), shard)]
            half = len(rows) // 2
            parts = [slice(0, half), slice(half, len(rows))]
            halves = [self.encode(rows[part], numbers[part], shard) for part in parts]
            return [made for tables, _ in halves for made in tables], [row for _, skipped in halves for row in skipped]
        sequences = _in_full(made, len(rows))
        offsets, positions = list_parts(sequences["rows"])
        used = positions.to_numpy()
        sequences = sequences.set_column(
            sequences.column_names.index("rows"), "rows", list_array(offsets, numbers[used])
        )
        return [self._with_weights(sequences)], self._skipped(used, numbers, shard)

    def reader(self, tables: Sequence[pa.Table]) -> SequenceReader:
        """A reader of sequences that were made here."""
        held = tuple(tables)
        return SequenceReader([table.num_rows for table in held], lambda chunk: InMemory(held[chunk]), self._weighted)

    def batch(self, reader: SequenceReader, sequences: Ints) -> Batch:
        """Sequences of a reader, as long as the longest."""
        return reader.batch(sequences, PaddingPolicy(0, "longest", "right", 1, self.packed))

    def _skipped(self, used: Any, numbers: Ints, shard: int | None) -> list[SkippedRow]:
        """The rows that are not used, with the engine's reasons where it has any."""
        missing = np.ones(len(numbers), bool)
        missing[used] = False
        if not missing.any():
            return []
        reasons = _reasons(getattr(self.engine, "rejects", None))
        unsaid = (FILTERED, "the engine made no sequence of it")
        places = np.flatnonzero(missing).tolist()
        return [SkippedRow(int(numbers[place]), *reasons.get(place, unsaid), shard) for place in places]

    def _with_weights(self, made: pa.Table) -> pa.Table:
        """Tables alike: all with weights or none."""
        if not self._weighted:
            if _has_weights(made):
                first = list_parts(made["rows"])[1][0].as_py()
                raise DataValidationError(
                    f"rows from {first} on have tokens of other weights than 0 and 1, which the first rows had not: "
                    "give loss_weights=True"
                )
            return made
        for side in sides(made):
            name, trained = (f"{side}_weights", f"{side}_trained") if side else ("weights", "trained")
            if name not in made.column_names:
                made = made.append_column(name, made[trained].cast(pa.list_(pa.float32())))
        return made


def _has_weights(made: pa.Table) -> bool:
    """Whether any token of a table weighs other than 0 and 1."""
    flat = [
        list_parts(side["weights"])[1].to_numpy() for side in sides(made).values() if "weights" in side.column_names
    ]
    return any(bool(((weights != 0) & (weights != 1)).any()) for weights in flat)


def _reasons(rejects: Any) -> dict[int, tuple[str, str]]:
    """Code and message of rejected rows, by position."""
    if not isinstance(rejects, pa.Table) or not {ROW, "code", "message"} <= {*rejects.column_names}:
        return {}
    found = {}
    for reject in rejects.to_pylist():
        where = f"{reject['field']}: " if reject.get("field") else ""
        shown = f" ({reject['excerpt'][:_EXCERPT]!r})" if reject.get("excerpt") else ""
        found[reject[ROW]] = (reject["code"], f"{where}{reject['message']}{shown}")
    return found


def _in_full(made: Any, rows: int) -> pa.Table:
    """What an engine returned, with all columns of sequences.

    Raises:
        DataValidationError: it cannot be told what it means.
    """
    if not isinstance(made, pa.Table):
        raise DataValidationError(f"the engine's encode returned a {type(made).__name__}, not a pyarrow.Table")
    columns: dict[str, pa.Array] = {}
    for side, part in sides(made).items():
        prefix = f"{side}_" if side else ""
        if "input_ids" not in part.column_names:
            raise DataValidationError(
                f"the engine's encode returned no column {prefix}input_ids, only {', '.join(made.column_names)}"
            )
        columns |= {f"{prefix}{name}": column for name, column in _sequence_columns(part, prefix).items()}
    if "label" in made.column_names:
        columns["label"] = made["label"].cast(pa.bool_())
    if "rows" in made.column_names:
        columns["rows"] = made["rows"].cast(pa.list_(pa.int64()))
        named = list_parts(columns["rows"])[1].to_numpy()
        if len(named) and not 0 <= named.min() <= named.max() < rows:
            raise DataValidationError(f"the engine's column rows names rows that are none of the {rows} of its table")
    elif made.num_rows == rows:
        columns["rows"] = list_array(np.arange(rows + 1), np.arange(rows))
    else:
        raise DataValidationError(
            f"the engine made {made.num_rows} sequences of a table of {rows}: a column rows must say of which rows"
        )
    return pa.table(columns)


def _sequence_columns(part: pa.Table, prefix: str) -> dict[str, pa.Array]:
    """input_ids, trained, document_lengths and maybe weights of one side."""
    given = part["input_ids"]
    kind = given.type.value_type if pa.types.is_list(given.type) else pa.int64()
    lists = {"input_ids": given.cast(pa.list_(kind))}
    offsets, ids = list_parts(lists["input_ids"])
    if "trained" in part.column_names:
        lists["trained"] = part["trained"].cast(pa.list_(pa.uint8()))
    elif "labels" in part.column_names:
        lists["labels"] = part["labels"].cast(pa.list_(pa.int64()))
    else:
        lists["trained"] = list_array(offsets, np.ones(len(ids), np.uint8))
    if "weights" in part.column_names:
        lists["weights"] = part["weights"].cast(pa.list_(pa.float32()))
    for name, column in lists.items():
        if column.null_count or list_parts(column)[1].null_count:
            raise DataValidationError(f"the engine's column {prefix}{name} has nulls")
        if not np.array_equal(list_parts(column)[0], offsets):
            raise DataValidationError(f"the engine's column {prefix}{name} is not as long as {prefix}input_ids")
    if "labels" in lists:
        labels = list_parts(lists.pop("labels"))[1].to_numpy()
        trained = labels != IGNORED
        if not np.array_equal(labels[trained], ids.to_numpy()[trained]):
            raise DataValidationError(f"the engine's {prefix}labels are neither {IGNORED} nor {prefix}input_ids")
        lists["trained"] = list_array(offsets, trained.view(np.uint8))
    if "document_lengths" in part.column_names:
        lists["document_lengths"] = part["document_lengths"].cast(pa.list_(pa.int32()))
    else:
        lists["document_lengths"] = list_array(np.arange(len(offsets)), np.diff(offsets).astype(np.int32))
    return lists
