"""Token ids of texts, whatever a tokenizer's `encode` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np

from tokenloom.resources.tables.ragged import Ints

TEXTS_AT_ONCE = 1024


class TextEncoder(Protocol):
    """A tokenizer: of transformers, of tokenizers, or any other."""

    def encode(self, text: str, /) -> Any: ...


def encode_texts(tokenizer: TextEncoder, texts: Sequence[str], max_length: int | None = None) -> list[Ints]:
    """int64 [tokens] for each text, at most `max_length`; all at once where the library is known to have that.

    Raises:
        TypeError: `encode` returned neither ids, nor a mapping with `input_ids`, nor an Encoding.
    """
    libraries = {base.__module__.partition(".")[0] for base in type(tokenizer).__mro__}
    made: Sequence[Any]
    if not texts:
        return []
    if "transformers" in libraries and callable(tokenizer):  # which cuts before it puts special tokens around
        cut = {} if max_length is None else {"truncation": True, "max_length": max_length}
        made = tokenizer(list(texts), verbose=False, **cut)["input_ids"]
    elif "tokenizers" in libraries:
        made = tokenizer.encode_batch(list(texts))  # pyright: ignore[reportAttributeAccessIssue]
    else:
        made = [tokenizer.encode(text) for text in texts]
    return [ids_of(encoded)[:max_length] for encoded in made]


def encode_stream(
    tokenizer: TextEncoder, texts: Iterator[tuple[int, str]], max_length: int | None = None
) -> Iterator[tuple[Ints, list[Ints]]]:
    """Numbered texts, some at a time: their numbers, int64, and what `encode_texts` makes of them."""
    while some := list(islice(texts, TEXTS_AT_ONCE)):
        yield np.array([number for number, _ in some]), encode_texts(tokenizer, [text for _, text in some], max_length)


def ids_of(encoded: Any) -> Ints:
    """int64 [tokens]: the ids in what `encode` returned for one text.

    Raises:
        TypeError: it is neither ids, nor a mapping with `input_ids`, nor an Encoding.
    """
    found = encoded["input_ids"] if isinstance(encoded, Mapping) and "input_ids" in encoded else encoded
    found = np.asarray(getattr(found, "ids", found))
    if found.size and not np.issubdtype(found.dtype, np.integer):
        raise TypeError(
            f"tokenizer.encode returned a {type(encoded).__name__}; it takes ids, a dict with `input_ids`, or an "
            "Encoding"
        )
    return found.reshape(-1).astype(np.int64)
