"""Examples in conversations: earlier turns behind the row's system message, none of them trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.forms import MESSAGES
from tokenloom.assets.prompts.conversations import conversations
from tokenloom.assets.prompts.few_shot.examples import draw_for
from tokenloom.assets.prompts.spans import flat_spans, span_lists
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW, join_rejects
from tokenloom.config import PromptTemplateConfig
from tokenloom.resources.tables.ragged import (
    Ints,
    list_array,
    list_parts,
    offsets_of,
    one_array,
    ranges,
    row_of,
    sum_rows,
    text_parts,
)
from tokenloom.resources.tables.row_hash import Hashes, hash_array

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Extended:
    """Rows with their examples.

    Args:
        table: the rows that have enough, as conversations or, of preference data, with longer prompts.
        begin, turns: int64 [rows], which message the examples begin with, and how many there are of them.
        rejects: the other rows.
    """

    table: pa.Table
    begin: Ints
    turns: Ints
    rejects: pa.Table


@dataclass(frozen=True)
class TurnShots:
    """Renders conversations behind examples.

    Args:
        render: renders them without.
        prompt: the YAML's prompt_template section.
        fixed: canonical rows of a file of examples; None: the chunk's own rows.
    """

    render: Callable[[pa.Table], ChunkOutput]
    prompt: PromptTemplateConfig
    fixed: pa.Table | None

    def __call__(self, table: pa.Table) -> ChunkOutput:
        alone = self.render(table)
        usable = pa.array(among(table[ROW], alone.table[ROW]))
        made = self.extend(table.filter(usable).combine_chunks(), self._offered(table, alone))
        out = self.render(made.table)
        text = out.table
        if self.prompt.train_on == "all" and "spans" in text.column_names:
            place = pa.array(np.searchsorted(made.table[ROW].to_numpy(), text[ROW].to_numpy()))
            begin, turns = (pa.array(found).take(place).to_numpy() for found in (made.begin, made.turns))
            text = text.set_column(text.schema.get_field_index("spans"), "spans", _masked(text, begin, turns))
        return ChunkOutput(text, table.num_rows, join_rejects([alone.rejects, made.rejects, out.rejects]))

    def extend_all(self, table: pa.Table) -> Extended:
        """All rows of a chunk with their examples, whether they could be rendered alone or not."""
        return self.extend(table, self._offered(table, self.render(table)))

    def extend(self, table: pa.Table, offered: pa.Array) -> Extended:
        """Draw examples and put them before the rows' own messages.

        Args:
            offered: conversations of the examples.
        """
        talks = _talks(table)
        turns = _example_turns(offered, None if self.prompt.train_on == "all" else 0.0)
        shown = pc.struct_field(list_parts(talks)[1], "content").take(pa.array(list_parts(talks)[0][:-1]))
        drawn = draw_for(self.prompt.few_shot, table, _asked(talks), _asked(offered), _content_bytes(turns), shown)
        if "prompt" in table.column_names and drawn.table.schema.field("prompt").type == MESSAGES:
            name, own = "prompt", one_array(drawn.table["prompt"])
            extended = drawn.table
        else:
            name, own = "messages", conversations(drawn.table, self.prompt.system)
            kept = [field for field in (ROW, "tools") if field in table.column_names]
            extended = drawn.table.select(kept).append_column("messages", own)
        begin = _leading_system(own)
        grown = _inserted(own, begin, turns, drawn.picks)
        extended = extended.set_column(extended.schema.get_field_index(name), name, grown)
        lengths = np.diff(list_parts(turns)[0])
        return Extended(extended, begin, lengths[drawn.picks].sum(axis=1), drawn.rejects)

    def _offered(self, table: pa.Table, alone: ChunkOutput) -> pa.Array:
        """The conversations that may be examples: those that are answered, as wished, and can be rendered."""
        if self.fixed is not None:
            return _talks(self.fixed)
        usable = among(table[ROW], alone.table[ROW])
        talks = _talks(table)
        usable &= _answered(talks)
        if "label" in table.column_names:
            usable &= np.asarray(table["label"].to_numpy(), bool)
        return talks.filter(pa.array(usable))


def among(rows: pa.ChunkedArray, found: pa.ChunkedArray) -> Flags:
    """bool [rows]: which row positions are among those found."""
    return np.isin(rows.to_numpy(), found.to_numpy())


def _talks(table: pa.Table) -> pa.Array:
    """Each row's conversation without the YAML's system message; of a pair, the chosen one."""
    if "chosen" in table.column_names:
        table = table.select(["prompt", "chosen"]).rename_columns(["prompt", "completion"])
    return conversations(table, None)


@dataclass(frozen=True)
class _Turns:
    """Messages of many conversations, flat, with what of them is looked at here."""

    offsets: Ints
    flat: pa.Array

    @classmethod
    def of(cls, talks: pa.Array) -> _Turns:
        return cls(*list_parts(talks))

    def spoken_by(self, role: str) -> Flags:
        found = pc.equal(pc.struct_field(self.flat, "role"), role)
        return np.asarray(found.to_numpy(zero_copy_only=False), bool)

    @property
    def row(self) -> Ints:
        return row_of(np.diff(self.offsets))

    def first(self, members: Flags) -> Ints:
        """int64 [rows]: the first member of each conversation, its end where there is none."""
        found, places = self.offsets[1:].copy(), np.flatnonzero(members)[::-1]
        found[self.row[places]] = places
        return found

    def last(self, members: Flags) -> Ints:
        """int64 [rows]: the last member of each conversation, -1 where there is none."""
        found, places = np.full(len(self.offsets) - 1, -1, np.int64), np.flatnonzero(members)
        found[self.row[places]] = places
        return found


def _answered(talks: pa.Array) -> Flags:
    """bool [rows]: whether the last message of the assistant says or calls something."""
    turns = _Turns.of(talks)
    last = turns.last(turns.spoken_by("assistant"))
    content, calls = (pc.struct_field(turns.flat, name) for name in ("content", "tool_calls"))
    says = pc.or_(pc.not_equal(content, ""), pc.greater(pc.list_value_length(calls), 0).fill_null(False))
    says = np.append(np.asarray(says.to_numpy(zero_copy_only=False), bool), False)
    return says[last]


def _asked(talks: pa.Array) -> Hashes:
    """uint64 [rows]: a hash of what is said before the first answer, system messages and white space around apart."""
    turns = _Turns.of(talks)
    user, assistant, system = (turns.spoken_by(role) for role in ("user", "assistant", "system"))
    index = np.arange(len(turns.flat))
    answer = turns.first(assistant & (index > turns.first(user)[turns.row]))
    kept = (index < answer[turns.row]) & ~system
    said = turns.flat.filter(pa.array(kept))
    content = pc.utf8_trim_whitespace(pc.struct_field(said, "content"))
    asked = pa.StructArray.from_arrays([pc.struct_field(said, "role"), content], names=["role", "content"])
    lengths = np.bincount(turns.row[kept], minlength=len(talks))
    return hash_array(list_array(offsets_of(lengths), asked))[0]


def _example_turns(talks: pa.Array, weight: float | None) -> pa.Array:
    """The conversations up to their last answer, without system messages, each message with this weight."""
    turns = _Turns.of(talks)
    index, last = np.arange(len(turns.flat)), turns.last(turns.spoken_by("assistant"))
    kept = (index <= last[turns.row]) & ~turns.spoken_by("system")
    said = turns.flat.filter(pa.array(kept))
    columns = dict(zip(said.type.names, said.flatten(), strict=True))
    columns["weight"] = pa.repeat(pa.scalar(weight, pa.float32()), len(said))
    struct = pa.StructArray.from_arrays(list(columns.values()), fields=list(said.type))
    return list_array(offsets_of(np.bincount(turns.row[kept], minlength=len(talks))), struct).cast(MESSAGES)


def _content_bytes(turns: pa.Array) -> Ints:
    """int64 [rows]: how long each conversation's contents are."""
    offsets, flat = list_parts(turns)
    return sum_rows(np.diff(text_parts(pc.struct_field(flat, "content"))[0]), offsets)


