"""Exact turns: trained in the context, and with the text, that inference has.

At inference the model reads `messages[:k]` with the generation prompt and writes turn k. In the text of a whole
conversation a turn can differ: templates drop the reasoning of earlier turns, or end the last turn in another way.
`judge` finds such turns by comparing outlines, once per shape. `texts_of` splits the conversations of a shape into
texts in which every turn is as at inference; turns whose texts start with each other share a text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.call_arguments import Form, with_arguments
from tokenloom.assets.prompts.conversations import Conversations, Message, Turn
from tokenloom.assets.prompts.spans import Piece
from tokenloom.assets.prompts.turn_boundaries import Prompt
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.stage.texts import count_rows, first_of_row
from tokenloom.config import PipelineConfig
from tokenloom.errors import TemplateError
from tokenloom.resources.templates.jinja import MARK_CLOSE, Slot, padded

TURNS, NOT_EXACT, TEXTS = "turns_trained", "turns_not_exact", "texts"
"""Counters of `prompts`: trained turns, those of them that are not exact, and texts."""

SETTING = "prompt_template.turns"


@dataclass(frozen=True)
class TrainedTurn:
    """A trained turn of the assistant in an outline.

    Args:
        message: index of the message.
        start, end: character positions of its trained part.
        same: whether the conversation up to this turn starts with the same text and trains the same part of it.
        prompted: whether the text starts with what the model is prompted with, and the trained part starts at its end,
            white space aside. A template's marks can start it earlier, and so train a header that is given.
    """

    message: int
    start: int
    end: int
    same: bool = True
    prompted: bool = True

    @property
    def exact(self) -> bool:
        return self.same and self.prompted


class TurnCounts:
    """Counts the turns of a chunk, as its shapes are laid out.

    Args:
        rows: int32 [rows], the positions of the chunk's rows.
    """

    def __init__(self, rows: pa.Array):
        self._rows = rows.to_numpy()
        self._counts: dict[int, np.ndarray] = {}

    def put(self, text: int, rows: np.ndarray, turns: Sequence[TrainedTurn]) -> None:
        """Record the turns of a shape, in place of those of an earlier shape of the same rows.

        Args:
            text: number of the text among those of its rows.
            rows: int64 [rows of the shape], their indices in the chunk.
        """
        counts = self._counts.setdefault(text, np.zeros((len(self._rows), 2), np.int64))
        counts[rows] = len(turns), sum(not turn.exact for turn in turns)

    def counters(self, table: pa.Table) -> dict[str, int]:
        """Return the counters of a chunk; `table` has its texts."""
        kept = np.isin(self._rows, table[ROW].to_numpy())
        trained, not_exact = sum((counts[kept].sum(axis=0) for counts in self._counts.values()), np.zeros(2, np.int64))
        return {TURNS: int(trained), NOT_EXACT: int(not_exact), TEXTS: table.num_rows}


@dataclass(frozen=True)
class Layout:
    """The layout of a shape of conversations, without an added BOS.

    Args:
        slots: the template's slots.
        pieces: the text that the template writes.
        stopped: the same, with an added EOS if the template writes no stop.
    """

    slots: Sequence[Slot]
    pieces: list[Piece]
    stopped: list[Piece]

    @cached_property
    def parts(self) -> list[str]:
        """The outline of each piece of `stopped`; values have white space around them."""
        slots = {slot.column: slot for slot in self.slots if slot.column >= 0}
        return [slots[piece.column].padded if piece.text is None else piece.text for piece in self.stopped]

    @cached_property
    def text(self) -> str:
        """The outline."""
        return "".join(self.parts)


class Conversational(Protocol):
    """What exact turns need of a chat template; `tokenloom.assets.prompts.chat.ChatFormat` implements it."""

    def written(self, messages: Sequence[Message], prompted: int, tools: Any = None, kwargs: str = "") -> str: ...

    def thinks(self, kwargs: str) -> bool: ...

    def laid_out(self, group: Conversations, form: Form) -> Layout: ...

    def trained(self, turns: Sequence[Turn]) -> list[int]: ...


@dataclass(frozen=True)
class ShapeFormat:
    """A chat template with the form of arguments that it takes from the conversations of a shape.

    Args:
        form: converts the arguments of tool calls to the form that the template renders.
    """

    chat: Conversational
    form: Form

    def written(self, group: Conversations, messages: Sequence[Message], prompt: Prompt) -> str | None:
        """Render messages of a group; None if the template refuses them."""
        given = with_arguments(messages, self.form)
        try:
            return self.chat.written(given, prompt, group.parsed_tools, group.template_kwargs)
        except TemplateError:
            return None

    def prompts(self, group: Conversations) -> Sequence[Prompt]:
        """Return the generation prompts that inference can choose from."""
        return tuple(Prompt)[1:] if self.chat.thinks(group.template_kwargs) else (Prompt.DEFAULT,)

    def laid_out(self, group: Conversations) -> Layout:
        """Return the layout of conversations, or of their beginnings.

        Raises:
            TemplateError: the template refuses them, or its text cannot be divided into turns.
        """
        return self.chat.laid_out(group, self.form)

    def turns(self, group: Conversations) -> list[TrainedTurn]:
        """Return the trained turns, and whether each is as at inference; raises as `laid_out` does."""
        return judge(self, group, self.laid_out(group))


def judge(chat: ShapeFormat, group: Conversations, layout: Layout) -> list[TrainedTurn]:
    """Return the trained turns of a shape, in order, and whether each is exact."""
    text = layout.text
    messages = group.messages(["" if empty else padded(value) for value, empty in enumerate(group.empty)])

    def starts_with(turn: TrainedTurn, prompt: str | None) -> bool:
        fits = prompt is not None and text[: turn.end].startswith(prompt)
        return fits and not text[len(prompt or "") : turn.start].strip()

    turns = []
    for turn in trained_turns(layout, group):
        until, before = turn.message + 1, messages[: turn.message]
        own = text if until == len(messages) else chat.written(group, messages[:until], Prompt.NONE)
        prompts = (chat.written(group, before, prompt) for prompt in chat.prompts(group))
        prompted = own is not None and any(starts_with(turn, prompt) for prompt in prompts)
        same = until == len(messages) or _is_same(chat, group, turn, layout, own)
        turns.append(replace(turn, same=same, prompted=prompted))
    return turns


def trained_turns(layout: Layout, group: Conversations) -> list[TrainedTurn]:
    """Return the trained turns of the assistant in a layout, in order.

    Text of a generation block belongs to the message whose content the block has, else to the next answer.
    """
    bounds = accumulate(map(len, layout.parts), initial=0)
    trained = [
        (start, end, piece.message)
        for piece, (start, end) in zip(layout.stopped, pairwise(bounds), strict=True)
        if piece.weight > 0 and piece.role == "assistant"
    ]
    answers = [index for index, turn in enumerate(group.turns) if turn.role == "assistant"]
    found: dict[int, TrainedTurn] = {}
    latest = -1
    for run in _adjacent(trained):
        following = next((index for index in answers if index > latest), -1)
        latest = next((message for _, _, message in run if message >= 0), following)
        for start, end, message in run:
            latest = message if message >= 0 else latest
            known = found.get(latest)
            found[latest] = TrainedTurn(latest, known.start if known else start, end)
    return sorted((turn for turn in found.values() if turn.message >= 0), key=lambda turn: turn.message)


def texts_of(chat: ShapeFormat, group: Conversations) -> list[Conversations]:
    """Split the conversations of a shape into texts with exact turns, the shortest first.

    Each text is the start of the conversation. A turn is trained in the longest text that is the same up to the turn's
    end, and has weight 0 in all others. A turn that is not exact in any text is trained once like the others.
    """
    texts: list[Conversations] = []
    trained = chat.chat.trained(group.turns)
    left = [index for index in trained if group.turns[index].role == "assistant"]
    others, text = len(left) < len(trained), group
    while left:
        found = _divided(chat, text, left)
        if found is None:  # the renderer rejects it, with the reason
            return [group]
        text, kept, left = found
        if kept or others:
            texts.append(_masked(text, left))
        others = False
        if left:
            text = _start_of(group, left[-1] + 1)
            text = _masked(text, set(range(len(text.turns))).difference(left))
    return texts[::-1] or [group]


def verdict_by_row(out: ChunkOutput) -> ChunkOutput:
    """Return the texts of the rows without a rejected text, and one reject for each other row."""
    rejects = out.rejects.filter(pa.array(first_of_row(out.rejects)))
    table = out.table
    if rejects.num_rows:
        table = table.filter(pc.invert(pc.is_in(table[ROW], rejects[ROW].combine_chunks()))).combine_chunks()
    return replace(out, table=table, rejects=rejects, rows_out=count_rows(table))


def check_turns(config: PipelineConfig, form: str, chat: bool) -> None:
    """Check that `turns: exact` fits the other settings and the form of the rows.

    Raises:
        ConfigError: it does not.
    """
    prompt = config.prompt_template
    if prompt.turns == "together":
        return
    if not chat:
        message = "exact needs rows that go through a chat template, but these do not; set turns: together"
        raise config.fault(SETTING, message)
    if form in ("preference", "kto"):
        message = f"{form} data train one answer per row, which leaves no turns to separate; set turns: together"
        raise config.fault(SETTING, message)
    if prompt.train_on not in ("completions", "last", ("assistant",)):
        message = "exact trains what the model writes at inference; set train_on: completions, or turns: together"
        raise config.fault(SETTING, message)
    if config.length.strategy == "drop_turns":
        message = "exact gives each row several texts, and drop_turns shortens whole rows; set length.strategy: smart"
        raise config.fault(SETTING, message)


def _is_same(chat: ShapeFormat, group: Conversations, turn: TrainedTurn, layout: Layout, own: str | None) -> bool:
    """Return whether the conversation up to a turn starts with the same text and trains the same part of it.

    Args:
        own: the outline of the conversation up to the turn, as the template writes it; None if it refuses that.
    """
    text = layout.text[: turn.end]
    if own is None:
        return True  # no other text can train it or be compared with it
    ends_in_content = text.rstrip().endswith(MARK_CLOSE)
    if own.startswith(text) and not own[turn.end :].strip() and not ends_in_content:
        return True
    if not own.startswith(text) and layout.stopped == layout.pieces:
        return False
    try:
        alone = chat.laid_out(_start_of(group, turn.message + 1))
    except TemplateError:
        return True
    (*_, last) = trained_turns(alone, group) or [turn]
    numbers = _values_until(group, turn.message + 1)
    slots = [replace(slot, value=numbers[slot.value]) if slot.value >= 0 else slot for slot in alone.slots]
    return replace(alone, slots=slots).text[: last.end] == text


def _divided(
    chat: ShapeFormat, text: Conversations, left: Sequence[int]
) -> tuple[Conversations, list[int], list[int]] | None:
    """Return a text for some turns, those of them that it has as at inference, and the others; None if impossible.

    A text that cannot be divided into its turns is cut after the last of them, then trains only that one.

    Args:
        left: indices of the turns that are still to be trained; the text trains them.
    """
    ended = _start_of(text, left[-1] + 1)
    for tried in (text, ended, _masked(ended, left[:-1])):
        try:
            turns = chat.turns(tried)
        except TemplateError:
            continue
        kept = [turn.message for turn in turns if turn.same]
        done = {*kept, left[-1]} if len(tried.turns) == len(ended.turns) else set(kept)
        return tried, kept, [index for index in left if index not in done]
    return None


def _adjacent(parts: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Group parts of a text, each with start, end and message, into runs without a gap."""
    runs: list[list[tuple[int, int, int]]] = []
    for part in parts:
        if runs and runs[-1][-1][1] == part[0]:
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _values_until(group: Conversations, count: int) -> list[int]:
    """Return the indices of the values of the first `count` messages."""
    return [value for value, owner in enumerate(group.owners) if owner < count]


def _start_of(group: Conversations, count: int) -> Conversations:
    """Return the first `count` messages of conversations."""
    kept = _values_until(group, count)
    values, empty = ([column[value] for value in kept] for column in (group.values, group.empty))
    return replace(group, turns=group.turns[:count], values=values, empty=empty)


def _masked(group: Conversations, messages: Collection[int]) -> Conversations:
    """Return the conversations with weight 0 for some messages."""
    turns = (replace(turn, weight=0.0) if index in messages else turn for index, turn in enumerate(group.turns))
    return replace(group, turns=tuple(turns))
