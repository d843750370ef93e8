"""The columns of `sequences`: what the last stage writes, what loaders read, and the checks of what they read.

For preference pairs every column except `rows` exists twice, prefixed with `chosen_` and `rejected_`.

Objects can be crafted: right digests, wrong content. All checks are vectorized over rows; none reads the tokens.

Documents can be padded to a multiple of tokens (`length.document_multiple`): padding is at the end of a document, is
not trained, and is counted by the column `padding`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.resources.tables.ragged import (
    SIDES,
    Ints,
    flat_numbers,
    list_array,
    list_views,
    offsets_of,
    one_array,
    ranges,
    sides,
)

MAX_WEIGHTLESS = 1 << 26
"""Largest length of an array whose values take no bytes, such as nulls: nothing else bounds it."""

_IN_THIS_THREAD = pa.ipc.IpcReadOptions(use_threads=False)
"""Chunks are read in parallel; handing the columns of a small one to other threads takes longer than reading them."""


def read_table(data: pa.Buffer) -> pa.Table:
    """Read a file of at most one record batch, and validate all of it: buffers, offsets, UTF-8 and nesting.

    Raises:
        ValueError: the bytes are not such a file; the message is one line.
    """
    try:
        reader = pa.ipc.open_file(data, options=_IN_THIS_THREAD)
        if reader.num_record_batches > 1:  # a few bytes can name the same batch many times
            raise ValueError(f"has {reader.num_record_batches:,} record batches instead of one")
        schema = reader.schema
        if len({*schema.names}) < len(schema.names):
            raise ValueError(f"has several columns {Counter(schema.names).most_common(1)[0][0]!r}")
        for kind in schema.types:  # names that are not UTF-8 raise an error only when they are read
            _ = str(kind)
        table = reader.read_all()
        table.validate(full=True)
        _check_lengths(table)
    except (pa.ArrowException, OSError, ValueError, MemoryError, RecursionError, TypeError) as error:
        raise ValueError((str(error) or type(error).__name__).splitlines()[0]) from error
    return table


def check_schema(schema: pa.Schema, table: pa.Table) -> None:
    """Check that a table has exactly these columns and types, without nulls.

    Raises:
        ValueError: it does not.
    """
    if not table.schema.equals(schema):
        raise ValueError(f"has other columns than expected: {', '.join(table.column_names)[:200]}")
    if any(column.null_count for column in table.columns):
        raise ValueError("has nulls")


def _check_lengths(table: pa.Table) -> None:
    """Check that no array of values without bytes is longer than `MAX_WEIGHTLESS`."""
    if not table.num_columns and table.num_rows:
        raise ValueError("has rows but no columns")
    arrays: list[pa.Array] = [chunk for column in table.columns for chunk in column.chunks]
    while arrays:
        array = arrays.pop()
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            arrays.append(array.storage)
            continue
        if pa.types.is_struct(kind) or pa.types.is_union(kind):
            arrays += [array.field(number) for number in range(kind.num_fields)]
        elif pa.types.is_dictionary(kind):
            arrays.append(array.dictionary)
        elif kind.num_fields:
            arrays.append(array.values)
        # a few bytes can state billions of nulls, and reading them would fill the memory
        if len(array) > MAX_WEIGHTLESS and (pa.types.is_run_end_encoded(array.type) or not array.nbytes):
            raise ValueError(f"has {len(array):,} values of type {array.type} without bytes")


INPUT_IDS = "input_ids"
"""Token ids of one sequence: list<uint16>, or list<uint32> if the vocabulary has more than 2^16 ids."""

TRAINED = "trained"
"""list<uint8>, 1 per trained token, 0 per masked token."""

POSITIONS = "positions"
"""list<int32>, only in trees: the position of each document's first token in its text; 0 begins a tree."""

REACH = "reach"
"""list<int32>, only in trees: the number of tokens of each document and of all that continue it, which follow it."""

WEIGHTS = "weights"
"""list<float32>, the loss weight of each token. Only in chunks that have weights other than 0 and 1."""

ROWS = "rows"
"""list<int32>, the raw row of each document in the sequence, as a position within the raw chunk."""

