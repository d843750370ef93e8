"""The type of a batch, its rows as rectangles with padding, or without padding, and values beside the tokens:
kept columns of rows (`dataset.keep_columns`), and the number of tokens of each row.

A shuffled token budget needs single lengths from everywhere. They are gathered from memory maps. The block of each is
read and checked once; that one read of a block brings less into memory than faults of pages that are not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from tokenloom.errors import StoreError
from tokenloom.loaders.reading.memory import FlatValues, RaggedLists
from tokenloom.resources.digest import BLOCK_DIGEST_BYTES, LENGTHS_BLOCK, block_digests, digest_bytes, digest_json
from tokenloom.resources.tables.json_text import is_json, python_values
from tokenloom.resources.tables.ragged import SIDES, Ints, offsets_of, one_array
from tokenloom.resources.tables.sequence_schema import RAW_ROW

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
        # padded rows that stay within their chunk are one copy; what they hold of neighbours is overwritten
        inside = (self._first >= 0) & (values.reach(chunks, self._first) >= width)
        self._inside = np.logical_and.reduceat(inside, firsts).tolist()
        self._full = (np.maximum.reduceat(self.blank, firsts) == 0).tolist()
        size = 1 << int(width.max()).bit_length()
        self._edges = _edges(size)
        # the window of each row's flags begins so far before an edge as its padding, or its tokens, are long
        begins_of_flags = size - self.blank if left else 2 * size - lengths
        self._own = self._edges.places(np.zeros_like(lengths), begins_of_flags)

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
        # a row at the border of its chunk: its own values only, then padding around them
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
        multiple: `length.document_multiple` of the dataset: every width is a multiple of it.

    Raises:
        ValueError: `padding` or `side` is not one of these, or `padding` does not go with `multiple`.
    """

    pad_token_id: int
    padding: Padding
    side: Literal["left", "right"]
    max_length: int
    packed: bool
    multiple: int = 1

    def __post_init__(self) -> None:
        is_multiple = isinstance(self.padding, int) and not isinstance(self.padding, bool) and self.padding > 0
        if not is_multiple and self.padding not in ("max_length", "longest"):
            raise ValueError(f"padding must be 'max_length', 'longest' or an integer above 0, got {self.padding!r}")
        if not isinstance(self.padding, str) and self.padding % self.multiple and self.multiple % self.padding:
            raise ValueError(
                f"padding {self.padding} is not a multiple of length.document_multiple {self.multiple} of the dataset; "
                f"set it to {-(-self.padding // self.multiple) * self.multiple}"
            )
        if self.side not in ("left", "right"):
            raise ValueError(f"padding_side must be 'left' or 'right', got {self.side!r}")

    def width(self, longest: Ints) -> Ints:
        """Return the padded width of each batch, given its longest row; int64 in and out, of one shape."""
        longest = np.maximum(longest, self.max_length if self.padding == "max_length" else self.multiple)
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

_OF_BATCHES = frozenset(("cu_seqlens", "cu_seqlens_unpadded", "max_seqlen", "label"))


def flat_columns(batch: Batch) -> dict[str, tuple[npt.NDArray[Any], Ints]]:
    """Return, for each column [rows, width] of a batch, its concatenated rows and their lengths, int64 [rows]."""
    masks = {f"{side}attention_mask" for side in ("", *(f"{side}_" for side in SIDES))}
    masks = {name: np.asarray(value) != 0 for name, value in batch.items() if name in masks}
    lengths = {name: np.count_nonzero(mask, axis=1) for name, mask in masks.items()}
    arrays = {name: value for name, value in batch.items() if isinstance(value, np.ndarray)}
    of_tokens = OF_TOKENS | token_values(batch)
    columns = {name: value for name, value in arrays.items() if name.removeprefix(side_of(name)) in of_tokens}
    columns = {name: value for name, value in columns.items() if value.ndim == 2}
    mask_of = {name: f"{side_of(name)}attention_mask" for name in columns}
    if "attention_ends" in columns:  # places in the padded row
        columns["attention_ends"] = columns["attention_ends"] - masks["attention_mask"].argmax(axis=1)[:, None]
    return {name: (value[masks[mask_of[name]]], lengths[mask_of[name]]) for name, value in columns.items()}


def token_values(batch: Mapping[str, Any]) -> set[str]:
    """Return the names of the columns with a number per token, `dataset.token_columns`; arrays or tensors."""
    mask, others = batch.get("attention_mask"), OF_TOKENS | _OF_BATCHES
    return {
        name
        for name, value in batch.items()
        if mask is not None
        and name not in others
        and not name.startswith(("pixel_", "image_"))
        and isinstance(value, np.ndarray | torch.Tensor)
        and value.shape == mask.shape
    }


