"""Collate functions for rows of any dataset: a list of dicts in, a padded batch out.

`TokenLoader` needs none of this: it reads batches of built datasets as a whole.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from tokenloom.errors import DataValidationError
from tokenloom.loaders.reading.batch import IGNORED, Padding, PaddingPolicy, to_tensors
from tokenloom.resources.tables.ragged import Ints, offsets_of, ranges


class OutputColumn:
    """The dtype and the pad value of one column of a batch.

    Args:
        dtype: a NumPy or torch dtype, or its name: integers, bool, or floats of 16 to 64 bits.
        pad_value: fills rows up to the batch's length; a value of this dtype.

    Raises:
        ValueError: the dtype is not supported, or cannot represent the pad value.
    """

    def __init__(self, dtype: npt.DTypeLike | torch.dtype, pad_value: float):
        try:
            of_numpy = torch.empty(0, dtype=dtype).numpy().dtype if isinstance(dtype, torch.dtype) else np.dtype(dtype)
            torch.from_numpy(np.empty(0, of_numpy))
        except TypeError:
            of_numpy = np.dtype(object)
        if of_numpy.kind not in "biuf":
            raise ValueError(
                f"dtype must be a number type of both NumPy and torch, such as 'int64' or 'float32', got {dtype!r}"
            )
        self.dtype: np.dtype[Any] = of_numpy
        self.pad_value = pad_value
        try:
            self.cast(np.array(pad_value))
        except ValueError:
            raise ValueError(f"pad value {pad_value} does not fit dtype {of_numpy}") from None

    def cast(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return numbers in this dtype, or in one that converts to it; only floats can lose precision.

        Raises:
            ValueError: a number does not fit this dtype.
        """
        if (
            values.dtype == self.dtype
            or np.can_cast(values.dtype, self.dtype)
            or (self.dtype.kind == "f" and values.dtype.kind in "biuf")
        ):
            return values
        if values.dtype.kind not in "biuf":
            other = next((value for value in values.flat if not isinstance(value, int | float)), None)
            found = "text" if values.dtype.kind in "US" else "None" if other is None else f"a {type(other).__name__}"
            raise ValueError(f"contains {found} instead of numbers")
        with np.errstate(invalid="ignore"):
            cast = values.astype(self.dtype)
        # by comparison after the cast: NaN and numbers out of range differ too
        if not np.array_equal(cast, values):
            raise ValueError(f"contains {values[cast != values].flat[0]}, which does not fit dtype {self.dtype}")
        return cast

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputColumn) and (self.dtype, self.pad_value) == (other.dtype, other.pad_value)

    def __hash__(self) -> int:
        return hash((self.dtype, self.pad_value))

    def __repr__(self) -> str:
        return f"OutputColumn({str(self.dtype)!r}, {self.pad_value})"


class OutputSchema(Mapping[str, OutputColumn]):
    """The columns that a batch can have: a mapping from names to `OutputColumn`. `|` merges schemas.

    Args:
        columns: `(dtype, pad_value)` or an `OutputColumn` for each name.

    Raises:
        ValueError: a dtype is not supported, or cannot represent its pad value.
    """

    def __init__(self, columns: Mapping[str, OutputColumn | tuple[npt.DTypeLike | torch.dtype, float]]):
        self._columns: dict[str, OutputColumn] = {}
        for name, column in columns.items():
            try:
                self._columns[name] = column if isinstance(column, OutputColumn) else OutputColumn(*column)
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}") from None

    @classmethod
    def default(cls, pad_token_id: int = 0, label_pad_token_id: int = IGNORED) -> OutputSchema:
        """Return the usual columns.

        int64 `input_ids`, `attention_mask`, `labels`, `position_ids`, `token_type_ids`, `special_tokens_mask`,
        `decoder_input_ids` and `decoder_attention_mask`, and float32 `loss_weights`. All but the ids and labels are
        padded with 0.

        Args:
            pad_token_id: pads `input_ids` and `decoder_input_ids`.
            label_pad_token_id: pads `labels`.
        """
        zero = ("attention_mask", "position_ids", "token_type_ids", "special_tokens_mask", "decoder_attention_mask")
        fill = {"input_ids": pad_token_id, "decoder_input_ids": pad_token_id, "labels": label_pad_token_id}
        columns = {name: ("int64", value) for name, value in {**fill, **dict.fromkeys(zero, 0)}.items()}
        return cls({**columns, "loss_weights": ("float32", 0)})

    def __getitem__(self, name: str) -> OutputColumn:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __or__(self, other: Mapping[str, OutputColumn | tuple[npt.DTypeLike | torch.dtype, float]]) -> OutputSchema:
        """Return these columns and those of `other`, which takes precedence."""
        return OutputSchema({**self._columns, **other})

    def __repr__(self) -> str:
        return f"OutputSchema({self._columns})"


Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class RowColumn:
    """One column of all rows of a batch.

    Args:
        values: the concatenated rows, [sum(lengths)]; or [rows], with a single number per row.
        lengths: length of each row, int64 [rows]; or None for single numbers.
    """

    values: npt.NDArray[Any]
    lengths: Ints | None

    def first(self, most: int) -> RowColumn:
        """Return at most the first `most` values of each row."""
        if self.lengths is None or int(self.lengths.max(initial=0)) <= most:
            return self
        shorter = np.minimum(self.lengths, most)
        return RowColumn(self.values[ranges(offsets_of(self.lengths)[:-1], shorter)], shorter)


