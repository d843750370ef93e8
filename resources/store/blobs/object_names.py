"""Names of objects: `objects/<ab>/<digest>.arrow`, where `digest` is the hex BLAKE3 of the blob's bytes."""

from __future__ import annotations

import re

OBJECTS = "objects"

DIGEST_CHARACTERS = 64

TOKENIZER_FILE = re.compile(rf"tokenizers/([0-9a-f]{{{DIGEST_CHARACTERS}}})/[^/]+")
_DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_CHARACTERS}}}")
_BLOB = re.compile(rf"{OBJECTS}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})\.arrow")


def is_digest(value: object) -> bool:
    """Return whether a value is a text that has the form of an object's digest."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def object_digest(blob: str) -> str | None:
    """Return the digest of the object with that blob name, or None if the blob is not an object."""
    return found[2] if (found := _BLOB.fullmatch(blob)) else None
