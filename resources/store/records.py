"""Records: small JSON blobs, each with a digest of its name and content.

A record has exactly one form in bytes. A damaged record, or one that was copied or renamed, is treated as missing.
"""

from __future__ import annotations

import json
from typing import Any

from tokenloom.resources.digest import canonical_json, digest_bytes
from tokenloom.resources.store.blobs.object_names import DIGEST_CHARACTERS

_HEAD, _TAIL = len(b'{"content":'), len(b',"digest":""}') + DIGEST_CHARACTERS
"""Length of what is before and after the content of a record."""


def encode_record(name: str, content: Any) -> bytes:
    """Return the bytes of the record with that blob name and content (JSON)."""
    return _record(name, canonical_json(content))


def _record(name: str, content: bytes) -> bytes:
    digest = digest_bytes(b'{"content":%b,"name":%b}' % (content, canonical_json(name)))
    return b'{"content":%b,"digest":"%b"}' % (content, digest.encode())


def decode_record(name: str, data: bytes) -> Any:
    """Return the content of the record with that blob name.

    Raises:
        ValueError: the bytes are damaged, or are those of a record with another name.
    """
    content = data[_HEAD:-_TAIL]
    if _record(name, content) != data:
        raise ValueError(f"{name} is damaged")
    return parse_json(content)


def parse_json(data: bytes) -> Any:
    """Parse JSON that can be crafted.

    Raises:
        ValueError: it is not valid, not UTF-8, or nested too deep.
    """
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deep") from error
