"""Records: small JSON blobs, each with a digest of its name and content.

A record has exactly one form in bytes. A damaged record, or one that was copied or renamed, is treated as missing.
"""

from __future__ import annotations

import json
from typing import Any

from tokenloom.resources.digest import canonical_json, digest_bytes


def encode_record(name: str, content: Any) -> bytes:
    """Return the bytes of the record with that blob name and content (JSON)."""
    encoded = canonical_json(content)
    digest = digest_bytes(b'{"content":%b,"name":%b}' % (encoded, canonical_json(name)))
    return b'{"content":%b,"digest":"%b"}' % (encoded, digest.encode())


def decode_record(name: str, data: bytes) -> Any:
    """Return the content of the record with that blob name.

    Raises:
        ValueError: the bytes are damaged, or are those of a record with another name.
    """
    record = parse_json(data)
    if not isinstance(record, dict) or "content" not in record:
        raise ValueError(f"{name} is not a record")
    try:
        intact = encode_record(name, record["content"]) == data
    except RecursionError:
        intact = False
    if not intact:
        raise ValueError(f"{name} is damaged")
    return record["content"]


def parse_json(data: bytes) -> Any:
    """Parse JSON that can be crafted.

    Raises:
        ValueError: it is not valid, not UTF-8, or nested too deep.
    """
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deep") from error
