"""The two libraries that tokenize: `tokenizers`, the reference, and gigatoken, which is faster."""

from __future__ import annotations

import os
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.errors import TokenizerError
from tokenloom.resources.engines.engine import cpu_count
from tokenloom.resources.tables.ragged import Ints, offsets_of, text_parts
from tokenloom.resources.tokenizers import load_tokenizer, naming_tokenizer
from tokenloom.resources.tokenizers.tokenizer_json import MOST_CHARACTERS, USUAL_GROWTH, growth_of

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

Ids = npt.NDArray[np.uint32]

BATCH_BYTES = 1 << 20
"""Bytes of text per call of `tokenizers`: its results take about fifty times as much memory."""

_FAILS = "fails for a text of the data, although it can be loaded"

CACHE_BYTES = 96 << 20
"""Growth of the process while a gigatoken tokenizer works, in bytes per thread, after which it is dropped."""


class Reference:
    """A tokenizer of the library `tokenizers`.

    Args:
        content: tokenizer.json.
        keep_control: whether the text of special tokens becomes special tokens.
    """

    def __init__(self, content: str, keep_control: bool):
        self._content, self._keep_control, self._lock = content, keep_control, Lock()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, loaded on first use."""
        with self._lock:
            return self._loaded

    @cached_property
    def _loaded(self) -> Tokenizer:
        loaded = load_tokenizer(self._content.encode())
        loaded.no_truncation()
        loaded.no_padding()
        loaded.encode_special_tokens = not self._keep_control
        return loaded

    @cached_property
    def _growth(self) -> float:
        return growth_of(self._content.encode())

    def ids(self, texts: pa.Array) -> tuple[Ids, Ints]:
        """Return the ids of all texts, and offsets, int64 [texts + 1].

        Raises:
            TokenizerError: the tokenizer fails for a text.
        """
        tokenizer, parts = self.tokenizer, []
        for part in _batches(texts, self._growth):
            with naming_tokenizer(_FAILS):
                parts.append(_ids(tokenizer.encode_batch_fast(part, add_special_tokens=False)))
        return _joined(parts)

    def places(self, texts: pa.Array) -> tuple[Ids, Ints, Ints]:
        """Return ids and offsets as `ids` does, and int64 [tokens, 2]: start and end of each token in its text, in
        characters.

        Raises:
            TokenizerError: the tokenizer fails for a text.
        """
        tokenizer, parts, places = self.tokenizer, [], [np.zeros((0, 2), np.int64)]
        for part in _batches(texts, self._growth):
            with naming_tokenizer(_FAILS):
                encodings = tokenizer.encode_batch(part, add_special_tokens=False)
            parts.append(_ids(encodings))
            numbers = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
            places.append(np.fromiter(numbers, np.int64, 2 * len(parts[-1][0])).reshape(-1, 2))
        ids, offsets = _joined(parts)
        return ids, offsets, np.concatenate(places)


def _batches(texts: pa.Array, growth: float) -> list[list[str]]:
    """Split the texts into batches of about BATCH_BYTES, or less if the tokenizer makes more of them than usual; raise
    TokenizerError if it can make too much of one text."""
    bounds, size = text_parts(texts)[0], BATCH_BYTES
    if growth > USUAL_GROWTH:
        size, most = max(int(BATCH_BYTES / growth), 1), int(np.diff(bounds).max(initial=0) * growth)
        if most > MOST_CHARACTERS:
            raise TokenizerError(
                f"tokenizer.json: its normalizer can make {most:,} characters of a row, more than {MOST_CHARACTERS:,}; "
                "use the file of a trained tokenizer, or shorter rows"
            )
    batch = bounds[:-1] // size
    # a batch ends where the text's start is in another multiple of the size
    cuts = np.flatnonzero(np.diff(batch, prepend=-1, append=-1) if len(batch) else batch)
    return [texts.slice(first, end - first).to_pylist() for first, end in pairwise(cuts)]


def _ids(encodings: list[Encoding]) -> tuple[Ids, Ints]:
    lists = [encoding.ids for encoding in encodings]
    counts = np.fromiter(map(len, lists), np.int64, len(lists))
    return np.fromiter(chain.from_iterable(lists), np.uint32, int(counts.sum())), counts


def _joined(parts: list[tuple[Ids, Ints]]) -> tuple[Ids, Ints]:
    ids = np.concatenate([ids for ids, _ in parts] or [np.zeros(0, np.uint32)])
    return ids, offsets_of(np.concatenate([counts for _, counts in parts] or [np.zeros(0, np.int64)]))


class Gigatoken:
    """A tokenizer of the library gigatoken, for concurrent threads.

    It is loaded once, as loading holds the GIL; the library's threads have a copy each, which caches every word that it
    has tokenized. So it is dropped when the process has grown by CACHE_BYTES per thread in its calls.

    Args:
        content: tokenizer.json.

    Raises:
        TokenizerError: gigatoken cannot load it.
        ImportError: gigatoken is not installed.
    """

    def __init__(self, content: str):
        self._content = content.encode()
        self._lock = Lock()
        self._loaded, self._grown = self._load(), 0

    def _load(self) -> Any:
        from gigatoken import Tokenizer

        with naming_tokenizer("cannot be loaded by gigatoken"):
            return Tokenizer.from_json(self._content)

    def ids(self, texts: pa.Array) -> tuple[Ids, Ints]:
        """Return the ids of all texts, and offsets, int64 [texts + 1].

        Raises:
            TokenizerError: the tokenizer fails for a text.
        """
        import awkward

        bounds, data = text_parts(texts)
        if not len(texts):
            return np.zeros(0, np.uint32), np.zeros(1, np.int64)
        content: Any = data
        characters = awkward.contents.NumpyArray(content, parameters={"__array__": "char"})
        edges = awkward.index.Index64(bounds)
        strings = awkward.contents.ListOffsetArray(edges, characters, parameters={"__array__": "string"})
        with self._lock:
            if self._loaded is None:
                self._loaded, self._grown = self._load(), 0
            loaded = self._loaded
        before = _resident_bytes()
        with naming_tokenizer(_FAILS):
            encoded = loaded.encode_batch(awkward.Array(strings)).layout
        ids, offsets = np.asarray(encoded.content.data), np.asarray(encoded.offsets)
        with self._lock:
            if loaded is self._loaded:
                # the memory of the result itself does not count as growth of the library
                self._grown += _resident_bytes() - before - ids.nbytes - offsets.nbytes
                given = os.environ.get("RAYON_NUM_THREADS", "")
                if self._grown >= CACHE_BYTES * (int(given) if given.isdecimal() and int(given) else cpu_count()):
                    self._loaded = None
        return ids, offsets


def _resident_bytes() -> int:
    """Return the memory of this process in bytes, or 0 if the system does not provide it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
