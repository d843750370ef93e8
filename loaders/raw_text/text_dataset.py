"""Raw text without a build: each text one row, tokenized once, read as a built dataset is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.errors import SourceError
from tokenloom.loaders.collation.batch import PaddingPolicy
from tokenloom.loaders.datasets.trace import TracedRow
from tokenloom.loaders.order.row_order import RowOrder, Shuffle
from tokenloom.loaders.raw_text.encoding import TextEncoder, encode_stream
from tokenloom.loaders.raw_text.text_files import read_texts, text_files
from tokenloom.loaders.reading.reader import SequenceReader
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.tables.ragged import list_array, offsets_of

TRAIN = "train"


class TextDataset:
    """The texts of a file or folder, for a `TokenLoader`. Every token is trained; a text's tokens behind `max_length`
    are left out, and so are texts without tokens. Five bytes a token are kept in memory.

    Args:
        path: texts on lines, or JSONL with a `text` on each; of a folder, the .txt and .jsonl files.
        tokenizer: `encode(text)` returns ids, a dict with `input_ids`, or an Encoding; special tokens are as it says.
        max_length: tokens of a row at most.

    Attributes:
        digest: hex BLAKE3 of the rows.
        pad_token_id: the tokenizer's, else that of its EOS, else 0.

    Raises:
        SourceError: a file cannot be read as texts, or there is no text.
        TypeError: `encode` returned something else.
    """

    packed, split = False, TRAIN

    def __init__(self, path: str | os.PathLike[str], tokenizer: TextEncoder, max_length: int):
        self.name, self.max_length = os.fspath(path), max_length
        self.pad_token_id = _pad_token_id(tokenizer)
        self._files = text_files(Path(path))
        tables, places = [], []
        for number, file in enumerate(self._files):
            for lines, encoded in encode_stream(tokenizer, read_texts(file), max_length):
                lengths = np.array([len(ids) for ids in encoded])
                tables.append(_table(np.concatenate(encoded), lengths[lengths > 0]))
                places.append(np.stack([np.full(len(lines), number), lines], axis=1)[lengths > 0])
        self._places = np.concatenate(places) if places else np.zeros((0, 2), np.int64)
        if not len(self):
            raise SourceError(f"{self.name}: there is no text in it")
        self.reader = SequenceReader.of_tables(tables)
        self.digest = digest_json([_digest(table) for table in tables])

    def __len__(self) -> int:
        return len(self._places)

    def digest_until(self, position: int) -> str:
        """The digest, which tells the rows before any position."""
        return self.digest

    def order(self, seed: int, shuffle: Shuffle) -> RowOrder:
        """Which row stands at which running position."""
        return RowOrder(len(self), self.digest, seed, shuffle)

    def padding(self, padding: Any = "max_length", side: Any = "right") -> PaddingPolicy:
        """How batches are padded."""
        return PaddingPolicy(self.pad_token_id, padding, side, self.max_length, self.packed)

    def trace(self, row: int) -> TracedRow:
        """Where a row comes from."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        file, line = self._places[row].tolist()
        return TracedRow(self.name, self.split, row, (f"{self._files[file]}:{line}",), self.digest)


def _table(ids: np.ndarray, lengths: np.ndarray) -> pa.Table:
    """Rows as the store holds them: each one document, all of whose tokens are trained."""
    offsets = offsets_of(lengths)
    return pa.table(
        {
            "input_ids": list_array(offsets, ids.astype(np.uint32)),
            "trained": list_array(offsets, np.ones(len(ids), np.uint8)),
            "document_lengths": list_array(np.arange(len(lengths) + 1), lengths.astype(np.int32)),
        }
    )


def _digest(table: pa.Table) -> list[str]:
    parts = (table["input_ids"].chunk(0).values, table["document_lengths"].chunk(0).values)
    return [digest_bytes(np.from_dlpack(part).tobytes()) for part in parts]


def _pad_token_id(tokenizer: Any) -> int:
    padding = getattr(tokenizer, "padding", None)  # of tokenizers
    named = [getattr(tokenizer, name, None) for name in ("pad_token_id", "eos_token_id")]
    found = [*named, padding.get("pad_id") if isinstance(padding, dict) else None]
    return next((id for id in found if isinstance(id, int)), 0)
