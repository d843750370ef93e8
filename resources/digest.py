"""BLAKE3 digests of bytes, of canonical JSON, and of the blocks of a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from blake3 import blake3

THREADED_BYTES = 64 << 20
"""Smaller inputs are hashed in the calling thread: chunks are already hashed in parallel."""

LENGTHS_BLOCK = 1 << 14
"""Size in bytes of the parts of an object of lengths that loaders check separately: they read single values of it."""

BLOCK_SIZES = (1 << 18, 1 << 20, LENGTHS_BLOCK)
"""Sizes of the parts of a file that loaders check separately; the first is that of new files of sequences."""

BLOCK_DIGEST_BYTES = 16


def digest_bytes(data: bytes | memoryview) -> str:
    """Return the hex BLAKE3 of `data`, 64 characters."""
    return blake3(data, max_threads=1 if len(data) < THREADED_BYTES else blake3.AUTO).hexdigest()


def digest_parts(parts: Iterable[bytes | memoryview]) -> str:
    """Return the hex BLAKE3 of the concatenated parts, computed by all cores."""
    hasher = blake3(max_threads=blake3.AUTO)
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


def block_digests(data: bytes | memoryview, size: int = BLOCK_SIZES[0]) -> bytes:
    """Return the first BLOCK_DIGEST_BYTES of the BLAKE3 of each block of `size` bytes of `data`, concatenated."""
    starts = range(0, len(data), size)
    return b"".join(blake3(data[start : start + size]).digest(BLOCK_DIGEST_BYTES) for start in starts)


def canonical_json(value: Any) -> bytes:
    """Encode a value as UTF-8 JSON with sorted keys and no spaces, so that equal values give equal bytes.

    Raises:
        TypeError: the value cannot be represented in JSON.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_json(value: Any) -> str:
    """Return the hex BLAKE3 of the canonical JSON of `value`."""
    return digest_bytes(canonical_json(value))
