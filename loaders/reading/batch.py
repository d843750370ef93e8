"""The type of a batch, and its rows as rectangles with padding, or without padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from tokenloom.loaders.reading.memory import FlatValues
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.tables.ragged import SIDES, Ints

Flags = npt.NDArray[np.bool_]


class Rectangles:
    """The rows of several batches, each batch padded to one width. Valid for all columns with the same row lengths.

    Args:
        values: one of those columns.
        chunks, begins, lengths: int64 [rows], the rows of all batches concatenated.
        bounds: int64 [batches + 1], where each batch begins and ends; no batch is empty.
        widths: int64 [batches], at least the length of each batch's longest row.
        left: pad on the left instead of the right.

    Attributes:
        blank: int64 [rows], number of padding places in each row.
    """

    def __init__(
        self, values: FlatValues, chunks: Ints, begins: Ints, lengths: Ints, bounds: Ints, widths: Ints, left: bool
    ):
        width, firsts = np.repeat(widths, np.diff(bounds)), bounds[:-1]
        self.blank, self.widths, self.bounds, self.left = width - lengths, widths.tolist(), bounds, left
        self._chunks, self._lengths = chunks, lengths
        self._batches = [slice(*pair) for pair in pairwise(bounds.tolist())]
        self._first = begins - self.blank if left else begins
        inside = (self._first >= 0) & (values.reach(chunks, self._first) >= width)
        self._inside = np.logical_and.reduceat(inside, firsts).tolist()
        self._full = (np.maximum.reduceat(self.blank, firsts) == 0).tolist()
        size = 1 << int(width.max()).bit_length()
        self._edges = _edges(size)
        self._own = self._edges.places(np.zeros_like(lengths), size - self.blank if left else 2 * size - lengths)

    def places(self, values: FlatValues) -> Ints:
        """Return the place in memory where each padded row of a column begins, int64 [rows]."""
        return values.places(self._chunks, self._first)

    def own(self, batch: int) -> Flags | None:
        """Return which places are not padding, bool [rows of the batch, width], or None if the batch has no padding."""
        return None if self._full[batch] else self._edges.windows(self._own[self._batches[batch]], self.widths[batch])

    def take(self, batch: int, values: FlatValues, places: Ints) -> npt.NDArray[Any]:
        """Return a column's values, [rows of the batch, width], as a new array; padding places hold any value."""
        rows, width = self._batches[batch], self.widths[batch]
        if self._inside[batch]:
            return values.windows(places[rows], width)
        begins = places[rows] + self.blank[rows] if self.left else places[rows]
        flat, own = values.lists(begins, self._lengths[rows]), self.own(batch)
        if own is None:
            return flat.reshape(-1, width)
        padded = np.zeros(own.shape, flat.dtype)
        padded[own] = flat
        return padded


@cache
def _edges(size: int) -> FlatValues:
    """Return `size` times False, then True, then False. Every row's flags are a window of it."""
    edges = FlatValues(np.bool_, 1)
    edges.hold(0, np.repeat([False, True, False], size))
    return edges


IGNORED = -100
"""The label of tokens that are not trained."""

Padding = Literal["max_length", "longest"] | int
Batch = dict[str, npt.NDArray[np.generic] | int | list[Any]]
"""Arrays by name; for packed rows also the int `max_seqlen`; and a list for each kept column."""


