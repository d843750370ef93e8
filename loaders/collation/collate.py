"""Collate functions for rows of any dataset: a list of dicts in, a padded batch out.

`TokenLoader` needs none of this: it reads batches of built datasets as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tokenloom.errors import DataValidationError
from tokenloom.loaders.collation.row_columns import (
    Arrays,
    OutputColumn,
    OutputSchema,
    RowColumn,
    RowPadding,
    Rows,
    Side,
    read_columns,
)
from tokenloom.loaders.reading.batch import IGNORED, Padding, to_tensors
from tokenloom.resources.tables.ragged import offsets_of

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
            target["labels"] = self._labels(target["decoder_input_ids"])
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
        ids[offsets_of(labels.lengths)[:-1][labels.lengths > 0]] = self.decoder_start_token_id
        return RowColumn(ids, labels.lengths)

    def _labels(self, ids: RowColumn) -> RowColumn:
        """Return decoder ids shifted left; the last position of each row is not trained."""
        lengths, column = ids.lengths, self.schema["labels"]
        labels = np.roll(ids.values, -1).astype(column.dtype)
        if lengths is not None:
            labels[offsets_of(lengths)[1:][lengths > 0] - 1] = column.pad_value
        return RowColumn(labels, lengths)


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
