"""Expands the token of each image to the tokens that the model sees, as the processor does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tokenloom.assets.prompts.spans import IMAGE, SPAN_ROLES, flat_spans, span_lists
from tokenloom.assets.stage.images import EXPANDED_IMAGE, EXPANDED_IMAGES
from tokenloom.assets.stage.rejects import ROW, join_rejects, reject_rows
from tokenloom.resources.processors.loading import ProcessorError
from tokenloom.resources.store.blobs.blobs import MEDIA
from tokenloom.resources.tables.ragged import any_of, list_array, list_parts, offsets_of, ranges, row_of

if TYPE_CHECKING:
    from tokenloom.resources.processors.processor import Expansion, Processor

_ROLE = SPAN_ROLES.index(IMAGE)
_STRAY = "the content has the token of an image, which stands for no image of the row"


def expand_images(table: pa.Table, processor: Processor) -> tuple[pa.Table, pa.Table]:
    """Put the tokens of images in place of the one token that stands for each.

    Args:
        table: row position, `input_ids`, spans in tokens, and `media`, of whose images each has a span of one token.

    Returns:
        the table, with the number of tokens and patches of each image in `media`; and rejects for the rows with an
        image whose size the processor refuses, or with the token of an image that no image stands for.
    """
    offsets, images = list_parts(table[MEDIA])
    counts = np.diff(offsets)
    width, height = (images.field(name).to_numpy() for name in ("width", "height"))
    several = np.repeat(counts > 1, counts)
    kinds, kind = np.unique(np.stack([width, height, several], axis=1), axis=0, return_inverse=True)
    found = [_expansion(processor, *each) for each in kinds.tolist()]
    id_offsets, ids = list_parts(table["input_ids"])
    spans = flat_spans(table["spans"])
    base = id_offsets[row_of(spans.counts)]
    at = (spans.start + base)[spans.role == _ROLE]
    stray = np.isin(ids.to_numpy(), processor.image_token_ids)
    stray[at] = False
    problems = [(any_of(stray, np.diff(id_offsets)), "control_token_in_content", _STRAY)]
    for message in sorted({text for text in found if isinstance(text, str)}):
        refused = np.array([text == message for text in found], bool)
        problems.append((any_of(refused[kind.ravel()], counts), "image_refused", message))
    numbers, rejects, lost = table[ROW].to_numpy(), list[pa.Table](), np.zeros(table.num_rows, bool)
    for flags, code, message in problems:
        rows = np.unique(numbers[flags & ~lost])
        rejects.append(reject_rows(rows, "tokens", code, "images", message, [""] * len(rows)))
        lost |= np.isin(numbers, rows)
    if lost.any():
        rest, _ = expand_images(table.filter(pa.array(~lost)).combine_chunks(), processor)
        return rest, join_rejects(rejects)

    chosen = kind.ravel()
    sizes = np.array([len(each.ids) for each in found if not isinstance(each, str)], np.int64)[chosen]
    patches = np.array([each.patches for each in found if not isinstance(each, str)], np.int64)[chosen]
    lengths = np.ones(len(ids), np.int64)
    lengths[at] = sizes
    moved = offsets_of(lengths)
    flat = np.repeat(ids.to_numpy(), lengths)
    if len(chosen):
        expanded = [each.ids for each in found if not isinstance(each, str)]
        flat[ranges(moved[at], sizes)] = np.concatenate([expanded[number] for number in chosen.tolist()])
    start, end = (moved[edge + base] - moved[base] for edge in (spans.start, spans.end))
    attributes = (spans.role, spans.message, spans.weight, spans.control)
    structs = [*images.flatten(), pa.array(sizes, pa.int32()), pa.array(patches, pa.int32())]
    media = pa.StructArray.from_arrays(structs, fields=list(EXPANDED_IMAGE))
    columns = {
        "input_ids": list_array(moved[id_offsets], pa.array(flat, ids.type)),
        "spans": span_lists(spans.counts, start, end, *attributes),
        MEDIA: list_array(offsets, media).cast(EXPANDED_IMAGES),
    }
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table, join_rejects(rejects)


def _expansion(processor: Processor, width: int, height: int, several: int) -> Expansion | str:
    """Return the expansion of an image, or why the processor refuses its size."""
    try:
        return processor.expansion(width, height, 1 + several)
    except ProcessorError as error:
        return str(error)
