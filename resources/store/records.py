"""Records: small JSON blobs, each with a digest of its name and content.

A damaged record, or one that was copied or renamed, is treated as missing.
"""

from __future__ import annotations

import json
from typing import Any

from tokenloom.resources.digest import canonical_json, digest_json


def encode_record(name: str, content: Any) -> bytes:
    """Return the bytes of the record with that blob name and content (JSON)."""
    return canonical_json({"content": content, "digest": _digest(name, content)})


def decode_record(name: str, data: bytes) -> Any:
    """Return the content of the record with that blob name.

    Raises:
        ValueError: the bytes are damaged, or are those of a record with another name.
    """
    record = json.loads(data)
    if not isinstance(record, dict) or record.keys() != {"content", "digest"}:
        raise ValueError(f"{name} is not a record")
    if record["digest"] != _digest(name, record["content"]):
        raise ValueError(f"{name} is damaged")
    return record["content"]


def _digest(name: str, content: Any) -> str:
    return digest_json({"content": content, "name": name})
