"""Images of sequences: rows that lost part of one are rejected, and packing has a budget of patches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenloom.assets.prompts.spans import IMAGE, SPAN_ROLES, FlatSpans
from tokenloom.assets.sequences.documents import Documents
from tokenloom.assets.stage.rejects import reject_rows
from tokenloom.resources.store.blobs.blobs import MEDIA
from tokenloom.resources.tables.ragged import Ints, list_array, list_parts, offsets_of, ranges, row_of, sum_rows
from tokenloom.resources.tables.sequence_schema import SEQUENCE_IMAGES

_ROLE = SPAN_ROLES.index(IMAGE)


@dataclass(frozen=True)
class DocumentImages:
    """The images of a chunk's documents, before any of them is cut.

    Args:
        offsets: int64 [documents + 1], the first image of each document.
        images: the images, with numbers of tokens and patches.
        tokens: bool [tokens], which tokens of the chunk are of images.
        starts: int64 [documents], the first token of each document.
    """

    offsets: Ints
    images: pa.StructArray
    tokens: np.ndarray
    starts: Ints

    @classmethod
    def of(cls, table: pa.Table, spans: FlatSpans) -> DocumentImages | None:
        """Return the images of a chunk of tokens; None if its rows cannot have any."""
        if MEDIA not in table.column_names:
            return None
        offsets, images = list_parts(table[MEDIA])
        tokens = np.repeat(spans.role == _ROLE, spans.end - spans.start)
        return cls(offsets, images, tokens, list_parts(table["input_ids"])[0][:-1])

    def of_documents(self, documents: Documents) -> Ints:
        """Return int64 [documents]: which of the chunk's documents each is, or is a part of."""
        if documents.origin is None:
            return np.arange(len(documents.lengths))
        first = documents.origin[np.minimum(offsets_of(documents.lengths)[:-1], len(documents.origin) - 1)]
        return np.searchsorted(self.starts, first, side="right") - 1

    def patches(self, documents: Documents) -> Ints:
        """Return int64 [documents]: the number of patches of the images of each."""
        patches = self.images.field("patches").to_numpy().astype(np.int64)
        return sum_rows(patches, self.offsets)[self.of_documents(documents)]

    def whole(self, documents: Documents, max_length: int, budget: int | None) -> tuple[Documents, list[pa.Table], int]:
        """Return the documents whose images are whole and within the budget; rejects for others, and their tokens."""
        of = self.of_documents(documents)
        tokens = self.images.field("tokens").to_numpy().astype(np.int64)
        expected = sum_rows(tokens, self.offsets)[of]
        left = self.tokens if documents.origin is None else self.tokens[documents.origin]
        cut = sum_rows(left.astype(np.int64), offsets_of(documents.lengths)) != expected
        patches = self.patches(documents)
        large = ~cut & (patches > budget) if budget else np.zeros_like(cut)
        reasons = (
            (cut, "image_cut", f"an image does not fit into max_length {max_length}", expected, "tokens of images"),
            (large, "too_many_patches", f"more patches than length.media_budget {budget}", patches, "patches"),
        )
        rejects = [
            reject_rows(
                documents.rows[chosen], "sequences", code, MEDIA, message, [f"{n} {unit}" for n in counts[chosen]]
            )
            for chosen, code, message, counts, unit in reasons
            if chosen.any()
        ]
        lost = cut | large
        return documents.select(~lost), rejects, int(documents.lengths[lost].sum())

    def of_sequences(self, documents: Documents, document: Ints, pieces: Ints) -> pa.Array:
        """Return the images of each sequence, in order, with the document of each within it.

        Args:
            document: int64 [pieces], the document of each piece; each is whole.
            pieces: int64 [sequences], the number of pieces of each.
        """
        of = self.of_documents(documents)[document]
        counts = np.diff(self.offsets)[of]
        chosen = self.images.take(pa.array(ranges(self.offsets[:-1][of], counts)))
        within = np.arange(len(document)) - offsets_of(pieces)[row_of(pieces)]
        arrays = [*chosen.flatten(), pa.array(np.repeat(within, counts), pa.int32())]
        structs = pa.StructArray.from_arrays(arrays, fields=list(SEQUENCE_IMAGES.value_type))
        return list_array(offsets_of(sum_rows(counts, offsets_of(pieces))), structs).cast(SEQUENCE_IMAGES)


def with_patches(lengths: Ints, patches: Ints, max_length: int, budget: int) -> Ints:
    """Return lengths for packing with which neither tokens nor patches exceed a sequence's budget.

    Each document counts with the larger of its two shares: a sum of these is at least either sum.
    """
    return np.minimum(np.maximum(lengths, -(-patches * max_length // budget)), max_length)
