"""Truncates rows to `max_length` tokens: on the right, on the left, in the middle, part by part in the order of
`length.give_up` (`length.strategy: smart`), or splits them into overlapping pieces; or drops the oldest turns.

A conversation without its oldest turns is rendered and tokenized again. Cutting its tokens would not be correct: what a
template writes around a message can depend on the message's position, and a token can span two messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.spans import IS_PART, SPAN_ROLES, FlatSpans
from tokenloom.assets.prompts.truncation_order import SPOKEN, TruncationOrder
from tokenloom.assets.sequences.answers import row_lengths
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.images import IMAGES_COLUMN, MARK
from tokenloom.assets.stage.rejects import ROW, join_rejects, reject_rows
from tokenloom.resources.tables.ragged import (
    Ints,
    flags_of,
    list_array,
    list_parts,
    offsets_of,
    one_array,
    ranges,
    row_of,
    sides,
    sum_rows,
)

Truncation = Literal["truncate_right", "truncate_left", "truncate_middle"]


def kept_tokens(lengths: Ints, max_length: int, strategy: Truncation) -> tuple[Ints, Ints]:
    """Return which tokens are kept.

    Args:
        lengths: int64 [rows].

    Returns:
        int64, the flat indices of the kept tokens, in order; and int64 [rows], the new lengths.
    """
    starts = offsets_of(lengths)[:-1]
    new = np.minimum(lengths, max_length)
    if strategy == "truncate_right":
        return ranges(starts, new), new
    if strategy == "truncate_left":
        return ranges(starts + lengths - new, new), new
    head = (new + 1) // 2
    tail = new - head
    halves = np.column_stack([starts, starts + lengths - tail]).ravel()
    return ranges(halves, np.column_stack([head, tail]).ravel()), new


def overlapping(lengths: Ints, max_length: int, stride: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Split rows into pieces of at most `max_length` tokens; consecutive pieces share `stride` tokens.

    Args:
        lengths: int64 [rows].
        stride: in tokens, less than `max_length`.

    Returns:
        Four arrays, int64 [pieces]: the row of the piece, its first token within the row, its number of tokens, and how
        many of them it shares with the piece before.
    """
    step = max_length - stride
    counts = 1 + np.maximum(-(-(lengths - max_length) // step), 0)
    row = row_of(counts)
    number = np.arange(len(row)) - np.repeat(offsets_of(counts)[:-1], counts)
    start = number * step
    return row, start, np.minimum(lengths[row] - start, max_length), np.where(number > 0, stride, 0)


_INPUT, _USER = SPAN_ROLES.index("input"), SPAN_ROLES.index("user")
_ANSWERS = [SPAN_ROLES.index(role) for role in ("answer", "assistant", "text")]
_PART_OF_ROLE = np.array([SPOKEN.index(role) if role in SPOKEN else -1 for role in SPAN_ROLES])
_PART_OF_ROLE[[_INPUT, _USER]] = SPOKEN.index("question")


FLOOR = 8
"""Each part keeps at least this fraction (an eighth) of `max_length`, or all of its tokens if it has fewer."""


def truncate_by_part(
    spans: FlatSpans, lengths: Ints, longest: Ints, max_length: int, order: TruncationOrder
) -> tuple[Ints, Ints]:
    """Truncate rows to `max_length`, part by part.

    A part is a span with content. Parts are truncated in the order of their ranks; parts of one rank, such as the
    messages of a conversation, from the first one on. The next part is only truncated when the one before is down to
    its floor. Template text, control tokens and the last token of a part with text after it (it can contain the start
    of that text) are kept. A row that is still too long loses its end: the end of an answer, and the stop after it.

    Args:
        spans: the spans in tokens.
        lengths: int64 [rows], the number of tokens of each row.
        longest: int64 [rows], the length that the parts before the answer are truncated for: the row's own, or that of
            the longer side of its pair, so that both sides keep the same prompt.
        max_length: in tokens.
        order: the truncation order.

    Returns:
        int64, the flat indices of the kept tokens, in order; and int64 [rows], the new lengths.
    """
    chosen = np.flatnonzero(longest > max_length)
    places = ranges(spans.offsets[chosen], spans.counts[chosen])
    row = np.repeat(chosen, spans.counts[chosen])
    size = (spans.end - spans.start)[places]
    rank, answer = _ranks(spans, places, row, order)
    part = rank >= 0
    removable = np.where(part, np.maximum(size - _floors(part, answer, row, max_length), 0), 0)
    removed = np.zeros(len(places), np.int64)
    by_rank = np.lexsort((rank, row))
    before = _sums_before(removable[by_rank], row[by_rank])  # tokens that earlier parts can give up
    # each part gives up what the parts before it, in the order of ranks, could not
    removed[by_rank] = np.clip(longest[row] - max_length - before, 0, removable[by_rank])
    same_row = np.append(row[1:] == row[:-1], False)
    followed = same_row & np.append(~spans.control[places][1:], False)  # by text other than a control token
    # where the start of a part is kept, so is its last token: it can hold the start of what follows
    head = np.zeros_like(removed) if order.keep == "end" else size - removed - followed
    head = np.where(removed > 0, head, size)
    tail = size - removed - head
    starts = offsets_of(lengths)[:-1]
    span_starts = starts[row] + spans.start[places]
    untouched = np.flatnonzero(longest <= max_length)
    kept_starts = np.concatenate([starts[untouched], span_starts, span_starts + size - tail])
    sizes = np.concatenate([lengths[untouched], head, tail])
    in_order = np.argsort(kept_starts, kind="stable")
    in_order = in_order[sizes[in_order] > 0]
    sizes, of = sizes[in_order], np.concatenate([untouched, row, row])[in_order]
    # what still does not fit loses the end of the row
    sizes = np.clip(max_length - _sums_before(sizes, of), 0, sizes)
    return ranges(kept_starts[in_order], sizes), np.bincount(of, sizes, len(lengths)).astype(np.int64)


def _floors(part: np.ndarray, answer: np.ndarray, row: Ints, max_length: int) -> Ints:
    """Return int64 [spans]: how many tokens a part keeps. The parts before a row's first answer keep at most half of
    `max_length` together, and each at least one token.

    Args:
        part, answer: bool [spans], whether the span is a part that can be truncated, and an answer.
        row: int64 [spans], the spans' rows.
    """
    opening = part & (_sums_before(answer.astype(np.int64), row) == 0)
    parts = np.bincount(row, opening)
    return np.maximum(max_length // np.maximum(2 * parts, FLOOR), 1).astype(np.int64)[row]


def _ranks(spans: FlatSpans, places: Ints, row: Ints, order: TruncationOrder) -> tuple[Ints, np.ndarray]:
    """Return when each span is truncated: its rank, or -1 for never; and whether it is an answer's content.

    Args:
        places: int64, the indices of the spans.
        row: int64, their rows.
    """
    role, message = spans.speaker[places], spans.message[places]
    same = np.zeros(len(places), bool)
    # a message that is cut into several spans is one part, its first span
    same[1:] = (row[1:] == row[:-1]) & (role[1:] == role[:-1]) & (message[1:] == message[:-1])
    content = (message >= 0) & ~spans.control[places] & ~same
    trains = (spans.weight[places] > 0) | (IS_PART[spans.role[places]] & (not order.by_role))  # weights mask parts
    answer = content & trains & (np.isin(role, _ANSWERS) | (not order.by_role))
    if order.columns:
        part = np.where(message < len(order.ranks), message, -1)
    else:
        user = content & (role == _USER)
        last = np.full(int(row.max(initial=-1)) + 1, -1, np.int64)
        np.maximum.at(last, row[user], message[user])
        part = np.where(user & (message < last[row]), SPOKEN.index("earlier"), _PART_OF_ROLE[role])
    ranks = np.append(np.array(order.ranks, np.int64), -1)
    return np.where(content & ~answer, ranks[part], -1), answer


def _sums_before(values: Ints, row: Ints) -> Ints:
    """Return the sum of the values before each one in its row; the values of one row are adjacent."""
    sums = np.cumsum(values) - values
    first = np.flatnonzero(np.diff(row, prepend=-1))
    return sums - np.repeat(sums[first], np.diff(np.append(first, len(row))))


Encode = Callable[[pa.Table], ChunkOutput]
"""Renders and tokenizes rows in canonical form."""


def drop_turns(columns: pa.Table, tokens: pa.Table, encode: Encode, max_length: int) -> ChunkOutput:
    """Drop the fewest oldest turns that make each conversation fit; a binary search finds how many.

    A turn is a user message and everything up to the next user message that has an answer. Leading system messages and
    the last turn are kept. In preference and kto data only turns of the prompt are dropped, so that both sides keep the
    same prompt. Rows that still do not fit are rejected as `too_long`.

    Args:
        columns: the rows in canonical form; can contain more rows than `tokens`.
        tokens: the rows, rendered and tokenized.
        encode: renders and tokenizes rows in canonical form.
        max_length: in tokens.
    """
    over = row_lengths(tokens) > max_length
    if not over.any():
        return ChunkOutput(tokens, tokens.num_rows, counters={"turns_dropped": 0, "tokens_cut": 0})
    long = tokens.filter(pa.array(over))
    conversations = columns.take(pa.array(np.searchsorted(_rows(columns), _rows(long)))).combine_chunks()
    turns = _Turns(conversations)
    # at least one turn goes, as all of these rows are too long; rows without one to drop are not searched
    dropped = np.minimum(turns.limit, 1)  # lower and upper bound of the search, per row
    most, engine = turns.limit.copy(), ""
    while (open_rows := np.flatnonzero(dropped < most)).size:
        # all rows halve their bounds together, so that the whole chunk is encoded a few times
        middle = (dropped + most)[open_rows] // 2
        tried = encode(turns.without(open_rows, middle))
        engine = max(engine, tried.engine)
        short = np.isin(_rows(conversations)[open_rows], _rows(tried.table)[row_lengths(tried.table) <= max_length])
        most[open_rows[short]] = middle[short]
        dropped[open_rows[~short]] = middle[~short] + 1
    several = np.flatnonzero(turns.limit > 0)
    encoded = encode(turns.without(several, dropped[several])) if len(several) else ChunkOutput(long.slice(0, 0), 0)
    shorter = encoded.table.filter(pa.array(row_lengths(encoded.table) <= max_length))
    rejected = np.setdiff1d(_rows(long), np.concatenate([_rows(shorter), encoded.rejects[ROW].to_numpy()]))
    message = f"longer than max_length {max_length} even with only the last turn"
    sizes = [f"{size} tokens" for size in row_lengths(long)[np.isin(_rows(long), rejected)]]
    too_long = reject_rows(rejected, "sequences", "too_long", "input_ids", message, sizes)
    joined = pa.concat_tables([tokens.filter(pa.array(~over)), shorter.cast(tokens.schema)])
    is_shorter = np.isin(_rows(long), _rows(shorter))
    return ChunkOutput(
        joined.take(pc.sort_indices(joined[ROW])).combine_chunks(),
        tokens.num_rows,
        join_rejects([encoded.rejects, too_long]),
        counters={
            "turns_dropped": int(dropped[is_shorter].sum()),
            "tokens_cut": token_count(long.filter(pa.array(is_shorter))) - token_count(shorter),
            "tokens_rejected": token_count(long.filter(pa.array(~is_shorter))),
        },
        engine=max(engine, encoded.engine),
    )


def token_count(table: pa.Table) -> int:
    """Return the number of tokens of a table; for pairs, of both sides."""
    return sum(len(list_parts(side["input_ids"])[1]) for side in sides(table).values())


class _Turns:
    """The turns of conversations; `limit` is int64 [rows], the number of turns that can be dropped."""

    def __init__(self, conversations: pa.Table):
        self._conversations = conversations
        self._name = "messages" if "messages" in conversations.column_names else "prompt"
        self._offsets, self._messages = list_parts(conversations[self._name])
        self._row = row_of(np.diff(self._offsets))
        role = self._messages.flatten()[0]
        system, user, answer = (flags_of(pc.equal(role, name)) for name in ("system", "user", "assistant"))
        opening = system & (_count_so_far(~system, self._offsets) == 0)
        answers_left = sum_rows(answer, self._offsets)[self._row] - _count_so_far(answer, self._offsets)
        # a user message that nobody answers is part of the turn before it
        starts = user & ((answers_left > 0) | (self._name == "prompt"))
        starts &= _count_so_far(starts, self._offsets) > 1  # all messages before the second turn are the first turn
        self._opening, self._turn = opening, _count_so_far(starts, self._offsets)
        self.limit: Ints = sum_rows(starts, self._offsets)

    def without(self, rows: Ints, dropped: Ints) -> pa.Table:
        """Return the conversations at `rows`, each without its `dropped` oldest turns; both int64 [rows]."""
        places = ranges(self._offsets[rows], np.diff(self._offsets)[rows])
        of = row_of(np.diff(self._offsets)[rows])
        stay = self._opening[places] | (self._turn[places] >= dropped[of])
        messages = self._messages.take(pa.array(places[stay]))
        column = list_array(offsets_of(np.bincount(of[stay], minlength=len(rows))), messages)
        conversations = self._conversations.take(pa.array(rows)).combine_chunks()
        if IMAGES_COLUMN in conversations.column_names:  # in the order of their marks; those of dropped messages go too
            marks = pc.count_substring(self._messages.field("content").take(pa.array(places)), MARK).to_numpy()
            offsets, images = list_parts(conversations[IMAGES_COLUMN])
            in_message = np.repeat(stay, marks)
            counts = np.bincount(np.repeat(of, marks)[in_message], minlength=len(offsets) - 1)
            lists = list_array(offsets_of(counts), images.filter(pa.array(in_message)))
            index = conversations.schema.get_field_index(IMAGES_COLUMN)
            lists = lists.cast(conversations.schema.field(index).type)
            conversations = conversations.set_column(index, IMAGES_COLUMN, lists)
        at = conversations.schema.get_field_index(self._name)
        field = conversations.schema.field(at)
        return conversations.set_column(at, field, column.cast(field.type))


def _count_so_far(flags: np.ndarray, offsets: Ints) -> Ints:
    """Return int64 [messages]: the number of true flags in the row, up to and including each message."""
    counts = np.cumsum(flags)
    before = np.concatenate([[0], counts])[offsets[:-1]]
    return counts - np.repeat(before, np.diff(offsets))


def _rows(table: pa.Table) -> Ints:
    return one_array(table[ROW]).to_numpy().astype(np.int64)
