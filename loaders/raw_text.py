"""Small text data without a build, tokenized on opening or when a row is read: one row per text, or windows over one
stream of tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import Dataset

from tokenloom.errors import SourceError
from tokenloom.loaders.datasets.token_dataset import TracedRow
from tokenloom.loaders.map_style import MapLoader, fetch
from tokenloom.loaders.order.batch_plan import LARGEST_COUNT, integer
from tokenloom.loaders.order.row_order import RowOrder, Shuffle
from tokenloom.loaders.reading.ahead import workers_for_hardware
from tokenloom.loaders.reading.batch import PaddingPolicy
from tokenloom.loaders.reading.memory import flat_values
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.tables.json_text import read_json_value
from tokenloom.resources.tables.ragged import Ints, list_array, offsets_of
from tokenloom.resources.tables.sequence_schema import DOCUMENT_LENGTHS, INPUT_IDS, TRAINED


class TextEncoder(Protocol):
    """A tokenizer: of transformers, of tokenizers, or any other object with `encode`."""

    def encode(self, text: str, /) -> Any: ...


def encode_texts(tokenizer: TextEncoder, texts: Sequence[str], max_length: int | None = None) -> list[Ints]:
    """Return the token ids of each text, int64 [tokens], truncated to `max_length`.

    Tokenizers of transformers and tokenizers encode all texts in one call.

    Raises:
        TypeError: `encode` returned neither ids, nor a mapping with `input_ids`, nor an Encoding.
    """
    libraries = {base.__module__.partition(".")[0] for base in type(tokenizer).__mro__}
    encodings: Sequence[Any]
    if not texts:
        return []
    if "transformers" in libraries and callable(tokenizer):  # truncates before it adds special tokens
        truncation = {} if max_length is None else {"truncation": True, "max_length": max_length}
        encodings = tokenizer(list(texts), verbose=False, **truncation)["input_ids"]
    elif "tokenizers" in libraries:
        encodings = tokenizer.encode_batch(list(texts))  # pyright: ignore[reportAttributeAccessIssue]
    else:
        encodings = [tokenizer.encode(text) for text in texts]
    return [ids_of(encoded)[:max_length] for encoded in encodings]


def ids_of(encoded: Any) -> Ints:
    """Return the ids in the result of `encode` for one text, int64 [tokens].

    Raises:
        TypeError: it is neither ids, nor a mapping with `input_ids`, nor an Encoding.
    """
    ids = encoded["input_ids"] if isinstance(encoded, Mapping) and "input_ids" in encoded else encoded
    ids = np.asarray(getattr(ids, "ids", ids))
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(
            f"tokenizer.encode must return ids, a dict with `input_ids`, or an Encoding, got a {type(encoded).__name__}"
        )
    return ids.reshape(-1).astype(np.int64)


JSONL = (".jsonl", ".ndjson", ".json")
PLAIN = (".txt", ".text")

TEXTS_AT_ONCE = 1024
"""Texts tokenized in one call."""
MAX_CHARACTERS = 64 << 20
"""The length of a line; longer ones are an error before they fill the memory."""


def text_files(path: Path) -> list[Path]:
    """Return the file, or, for a folder, its text files at any depth in sorted order, without hidden ones.

    Raises:
        SourceError: the folder has no text files.
    """
    if not path.is_dir():
        return [path]
    files = sorted(entry for entry in path.rglob("*") if entry.suffix.lower() in JSONL + PLAIN and entry.is_file())
    visible = [entry for entry in files if not any(part.startswith(".") for part in entry.relative_to(path).parts)]
    if not visible:
        raise SourceError(f"{path}: the folder has no files ending in {', '.join(JSONL + PLAIN)}")
    return visible


def tokenized_file(
    path: Path, tokenizer: TextEncoder, max_length: int | None = None, jsonl: bool | None = None
) -> Iterator[tuple[Ints, list[Ints]]]:
    """Tokenize the texts of a UTF-8 file, block by block. Blank lines are skipped.

    Args:
        max_length: truncates each text, in tokens.
        jsonl: whether each line is an object with a `text`; default: by the file's name.

    Yields:
        for each block, the line numbers of its texts, counted from 1, int64 [texts], and the token ids of each text,
        int64 [tokens].

    Raises:
        SourceError: the file cannot be read, or a line is not such an object or longer than `MAX_CHARACTERS`.
        TypeError: `encode` returned neither ids, nor a mapping with `input_ids`, nor an Encoding.
    """
    texts = _texts(path, path.suffix.lower() in JSONL if jsonl is None else jsonl)
    while block := list(islice(texts, TEXTS_AT_ONCE)):
        ids = encode_texts(tokenizer, [text for _, text in block], max_length)
        yield np.array([line for line, _ in block]), ids


def _texts(path: Path, jsonl: bool) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(MAX_CHARACTERS + 1), ""), 1):
                if len(line) > MAX_CHARACTERS:
                    raise SourceError(f"{path}:{number}: the line has more than {MAX_CHARACTERS:,} characters")
                if not line.isspace():
                    yield number, _json_text(line, f"{path}:{number}") if jsonl else line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot read the file as UTF-8 text: {error}") from error


def _json_text(line: str, place: str) -> str:
    try:
        row = read_json_value(line)
    except ValueError as error:
        remedy = "use the ending .txt for plain text, or pass is_jsonl=False to create_dataloaders"
        raise SourceError(f"{place}: not valid JSON: {error}; {remedy}") from error
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        got = f"an object with {', '.join(map(repr, row))}" if isinstance(row, dict) else f"a {type(row).__name__}"
        raise SourceError(f"{place}: expected an object with a string in its field 'text', got {got}")
    return text


TRAIN = "train"


class TextDataset:
    """The texts of a file or folder as rows for a `TokenLoader`, without a build.

    Every token is trained. Texts are truncated to `max_length` tokens, and texts without tokens are dropped. The rows
    are kept in memory, with five bytes per token.

    Args:
        path: a file with one text per line, or JSONL with a `text` in each object; for a folder, all files in it that
            end in .txt, .text, .jsonl, .ndjson or .json.
        tokenizer: its `encode(text)` returns ids, a dict with `input_ids`, or an Encoding, and decides about special
            tokens.
        max_length: maximum number of tokens per row.

    Attributes:
        digest: hex BLAKE3 of the rows.
        pad_token_id: the tokenizer's pad token, else its EOS token, else 0.

    Raises:
        SourceError: a file cannot be read as texts, or no text has tokens.
        TypeError: `encode` returned something else.
    """

    packed, split = False, TRAIN

    def __init__(self, path: str | os.PathLike[str], tokenizer: TextEncoder, max_length: int):
        self.name, self.max_length = os.fspath(path), max_length
        padding = getattr(tokenizer, "padding", None)  # of the tokenizers library
        candidates = [getattr(tokenizer, name, None) for name in ("pad_token_id", "eos_token_id")]
        candidates.append(padding.get("pad_id") if isinstance(padding, dict) else None)
        self.pad_token_id = next((token_id for token_id in candidates if isinstance(token_id, int)), 0)
        self._files = text_files(Path(path))
        tables, places = [], []
        for number, file in enumerate(self._files):
            for lines, ids in tokenized_file(file, tokenizer, max_length):
                # texts without tokens have no row, but their lines are counted
                lengths = np.array([len(text_ids) for text_ids in ids])
                tables.append(_table(np.concatenate(ids), lengths[lengths > 0]))
                places.append(np.stack([np.full(len(lines), number), lines], axis=1)[lengths > 0])
        self._places = np.concatenate(places) if places else np.zeros((0, 2), np.int64)
        if not len(self):
            raise SourceError(f"{self.name}: found no text")
        self.reader = SequenceReader.of_tables(tables)
        columns = [[table[name].chunk(0).values for name in (INPUT_IDS, DOCUMENT_LENGTHS)] for table in tables]
        digests = [[digest_bytes(np.from_dlpack(column).tobytes()) for column in pair] for pair in columns]
        self.digest = digest_json(digests)
        self._lengths = np.concatenate([flat_values(table[DOCUMENT_LENGTHS]) for table in tables])

    def __len__(self) -> int:
        return len(self._places)

    def lengths(self, rows: Ints) -> Ints:
        """Return the number of tokens of each row, int64 [rows]."""
        return self._lengths[rows].astype(np.int64)

    def digest_until(self, position: int) -> str:
        """Return the digest, which determines the rows before any position."""
        return self.digest

    def order_digest(self, position: int) -> str:
        """Return the digest that shuffles the batches of a token budget before any position."""
        return self.digest

    def order(self, seed: int, shuffle: Shuffle) -> RowOrder:
        """Return the rows by position, with positions counted across epochs."""
        return RowOrder(len(self), self.digest, seed, shuffle)

    def padding(self, padding: Any = "max_length", side: Any = "right") -> PaddingPolicy:
        """Return how batches are padded."""
        return PaddingPolicy(self.pad_token_id, padding, side, self.max_length, self.packed)

    def trace(self, row: int) -> TracedRow:
        """Return where a row comes from: its file and line."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is out of range: the dataset has {len(self)} rows")
        file, line = self._places[row].tolist()
        return TracedRow(self.name, self.split, row, (f"{self._files[file]}:{line}",), self.digest)