def _leading_system(messages: pa.Array) -> Ints:
    """int64 [rows]: how many system messages each conversation begins with."""
    turns = _Turns.of(messages)
    return turns.first(~turns.spoken_by("system")) - turns.offsets[:-1]


def _inserted(messages: pa.Array, begin: Ints, examples: pa.Array, picks: Ints) -> pa.Array:
    """Each row's messages with its examples' turns put in before message `begin`."""
    (offsets, flat), (held, said) = list_parts(messages), list_parts(examples)
    lengths = np.diff(offsets)
    starts = np.column_stack([offsets[:-1], held[picks] + len(flat), offsets[:-1] + begin])
    counts = np.column_stack([begin, np.diff(held)[picks], lengths - begin])
    taken = pa.concat_arrays([flat, said]).take(pa.array(ranges(starts.ravel(), counts.ravel())))
    return list_array(offsets_of(counts.sum(axis=1)), taken).cast(MESSAGES)


def _masked(table: pa.Table, begin: Ints, turns: Ints) -> pa.Array:
    """The spans, those from the first example to the last one's stop untrained, the template's own between them too."""
    spans = flat_spans(table["spans"])
    row, index = row_of(spans.counts), np.arange(len(spans.start))
    own = np.flatnonzero((spans.message >= 0) & (spans.message < begin[row]))
    example = np.flatnonzero((spans.message >= begin[row]) & (spans.message < (begin + turns)[row]))
    after = spans.offsets[:-1].copy()
    after[row[own]] = own + 1
    until = spans.offsets[:-1].copy()
    until[row[example]] = example + 1
    weight = np.where((index >= after[row]) & (index < until[row]), np.float32(0), spans.weight)
    return span_lists(spans.counts, spans.start, spans.end, spans.role, spans.message, weight, spans.control)
