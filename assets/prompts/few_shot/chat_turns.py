"""Few-shot examples in conversations: inserted as earlier turns, after the row's system message, and not trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.conversations import conversations
from tokenloom.assets.prompts.few_shot.examples import draw_for
from tokenloom.assets.prompts.spans import flat_spans, span_lists
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.forms import MESSAGES, has_calls
from tokenloom.assets.stage.rejects import ROW, join_rejects
from tokenloom.config import PromptTemplateConfig
from tokenloom.resources.tables.hashes import Hashes, hash_array
from tokenloom.resources.tables.ragged import (
    Flags,
    Ints,
    flags_of,
    list_array,
    list_parts,
    offsets_of,
    one_array,
    ranges,
    row_of,
    sum_rows,
    text_parts,
)


@dataclass(frozen=True)
class Extended:
    """Rows with their examples.

    Args:
        table: the rows with enough examples, as conversations; in preference data, with extended prompts.
        start: int64 [rows], the index of the examples' first message.
        added: int64 [rows], the number of messages in the examples.
        rejects: the other rows.
    """

    table: pa.Table
    start: Ints
    added: Ints
    rejects: pa.Table


@dataclass(frozen=True)
class ChatFewShot:
    """Renders conversations with examples.

    Args:
        render: renders a conversation without examples.
        prompt: the YAML's prompt_template section.
        fixed: canonical rows of the file of examples; None: examples are the chunk's other rows.
    """

    render: Callable[[pa.Table], ChunkOutput]
    prompt: PromptTemplateConfig
    fixed: pa.Table | None

    def __call__(self, table: pa.Table) -> ChunkOutput:
        alone = self.render(table)
        usable = pa.array(is_member(table[ROW], alone.table[ROW]))
        extended = self.extend(table.filter(usable).combine_chunks(), self._offered(table, alone))
        out = self.render(extended.table)
        text = out.table
        if self.prompt.train_on == "all" and "spans" in text.column_names:
            place = pa.array(np.searchsorted(extended.table[ROW].to_numpy(), text[ROW].to_numpy()))
            start, added = (pa.array(column).take(place).to_numpy() for column in (extended.start, extended.added))
            text = text.set_column(text.schema.get_field_index("spans"), "spans", _masked(text, start, added))
        rejects = join_rejects([alone.rejects, extended.rejects, out.rejects])
        return replace(out, table=text, rows_in=table.num_rows, rejects=rejects, filtered=alone.filtered + out.filtered)

    def extend_all(self, table: pa.Table) -> Extended:
        """Add examples to all rows of a chunk, also to rows that cannot be rendered on their own."""
        return self.extend(table, self._offered(table, self.render(table)))

    def extend(self, table: pa.Table, offered: pa.Array) -> Extended:
        """Draw examples and insert them before the rows' own messages.

        Args:
            offered: the conversations to draw from.
        """
        own_chats = _chats(table)
        turns = _example_turns(offered, None if self.prompt.train_on == "all" else 0.0)
        offsets, flat = list_parts(own_chats)
        shown = pc.struct_field(flat, "content").take(pa.array(offsets[:-1]))
        turn_offsets, flat = list_parts(turns)
        sizes = sum_rows(np.diff(text_parts(pc.struct_field(flat, "content"))[0]), turn_offsets)
        drawn = draw_for(self.prompt.few_shot, table, _asked(own_chats), _asked(offered), sizes, shown)
        if "prompt" in table.column_names and drawn.table.schema.field("prompt").type == MESSAGES:
            name, own = "prompt", one_array(drawn.table["prompt"])
            extended = drawn.table
        else:
            name, own = "messages", conversations(drawn.table, self.prompt.system)
            kept = [field for field in (ROW, "tools", "template_kwargs") if field in table.column_names]
            extended = drawn.table.select(kept).append_column("messages", own)
        start = _leading_system(own)
        with_examples = _inserted(own, start, turns, drawn.picks)
        extended = extended.set_column(extended.schema.get_field_index(name), name, with_examples)
        return Extended(extended, start, np.diff(turn_offsets)[drawn.picks].sum(axis=1), drawn.rejects)

    def _offered(self, table: pa.Table, alone: ChunkOutput) -> pa.Array:
        """Return the conversations to draw from: those that render and have an answer (in kto data, a good one)."""
        if self.fixed is not None:
            return _chats(self.fixed)
        chats = _chats(table)
        usable = is_member(table[ROW], alone.table[ROW]) & _answered(chats)
        if "label" in table.column_names:
            usable &= np.asarray(table["label"].to_numpy(), bool)
        return chats.filter(pa.array(usable))


def is_member(rows: pa.ChunkedArray, members: pa.ChunkedArray) -> Flags:
    """Return bool [rows]: whether each row position is among `members`."""
    return np.isin(rows.to_numpy(), members.to_numpy())


def _chats(table: pa.Table) -> pa.Array:
    """Return each row's conversation without the YAML's system message; for pairs, the chosen one."""
    if "chosen" in table.column_names:
        table = table.select(["prompt", "chosen"]).rename_columns(["prompt", "completion"])
    return conversations(table, None)


@dataclass(frozen=True)
class _FlatMessages:
    """The messages of many conversations, flat, with the look-ups that few-shot needs."""

    offsets: Ints
    flat: pa.Array

    def spoken_by(self, role: str) -> Flags:
        return flags_of(pc.equal(pc.struct_field(self.flat, "role"), role))

    @property
    def row(self) -> Ints:
        return row_of(np.diff(self.offsets))

    def first(self, members: Flags) -> Ints:
        """Return int64 [rows]: the index of each conversation's first member, or the conversation's end."""
        # in reverse, so that of several members the first is written last
        first, places = self.offsets[1:].copy(), np.flatnonzero(members)[::-1]
        first[self.row[places]] = places
        return first

    def last(self, members: Flags) -> Ints:
        """Return int64 [rows]: the index of each conversation's last member, or -1."""
        last, places = np.full(len(self.offsets) - 1, -1, np.int64), np.flatnonzero(members)
        last[self.row[places]] = places
        return last