def image_inputs(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a batch that are made of images; with them, `position_ids` of several dimensions.

    Args:
        batch: a batch of arrays or tensors.
    """
    of_text = OF_TOKENS | _OF_BATCHES | token_values(batch)
    return {
        name: value
        for name, value in batch.items()
        if isinstance(value, np.ndarray | torch.Tensor)
        and (name.removeprefix(side_of(name)) not in of_text or (name == "position_ids" and value.ndim > 2))
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


MOST_FILES = 1 << 12
"""Files of lengths that are mapped at once. A build joins the lengths of about 1,024 chunks into each."""

_ROWS = 1 << 17
"""Rows looked up at once."""


@dataclass(frozen=True)
class LengthsFile:
    """The file of an object of lengths.

    Args:
        path: returns a local path of the file.
        begin: where the lengths begin in the file, in bytes.
        values: the lengths, as a view of a memory map; uint16 or uint32.
        digests: its `block_digests` with blocks of `LENGTHS_BLOCK`; empty: they are not checked.
        damaged: returns the error that reports what is wrong with it.
    """

    path: Callable[[], Path]
    begin: int
    values: npt.NDArray[Any]
    digests: bytes
    damaged: Callable[[str], StoreError]

    def check(self, blocks: list[int]) -> None:
        """Read blocks of the file and compare them with their digests.

        Raises:
            StoreError: a block is damaged.
        """
        if not self.digests:
            return
        content = np.empty(LENGTHS_BLOCK, np.uint8)
        with self.path().open("rb", buffering=0) as file:
            for number in blocks:
                file.seek(number * LENGTHS_BLOCK)
                size = file.readinto(content.data)
                expected = self.digests[number * BLOCK_DIGEST_BYTES : (number + 1) * BLOCK_DIGEST_BYTES]
                if block_digests(content[:size].data, LENGTHS_BLOCK) != expected:
                    raise self.damaged(f"is damaged in block {number}")


class RowLengths:
    """The number of tokens of each row. An object is opened when it is first needed, and a block is checked when it is
    first read.

    Args:
        rows: number of rows of each object, int64 [objects].
        sizes: bytes of each object, int64 [objects].
        load: opens an object, given its index.
        longest: maximum number of tokens per row.
    """

    def __init__(self, rows: Ints, sizes: Ints, load: Callable[[int], LengthsFile], longest: int):
        self._first_row, self._load, self._longest = offsets_of(rows), load, longest
        self._first_block = offsets_of(-(-sizes // LENGTHS_BLOCK))
        self._files: dict[int, LengthsFile] = {}
        self._begin, self._itemsize = np.full(len(rows), -1), np.zeros(len(rows), np.int64)
        self._values = {size: FlatValues(f"u{size}", len(rows)) for size in (2, 4)}
        self._checked = np.zeros(self._first_block[-1], bool)
        self._lock = Lock()

    def of(self, rows: Ints) -> Ints:
        """Return the number of tokens of each row, int64 [rows]; rows are numbered across all objects.

        Raises:
            StoreError: an object is missing or damaged.
        """
        # so that the files of a part, one per row at worst, can all be mapped
        at_once = _ROWS if len(self._begin) <= MOST_FILES else MOST_FILES
        with self._lock:  # threads can share a dataset
            parts = [self._some(rows[begin : begin + at_once]) for begin in range(0, len(rows), at_once)]
        lengths = np.concatenate([np.zeros(0, np.int64), *parts])
        if (most := lengths.max(initial=0)) > self._longest:
            raise StoreError(f"a row has {most:,} tokens, more than max_length {self._longest:,}; build it again")
        return lengths

    def _some(self, rows: Ints) -> Ints:
        numbers = self._first_row.searchsorted(rows, "right") - 1
        if (self._begin[numbers] < 0).any():
            self._open(np.unique(numbers))
        sizes, places = self._itemsize[numbers], rows - self._first_row[numbers]
        blocks = self._first_block[numbers] + (self._begin[numbers] + places * sizes) // LENGTHS_BLOCK
        if not (checked := self._checked[blocks]).all():
            self._check(np.unique(blocks[~checked]))
        lengths = np.empty(len(rows), np.int64)
        for size, values in self._values.items():
            if (own := sizes == size).any():
                lengths[own] = values.at(values.places(numbers[own], places[own]))
        return lengths

    def _open(self, numbers: Ints) -> None:
        """Map objects. If there would be more than MOST_FILES, the others are closed."""
        missing = numbers[self._begin[numbers] < 0]
        if len(self._files) + len(missing) > MOST_FILES:
            for number in self._files.keys() - {*numbers.tolist()}:
                self._begin[number] = -1
                self._values[self._files.pop(number).values.itemsize].release(number)
        for number in missing.tolist():
            file = self._load(number)
            end = file.begin + file.values.itemsize * int(self._first_row[number + 1] - self._first_row[number])
            # the number of blocks came from the manifest: no index beyond it can be made
            if end > LENGTHS_BLOCK * (self._first_block[number + 1] - self._first_block[number]):
                raise file.damaged("is larger than its manifest states")
            self._values[file.values.itemsize].hold(number, file.values)
            self._files[number] = file
            self._begin[number], self._itemsize[number] = file.begin, file.values.itemsize

    def _check(self, blocks: Ints) -> None:
        numbers = self._first_block.searchsorted(blocks, "right") - 1
        for of_file in np.split(blocks, np.flatnonzero(np.diff(numbers)) + 1):
            number = int(self._first_block.searchsorted(of_file[0], "right")) - 1
            self._files[number].check((of_file - self._first_block[number]).tolist())
            self._checked[of_file] = True


Load = Callable[[int], pa.Table | None]
"""Opens the sidecar of a chunk, given its index; None if the chunk has none."""


class KeptColumns:
    """The kept columns of all chunks. A sidecar is opened when it is first read.

    Args:
        names: names of the columns.
        load: opens the sidecar of a chunk.
        chunks: number of chunks.
    """

    def __init__(self, names: Sequence[str], load: Load, chunks: int):
        self.names, self._load, self._chunks = tuple(names), load, chunks
        self._rows = RaggedLists(np.int32, chunks)
        self._sidecars: dict[int, pa.Table | None] = {}

    def hold(self, chunk: int, rows: pa.ChunkedArray) -> None:
        """Register the raw rows of a chunk's sequences."""
        self._rows.hold(chunk, rows)

    def release(self, chunk: int) -> None:
        """Drop what is held of a chunk."""
        self._rows.release(chunk)
        self._sidecars.pop(chunk, None)

    def sidecar(self, chunk: int) -> pa.Table | None:
        """Return the sidecar of a chunk, or None if it has none.

        Raises:
            StoreError: it is missing or damaged.
        """
        if chunk not in self._sidecars:
            self._sidecars[chunk] = self._load(chunk)
        return self._sidecars[chunk]

    def types(self) -> dict[str, pa.DataType | None]:
        """Return the type of each column; None if it is JSON, or not the same in all chunks. Opens all sidecars."""
        types: dict[str, set[pa.DataType]] = {name: set() for name in self.names}
        for sidecar in filter(None, map(self.sidecar, range(self._chunks))):
            for name in types.keys() & {*sidecar.column_names}:
                types[name].add(sidecar.schema.field(name).type)
        kinds = {name: [kind for kind in seen if not pa.types.is_null(kind)] for name, seen in types.items()}
        return {name: seen[0] if len(seen) == 1 and not is_json(seen[0]) else None for name, seen in kinds.items()}

    def values(self, chunks: Ints, local: Ints, real: Flags | None, packed: bool) -> dict[str, list[Any]]:
        """Return the values of rows, by column; None where a row has none, and for padding rows.

        Args:
            chunks, local: int64 [rows], the chunk of each row, and its index within the chunk.
            real: bool [rows], False for padding rows; None: all rows are real.
            packed: whether rows hold several documents; the value of a row is then a list with one item each.
        """
        first, counts = self._rows.rows(chunks, local)
        if real is not None:
            counts = counts * real
        rows = self._rows.values.lists(self._rows.values.places(chunks, first), counts)
        of_documents = self._of_documents(np.repeat(chunks, counts), rows)
        bounds = [*pairwise(offsets_of(counts).tolist())]
        if packed:
            return {name: [values[begin:end] for begin, end in bounds] for name, values in of_documents.items()}
        # -1 is the None after the last value
        at = [begin if end > begin else -1 for begin, end in bounds]
        return {name: [*map([*values, None].__getitem__, at)] for name, values in of_documents.items()}

    def _of_documents(self, chunks: Ints, rows: np.ndarray) -> dict[str, list[Any]]:
        by_column: dict[str, list[Any]] = {name: [None] * len(rows) for name in self.names}
        for chunk in np.unique(chunks).tolist():
            if (sidecar := self.sidecar(chunk)) is None:
                continue
            places = np.flatnonzero(chunks == chunk)
            stored = one_array(sidecar[RAW_ROW]).to_numpy()
            # a sidecar is sorted by raw row: `searchsorted` and one comparison find every row or none
            index = np.searchsorted(stored, rows[places])
            if not np.array_equal(stored[np.minimum(index, len(stored) - 1)], rows[places]):
                raise StoreError("a sidecar lacks rows of its chunk; `tokenloom verify` names what is damaged")
            for name in {*self.names} & {*sidecar.column_names}:
                values = python_values(one_array(sidecar[name]).take(pa.array(index)))
                for place, value in zip(places.tolist(), values, strict=True):
                    by_column[name][place] = value
        return by_column
