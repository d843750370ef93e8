"""Images of rows: the columns that refer to them, and the marks for them in texts.

An image is a mark in the text of a canonical row, in the order of the row's images. A content with images is the texts
of its parts with a mark in place of each image; so a text between marks is one part. Where parts of text are adjacent
or empty, each of them has a break before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tokenloom.resources.store.blobs.blobs import MEDIA

MARK, BREAK = "\ue0d4", "\ue0d5"
"""Private-use characters: an image, and the start of a part of text where it is not clear otherwise."""

IN_TEXT = "<image>"
"""How the texts of a source mark an image."""

ROLE = "images"
"""The role of the source's column with the images of a row."""

IMAGE_COLUMNS = ("images", "image", "file_names", "file_name")
"""Columns with the images of rows, if `column_mapping` does not name another: the first of them that the data has. The
last two are those of metadata files in folders of images, as `datasets` reads them."""

REFERENCES_COLUMN = "_images"
"""Column of `columns` with the images that a row refers to."""

IMAGES_COLUMN = "_media"
"""Column of canonical rows with their images, once these are in the store."""

REFERENCE = pa.struct([(MEDIA, pa.string()), ("path", pa.string())])
"""An image that a row refers to: the digest of its bytes, or their place: a path relative to the source, or a URL."""

REFERENCES = pa.list_(REFERENCE)

IMAGE = pa.struct(
    [
        (MEDIA, pa.string()),
        ("format", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("bytes", pa.int64()),
    ]
)
"""An image of the store: digest, format, width and height in pixels as it is shown, and size of the file in bytes."""

IMAGES_OF_ROW = pa.list_(IMAGE)

EXPANDED_IMAGE = pa.struct([*IMAGE, ("tokens", pa.int32()), ("patches", pa.int32())])
"""An image with the number of its tokens, and of the patches that the model's vision part sees."""

EXPANDED_IMAGES = pa.list_(EXPANDED_IMAGE)


def joined_parts(parts: list[str | None]) -> str:
    """Return the content of parts: texts, and None for images."""
    runs: list[list[str]] = [[]]
    for part in parts:
        if part is None:
            runs.append([])
        else:
            runs[-1].append(part)
    return MARK.join(run[0] if len(run) == 1 and run[0] else "".join(BREAK + text for text in run) for run in runs)


def split_parts(content: str) -> Iterator[str | None]:
    """Yield the parts of a content: texts, and None for images; the inverse of `joined_parts`."""
    for number, run in enumerate(content.split(MARK)):
        if number:
            yield None
        if BREAK in run:
            yield from run.split(BREAK)[1:]
        elif run:
            yield run