def column_names(rows: Rows) -> list[str]:
    """Return the columns of the rows, which must all have the same ones.

    Raises:
        DataValidationError: `rows` is empty, a row is not a dict, or the columns of two rows differ.
    """
    if not len(rows):
        raise DataValidationError("the batch has no rows; collate at least one")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataValidationError(f"row {number} of the batch must be a dict of columns, got {type(row).__name__}")
        if row.keys() != rows[0].keys():
            names = ", ".join(sorted(map(repr, row.keys() ^ rows[0].keys())))
            raise DataValidationError(
                f"rows 0 and {number} of the batch differ in {names}; all rows of a batch need the same columns"
            )
    return list(rows[0])


def read_columns(rows: Rows, schema: Mapping[str, OutputColumn]) -> dict[str, RowColumn]:
    """Return all columns of rows by name, without those that are None in every row.

    Raises:
        DataValidationError: the rows differ in columns, a column is not in the schema, or a value does not fit its
            dtype.
    """
    columns = {}
    for name in column_names(rows):
        values = [row[name] for row in rows]
        # as datasets gives columns that only other rows of a mixture have
        if values[0] is None and all(value is None for value in values):
            continue
        if name not in schema:
            raise DataValidationError(
                f"column {name!r} is not in the schema: add it with dtype and pad value, such as "
                f"schema={{{name!r}: ('int64', 0)}}, or remove it from the rows"
            )
        columns[name] = _column(name, values, schema[name])
    return columns


def _column(name: str, values: list[Any], column: OutputColumn) -> RowColumn:
    lengths = np.fromiter(map(len, values), np.int64, len(values)) if {*map(type, values)} == {list} else None
    if lengths is not None and (flat := _of_lists(values, column)) is not None:
        return RowColumn(flat, lengths)
    arrays, dimensions = [], -1
    for number, value in enumerate(values):
        try:
            cast = column.cast(_array(value))
            if dimensions not in (-1, cast.ndim) or cast.ndim > 1:
                raise ValueError(f"has {cast.ndim} dimensions; rows need a list of numbers each, or a single one each")
        except (ValueError, TypeError) as error:
            raise DataValidationError(f"column {name!r}, row {number} of the batch: {error}") from None
        dimensions = cast.ndim
        arrays.append(cast)
    if dimensions == 0:
        return RowColumn(np.stack(arrays).astype(column.dtype), None)
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    return RowColumn(np.concatenate(arrays, dtype=column.dtype, casting="same_kind"), lengths)


def _of_lists(values: list[list[Any]], column: OutputColumn) -> npt.NDArray[Any] | None:
    """Return the concatenated numbers of lists, or None if a number does not fit the dtype."""
    flat = array("d" if column.dtype.kind == "f" else "q")
    try:
        for value in values:  # several times faster than np.array, and refuses floats for integers
            flat.fromlist(value)
        return column.cast(np.frombuffer(flat, flat.typecode)).astype(column.dtype, copy=False)
    except (TypeError, OverflowError, ValueError):
        return None


def _array(value: Any) -> npt.NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, torch.Tensor):
        return value.numpy(force=True)
    if isinstance(value, pa.Scalar):
        value = value.values if isinstance(value, pa.ListScalar) else value.as_py()
    return np.asarray(value)