DOCUMENT_LENGTHS = "document_lengths"
"""list<int32>, the number of tokens of each document in the sequence."""

PADDING = "padding"
"""list<int32>, the number of untrained tokens at the end of each document that pad it to `document_multiple`. Only in
datasets with that setting."""

PER_TOKEN = "token:"
"""Start of the names of list<float32> columns with a number per token; a name in `dataset.token_columns` follows."""

OF_TOKENS = pa.list_(pa.float32())

LABEL = "label"
"""bool, for KTO only: whether the completion is desirable."""

RAW_ROW = "_row"
"""int32, the raw row of each row of a sidecar, ascending."""

LENGTH = "length"
"""uint16 or uint32, the number of tokens of each sequence; for pairs, of the longer side. In a separate object."""


def length_type(longest: int) -> pa.DataType:
    """Return the type of the lengths of rows of at most `longest` tokens in one object for many chunks."""
    return pa.uint16() if longest < 1 << 16 else pa.uint32()


MEDIA = "media"
"""The images of the sequence, in the order of their tokens. Only in datasets with an image processor."""

SEQUENCE_IMAGES = pa.list_(
    pa.struct(
        [
            ("media", pa.string()),
            ("format", pa.string()),
            ("width", pa.int32()),
            ("height", pa.int32()),
            ("bytes", pa.int64()),
            ("tokens", pa.int32()),
            ("patches", pa.int32()),
            ("document", pa.int32()),
        ]
    )
)
"""One image: the digest of its bytes, format, width and height in pixels, size of the file in bytes, numbers of its
tokens and patches, and the document that it belongs to, counted within the sequence."""

SEQUENCE, PAIR, LABELLED, PROMPT = KINDS = ("sequence", "pair", "labelled sequence", "prompt")
"""What a row can be. Prompts have no labels."""

TOKEN_COLUMNS = (INPUT_IDS, TRAINED, WEIGHTS)
"""Columns with one value per token, which make up nearly all bytes of a chunk."""

ID_TYPES = (pa.list_(pa.uint16()), pa.list_(pa.uint32()))
"""Types of `input_ids`: the smallest unsigned type that fits the vocabulary."""

REQUIRED: dict[str, tuple[pa.DataType, ...]] = {
    INPUT_IDS: ID_TYPES,
    TRAINED: (pa.list_(pa.uint8()),),
    ROWS: (pa.list_(pa.int32()),),
    DOCUMENT_LENGTHS: (pa.list_(pa.int32()),),
}
"""Columns of every chunk, with their allowed types."""

OPTIONAL: dict[str, tuple[pa.DataType, ...]] = {
    WEIGHTS: (pa.list_(pa.float32()),),
    POSITIONS: (pa.list_(pa.int32()),),
    REACH: (pa.list_(pa.int32()),),
    PADDING: (pa.list_(pa.int32()),),
    LABEL: (pa.bool_(),),
    MEDIA: (SEQUENCE_IMAGES,),
}
"""Columns that only some chunks have, with their allowed types."""


_MOST_IDS, _LONGEST = 1 << 32, (1 << 31) - 1
_SHORT_IDS = 1 << 16

_FILE_NAME = re.compile(r"(?!\.{1,2}$)[^/\\\0]+")

_COLUMNS = {**{name: types[0] for name, types in REQUIRED.items()}, WEIGHTS: pa.list_(pa.float32())}