def _table(ids: np.ndarray, lengths: np.ndarray) -> pa.Table:
    """Return rows with the columns of a built dataset: one document each, with all tokens trained."""
    offsets = offsets_of(lengths)
    return pa.table(
        {
            INPUT_IDS: list_array(offsets, ids.astype(np.uint32)),
            TRAINED: list_array(offsets, np.ones(len(ids), np.uint8)),
            DOCUMENT_LENGTHS: list_array(np.arange(len(lengths) + 1), lengths.astype(np.int32)),
        }
    )


class TransformerDataset(Dataset[dict[str, torch.Tensor]]):
    """Windows of `seq_length` tokens over one stream: the concatenated texts of a file.

    `dataset[i]` is window i: int64 [seq_length] `input_ids`, and `labels`, which are the next token of the stream at
    each position, so the loss needs no shift. Windows do not overlap, and tokens after the last full window are
    dropped. The file is tokenized on construction and kept in memory, with 2 or 4 bytes per token.

    Args:
        path: a file with one text per line, or JSONL with a `text` in each object; blank lines are skipped.
        tokenizer: its `encode(text)` returns ids, a dict with `input_ids`, or an Encoding, and decides about special
            tokens.
        seq_length: tokens per window.
        is_jsonl: whether the file is JSONL; default: whether its name ends in .jsonl, .ndjson or .json.

    Attributes:
        digest: hex BLAKE3 of the tokens.

    Raises:
        SourceError: the file cannot be read, a line is not an object with a `text`, or the tokens do not fill one
            window.
        ValueError: `seq_length` is below 1.
        TypeError: `encode` returned something else.
    """

    def __init__(
        self, path: str | os.PathLike[str], tokenizer: TextEncoder, seq_length: int = 128, is_jsonl: bool | None = None
    ):
        seq_length = integer("seq_length", seq_length, 1, LARGEST_COUNT)
        self.path, self.seq_length = Path(path), seq_length
        parts: list[np.ndarray] = [np.zeros(0, np.uint16)]
        for _, block in tokenized_file(self.path, tokenizer, jsonl=is_jsonl):
            ids = np.concatenate(block)
            parts.append(ids.astype(np.uint16 if int(ids.max(initial=0)) < 1 << 16 else np.uint32))
        self.tokens = np.concatenate(parts)
        if len(self.tokens) <= seq_length:
            raise SourceError(
                f"{self.path}: a window of seq_length {seq_length} needs {seq_length + 1} tokens, but the file has "
                f"only {len(self.tokens)}; lower seq_length"
            )

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.seq_length

    def __getitem__(self, window: int) -> dict[str, torch.Tensor]:
        if not -len(self) <= window < len(self):
            raise IndexError(f"window {window} is out of range: the dataset has {len(self)} windows")
        begin = window % len(self) * self.seq_length
        ids = torch.from_numpy(self.tokens[begin : begin + self.seq_length + 1].astype(np.int64))
        return {"input_ids": ids[:-1], "labels": ids[1:].clone()}  # they can be masked in place

    @cached_property
    def digest(self) -> str:
        return digest_bytes(self.tokens.tobytes())