Side = Literal["left", "right"]
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class RowPadding:
    """How rows are padded and truncated.

    Args:
        padding: `longest`: to the longest row of the batch; `max_length`: to the limit; or an integer: to the longest
            row, rounded up to a multiple of it. None: `max_length` if there is a limit, else `longest`.
        side: the side on which rows are padded.
        limit: maximum length of a row; None: no limit.
        truncation: keep the first `limit` tokens of longer rows instead of raising.
        argument: the limit's name in messages.

    Raises:
        ValueError: an argument is out of range, or padding or truncation need a limit and `limit` is None.
    """

    padding: Padding | None = None
    side: Side = "right"
    limit: int | None = None
    truncation: bool = False
    argument: str = "max_length"

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"{self.argument} must be at least 1, got {self.limit}")
        if self.limit is None and (self.truncation or self.padding == "max_length"):
            raise ValueError(f"pass {self.argument}=, the length to pad or truncate to")
        self._policy()

    def _policy(self) -> PaddingPolicy:
        padding = self.padding if self.padding is not None else "max_length" if self.limit else "longest"
        return PaddingPolicy(0, padding, self.side, self.limit or 1, packed=False)

    def padded(
        self, columns: Mapping[str, RowColumn], first: str, mask: str, schema: Mapping[str, OutputColumn]
    ) -> Arrays:
        """Return each column of lists as [rows, width], and each column of single numbers as [rows].

        Args:
            columns: the columns of the batch.
            first: the column whose lengths all columns of lists must have.
            mask: name of the attention mask. If it is not in `columns`, it is added, 1 for all tokens of a row;
                otherwise `labels` are set to their pad value where it is 0.
            schema: dtype and pad value of each column.

        Raises:
            DataValidationError: columns of a row differ in length, or a row is longer than the limit.
        """
        lengths = columns[first].lengths if first in columns else None
        if lengths is None:
            raise DataValidationError(
                f"rows need a list {first!r}, but their columns are {', '.join(columns) or 'none'}"
            )
        for name, column in columns.items():
            if column.lengths is not None and not np.array_equal(column.lengths, lengths):
                row = int(np.flatnonzero(column.lengths != lengths)[0])
                raise DataValidationError(
                    f"row {row} of the batch has {column.lengths[row]} values in {name!r}, but {lengths[row]} in "
                    f"{first!r}"
                )
        if self.limit is not None and int(lengths.max()) > self.limit:
            columns, lengths = self._truncated(columns, lengths, self.limit)
        width = int(self._policy().width(lengths.max(initial=1)))
        places, ends = np.arange(width), lengths[:, None]
        not_padding = places < ends if self.side == "right" else places >= width - ends
        batch: Arrays = {}
        for name, column in columns.items():
            if column.lengths is None:
                batch[name] = column.values
            else:
                # a mask takes values row by row: the concatenated rows are in that order
                batch[name] = np.full(not_padding.shape, schema[name].pad_value, schema[name].dtype)
                batch[name][not_padding] = column.values
        if mask not in batch:
            batch[mask] = not_padding.astype(schema[mask].dtype)
        elif "labels" in batch and batch["labels"].ndim == 2:
            batch["labels"][batch[mask] == 0] = schema["labels"].pad_value
        return batch

    def _truncated(
        self, columns: Mapping[str, RowColumn], lengths: Ints, limit: int
    ) -> tuple[Mapping[str, RowColumn], Ints]:
        if not self.truncation:
            row = int(lengths.argmax())
            raise DataValidationError(
                f"row {row} of the batch has {lengths[row]} tokens, but {self.argument} is {limit}; "
                f"shorten the rows, or pass truncation=True to keep the first {limit} tokens of each"
            )
        return {name: column.first(limit) for name, column in columns.items()}, np.minimum(lengths, limit)


Columns = Mapping[str, OutputColumn | tuple[npt.DTypeLike | torch.dtype, float]]


@dataclass(frozen=True)
class Collate:
    """Pads rows to a batch; returned by `create_collate_fn`."""

    schema: OutputSchema
    padding: RowPadding
    return_tensors: bool = True

    def __call__(self, rows: Rows) -> dict[str, Any]:
        batch = self.arrays(rows)
        return to_tensors(batch) if self.return_tensors else batch

    def arrays(self, rows: Rows) -> Arrays:
        """Return the batch as NumPy arrays."""
        return self.padding.padded(read_columns(rows, self.schema), "input_ids", "attention_mask", self.schema)