@dataclass(frozen=True)
class SequenceFacts:
    """What the manifest of `sequences` states about all chunks.

    Args:
        pad_token_id: fills padding.
        vocab_size: the highest token id plus one.
        max_length: maximum number of tokens per row.
        packed: whether a row can hold several documents.
        kind: what a row is, one of `KINDS`.
        tokenizer: digest of the tokenizer's files.
        images: whether rows can have images.
        token_columns: names of the columns with a number per token.
        trees: whether rows consist of trees, which have `positions` and `reach`.
        document_multiple: the multiple that documents are padded to; 0: they are not padded.
    """

    pad_token_id: int
    vocab_size: int
    max_length: int
    packed: bool
    kind: str
    tokenizer: str
    images: bool = False
    token_columns: tuple[str, ...] = ()
    trees: bool = False
    document_multiple: int = 0

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> SequenceFacts:
        """Return the facts of a manifest.

        Raises:
            ValueError: one is missing or not valid.
        """
        stated: dict[str, Any] = {name: facts.get(name) for name in cls.__dataclass_fields__}
        stated |= {name: facts.get(name, False) for name in ("images", "trees")}
        named = stated["token_columns"] = facts.get("token_columns", [])
        multiple = stated["document_multiple"] = facts.get("document_multiple", 0)
        pad, size, longest = stated["pad_token_id"], stated["vocab_size"], stated["max_length"]
        valid = {
            "vocab_size": type(size) is int and 0 < size <= _MOST_IDS,
            "pad_token_id": type(pad) is int and type(size) is int and 0 <= pad < size,
            "max_length": type(longest) is int and 0 < longest <= _LONGEST,
            "packed": type(stated["packed"]) is bool,
            "images": type(stated["images"]) is bool,
            "trees": type(stated["trees"]) is bool,
            "kind": stated["kind"] in KINDS,
            "tokenizer": type(stated["tokenizer"]) is str,
            "document_multiple": type(multiple) is int
            and (multiple == 0 or (multiple > 1 and type(longest) is int and longest % multiple == 0)),
            "token_columns": type(named) is list and all(type(name) is str for name in named),
        }
        if wrong := [name for name, is_valid in valid.items() if not is_valid]:
            raise ValueError(f"has no valid {wrong[0]}: {str(stated[wrong[0]])[:60]}")
        return cls(**{**stated, "token_columns": tuple(named)})


def check_sequences(table: pa.Table, facts: SequenceFacts) -> None:
    """Check a chunk of sequences: exact columns, lengths, and documents that fill their sequences.

    Raises:
        ValueError: the chunk is not what the stage `sequences` writes.
    """
    short = facts.vocab_size <= _SHORT_IDS
    of_documents = ((POSITIONS, REACH) if facts.trees else ()) + ((PADDING,) if facts.document_multiple else ())
    _check_columns(table, *_expected(facts.kind, short, facts.images, facts.token_columns, of_documents))
    for side in sides(table).values():
        _check_side(side, facts.max_length)
    if facts.document_multiple:
        _check_padding(table, facts)


@lru_cache(maxsize=8)
def _expected(
    kind: str, short: bool, images: bool, token_columns: tuple[str, ...], of_documents: tuple[str, ...]
) -> tuple[dict[str, pa.DataType], set[str]]:
    """Return the columns of a chunk of sequences, and the names of those that it can lack."""
    prefixes = [f"{side}_" for side in SIDES] if kind == PAIR else [""]
    types = {**_COLUMNS, INPUT_IDS: pa.list_(pa.uint16() if short else pa.uint32())}
    shared = {ROWS: types.pop(ROWS), **({LABEL: pa.bool_()} if kind == LABELLED else {})}
    shared |= {MEDIA: SEQUENCE_IMAGES} if images else {}
    shared |= {f"{PER_TOKEN}{name}": OF_TOKENS for name in token_columns}
    shared |= {name: pa.list_(pa.int32()) for name in of_documents}
    expected = {f"{prefix}{name}": kind for prefix in prefixes for name, kind in types.items()} | shared
    return expected, {f"{prefix}{WEIGHTS}" for prefix in prefixes}


def check_mapped(values: npt.NDArray[Any], data: pa.Buffer) -> None:
    """Check that values are a view of an object's bytes, so that they can be read from its memory map.

    Raises:
        ValueError: they are a copy (the object is compressed), or are not aligned.
    """
    begin = values.ctypes.data - data.address
    if len(values) and (begin < 0 or begin + values.nbytes > data.size or begin % values.itemsize):
        raise ValueError("has columns that cannot be memory-mapped")


