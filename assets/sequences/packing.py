"""Packing: truncates, splits or drops long rows, and chooses which documents go into which sequence.

Every function returns a `Packing`, which lists the pieces of each sequence; no tokens are copied here. Rows that lost
part of an image are rejected, and packing has a budget of patches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tokenloom.assets.prompts.spans import CONTENT, IMAGE, SPAN_ROLES, STOP, FlatSpans, flat_spans
from tokenloom.assets.prompts.truncation_order import TruncationOrder
from tokenloom.assets.sequences.answers import (
    Answers,
    Documents,
    count_answers,
    find_answers,
    mask_displaced_stops,
    row_lengths,
)
from tokenloom.assets.sequences.trees import Trees, grow, prompts_of
from tokenloom.assets.sequences.truncation import kept_tokens, overlapping, truncate_by_part
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import join_rejects, reject_rows
from tokenloom.config import LengthConfig
from tokenloom.resources.store.blobs.blobs import MEDIA
from tokenloom.resources.tables.ragged import Ints, list_array, list_parts, offsets_of, ranges, row_of, sum_rows
from tokenloom.resources.tables.sequence_schema import POSITIONS, REACH, SEQUENCE_IMAGES, rounded_up, with_padding


@dataclass(frozen=True)
class Packing:
    """The pieces of all sequences, in order; a piece is a run of tokens of one document.

    Args:
        document: int64 [pieces], the piece's document.
        start: int64 [pieces], the piece's first token, counted over all documents.
        length: int64 [pieces], the piece's number of tokens.
        pieces: int64 [sequences], the number of pieces of each sequence.
    """

    document: Ints
    start: Ints
    length: Ints
    pieces: Ints


def single(lengths: Ints) -> Packing:
    """Put each document into its own sequence; `lengths` is int64 [documents]."""
    count = len(lengths)
    return Packing(np.arange(count), offsets_of(lengths)[:-1], lengths, np.ones(count, np.int64))


def concat(lengths: Ints, max_length: int) -> Packing:
    """Concatenate all documents and cut every `max_length` tokens; no token is lost or repeated.

    Args:
        lengths: int64 [documents], at least 1 each.
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.arange(max_length, total, max_length)
    # a piece ends where its document or its sequence does
    bounds = np.unique(np.concatenate([[0], ends, cuts]))
    starts = bounds[:-1]
    document = np.searchsorted(ends, starts, side="right")
    pieces = np.bincount(starts // max_length) if total else np.zeros(0, np.int64)
    return Packing(document, starts, np.diff(bounds), pieces)


def best_fit(lengths: Ints, max_length: int) -> Packing:
    """Pack whole documents into few sequences: best-fit decreasing.

    From the longest document to the shortest, each goes into the fullest sequence that still has room for it (Johnson,
    "Near-optimal bin packing algorithms", 1973; for language models Ding et al., "Fewer Truncations Improve Language
    Modeling", 2024). Sequences are sorted by their first document, and documents keep their order within a sequence.

    Args:
        lengths: int64 [documents], from 1 to `max_length`.
    """
    if not len(lengths):
        return single(lengths)
    narrow = lengths.astype(np.uint16 if max_length < 1 << 16 else np.int64)  # 16 bits sort in linear time
    ascending = np.argsort(narrow, kind="stable")
    counts = np.bincount(lengths, minlength=max_length + 1)
    sequence = np.empty(len(lengths), np.int64)
    sequence[ascending[::-1]] = _assign(counts, max_length)
    first = np.full(int(sequence.max()) + 1, len(lengths))
    np.minimum.at(first, sequence, np.arange(len(lengths)))
    rank = np.empty_like(first)
    rank[np.argsort(first)] = np.arange(len(first))
    # numbered by first document, so that sequences follow the order of the rows
    sequence = rank[sequence]
    order = np.argsort(sequence.astype(np.uint16) if len(first) <= 1 << 16 else sequence, kind="stable")
    return Packing(order, offsets_of(lengths)[:-1][order], lengths[order], np.bincount(sequence))


def _assign(counts: Ints, max_length: int) -> Ints:
    """Return the sequence of each document, longest document first.

    Documents of one length are assigned together, as many as fit into each sequence. Consecutive sequences with the
    same free room are a run and are filled together. So the number of steps depends on the number of different lengths,
    not on the number of documents.

    Args:
        counts: int64 [max_length + 1], the number of documents of each length.
    """
    sizes = np.flatnonzero(counts)[::-1]
    runs: dict[int, list[tuple[int, int]]] = {}  # free room -> runs of sequences, as (first sequence, count)
    rooms = opened = 0  # `rooms` is a bit mask of the keys of `runs`; `opened` counts the sequences
    steps: list[tuple[int, int, int]] = []  # (first sequence, count, documents that each of them gets)
    for size, count in zip(sizes.tolist(), counts[sizes].tolist(), strict=True):
        while count:
            if fitting := rooms >> size:  # the lowest set bit is the smallest room that is large enough
                room = size + (fitting & -fitting).bit_length() - 1
                first, run = runs[room].pop()
                rooms ^= 0 if runs[room] else 1 << room
            else:  # open new sequences
                room, first = max_length, opened
                run = -(-count // (room // size))
                opened += run
            each = room // size
            full = min(run, count // each)  # sequences that get `each` documents; one more can get the rest
            rest = count - full * each if full < run else 0
            count -= full * each + rest
            last = int(rest > 0)
            for start, sequences, documents in ((first, full, each), (first + full, last, rest)):
                if sequences:
                    steps.append((start, sequences, documents))
                    runs.setdefault(room - documents * size, []).append((start, sequences))
                    rooms |= 1 << room - documents * size
            if run > full + last:
                runs[room].append((first + full + last, run - full - last))
                rooms |= 1 << room
    first, run, documents = np.array(steps).T
    return np.repeat(ranges(first, run), np.repeat(documents, run))


def to_sequences(
    table: pa.Table,
    length: LengthConfig,
    max_length: int,
    order: TruncationOrder | None = None,
    trained: bool = True,
    pad_token_id: int = 0,
    places: bool = False,
) -> ChunkOutput:
    """Truncate, split or drop the long rows of a chunk of tokens, then pack the rows if `packing` is set.

    Args:
        length: the YAML's `length` section, with the strategy for these rows.
        max_length: in tokens.
        order: the truncation order, for `strategy: smart` only.
        trained: reject rows without a trained token.
        pad_token_id: pads documents to `document_multiple`.
        places: return the place of each token among the chunk's tokens, uint32, instead of its id.

    With `packing: tree`, documents of sequences are nodes of trees.
    """
    spans = flat_spans(table["spans"])
    whole = Documents.of(table, spans)
    answers = find_answers(spans)
    short = whole.select(whole.lengths <= max_length) if length.strategy == "drop" else whole
    dropped = len(whole.ids) - len(short.ids)
    filtered = len(whole.rows) - len(short.rows)
    documents, longest = short, table[LONGEST].to_numpy() if LONGEST in table.column_names else short.lengths
    # concat cuts anywhere by itself, so nothing is truncated before it
    if length.packing != "concat" and (longest > max_length).any():
        documents = _shorten(short, spans, answers, longest, length, max_length, order)
    images = DocumentImages.of(table, spans)
    uncut, lost = list[pa.Table](), 0
    tokens_cut = len(short.ids) - len(documents.ids)
    counters = {"tokens_in": len(whole.ids), "tokens_cut": tokens_cut, "tokens_dropped": dropped}
    if images is not None:
        documents, uncut, lost = images.whole(documents, max_length, length.media_budget)
    documents, rejects, counters["tokens_rejected"] = _reject(documents, whole, spans, max_length, trained)
    if images is not None:
        rejects = join_rejects([*uncut, rejects])
        counters["tokens_rejected"] += lost
    rows_out = len(documents.rows)
    if length.strategy == "split" and length.packing != "concat":
        documents, more = _split(documents, max_length, length.stride, trained)
        counters |= more
    counters |= count_answers(documents, answers, spans, whole.lengths)
    of_documents = dict[str, Ints]()
    multiple = length.document_multiple
    if length.packing == "tree":
        trees = grow(documents, prompts_of(documents.rows, whole, spans), max_length)
        counters["tokens_shared"] = len(documents.ids) - len(trees.nodes.ids)
        documents, layout = trees.nodes, _of_nodes(best_fit(trees.lengths, max_length), trees)
        of_documents = {POSITIONS: trees.positions, REACH: trees.reach}
    else:
        packed = documents.lengths
        if images is not None and length.media_budget:
            packed = with_patches(packed, images.patches(documents), max_length, length.media_budget)
        if multiple:
            packed = rounded_up(documents.lengths, multiple)
            counters["tokens_padding"] = int((packed - documents.lengths).sum())
        layout = STRATEGIES[length.packing](packed, max_length)
        # packed with room for patches or padding, which the stored tokens do not have
        if packed is not documents.lengths:
            starts = offsets_of(documents.lengths)[:-1]
            layout = replace(layout, start=starts[layout.document], length=documents.lengths[layout.document])
    counters["sequences"] = len(layout.pieces)
    kind = list_parts(table["input_ids"])[1].type
    if places:
        origin = np.arange(len(documents.ids)) if documents.origin is None else documents.origin
        documents, kind = replace(documents, ids=origin), pa.uint32()
    sequences = _table(documents, layout, kind, of_documents)
    if multiple:
        sequences = with_padding(sequences, multiple, pad_token_id)
    if images is not None:
        sequences = sequences.append_column(MEDIA, images.of_sequences(documents, layout.document, layout.pieces))
    tokens = len(documents.ids) + counters.get("tokens_padding", 0)
    return ChunkOutput(sequences, table.num_rows, rejects, filtered, rows_out, tokens, counters)


LONGEST = "longest"


def with_pair_lengths(table: pa.Table) -> pa.Table:
    """Add a column `longest`, int64: the number of tokens of each row; for pairs, of the longer side."""
    return table.append_column(LONGEST, pa.array(row_lengths(table)))


STRATEGIES: Mapping[str, Callable[[Ints, int], Packing]] = {
    "none": lambda lengths, _: single(lengths),
    "concat": concat,
    "best_fit": best_fit,
}


def _shorten(
    documents: Documents,
    spans: FlatSpans,
    answers: Answers,
    longest: Ints,
    length: LengthConfig,
    max_length: int,
    order: TruncationOrder | None,
) -> Documents:
    """Return the documents truncated to max_length, without stops that their rows do not have there; unchanged by other
    strategies: `split` cuts between sequences, and after `drop` and `drop_turns` no document is too long."""
    if order is not None:
        index, lengths = truncate_by_part(spans, documents.lengths, longest, max_length, order)
    elif length.strategy in ("truncate_right", "truncate_left", "truncate_middle"):
        index, lengths = kept_tokens(documents.lengths, max_length, length.strategy)
    else:
        return documents
    shorter = documents.take(index, lengths, documents.rows)
    if length.strategy != "truncate_right":
        mask_displaced_stops(shorter, answers, documents.lengths)
    return shorter


def _reject(
    documents: Documents, whole: Documents, spans: FlatSpans, max_length: int, trained: bool
) -> tuple[Documents, pa.Table, int]:
    """Return the documents, only those with a trained token if `trained`; rejects for the others, and their tokens.
    `whole` are the documents before truncation, with these spans."""
    useless = ~documents.are_trained() if trained else np.zeros(len(documents.rows), bool)
    masked = np.zeros(len(documents.rows), bool)  # without a trained token before truncation, too
    if useless.any():
        masked = useless & ~np.isin(documents.rows, whole.rows[whole.are_trained()])
    by_kind = np.isin(spans.role, (SPAN_ROLES.index(CONTENT), SPAN_ROLES.index(STOP))).any()
    lacks = "text of a kind or role with a weight in train_on" if by_kind else "trained token, whatever its length"
    rejects = [
        reject_rows(documents.rows[chosen], "sequences", code, "input_ids", message, sizes)
        for chosen, code, message in (
            (useless & ~masked, "answer_cut_off", f"no trained token is left within max_length {max_length}"),
            (masked, "nothing_trained", f"the row has no {lacks}"),
        )
        if chosen.any() or code == "answer_cut_off"
        for sizes in [[f"{size} tokens" for size in documents.lengths[chosen]]]
    ]
    return documents.select(~useless), join_rejects(rejects), int(documents.lengths[useless].sum())


def _split(documents: Documents, max_length: int, stride: int, trained: bool) -> tuple[Documents, dict[str, int]]:
    """Split documents; return the pieces, only those with a trained token if `trained`, and counters."""
    row, start, size, overlap = overlapping(documents.lengths, max_length, stride)
    if overlap.any():
        starts = offsets_of(documents.lengths)[:-1][row] + start
        pieces = documents.take(ranges(starts, size), size, documents.rows[row])
        # the overlap is context for what follows: each token is trained in one piece only
        pieces.weights[ranges(offsets_of(size)[:-1], overlap)] = 0.0
    else:  # the same tokens in the same order
        pieces = replace(documents, lengths=size, rows=documents.rows[row])
    useful = pieces.are_trained() if trained else np.ones(len(size), bool)
    return pieces.select(useful), {
        "tokens_repeated": int(overlap.sum()),
        "tokens_left_out": int(size[~useful].sum()),
        "sequences_left_out": int((~useful).sum()),
    }


def _of_nodes(layout: Packing, trees: Trees) -> Packing:
    firsts, counts = offsets_of(trees.counts)[:-1][layout.document], trees.counts[layout.document]
    nodes, lengths = ranges(firsts, counts), trees.nodes.lengths
    return Packing(nodes, offsets_of(lengths)[:-1][nodes], lengths[nodes], sum_rows(counts, offsets_of(layout.pieces)))


def _table(documents: Documents, layout: Packing, kind: pa.DataType, of_documents: Mapping[str, Ints]) -> pa.Table:
    """Return the sequences of a layout, as stored, with ids of a kind, and other columns, int64 [documents] each."""
    piece_offsets = offsets_of(layout.pieces)
    offsets = offsets_of(sum_rows(layout.length, piece_offsets))
    # most layouts list all tokens in order: then nothing is copied
    in_order = np.array_equal(layout.start, offsets_of(layout.length)[:-1])
    tokens = slice(None) if in_order else ranges(layout.start, layout.length)
    weights = documents.weights
    columns = {
        "input_ids": list_array(offsets, pa.array(documents.ids[tokens], kind)),
        "trained": list_array(offsets, pa.array((weights > 0).view(np.uint8)[tokens])),
        "rows": list_array(piece_offsets, pa.array(documents.rows[layout.document], pa.int32())),
        "document_lengths": list_array(piece_offsets, pa.array(layout.length, pa.int32())),
    }
    # only where a weight is neither 0 nor 1; `trained` says the same otherwise
    if np.count_nonzero(weights) > np.count_nonzero(weights == 1):
        columns["weights"] = list_array(offsets, pa.array(weights[tokens]))
    columns |= {name: list_array(offsets, pa.array(values[tokens])) for name, values in documents.values.items()}
    for name, numbers in of_documents.items():
        columns[name] = list_array(piece_offsets, pa.array(numbers[layout.document], pa.int32()))
    return pa.table(columns)


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
        # a document begins within the chunk's document that it is a part of
        first = documents.origin[np.minimum(offsets_of(documents.lengths)[:-1], len(documents.origin) - 1)]
        return np.searchsorted(self.starts, first, side="right") - 1

    def patches(self, documents: Documents) -> Ints:
        """Return int64 [documents]: the number of patches of the images of each."""
        patches = self.images.field("patches").to_numpy().astype(np.int64)
        return sum_rows(patches, self.offsets)[self.of_documents(documents)]

    def whole(self, documents: Documents, max_length: int, budget: int | None) -> tuple[Documents, list[pa.Table], int]:
        """Return the documents whose images are whole and within the budget; rejects for others, and their tokens."""
        of = self.of_documents(documents)
        expected = sum_rows(self.images.field("tokens").to_numpy().astype(np.int64), self.offsets)[of]
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
