"""Digests: BLAKE3 of bytes, of canonical JSON, and of blocks within a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from blake3 import blake3

THREADED_BYTES = 64 << 20
"""Less than this is hashed sooner than threads are woken; chunks are hashed several at a time anyway."""


BLOCK_BYTES = 1 << 20
"""Parts of a file that are checked on their own."""

BLOCK_DIGEST_BYTES = 16


def digest_bytes(data: bytes | memoryview) -> str:
    """Hex BLAKE3 of `data`, 64 characters."""
    return blake3(data, max_threads=1 if len(data) < THREADED_BYTES else blake3.AUTO).hexdigest()


def digest_parts(parts: Iterable[bytes | memoryview]) -> str:
    """Hex BLAKE3 of all parts, one behind the other."""
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


def block_digests(data: bytes | memoryview) -> bytes:
    """The first BLOCK_DIGEST_BYTES of the BLAKE3 of each BLOCK_BYTES of `data`, one after the other."""
    begins = range(0, len(data), BLOCK_BYTES)
    return b"".join(blake3(data[begin : begin + BLOCK_BYTES]).digest(BLOCK_DIGEST_BYTES) for begin in begins)


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces: equal values give equal bytes.

    Raises:
        TypeError: a value that JSON has no form for.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_json(value: Any) -> str:
    """Hex BLAKE3 of the canonical JSON of `value`."""
    return digest_bytes(canonical_json(value))