def _check_side(table: pa.Table, longest: int) -> None:
    ids = list_views(table[INPUT_IDS])[0]
    of_tokens = {TRAINED, WEIGHTS, *(name for name in table.column_names if name.startswith(PER_TOKEN))}
    for name in sorted(of_tokens & {*table.column_names}):
        if (list_views(table[name])[0] != ids).any():
            raise ValueError(f"has rows with different numbers of {INPUT_IDS} and {name}")
    length = (ids[1:] - ids[:-1]).max(initial=0)
    if length > longest:
        raise ValueError(f"has a row of {length:,} tokens, but the dataset's max_length is {longest:,}")
    offsets, sizes = list_views(table[DOCUMENT_LENGTHS])
    # the sums of documents at the bounds of rows are those of tokens
    if sizes.min(initial=0) < 0 or (offsets_of(sizes)[offsets] != ids).any():
        raise ValueError(f"has {DOCUMENT_LENGTHS} that do not add up to the tokens of their row")
    row_offsets, rows = list_views(table[ROWS])
    if (row_offsets != offsets).any():
        raise ValueError(f"has rows with different numbers of {ROWS} and {DOCUMENT_LENGTHS}")
    if rows.min(initial=0) < 0:
        raise ValueError(f"has negative numbers in {ROWS}")
    if POSITIONS in table.column_names:
        _check_trees(offsets, sizes, longest, *map(list_views, (table[POSITIONS], table[REACH])))


def _check_trees(offsets: Any, sizes: Any, longest: int, *columns: tuple[Any, Any]) -> None:
    """Check that documents begin within the text of the one before, and reach no further than their row."""
    if any((of_column != offsets).any() for of_column, _ in columns):
        raise ValueError(f"has rows with different numbers of {DOCUMENT_LENGTHS}, {POSITIONS} and {REACH}")
    positions, reach = (values.astype(np.int64) for _, values in columns)
    ends, bounds = positions + sizes, offsets_of(sizes)
    most = np.append(0, ends[:-1])[: len(ends)]  # a document continues a beginning of the text before it
    filled = offsets[:-1] < offsets[1:]
    most[offsets[:-1][filled]] = 0
    if positions.min(initial=0) < 0 or (positions > most).any() or ends.max(initial=0) > longest:
        raise ValueError(f"has {POSITIONS} at which no document can begin")
    # what sees a document ends with its row at the latest
    row_ends = np.repeat(bounds[offsets[1:]], np.diff(offsets))
    if (reach < sizes).any() or (bounds[:-1] + reach > row_ends).any():
        raise ValueError(f"has a {REACH} that is not that of documents of its row")


def _check_padding(table: pa.Table, facts: SequenceFacts) -> None:
    offsets, lengths = list_views(table[DOCUMENT_LENGTHS])
    padding_offsets, padding = list_views(table[PADDING])
    if (padding_offsets != offsets).any():
        raise ValueError(f"has rows with different numbers of {PADDING} and {DOCUMENT_LENGTHS}")
    if (lengths % facts.document_multiple).any():
        raise ValueError(f"has documents that are not padded to a multiple of {facts.document_multiple} tokens")
    # less than a multiple, and an empty document has none
    if ((padding < 0) | (padding >= np.minimum(facts.document_multiple, lengths + 1))).any():
        raise ValueError(f"has {PADDING} that does not fit into its document")
    if not facts.packed and (np.diff(offsets) != 1).any():
        raise ValueError("has rows of several documents, but is not packed")


def check_lengths(table: pa.Table, rows: int, longest: int) -> None:
    """Check the lengths of a chunk with `rows` sequences of at most `longest` tokens.

    Raises:
        ValueError: they are not what the stage `sequences` writes.
    """
    short = table.column_names == [LENGTH] and table.schema.field(LENGTH).type == pa.uint16()
    check_lengths_type(table, pa.uint16() if short else pa.uint32())
    lengths = flat_numbers(one_array(table[LENGTH]))
    if len(lengths) != rows or lengths.max(initial=0) > longest:
        raise ValueError(f"has {len(lengths):,} lengths of at most {lengths.max(initial=0):,} tokens")


def check_lengths_type(table: pa.Table, kind: pa.DataType) -> None:
    """Check that a table has lengths of this type alone, without reading them.

    Raises:
        ValueError: it does not.
    """
    _check_columns(table, {LENGTH: kind})


