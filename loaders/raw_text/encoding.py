"""Tokenizes texts, for any tokenizer with an `encode` method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tokenloom.resources.tables.ragged import Ints


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