def create_dataloaders(
    train_path: str | os.PathLike[str],
    val_path: str | os.PathLike[str],
    tokenizer: TextEncoder,
    batch_size: int = 16,
    seq_length: int = 128,
    num_workers: int | None = None,
    is_jsonl: bool | None = None,
    seed: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
) -> tuple[MapLoader, MapLoader]:
    """Return a training and a validation loader over two small text files, each read by a `TransformerDataset`.

    Batches are dicts of int64 `input_ids` and `labels`, [batch_size, seq_length]. The training loader shuffles, and
    drops the last batch if it is not full. The validation loader reads every window in order.

    Args:
        train_path, val_path: files with one text per line, or JSONL with a `text` in each object.
        tokenizer: its `encode(text)` returns ids, a dict with `input_ids`, or an Encoding.
        batch_size: windows per rank and batch.
        seq_length: tokens per window.
        num_workers: worker processes; None: 0 without a CUDA device, else half of the CPUs, at most 4.
        is_jsonl: whether both files are JSONL; default: by the ending of each name.
        seed: determines the training order.
        rank, world_size: default: those of `torch.distributed` if it is initialized, else 0 and 1.

    Raises:
        SourceError: a file cannot be read as texts, or the training file does not fill one batch.
    """
    workers = workers_for_hardware() if num_workers is None else num_workers
    shared = {"batch_size": batch_size, "seed": seed, "rank": rank, "world_size": world_size, "num_workers": workers}
    train = TransformerDataset(train_path, tokenizer, seq_length, is_jsonl)
    validation = TransformerDataset(val_path, tokenizer, seq_length, is_jsonl)
    train_loader = MapLoader(train, shuffle=True, drop_last=True, **shared)
    _, ranks = train_loader.sharding.known() or (0, 1)
    if len(train) // ranks < batch_size:
        raise SourceError(
            f"{train_path}: {len(train)} windows of {seq_length} tokens do not fill a batch of {batch_size} on every "
            "rank; lower batch_size or seq_length"
        )
    return train_loader, MapLoader(validation, shuffle=False, **shared)


