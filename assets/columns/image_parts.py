"""Content parts that are images, as OpenAI's, Anthropic's and Hugging Face's formats write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenloom.assets.stage.images import BREAK, MARK
from tokenloom.resources.store.blobs.blobs import MEDIA, is_digest

IMAGE_TYPES = ("image", "image_url", "input_image")
_PLACES = ("image", "image_url", "url", "path", "base64", "data", "bytes", MEDIA)
_WITHOUT_EFFECT = ("type", "detail", "cache_control", "media_type")
_URLS = ("http://", "https://", "s3://", "gs://", "file://", "hf://")

Reference = dict[str, str]
"""Where an image is: `media` is the digest of an image of the store, `path` a path or URL, `base64` its content; empty
if the part only marks the place of one."""


class ImagePartError(ValueError):
    """An image part that cannot be used."""


def is_image(part: Any) -> bool:
    """Return whether a content part is an image."""
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    return kind in IMAGE_TYPES or (kind is None and ("image" in part or "image_url" in part) and "text" not in part)


def reference_of(part: Mapping[str, Any]) -> Reference:
    """Return where the image of a part is.

    Raises:
        ImagePartError: it is given twice, or in a way that is not known, or the part has a field that is not used.
    """
    given = {name: value for name, value in part.items() if value not in (None, "") and name not in _WITHOUT_EFFECT}
    source = given.pop("source", None)
    own = part.get("type") is None  # `raw` writes digests inside a part or into a column, never as a field of a part
    found = [(name, given.pop(name)) for name in _PLACES if name in given and (own or name != MEDIA)]
    if given:
        raise ImagePartError(f"an image part has the field {min(given)!r}, which is not used; remove it")
    if source is not None:
        found.append(("source", source))
    if {name for name, _ in found} == {MEDIA, "path"}:
        found = found[-1:]
    references = [_reference(name, value) for name, value in found]
    if len(references) > 1:
        raise ImagePartError(f"an image part has {' and '.join(name for name, _ in found)}; give its image once")
    return references[0] if references else {}


def _reference(name: str, value: Any) -> Reference:
    if isinstance(value, Mapping):
        if value.get("type") not in (None, "base64", "url", "image"):
            raise ImagePartError(f"an image has a source of type {str(value['type'])[:40]!r}; use base64 or url")
        return reference_of({**value, "type": None})
    if isinstance(value, bytes):
        return {}
    if not isinstance(value, str):
        raise ImagePartError(f"an image is given as {type(value).__name__}, not as a path, URL or base64 text")
    if name == MEDIA:
        if not is_digest(value):
            raise ImagePartError(f"an image part has the field {MEDIA!r}, which is not used; remove it")
        return {MEDIA: value}
    return text_reference(value, encoded=name in ("base64", "data"))


def text_reference(value: str, encoded: bool = False) -> Reference:
    """Return the reference that a text is: a data URL, another URL, or a path.

    Args:
        encoded: whether it is base64 text if it is no URL.

    Raises:
        ImagePartError: it is a data URL that is not base64.
    """
    if value.startswith("data:"):
        head, comma, content = value.partition(",")
        if not comma or not head.endswith(";base64"):
            raise ImagePartError("a data URL is not in base64; write data:image/png;base64,…")
        return {"base64": content}
    return {"base64": value} if encoded and not value.startswith(_URLS) else {"path": value}


def check_texts(parts: list[str | None]) -> None:
    """Check that no text has a character that stands for an image.

    Raises:
        ImagePartError: one has.
    """
    if any(part is not None and (MARK in part or BREAK in part) for part in parts):
        raise ImagePartError("a text beside an image contains the private-use character U+E0D4 or U+E0D5")
