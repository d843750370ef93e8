"""Raw text as a dataset for `TokenLoader` without a build: one row per text, tokenized on opening."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.errors import SourceError
from tokenloom.loaders.datasets.trace import TracedRow
from tokenloom.loaders.order.row_order import RowOrder, Shuffle
from tokenloom.loaders.raw_text.encoding import TextEncoder
from tokenloom.loaders.raw_text.text_files import text_files, tokenized_file
from tokenloom.loaders.reading.address_space import flat_values
from tokenloom.loaders.reading.batch import PaddingPolicy
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.tables.ragged import Ints, list_array, offsets_of
from tokenloom.resources.tables.sequence_schema import DOCUMENT_LENGTHS, INPUT_IDS, TRAINED

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
        self.pad_token_id = _pad_token_id(tokenizer)
        self._files = text_files(Path(path))
        tables, places = [], []
        for number, file in enumerate(self._files):
            for lines, ids in tokenized_file(file, tokenizer, max_length):
                lengths = np.array([len(text_ids) for text_ids in ids])
                tables.append(_table(np.concatenate(ids), lengths[lengths > 0]))
                places.append(np.stack([np.full(len(lines), number), lines], axis=1)[lengths > 0])
        self._places = np.concatenate(places) if places else np.zeros((0, 2), np.int64)
        if not len(self):
            raise SourceError(f"{self.name}: found no text")
        self.reader = SequenceReader.of_tables(tables)
        self.digest = digest_json([_digest(table) for table in tables])
        self._lengths = np.concatenate([flat_values(table[DOCUMENT_LENGTHS]) for table in tables])

    def __len__(self) -> int:
        return len(self._places)

    def lengths(self, rows: Ints) -> Ints:
        """Return the number of tokens of each row, int64 [rows]."""
        return self._lengths[rows].astype(np.int64)

    def digest_until(self, position: int) -> str:
        """Return the digest, which determines the rows before any position."""
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


def _digest(table: pa.Table) -> list[str]:
    parts = (table[INPUT_IDS].chunk(0).values, table[DOCUMENT_LENGTHS].chunk(0).values)
    return [digest_bytes(np.from_dlpack(part).tobytes()) for part in parts]


def _pad_token_id(tokenizer: Any) -> int:
    padding = getattr(tokenizer, "padding", None)  # of the tokenizers library
    candidates = [getattr(tokenizer, name, None) for name in ("pad_token_id", "eos_token_id")]
    candidates.append(padding.get("pad_id") if isinstance(padding, dict) else None)
    return next((token_id for token_id in candidates if isinstance(token_id, int)), 0)
