"""How deep JSON text is nested, determined on its bytes before any parser reads it.

Parsers recurse into lists and objects: pyarrow's ends the process at some depth, Python's raises RecursionError.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenloom.resources.tables.flags import Flags
from tokenloom.resources.tables.ragged import Ints

MAX_DEPTH = 64
"""The levels of lists and objects that a JSON value can have."""
PARSED_DEPTH = 1000
"""The levels that every parser survives."""
TOO_DEEP = f"lists and objects are nested more than {MAX_DEPTH} levels deep"
LONE_SURROGATE = "a string contains a lone surrogate"

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""Surrogates, also of a pair, and what only looks like one after an escaped backslash."""
_OPENING, _CLOSING = ord("["), ord("]")
_LARGE = 1 << 20
_INDEXED = 1 << 24
"""Size of the largest text whose quotes are indexed; the index takes several times its size."""


def read_json_value(text: str | bytes) -> Any:
    """Return what `json.loads` returns.

    Raises:
        ValueError: the text is not valid JSON, is nested more than `MAX_DEPTH` levels deep, or contains a surrogate
            without its other half, which UTF-8 cannot represent.
    """
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if is_deeper(data, MAX_DEPTH):
        raise ValueError(TOO_DEEP)
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))  # json.loads itself lets surrogates pass
    value = json.loads(text)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{LONE_SURROGATE}, \\u{ord(error.object[error.start]):x}; remove it") from error
    return value


def is_deeper(data: bytes, levels: int) -> bool:
    """Return whether JSON text, valid or not, has more than `levels` levels of lists and objects.

    Text with at most that many opening brackets needs no closer look.
    """
    if len(data) <= levels or data.count(b"[") + data.count(b"{") <= levels:
        return False
    bare, depth = _brackets(data) if len(data) < _INDEXED else None, 0
    if bare is None:
        bare = np.frombuffer(_STRING.sub(b"", data), np.uint8)
    for start in range(0, len(bare), _LARGE):
        brackets = _without_case(bare[start : start + _LARGE])
        depths = depth + np.cumsum((brackets == _OPENING).astype(np.int64) - (brackets == _CLOSING))
        if depths.max() > levels:
            return True
        depth = int(depths[-1])
    return False


def _brackets(data: bytes) -> npt.NDArray[np.uint8] | None:
    """Return the brackets outside strings, as `_STRING` finds strings, but faster; None if the text is no JSON."""
    text = np.frombuffer(data, np.uint8)
    quotes, slashes = np.flatnonzero(text == ord('"')), np.flatnonzero(text == ord("\\"))
    if len(slashes):
        breaks = np.diff(slashes) != 1
        first, last = slashes[np.append(True, breaks)], slashes[np.append(breaks, True)]
        escaped = np.zeros(len(text) + 1, bool)
        escaped[last[(last - first) % 2 == 0] + 1] = True
        quotes = quotes[~escaped[quotes]]
        if (np.searchsorted(quotes, slashes) % 2 == 0).any():
            return None
    folded = _without_case(text)
    places = np.flatnonzero((folded == _OPENING) | (folded == _CLOSING))
    return text[places[np.searchsorted(quotes, places) % 2 == 0]]


def which_deeper(data: npt.NDArray[np.uint8], bounds: Ints, levels: int) -> Flags:
    """Return bool [texts]: which of several JSON texts have more than `levels` levels of lists and objects.

    Args:
        data: uint8 [bytes].
        bounds: int64 [texts + 1] into `data`.
    """
    sizes = np.diff(bounds)
    deep = np.zeros(len(sizes), bool)
    suspects = np.flatnonzero(sizes > levels)
    if 8 * len(suspects) > len(sizes) and sizes.max() < _LARGE:  # an index of the brackets of a large text is larger
        opening = np.flatnonzero(_without_case(data) == _OPENING)
        suspects = np.flatnonzero(np.diff(np.searchsorted(opening, bounds)) > levels)
    for text in suspects.tolist():
        deep[text] = is_deeper(data[bounds[text] : bounds[text + 1]].tobytes(), levels)
    return deep


def _without_case(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return bytes with `{` as `[`, and `}` as `]`."""
    return data & np.uint8(0xDF)
