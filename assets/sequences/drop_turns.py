"""Drops the oldest turns of conversations that are longer than `max_length`.

A shortened conversation is rendered and tokenized again. Cutting its tokens would not be correct: what a template
writes around a message can depend on the message's position, and a token can span two messages.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.sequences.documents import row_lengths
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.images import IMAGES_COLUMN, MARK
from tokenloom.assets.stage.rejects import ROW, join_rejects, reject_rows
from tokenloom.resources.tables.ragged import (
    Ints,
    list_array,
    list_parts,
    offsets_of,
    one_array,
    ranges,
    row_of,
    sides,
    sum_rows,
)

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
    dropped = np.minimum(turns.limit, 1)  # lower and upper bound of the search, per row
    most, engine = turns.limit.copy(), ""
    while (open_rows := np.flatnonzero(dropped < most)).size:
        middle = (dropped + most)[open_rows] // 2
        tried = encode(turns.without(open_rows, middle))
        engine = max(engine, tried.engine)
        short = np.isin(_rows(conversations)[open_rows], _rows(tried.table)[row_lengths(tried.table) <= max_length])
        most[open_rows[short]] = middle[short]
        dropped[open_rows[~short]] = middle[~short] + 1
    several = np.flatnonzero(turns.limit > 0)
    encoded = encode(turns.without(several, dropped[several])) if len(several) else ChunkOutput(long.slice(0, 0), 0)
    fits = row_lengths(encoded.table) <= max_length
    shorter = encoded.table.filter(pa.array(fits))
    rejected = np.setdiff1d(_rows(long), np.concatenate([_rows(shorter), encoded.rejects[ROW].to_numpy()]))
    message = f"longer than max_length {max_length} even with only the last turn"
    sizes = [f"{size} tokens" for size in row_lengths(long)[np.isin(_rows(long), rejected)]]
    too_long = reject_rows(rejected, "sequences", "too_long", "input_ids", message, sizes)
    joined = pa.concat_tables([tokens.filter(pa.array(~over)), shorter.cast(tokens.schema)])
    kept = np.isin(_rows(long), _rows(shorter))
    return ChunkOutput(
        joined.take(pc.sort_indices(joined[ROW])).combine_chunks(),
        tokens.num_rows,
        join_rejects([encoded.rejects, too_long]),
        counters={
            "turns_dropped": int(dropped[kept].sum()),
            "tokens_cut": token_count(long.filter(pa.array(kept))) - token_count(shorter),
            "tokens_rejected": token_count(long.filter(pa.array(~kept))),
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
        system, user, answer = (_is(role, name) for name in ("system", "user", "assistant"))
        opening = system & (_count_so_far(~system, self._offsets) == 0)
        answers_left = sum_rows(answer, self._offsets)[self._row] - _count_so_far(answer, self._offsets)
        starts = user & ((answers_left > 0) | (self._name == "prompt"))
        starts &= _count_so_far(starts, self._offsets) > 1  # all messages before the second turn are the first turn
        self._opening, self._turn = opening, _count_so_far(starts, self._offsets)
        self.limit: Ints = sum_rows(starts, self._offsets)

    def without(self, rows: Ints, dropped: Ints) -> pa.Table:
        """Return the conversations at `rows`, each without its `dropped` oldest turns; both int64 [rows]."""
        places = ranges(self._offsets[rows], np.diff(self._offsets)[rows])
        of = row_of(np.diff(self._offsets)[rows])
        stay = self._opening[places] | (self._turn[places] >= dropped[of])
        kept = self._messages.take(pa.array(places[stay]))
        column = list_array(offsets_of(np.bincount(of[stay], minlength=len(rows))), kept)
        conversations = self._conversations.take(pa.array(rows)).combine_chunks()
        if IMAGES_COLUMN in conversations.column_names:
            conversations = self._with_images(conversations, places, of, stay)
        at = conversations.schema.get_field_index(self._name)
        field = conversations.schema.field(at)
        return conversations.set_column(at, field, column.cast(field.type))

    def _with_images(self, conversations: pa.Table, places: Ints, of: Ints, stay: np.ndarray) -> pa.Table:
        """Return conversations without the images of dropped messages: the images are in the order of marks."""
        marks = pc.count_substring(self._messages.field("content").take(pa.array(places)), MARK).to_numpy()
        offsets, images = list_parts(conversations[IMAGES_COLUMN])
        kept = np.repeat(stay, marks)
        counts = np.bincount(np.repeat(of, marks)[kept], minlength=len(offsets) - 1)
        lists = list_array(offsets_of(counts), images.filter(pa.array(kept)))
        at = conversations.schema.get_field_index(IMAGES_COLUMN)
        return conversations.set_column(at, IMAGES_COLUMN, lists.cast(conversations.schema.field(at).type))


def _is(role: pa.Array, name: str) -> np.ndarray:
    return np.asarray(pc.equal(role, name).to_numpy(zero_copy_only=False), bool)


def _count_so_far(flags: np.ndarray, offsets: Ints) -> Ints:
    """Return int64 [messages]: the number of true flags in the row, up to and including each message."""
    counts = np.cumsum(flags)
    before = np.concatenate([[0], counts])[offsets[:-1]]
    return counts - np.repeat(before, np.diff(offsets))


def _rows(table: pa.Table) -> Ints:
    return one_array(table[ROW]).to_numpy().astype(np.int64)