@dataclass(frozen=True)
class PaddingPolicy:
    """How the rows of a batch are padded to one length.

    Args:
        pad_token_id: fills input_ids where attention_mask is 0.
        padding: `max_length`; `longest`: to the longest row of the batch; or an integer: to the longest row, rounded up
            to a multiple of it.
        side: the side on which rows are padded, `left` or `right`.
        max_length: length of the longest sequence that the dataset can have, in tokens.
        packed: whether sequences hold several documents, separated by position_ids and cu_seqlens.

    Raises:
        ValueError: `padding` or `side` is not one of these.
    """

    pad_token_id: int
    padding: Padding
    side: Literal["left", "right"]
    max_length: int
    packed: bool

    def __post_init__(self) -> None:
        is_multiple = isinstance(self.padding, int) and not isinstance(self.padding, bool) and self.padding > 0
        if not is_multiple and self.padding not in ("max_length", "longest"):
            raise ValueError(f"padding must be 'max_length', 'longest' or an integer above 0, got {self.padding!r}")
        if self.side not in ("left", "right"):
            raise ValueError(f"padding_side must be 'left' or 'right', got {self.side!r}")

    def width(self, longest: Ints) -> Ints:
        """Return the padded width of each batch, given its longest row; int64 in and out, of one shape."""
        longest = np.maximum(longest, self.max_length if self.padding == "max_length" else 1)
        return longest if isinstance(self.padding, str) else -(-longest // self.padding) * self.padding


def to_tensors(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch with its arrays as tensors that share their memory; other values are unchanged."""
    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}


def batch_digest(batch: Mapping[str, Any]) -> str:
    """Return the hex BLAKE3 of a batch of tensors or arrays; equal batches have equal digests. Lists do not count."""
    parts = []
    for name in sorted(name for name, value in batch.items() if not isinstance(value, list)):
        value = batch[name]
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        parts.append([name, str(array.dtype), list(array.shape), digest_bytes(np.ascontiguousarray(array).tobytes())])
    return digest_json(parts)


Row = dict[str, Any]


def side_of(name: str) -> str:
    """Return the prefix of a column that belongs to one side of pairs (`chosen_` or `rejected_`), else ""."""
    return next((f"{side}_" for side in SIDES if name.startswith(f"{side}_")), "")


TYPE_IDS = ("mm_token_type_ids", "token_type_ids")
"""Columns that tell tokens of images from others."""

OF_TOKENS = frozenset(
    ("input_ids", "attention_mask", "labels", "position_ids", "attention_ends", "loss_weights", *TYPE_IDS)
)
"""Columns [rows, width] of batches."""

_OF_BATCHES = frozenset(("cu_seqlens", "max_seqlen", "label"))


def flat_columns(batch: Batch) -> dict[str, tuple[npt.NDArray[Any], Ints]]:
    """Return, for each column [rows, width] of a batch, its concatenated rows and their lengths, int64 [rows]."""
    masks = {f"{side}attention_mask" for side in ("", *(f"{side}_" for side in SIDES))}
    masks = {name: np.asarray(value) != 0 for name, value in batch.items() if name in masks}
    lengths = {name: np.count_nonzero(mask, axis=1) for name, mask in masks.items()}
    arrays = {name: value for name, value in batch.items() if isinstance(value, np.ndarray)}
    known = OF_TOKENS | token_values(batch)
    columns = {name: value for name, value in arrays.items() if name.removeprefix(side_of(name)) in known}
    columns = {name: value for name, value in columns.items() if value.ndim == 2}
    mask_of = {name: f"{side_of(name)}attention_mask" for name in columns}
    return {name: (value[masks[mask_of[name]]], lengths[mask_of[name]]) for name, value in columns.items()}


def token_values(batch: Mapping[str, Any]) -> set[str]:
    """Return the names of the columns with a number per token, `dataset.token_columns`; arrays or tensors."""
    mask, known = batch.get("attention_mask"), OF_TOKENS | _OF_BATCHES
    return {
        name
        for name, value in batch.items()
        if mask is not None
        and name not in known
        and not name.startswith(("pixel_", "image_"))
        and isinstance(value, np.ndarray | torch.Tensor)
        and value.shape == mask.shape
    }


def image_inputs(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a batch that are made of images; with them, `position_ids` of several dimensions.

    Args:
        batch: a batch of arrays or tensors.
    """
    known = OF_TOKENS | _OF_BATCHES | token_values(batch)
    return {
        name: value
        for name, value in batch.items()
        if isinstance(value, np.ndarray | torch.Tensor)
        and (name.removeprefix(side_of(name)) not in known or (name == "position_ids" and value.ndim > 2))
    }


def unpadded(batch: Batch) -> list[Row]:
    """Return the rows of a batch, none of which shares memory with another.

    Returns:
        for each row its part of each column, [length] instead of [rows, width], `label` as a bool scalar, and the value
        of each kept column. Columns of the batch as a whole (`cu_seqlens`, `max_seqlen`) are omitted. A single row has
        its image inputs too, as its batch has them.

    Raises:
        ValueError: the batch has several rows, and images.
    """
    columns = flat_columns(batch)
    rows: list[Row] = [{} for _ in next(iter(columns.values()))[1]]
    for name, (values, lengths) in columns.items():
        for row, part in zip(rows, torch.from_numpy(values).split(lengths.tolist()), strict=True):
            row[name] = part.clone()
    images = image_inputs(batch)
    if images and len(rows) > 1:
        raise ValueError("a batch of several rows with images cannot be divided into rows")
    for name, value in images.items():
        rows[0][name] = torch.from_numpy(value)
    if "label" in batch:
        for row, label in zip(rows, np.asarray(batch["label"]).tolist(), strict=True):
            row["label"] = torch.tensor(label)
    for name, values in kept_values(batch).items():
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    return rows


def kept_values(batch: Batch) -> dict[str, list[Any]]:
    """Return the kept columns of a batch."""
    return {name: value for name, value in batch.items() if isinstance(value, list)}