def check_sidecar(table: pa.Table, names: Sequence[str]) -> None:
    """Check the sidecar of a chunk with the kept columns `names`, which can be of any type.

    Raises:
        ValueError: it is not what the stage `sidecars` writes.
    """
    if {*table.column_names} != {RAW_ROW, *names}:
        raise ValueError(f"has the columns {', '.join(table.column_names)[:200]}")
    _check_columns(table.select([RAW_ROW]), {RAW_ROW: pa.int32()})
    if (np.diff(flat_numbers(one_array(table[RAW_ROW]))) <= 0).any():
        raise ValueError(f"has rows that do not ascend in {RAW_ROW}")


def check_tokenizer(table: pa.Table) -> None:
    """Check the files of a tokenizer.

    Raises:
        ValueError: they are not what the stage `tokenizer` writes.
    """
    _check_columns(table, {"file": pa.string(), "content": pa.binary()})
    if wrong := [name for name in table["file"].to_pylist() if not is_file_name(name)]:
        raise ValueError(f"has a file {wrong[0][:80]!r}")


def is_file_name(name: str) -> bool:
    """Return whether a name is that of a file in a folder, and leads nowhere else."""
    return _FILE_NAME.fullmatch(name) is not None


def _check_columns(table: pa.Table, expected: Mapping[str, pa.DataType], optional: set[str] | None = None) -> None:
    types = {field.name: field.type for field in table.schema}
    for name, kind in expected.items():
        if name not in types and name not in (optional or ()):
            raise ValueError(f"has no column {name}")
        if name in types and types[name] != kind:
            raise ValueError(f"has a column {name} of type {types[name]}, not {kind}")
    if unknown := types.keys() - expected.keys():
        raise ValueError(f"has an unexpected column {min(unknown)[:60]!r}")
    for name in types:
        array = one_array(table[name])
        if array.null_count or (pa.types.is_list(array.type) and array.values.null_count):
            raise ValueError(f"has nulls in column {name}")


def rounded_up(lengths: Ints, multiple: int) -> Ints:
    """Return int64 lengths, each the next multiple."""
    return -(-lengths // multiple) * multiple


def with_padding(table: pa.Table, multiple: int, pad_token_id: int) -> pa.Table:
    """Return sequences whose documents are padded to a multiple of tokens, with the column `padding`.

    Args:
        table: sequences of one side, without padding.
        multiple: of tokens; a document can be one multiple long, or several.
        pad_token_id: fills `input_ids`; other columns with a value per token get 0.
    """
    documents, lengths = list_views(table[DOCUMENT_LENGTHS])
    wide = rounded_up(lengths.astype(np.int64), multiple)
    bounds = offsets_of(wide)
    own = ranges(bounds[:-1], lengths)

    def padded(name: str) -> pa.Array:
        values = list_views(table[name])[1]
        filled = np.full(bounds[-1], pad_token_id if name == INPUT_IDS else 0, values.dtype)
        filled[own] = values
        return list_array(bounds[documents], filled)

    columns = {name: padded(name) if _is_per_token(name) else table[name] for name in table.column_names}
    columns[DOCUMENT_LENGTHS] = list_array(documents, wide.astype(np.int32))
    return pa.table({**columns, PADDING: list_array(documents, (wide - lengths).astype(np.int32))})


def without_padding(table: pa.Table) -> pa.Table:
    """Return sequences of one side without the padding of documents; a table without the column `padding` as it is."""
    if PADDING not in table.column_names:
        return table
    (documents, lengths), padding = list_views(table[DOCUMENT_LENGTHS]), list_views(table[PADDING])[1]
    left = lengths - padding
    bounds, own = offsets_of(left), ranges(offsets_of(lengths)[:-1], left)
    columns: dict[str, Any] = {
        name: list_array(bounds[documents], list_views(table[name])[1][own]) if _is_per_token(name) else table[name]
        for name in table.column_names
        if name != PADDING
    }
    return pa.table({**columns, DOCUMENT_LENGTHS: list_array(documents, left)})


def _is_per_token(name: str) -> bool:
    return name in TOKEN_COLUMNS or name.startswith(PER_TOKEN)
