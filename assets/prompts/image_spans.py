"""Puts the token of an image, as a span of its own, where a text has an image; and counts them.

In a text an image is a mark in a value, or the token that the chat template writes for an image part. What the
processor writes around an image is added around the token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tokenloom.assets.prompts.spans import SPAN_ROLES, flat_spans, span_lists
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.images import IMAGES_COLUMN, IMAGES_OF_ROW, MARK
from tokenloom.assets.stage.rejects import ROW, join_rejects, reject_rows
from tokenloom.resources.processors.certificate import ImageTokens
from tokenloom.resources.store.blobs.blobs import MEDIA
from tokenloom.resources.tables.ragged import (
    SIDES,
    Ints,
    list_array,
    list_parts,
    offsets_of,
    one_array,
    ranges,
    row_of,
    text_array,
    text_parts,
)

IMAGE = SPAN_ROLES.index("image")
_TEMPLATE = SPAN_ROLES.index("template")
_MARK = np.frombuffer(MARK.encode(), np.uint8)


@dataclass(frozen=True)
class Illustrated:
    """Renders rows with images. Each text gets the images that it has places for, the first ones of its row: it can be
    the start of a conversation."""

    render: Callable[[pa.Table], ChunkOutput]
    tokens: ImageTokens

    def __call__(self, table: pa.Table) -> ChunkOutput:
        if IMAGES_COLUMN not in table.column_names:  # rows without answers, for inference
            return self.render(table)
        images = one_array(table[IMAGES_COLUMN])
        out = self.render(table.drop_columns([IMAGES_COLUMN]))
        texts, rows = out.table, out.table[ROW].to_numpy()
        given = images.take(pa.array(np.searchsorted(table[ROW].to_numpy(), rows)))
        offsets, flat = list_parts(given)
        written = np.zeros(len(rows), np.int64)
        for prefix in [f"{side}_" for side in SIDES] if "chosen_text" in texts.column_names else [""]:
            text, spans, counts = place_images(texts[f"{prefix}text"], texts[f"{prefix}spans"], self.tokens)
            for name, array in ((f"{prefix}text", text), (f"{prefix}spans", spans)):
                texts = texts.set_column(texts.schema.get_field_index(name), name, array)
            written = np.maximum(written, counts)
        return _counted(out, texts, offsets, flat, written)


def _counted(out: ChunkOutput, texts: pa.Table, offsets: Ints, images: pa.Array, written: Ints) -> ChunkOutput:
    """Return texts with their images; rows in whose longest text there are others than their images are rejected.

    Args:
        offsets, images: the images of each text's row.
        written: int64 [texts], the number of images in each text.
    """
    rows, given = texts[ROW].to_numpy(), np.diff(offsets)
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    most = np.maximum.reduceat(written, first) if len(first) else written
    wrong = most != given[first]
    rejects = list[pa.Table]()
    for places, number in sorted({*zip(most[wrong].tolist(), given[first][wrong].tolist(), strict=True)}):
        chosen = rows[first][(most == places) & (given[first] == number)]
        message = f"the text has places for {places} images, the row has {number}"
        rejects.append(reject_rows(chosen, "prompts", "image_marks", "images", message, [""] * len(chosen)))
    lost = np.isin(rows, rows[first][wrong])
    shown = np.where(lost, 0, written)
    lists = list_array(offsets_of(shown), images.take(pa.array(ranges(offsets[:-1], shown)))).cast(IMAGES_OF_ROW)
    table = texts.append_column(MEDIA, lists).filter(pa.array(~lost)).combine_chunks()
    return replace(out, table=table, rejects=join_rejects([out.rejects, *rejects]))


def place_images(
    texts: pa.Array | pa.ChunkedArray, spans: pa.Array | pa.ChunkedArray, tokens: ImageTokens
) -> tuple[pa.Array, pa.Array, Ints]:
    """Put the token of an image, as a span of its own without weight, in place of each mark and of each such token that
    a template writes.

    Returns:
        the texts, their spans, and int64 [texts], the number of images of each.
    """
    bounds, data = text_parts(texts)
    flat = flat_spans(spans)
    row = row_of(flat.counts)
    begin, end = flat.start + bounds[row], flat.end + bounds[row]
    first, last = _places(data, begin, end, flat.control, tokens.token)
    if not len(first):
        return one_array(texts), one_array(spans), np.zeros(len(bounds) - 1, np.int64)
    parts = [part.encode() for part in (tokens.before, tokens.token, tokens.after)]
    content = np.frombuffer(b"".join(parts), np.uint8)
    cuts = zip([0, *last.tolist()], [*first.tolist(), len(data)], strict=True)
    pieces = [piece for start, stop in cuts for piece in (data[start:stop], content)][:-1]
    grown = np.concatenate([[0], np.cumsum(len(content) - (last - first))])
    new_bounds = bounds + grown[np.searchsorted(first, bounds, side="left")]
    text = text_array(new_bounds, np.concatenate(pieces))

    # a span with k images is cut into 2k + 1 parts, the images at its odd places; each image into what is around it
    span = np.searchsorted(begin, first, side="right") - 1
    inside = np.bincount(span, minlength=len(begin))
    base = offsets_of(2 * inside + 1)
    rank = np.arange(len(first)) - offsets_of(inside)[span]
    at = base[span] + 2 * rank + 1
    start, stop = np.empty(base[-1], np.int64), np.empty(base[-1], np.int64)
    start[base[:-1]], stop[base[1:] - 1] = begin, end
    start[at], stop[at], stop[at - 1], start[at + 1] = first, last, first, last
    is_image = np.zeros(base[-1], bool)
    is_image[at] = True
    copies = np.where(is_image, len(parts), 1)
    of, place = np.repeat(np.repeat(np.arange(len(begin)), 2 * inside + 1), copies), row_of(copies)
    within = np.where(is_image[place], np.arange(len(place)) - offsets_of(copies)[place], -1)
    length = np.where(within < 0, (stop - start)[place], np.array([*map(len, parts), 0])[within])
    kept = np.flatnonzero(length)
    of, within, length = of[kept], within[kept], length[kept]
    added, image = within >= 0, within == 1
    counts = np.bincount(row[of], minlength=len(bounds) - 1)
    ends = np.cumsum(length) - new_bounds[:-1][row[of]] + new_bounds[0]
    columns = (
        np.where(image, IMAGE, np.where(added, _TEMPLATE, flat.role[of])).astype(np.uint8),
        np.where(added, -1, flat.message[of]),
        np.where(added, 0, flat.weight[of]).astype(np.float32),
        np.where(added, image, flat.control[of]),
    )
    images = np.bincount(row[span], minlength=len(bounds) - 1).astype(np.int64)
    return text, span_lists(counts, ends - length, ends, *columns), images


def _places(data: np.ndarray, begin: Ints, end: Ints, control: np.ndarray, token: str) -> tuple[Ints, Ints]:
    """Return where images are in the texts' bytes, in order: marks, and control tokens of an image."""
    marks = np.flatnonzero(data[: max(len(data) - len(_MARK) + 1, 0)] == _MARK[0])
    for index, byte in enumerate(_MARK):
        marks = marks[data[marks + index] == byte]
    name = np.frombuffer(token.encode(), np.uint8)
    written = np.flatnonzero(control & (end - begin == len(name)))
    written = written[(data[begin[written][:, None] + np.arange(len(name))] == name).all(axis=1)]
    first = np.concatenate([marks, begin[written]])
    last = np.concatenate([marks + len(_MARK), end[written]])
    order = np.argsort(first, kind="stable")
    return first[order], last[order]