def with_labels(batch: Arrays, schema: OutputSchema) -> Arrays:
    """Add labels to a batch that has none, and return it: `input_ids`, but not the first token of packed documents."""
    if "labels" not in batch:
        trained = batch["attention_mask"] != 0
        if "position_ids" in batch:
            trained &= batch["position_ids"] != 0
        column = schema["labels"]
        batch["labels"] = np.where(trained, batch["input_ids"], column.pad_value).astype(column.dtype)
    return batch


@dataclass(frozen=True)
class CausalLMCollate(Collate):
    """Pads rows and shifts labels; returned by `create_causal_lm_collate`."""

    def arrays(self, rows: Rows) -> Arrays:
        """Return the batch as NumPy arrays."""
        batch = with_labels(super().arrays(rows), self.schema)
        if batch["labels"].ndim != 2:
            raise DataValidationError("rows have one label each; a causal language model needs one label per token")
        for name in {"labels", "loss_weights"} & batch.keys():
            ahead = np.full_like(batch[name], self.schema[name].pad_value)
            ahead[:, :-1] = batch[name][:, 1:]
            ahead[batch["attention_mask"] == 0] = self.schema[name].pad_value
            batch[name] = ahead
        return batch


@dataclass(frozen=True)
class Seq2SeqCollate(Collate):
    """Pads the encoder's and the decoder's side of rows; returned by `create_seq2seq_collate`."""

    target_padding: RowPadding = field(default_factory=RowPadding)
    decoder_start_token_id: int | None = None

    def arrays(self, rows: Rows) -> Arrays:
        """Return the batch as NumPy arrays."""
        source = read_columns(rows, self.schema)
        names = [name for name in source if name in ("labels", "loss_weights") or name.startswith("decoder_")]
        target = {name: source.pop(name) for name in names}
        if "decoder_input_ids" not in target:
            target["decoder_input_ids"] = self._decoder_input_ids(target.get("labels"))
        elif "labels" not in target:
            ids, column = target["decoder_input_ids"], self.schema["labels"]
            labels = np.roll(ids.values, -1).astype(column.dtype)
            if ids.lengths is not None:  # the last position of each row is not trained
                labels[offsets_of(ids.lengths)[1:][ids.lengths > 0] - 1] = column.pad_value
            target["labels"] = RowColumn(labels, ids.lengths)
        return self.padding.padded(source, "input_ids", "attention_mask", self.schema) | self.target_padding.padded(
            target, "decoder_input_ids", "decoder_attention_mask", self.schema
        )

    def _decoder_input_ids(self, labels: RowColumn | None) -> RowColumn:
        """Return labels shifted right, with the start token at the start of each row."""
        if labels is None or labels.lengths is None:
            raise DataValidationError("rows need lists 'labels' or 'decoder_input_ids', but have neither")
        if self.decoder_start_token_id is None:
            raise DataValidationError(
                "rows have no 'decoder_input_ids', and building them needs the model's start token: pass "
                "decoder_start_token_id=model.config.decoder_start_token_id"
            )
        column = self.schema["decoder_input_ids"]
        ids = np.roll(labels.values, 1).astype(column.dtype)
        ids[np.roll(labels.values, 1) == self.schema["labels"].pad_value] = column.pad_value
        # `roll` moved the last label of each row to the next row's start, where the start token goes
        ids[offsets_of(labels.lengths)[:-1][labels.lengths > 0]] = self.decoder_start_token_id
        return RowColumn(ids, labels.lengths)


def create_collate_fn(
    pad_token_id: int,
    label_pad_token_id: int = IGNORED,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: bool = True,
    *,
    padding: Padding | None = None,
    truncation: bool = False,
    schema: Columns | None = None,
) -> Collate:
    """Return a collate function that pads rows to one length. It can be pickled.

    Rows are dicts with the same columns: `input_ids`, and any of `attention_mask`, `labels`, `position_ids`,
    `token_type_ids`, `special_tokens_mask`, `loss_weights` and the columns of `schema`. A row's value in a column is a
    list, tuple, array, tensor or Arrow list as long as its `input_ids`, or a single number.

    Args:
        pad_token_id: fills `input_ids`.
        label_pad_token_id: fills `labels`, also where attention_mask is 0.
        padding_side: the side on which rows are padded.
        max_length: length of every batch, unless `padding` is given; longer rows are an error unless truncated.
        return_tensors: return tensors; False: NumPy arrays.
        padding: `longest`: to the longest row of the batch; `max_length`; or an integer: to the longest row, rounded up
            to a multiple. Default: `max_length` if that is given, else `longest`.
        truncation: keep only the first `max_length` tokens of longer rows.
        schema: more columns or other dtypes, `{name: (dtype, pad_value)}`, in addition to `OutputSchema.default`.

    Returns:
        A function from a list of rows to a dict of arrays in the schema's dtypes, [rows, length] for lists and [rows]
        for single numbers. If rows have no `attention_mask`, it is 1 for all their tokens; `labels` are not added.
        A column that is None in all rows counts as missing. The function raises DataValidationError, with the row's
        place in the batch, if rows do not fit together, the schema or `max_length`.

    Raises:
        ValueError: arguments are out of range or contradict each other.
    """
    side = RowPadding(padding, padding_side, max_length, truncation)
    return Collate(_schema(pad_token_id, label_pad_token_id, schema), side, return_tensors)


