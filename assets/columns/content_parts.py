"""Contents that are lists of parts, such as `[{"type": "text", "text": "Hi"}]`: their texts, and their images as the
formats of OpenAI, Anthropic and Hugging Face write them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from tokenloom.assets.schema.conventions import loss_weight
from tokenloom.assets.stage.images import BREAK, IN_TEXT, MARK
from tokenloom.resources.store.blobs.blobs import MEDIA, is_digest

TEXT_PARTS = (None, "text", "input_text", "output_text")
"""Types of parts that are text; None for parts without a type."""

TEXT_FIELDS = ("text", "value", "content")
"""Fields of parts with the text."""

REASONING_PARTS = ("reasoning", "thinking")
CALL_PARTS = ("tool_call", "tool_use", "function_call")
RESULT_PARTS = ("tool_result", "tool_response", "function_call_output")


def text_of(part: Any) -> str | None:
    """Return the text of a part, or None if it is not a text part."""
    if isinstance(part, dict) and part.get("type") in TEXT_PARTS:
        return next((part[name] for name in TEXT_FIELDS if isinstance(part.get(name), str)), None)
    return part if isinstance(part, str) else None


def blank_parts(parts: list[Any]) -> list[Any] | None:
    """Return text parts with null in place of their texts, or None if a part is not text."""
    return None if any(text_of(part) is None for part in parts) else [_blank(part) for part in parts]


def is_spaced(parts: Any) -> bool:
    """Return whether text parts have white space where two of them meet."""
    texts = [text_of(part) or "" for part in parts] if isinstance(parts, list) else []
    return any(one[-1:].isspace() or other[:1].isspace() for one, other in pairwise(texts))


def is_blank(content: Any) -> bool:
    """Return whether a content is what `blank_parts` returns."""
    return isinstance(content, list) and all(part is None or _blank_field(part) for part in content)


def filled(parts: list[Any], texts: list[str]) -> list[Any]:
    """Return blank parts with their texts; there can be more texts than parts."""
    pairs = zip(parts, texts, strict=False)
    return [text if part is None else {**part, _blank_field(part): text} for part, text in pairs]


def part_ranges(content: Any) -> list[tuple[int, int, float | None]]:
    """Return where the text of each part is in the joined text, and the weight that the part declares.

    Returns:
        start and end in bytes, and the weight or None; empty if the content is not a list of text parts, or if none of
        them declares a weight.

    Raises:
        ValueError: a weight is not understood.
    """
    ranges: list[tuple[int, int, float | None]] = []
    end = 0
    texts = list(map(text_of, content)) if isinstance(content, list) else []
    for part, text in zip(content, texts, strict=True) if None not in texts and texts else ():
        # Half of a surrogate pair has no bytes in UTF-8; its row is rejected later.
        start, end = end, end + len((text or "").encode("utf-8", "surrogatepass"))
        ranges.append((start, end, loss_weight(part) if isinstance(part, dict) else None))
    return ranges if any(weight is not None for _, _, weight in ranges) else []


def _blank(part: Any) -> Any:
    if isinstance(part, str):
        return None
    field = next(name for name in TEXT_FIELDS if isinstance(part.get(name), str))
    return {name: None if name == field else value for name, value in part.items() if value is not None}


def _blank_field(part: Any) -> str | None:
    """Return the field of a blank part that its text belongs in, or None if the part is not blank."""
    if not isinstance(part, dict) or part.get("type") not in TEXT_PARTS:
        return None
    return next((name for name in TEXT_FIELDS if name in part and part[name] is None), None)


IMAGE_TYPES = ("image", "image_url", "input_image")
_PLACES = ("image", "image_url", "url", "path", "base64", "data", "bytes", MEDIA)
_WITHOUT_EFFECT = ("type", "detail", "cache_control", "media_type")
_URLS = ("http://", "https://", "s3://", "gs://", "file://", "hf://")

_BARE = re.compile(r"(/9j/|iVBORw0KGgo|R0lGOD|UklGR|SUkqA|TU0AK|Qk\S{6}AAAA|UD[UY][Kg])[A-Za-z0-9+/\s]{24,}={0,2}\s*")
"""Base64 that starts as image files of each format do: JPEG, PNG, GIF, WebP, TIFF, BMP, PPM. No path has that form."""

INDEX = "index"
"""Field of an image part that stands for an image of the row's column, counted from 0."""

Reference = dict[str, str]
"""Where an image is: `media` is the digest of an image of the store, `path` a path or URL, `base64` its content,
`index` its number in the row's column; empty if the part only marks a place."""


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
    # `raw` writes digests inside a part or into a column, never as a field of a part.
    untyped = part.get("type") is None
    places = [(name, given.pop(name)) for name in _PLACES if name in given and (untyped or name != MEDIA)]
    if INDEX in given and not untyped:
        places.append((INDEX, given.pop(INDEX)))
    if given:
        raise ImagePartError(f"an image part has the field {min(given)!r}, which is not used; remove it")
    if source is not None:
        places.append(("source", source))
    # An image that `raw` has stored keeps its path beside the digest, which `_PLACES` has last.
    if {name for name, _ in places} == {MEDIA, "path"}:
        places = places[-1:]
    references = [_reference(name, value) for name, value in places]
    if len(references) > 1:
        raise ImagePartError(f"an image part has {' and '.join(name for name, _ in places)}; give its image once")
    return references[0] if references else {}


def _reference(name: str, value: Any) -> Reference:
    if isinstance(value, Mapping):
        if value.get("type") not in (None, "base64", "url", "image"):
            raise ImagePartError(f"an image has a source of type {str(value['type'])[:40]!r}; use base64 or url")
        return reference_of({**value, "type": None})
    if isinstance(value, bytes):
        return {}
    if name == INDEX:
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value % 1:
            raise ImagePartError(f"an image part has the index {str(value)[:40]!r}, which is not a number from 0")
        return {INDEX: str(int(value))}
    if not isinstance(value, str):
        raise ImagePartError(f"an image is given as {type(value).__name__}, not as a path, URL or base64 text")
    if name == MEDIA:
        if not is_digest(value):
            raise ImagePartError(f"an image part has the field {MEDIA!r}, which is not used; remove it")
        return {MEDIA: value}
    return text_reference(value, encoded=name in ("base64", "data"))


def text_reference(value: str, encoded: bool = False) -> Reference:
    """Return the reference that a text is: a data URL, another URL, base64 of an image, or a path.

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
    encoded = (encoded and not value.startswith(_URLS)) or _BARE.fullmatch(value) is not None
    return {"base64": value} if encoded else {"path": value}


def check_texts(parts: list[str | None]) -> None:
    """Check that no text has a character that stands for an image.

    Raises:
        ImagePartError: one has.
    """
    if any(part is not None and (MARK in part or BREAK in part) for part in parts):
        raise ImagePartError("a text beside an image contains the private-use character U+E0D4 or U+E0D5")


def with_leading(images: list[Any], content: Any) -> list[Any]:
    """Return the parts of a message's content with the images that it has beside it, as Ollama writes them: where
    `<image>` marks their places, else first."""
    parts: list[Any] = [{"type": "image", "image": image} for image in images]
    if not isinstance(content, str):
        return [*parts, *(content if isinstance(content, list) else [content])]
    texts = content.split(IN_TEXT)
    if len(texts) != len(parts) + 1:
        texts = [*[""] * len(parts), content]
    said = ({"type": "text", "text": text} if text else None for text in texts)
    return [part for pair in zip(said, [*parts, None], strict=True) for part in pair if part is not None]
