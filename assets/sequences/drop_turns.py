"""Drops whole turns, the oldest first, from conversations that are too long.

A shorter conversation is rendered and tokenized anew: what a template writes around a message may depend on its place,
and tokens may cross from one message into the next, so that no cut through the tokens of the whole is right for every
template and tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.sequences.documents import row_lengths
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW, join_rejects, reject_rows
from tokenloom.resources.tables.preference_pairs import sides
from tokenloom.resources.tables.ragged import (
    Ints,
    list_array,
    list_parts,
    offsets_of,
    one_array,
    ranges,
    row_of,
    sum_rows,
)

Encode = Callable[[pa.Table], ChunkOutput]
"""From rows in canonical form to their tokens."""


def drop_turns(columns: pa.Table, tokens: pa.Table, encode: Encode, max_length: int) -> ChunkOutput:
    """The tokens of a chunk, each conversation longer than `max_length` without as few of its oldest turns as will do.

    A turn is a user message and what follows it up to the next one that is answered. System messages at the begin
    stay, and so does the last turn; of preference and kto data turns of the prompt alone are dropped, so that both
    sides keep the same one. Rows that are still too long are rejected as `too_long`.

    Args:
        columns: the rows in canonical form; may hold more rows than `tokens`.
        tokens: what `encode` made of them.
    """
    over = row_lengths(tokens) > max_length
    if not over.any():
        return ChunkOutput(tokens, tokens.num_rows, counters={"turns_dropped": 0, "tokens_cut": 0})
    long = tokens.filter(pa.array(over))
    talks = columns.take(pa.array(np.searchsorted(_rows(columns), _rows(long)))).combine_chunks()
    turns = _Turns(talks)
    dropped = np.minimum(turns.limit, 1)
    most, engine = turns.limit.copy(), ""
    while (open_rows := np.flatnonzero(dropped < most)).size:
        middle = (dropped + most)[open_rows] // 2
        tried = encode(turns.without(open_rows, middle))
        engine = max(engine, tried.engine)
        short = np.isin(_rows(talks)[open_rows], _rows(tried.table)[row_lengths(tried.table) <= max_length])
        most[open_rows[short]] = middle[short]
        dropped[open_rows[~short]] = middle[~short] + 1
    able = np.flatnonzero(turns.limit > 0)
    made = encode(turns.without(able, dropped[able])) if len(able) else ChunkOutput(long.slice(0, 0), 0)
    fits = row_lengths(made.table) <= max_length
    shorter = made.table.filter(pa.array(fits))
    gone = np.setdiff1d(_rows(long), np.concatenate([_rows(shorter), made.rejects[ROW].to_numpy()]))
    message = f"longer than max_length {max_length} without all but the last turn"
    sizes = [f"{size} tokens" for size in row_lengths(long)[np.isin(_rows(long), gone)]]
    too_long = reject_rows(gone, "sequences", "too_long", "input_ids", message, sizes)
    joined = pa.concat_tables([tokens.filter(pa.array(~over)), shorter.cast(tokens.schema)])
    kept = np.isin(_rows(long), _rows(shorter))
    return ChunkOutput(
        joined.take(pc.sort_indices(joined[ROW])).combine_chunks(),
        tokens.num_rows,
        join_rejects([made.rejects, too_long]),
        counters={
            "turns_dropped": int(dropped[kept].sum()),
            "tokens_cut": token_count(long.filter(pa.array(kept))) - token_count(shorter),
            "tokens_rejected": token_count(long.filter(pa.array(~kept))),
        },
        engine=max(engine, made.engine),
    )


def token_count(table: pa.Table) -> int:
    """All tokens of a table, of both sides of pairs."""
    return sum(len(list_parts(side["input_ids"])[1]) for side in sides(table).values())


class _Turns:
    """The turns of conversations, of which `limit` int64 [rows] can be dropped."""

    def __init__(self, talks: pa.Table):
        self._talks = talks
        self._name = "messages" if "messages" in talks.column_names else "prompt"
        self._offsets, self._messages = list_parts(talks[self._name])
        self._row = row_of(np.diff(self._offsets))
        role = self._messages.flatten()[0]
        system, user, answer = (_is(role, name) for name in ("system", "user", "assistant"))
        opening = system & (_count_so_far(~system, self._offsets) == 0)
        answers_left = sum_rows(answer, self._offsets)[self._row] - _count_so_far(answer, self._offsets)
        begins = user & ((answers_left > 0) | (self._name == "prompt"))
        begins &= _count_so_far(begins, self._offsets) > 1  # whatever follows the opening is part of the first turn
        self._opening, self._turn = opening, _count_so_far(begins, self._offsets)
        self.limit: Ints = sum_rows(begins, self._offsets)

    def without(self, rows: Ints, dropped: Ints) -> pa.Table:
        """Some of the conversations, each without its `dropped` oldest turns; int64 [rows] both."""
        places = ranges(self._offsets[rows], np.diff(self._offsets)[rows])
        of = row_of(np.diff(self._offsets)[rows])
        stay = self._opening[places] | (self._turn[places] >= dropped[of])
        kept = self._messages.take(pa.array(places[stay]))
        column = list_array(offsets_of(np.bincount(of[stay], minlength=len(rows))), kept)
        talks = self._talks.take(pa.array(rows)).combine_chunks()
        at = talks.schema.get_field_index(self._name)
        return talks.set_column(at, talks.schema.field(at), column.cast(talks.schema.field(at).type))


def _is(role: pa.Array, name: str) -> np.ndarray:
    return np.asarray(pc.equal(role, name).to_numpy(zero_copy_only=False), bool)


def _count_so_far(flags: np.ndarray, offsets: Ints) -> Ints:
    """How many flags of a row hold, up to and with each one."""
    counts = np.cumsum(flags)
    before = np.concatenate([[0], counts])[offsets[:-1]]
    return counts - np.repeat(before, np.diff(offsets))


def _rows(table: pa.Table) -> Ints:
    return one_array(table[ROW]).to_numpy().astype(np.int64)