def create_causal_lm_collate(
    pad_token_id: int,
    label_pad_token_id: int = IGNORED,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: bool = True,
    *,
    padding: Padding | None = None,
    truncation: bool = False,
    schema: Columns | None = None,
) -> Collate:
    """Return a collate function with labels shifted by one, for models that do not shift them.

    `labels[:, i]` is the row's label at position i + 1, and `label_pad_token_id` at the last position of each row and
    where attention_mask is 0. `cross_entropy(logits.transpose(1, 2), labels)` is then the loss. Models of transformers
    shift labels themselves: for them, use `create_collate_fn`.

    Rows without `labels` are trained on all of `input_ids`, except for the first token of each document, where
    `position_ids` are 0. `loss_weights` are shifted with the labels.

    Arguments and errors are those of `create_collate_fn`.
    """
    side = RowPadding(padding, padding_side, max_length, truncation)
    return CausalLMCollate(_schema(pad_token_id, label_pad_token_id, schema), side, return_tensors)


def create_seq2seq_collate(
    pad_token_id: int,
    label_pad_token_id: int = IGNORED,
    padding_side: Side = "right",
    max_length: int | None = None,
    return_tensors: bool = True,
    *,
    max_target_length: int | None = None,
    decoder_start_token_id: int | None = None,
    padding: Padding | None = None,
    truncation: bool = False,
    schema: Columns | None = None,
) -> Collate:
    """Return a collate function for encoder-decoder models. The two sides are padded separately.

    Rows have `input_ids`, and `labels`, `decoder_input_ids` or both. `labels[:, i]` is the token to predict after
    `decoder_input_ids[:, : i + 1]`. Missing `decoder_input_ids` are the labels shifted right, after the start token.
    Missing `labels` are the `decoder_input_ids` shifted left, with no label at the last position.

    Args:
        pad_token_id: fills `input_ids` and `decoder_input_ids`; in the latter, it also replaces labels that are
            `label_pad_token_id`.
        max_length, max_target_length: length of every batch on the encoder's and on the decoder's side.
        decoder_start_token_id: first decoder token; required for rows without `decoder_input_ids`.
        padding, truncation: for both sides. The other arguments are those of `create_collate_fn`.

    Returns:
        A function as `create_collate_fn` returns, with `input_ids` and `attention_mask` [rows, source length], and
        `decoder_input_ids`, `decoder_attention_mask` and `labels` [rows, target length]. `loss_weights` and other
        columns whose names begin with `decoder_` belong to the decoder's side.

    Raises:
        ValueError: arguments are out of range or contradict each other.
    """
    columns = _schema(pad_token_id, label_pad_token_id, schema)
    source = RowPadding(padding, padding_side, max_length, truncation)
    target = RowPadding(padding, padding_side, max_target_length, truncation, "max_target_length")
    return Seq2SeqCollate(columns, source, return_tensors, target, decoder_start_token_id)


def _schema(pad_token_id: int, label_pad_token_id: int, schema: Columns | None) -> OutputSchema:
    default = OutputSchema.default(pad_token_id, label_pad_token_id)
    # a schema that fills these otherwise contradicts the argument: neither could win silently
    joined = default | (schema or {})
    for name, argument in (
        ("input_ids", "pad_token_id"),
        ("decoder_input_ids", "pad_token_id"),
        ("labels", "label_pad_token_id"),
    ):
        if joined[name].pad_value != default[name].pad_value:
            raise ValueError(
                f"the schema fills {name!r} with {joined[name].pad_value}, but {argument} is {default[name].pad_value}"
            )
    return joined