def _answered(chats: pa.Array) -> Flags:
    """Return bool [rows]: whether the assistant's last message has text or a tool call."""
    messages = _FlatMessages(*list_parts(chats))
    last = messages.last(messages.spoken_by("assistant"))
    says = flags_of(pc.not_equal(pc.struct_field(messages.flat, "content"), ""))
    return np.append(says | has_calls(messages.flat), False)[last]


def _asked(chats: pa.Array) -> Hashes:
    """Return uint64 [rows]: a hash of the trimmed messages before the first answer, without system messages."""
    messages = _FlatMessages(*list_parts(chats))
    user, assistant, system = (messages.spoken_by(role) for role in ("user", "assistant", "system"))
    index = np.arange(len(messages.flat))
    answer = messages.first(assistant & (index > messages.first(user)[messages.row]))
    kept = (index < answer[messages.row]) & ~system
    before = messages.flat.filter(pa.array(kept))
    content = pc.utf8_trim_whitespace(pc.struct_field(before, "content"))
    asked = pa.StructArray.from_arrays([pc.struct_field(before, "role"), content], names=["role", "content"])
    return hash_array(list_array(offsets_of(np.bincount(messages.row[kept], minlength=len(chats))), asked))[0]


def _example_turns(chats: pa.Array, weight: float | None) -> pa.Array:
    """Return the conversations up to their last answer, without system messages, each message with this weight."""
    messages = _FlatMessages(*list_parts(chats))
    index, last = np.arange(len(messages.flat)), messages.last(messages.spoken_by("assistant"))
    kept = (index <= last[messages.row]) & ~messages.spoken_by("system")
    flat = messages.flat.filter(pa.array(kept))
    columns = dict(zip(flat.type.names, flat.flatten(), strict=True))
    columns["weight"] = pa.repeat(pa.scalar(weight, pa.float32()), len(flat))
    struct = pa.StructArray.from_arrays(list(columns.values()), fields=list(flat.type))
    return list_array(offsets_of(np.bincount(messages.row[kept], minlength=len(chats))), struct).cast(MESSAGES)


def _leading_system(chats: pa.Array) -> Ints:
    """Return int64 [rows]: the number of system messages at the start of each conversation."""
    messages = _FlatMessages(*list_parts(chats))
    return messages.first(~messages.spoken_by("system")) - messages.offsets[:-1]


def _inserted(chats: pa.Array, start: Ints, examples: pa.Array, picks: Ints) -> pa.Array:
    """Return each row's messages with its examples' turns inserted before message `start`."""
    (offsets, flat), (example_offsets, example_flat) = list_parts(chats), list_parts(examples)
    lengths = np.diff(offsets)
    starts = np.column_stack([offsets[:-1], example_offsets[picks] + len(flat), offsets[:-1] + start])
    counts = np.column_stack([start, np.diff(example_offsets)[picks], lengths - start])
    taken = pa.concat_arrays([flat, example_flat]).take(pa.array(ranges(starts.ravel(), counts.ravel())))
    return list_array(offsets_of(counts.sum(axis=1)), taken).cast(MESSAGES)


def _masked(table: pa.Table, start: Ints, added: Ints) -> pa.Array:
    """Return the spans with weight 0 from the first example to the last one's stop, template text included."""
    spans = flat_spans(table["spans"])
    row, index = row_of(spans.counts), np.arange(len(spans.start))
    own = np.flatnonzero((spans.message >= 0) & (spans.message < start[row]))
    example = np.flatnonzero((spans.message >= start[row]) & (spans.message < (start + added)[row]))
    # examples come after the row's own system message: what is masked starts after its last span
    after = spans.offsets[:-1].copy()
    after[row[own]] = own + 1
    until = spans.offsets[:-1].copy()
    until[row[example]] = example + 1
    weight = np.where((index >= after[row]) & (index < until[row]), np.float32(0), spans.weight)
    return span_lists(spans.counts, spans.start, spans.end, spans.role, spans.message, weight, spans.control)
