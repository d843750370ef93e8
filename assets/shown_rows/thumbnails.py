"""Thumbnails of images, as data URLs for pages."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping

from tokenloom.assets.shown_rows.token_runs import ShownRow
from tokenloom.errors import TokenloomError
from tokenloom.resources.images.image_file import ImageProblem, open_image

SIDE, QUALITY = 160, 70
"""The longest side of a thumbnail in pixels, and its JPEG quality."""

MOST, MOST_CHARACTERS = 40, 1 << 20
"""The most thumbnails of a page, and the most characters of all together."""


def row_thumbnails(rows: Iterable[ShownRow], read: Callable[[str], bytes]) -> dict[str, str]:
    """Return thumbnails of the images of rows; see `thumbnails`."""
    return thumbnails((run.image.media for row in rows for run in row.runs if run.image is not None), read)


def thumbnails(digests: Iterable[str], read: Callable[[str], bytes], side: int = SIDE) -> dict[str, str]:
    """Return the first images as data URLs, by digest. Images that cannot be read have none, without Pillow no image.

    Args:
        digests: the digests of images.
        read: returns the bytes of an image; raises `TokenloomError`.
        side: the longest side of a thumbnail in pixels.
    """
    urls: dict[str, str] = {}
    room = MOST_CHARACTERS
    for digest in dict.fromkeys(digests):
        if len(urls) == MOST:
            break
        try:
            url = _thumbnail(read(digest), side)
        except (TokenloomError, ImageProblem, OSError, ImportError):
            continue
        if len(url) <= room:
            urls[digest], room = url, room - len(url)
    return urls


def _thumbnail(content: bytes, side: int) -> str:
    """Return an image as a small JPEG, or as a PNG if that is smaller, as for drawings and tiny images."""
    image = open_image(content)
    image.thumbnail((side, side))
    encoded: Mapping[str, io.BytesIO] = {"jpeg": io.BytesIO(), "png": io.BytesIO()}
    image.save(encoded["jpeg"], "JPEG", quality=QUALITY, optimize=True)
    image.save(encoded["png"], "PNG", optimize=True)
    kind, file = min(encoded.items(), key=lambda item: len(item[1].getvalue()))
    return f"data:image/{kind};base64,{b64encode(file.getvalue()).decode()}"