ROWS_AT_ONCE = 10_000


class TokenizedTexts(Dataset[dict[str, torch.Tensor]]):
    """The rows of a text dataset, tokenized when they are read.

    `dataset[i]` is row i: int64 [tokens] `input_ids` and `attention_mask`, at most `max_length` tokens.

    Args:
        dataset: a map-style dataset of texts, or of dicts with a `text`; other columns are not read.
        tokenizer: its `encode(text)` returns ids, a dict with `input_ids`, or an Encoding, and decides about special
            tokens.
        max_length: maximum number of tokens per row; None: no limit.
    """

    def __init__(self, dataset: Any, tokenizer: TextEncoder, max_length: int | None = None):
        self.dataset = dataset.select_columns(["text"]) if hasattr(dataset, "select_columns") else dataset
        self.tokenizer, self.max_length = tokenizer, max_length

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[dict[str, torch.Tensor]]:
        texts = [_text(row) for row in fetch(self.dataset, rows)]
        encoded = map(torch.from_numpy, encode_texts(self.tokenizer, texts, self.max_length))
        return [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in encoded]

    def nonblank_rows(self) -> Ints:
        """Return the rows whose text is not blank, int64; lines of plain text are often blank."""
        import pyarrow.compute as pc  # slow to import, and needed only here

        if hasattr(self.dataset, "with_format"):
            columns = [table["text"] for table in self.dataset.with_format("arrow").iter(ROWS_AT_ONCE)]
        else:
            columns = [pa.array([_text(row) for row in self.dataset], pa.large_string())]
        filled = [pc.fill_null(pc.match_substring_regex(texts, r"\S"), False) for texts in columns]
        flags = [column.to_numpy(zero_copy_only=False) for column in filled]
        return np.flatnonzero(np.concatenate([np.zeros(0, bool), *flags]))


def _text(row: Any) -> Any:
    return row["text"] if isinstance(row, Mapping) else row
