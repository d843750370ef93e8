"""Finds the trained turns of conversations, and whether each is trained as at inference.

At inference the model reads `messages[:k]` with the generation prompt and writes turn k. In the text of a whole
conversation a turn can differ: templates drop the reasoning of earlier turns, or end the last turn in another way.
`judge` finds such turns by comparing outlines, once per shape.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from tokenloom.assets.prompts.conversations import ArgumentForm, Conversations, Turn, with_arguments
from tokenloom.assets.prompts.outline import Message, Prompt, ShapeError, alike
from tokenloom.assets.prompts.spans import CLOSE, CONTENT, REASONING, Piece
from tokenloom.assets.stage.rejects import ROW
from tokenloom.errors import TemplateError
from tokenloom.resources.templates.jinja import MARK_CLOSE, Slot, padded
from tokenloom.resources.templates.prefix_texts import PrefixTexts

TURNS, NOT_EXACT, TEXTS = "turns_trained", "turns_not_exact", "texts"
"""Counters of `prompts`: trained turns, those of them that are not exact, and texts."""

MOST_RENDERED = 2_000_000
"""Most messages that are rendered to compare the turns of one text; takes some seconds."""
MOST_OF_TEXTS = 4 * MOST_RENDERED
"""The same of all texts that a conversation is split into."""
_FEW = 4
"""Turns up to which each is rendered: to render all at once takes two renderings and a search."""
_LAID_OUT = 8
"""About how many renderings it takes to find the pieces of a conversation."""


@dataclass(frozen=True)
class TrainedTurn:
    """A trained turn of the assistant in an outline.

    Args:
        message: index of the message.
        start, end: character positions of its trained part.
        same: whether the conversation up to this turn starts with the same text and trains the same part of it.
        prompted: whether the text starts with what the model is prompted with, and the trained part starts at its end,
            white space aside. A template's marks can start it earlier, and so train a header that is given.
        header: number of characters between the prompt and the trained part, if the text starts with the prompt.
    """

    message: int
    start: int
    end: int
    same: bool = True
    prompted: bool = True
    header: int = 0

    @property
    def exact(self) -> bool:
        return self.same and self.prompted


Beginning = tuple[int, str] | None
"""How many characters of an outline the text for the first messages begins with, and the text after them, by which it
is compared; None if the template refuses them."""

Found = TypeVar("Found")


class TooManyTurnsError(ShapeError):
    """A conversation has more turns than can be compared."""


class Budget:
    """Limits how many messages are rendered to compare the turns of one text.

    Args:
        messages: the number of messages of the conversation.
        most: the limit; None: `MOST_RENDERED`.
        whole: that of all texts of the conversation, of which this one is a part.
    """

    def __init__(self, messages: int, most: int | None = None, whole: Budget | None = None):
        self._messages, self._left, self._whole = messages, MOST_RENDERED if most is None else most, whole

    def spend(self, count: int) -> None:
        """Count the messages of a rendering.

        Raises:
            TooManyTurnsError: there are too many.
        """
        if self._whole is not None:
            self._whole.spend(count)
        self._left -= count
        if self._left < 0:
            message = (
                f"the chat template must be rendered for each turn of {self._messages:,} messages, which takes too "
                "long; split the conversation into shorter ones"
            )
            raise TooManyTurnsError("too_many_turns", message)


class TurnCounts:
    """Counts the turns of a chunk, as its shapes are laid out.

    Args:
        rows: int32 [rows], the positions of the chunk's rows.

    `found` has further counts.
    """

    def __init__(self, rows: pa.Array):
        self._rows = rows.to_numpy()
        self._counts: dict[int, np.ndarray] = {}
        self.found: Counter[str] = Counter()

    def put(self, text: int, rows: np.ndarray, turns: Sequence[TrainedTurn]) -> None:
        """Record the turns of a shape. They replace what was recorded for the same rows before.

        Args:
            text: number of the text among those of its rows.
            rows: int64 [rows of the shape], their indices in the chunk.
        """
        counts = self._counts.setdefault(text, np.zeros((len(self._rows), 2), np.int64))
        counts[rows] = len(turns), sum(not turn.exact for turn in turns)

    def adopt(self, other: TurnCounts, rows: np.ndarray) -> None:
        """Take over what another object recorded for some rows, int64, indices in the chunk."""
        for text, found in other._counts.items():
            self._counts.setdefault(text, np.zeros((len(self._rows), 2), np.int64))[rows] = found[rows]

    def counters(self, table: pa.Table) -> dict[str, int]:
        """Return the counters of a chunk; `table` has its texts."""
        kept = np.isin(self._rows, table[ROW].to_numpy())
        trained, not_exact = sum((counts[kept].sum(axis=0) for counts in self._counts.values()), np.zeros(2, np.int64))
        return {TURNS: int(trained), NOT_EXACT: int(not_exact), TEXTS: table.num_rows, **self.found}


@dataclass(frozen=True)
class ShapePieces:
    """The pieces of a shape of conversations, without an added BOS.

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
        return [_part(piece, slots) for piece in self.stopped]

    @cached_property
    def text(self) -> str:
        """The outline."""
        return "".join(self.parts)


class Conversational(Protocol):
    """What exact turns need of a chat template; `tokenloom.assets.prompts.chat.ChatFormat` implements it."""

    def written(self, messages: Sequence[Message], prompted: int, tools: Any = None, kwargs: str = "") -> str: ...

    def prefixes(
        self, messages: Sequence[Message], prompted: int, tools: Any = None, kwargs: str = ""
    ) -> PrefixTexts | None: ...

    def thinks(self, kwargs: str) -> bool: ...

    def shape_pieces(self, group: Conversations, form: ArgumentForm) -> ShapePieces: ...

    def trained(self, turns: Sequence[Turn]) -> list[int]: ...

    def remembered(self, name: str, group: Conversations, form: ArgumentForm, find: Callable[[], Found]) -> Found: ...

    @property
    def exact(self) -> bool: ...

    @property
    def prompts(self) -> bool: ...

    @property
    def continued(self) -> Conversational: ...


@dataclass(frozen=True)
class ShapeFormat:
    """A chat template with the form of arguments that it takes from the conversations of a shape.

    Args:
        form: converts the arguments of tool calls to the form that the template renders.
        continued: whether the last answer continues the generation prompt; see `continued_prompt`.
        budget: that of all texts of the conversations, if they are split.
    """

    chat: Conversational
    form: ArgumentForm
    continued: bool = False
    budget: Budget | None = None

    def continuing(self) -> ShapeFormat:
        """Return the format in which the last answer continues the generation prompt."""
        return replace(self, chat=self.chat.continued, continued=True)

    def of_texts(self, messages: int) -> ShapeFormat:
        """Return the format with one budget for all texts of a conversation."""
        return replace(self, budget=Budget(messages, MOST_OF_TEXTS))

    def written(self, group: Conversations, messages: Sequence[Message], prompt: Prompt) -> str | None:
        """Render messages of a group; None if the template refuses them."""
        given = with_arguments(messages, self.form)
        try:
            return self.chat.written(given, prompt, group.parsed_tools, group.template_kwargs)
        except TemplateError:
            return None

    def prefixes(
        self, group: Conversations, messages: Sequence[Message], prompt: Prompt, most: int, budget: Budget, outline: str
    ) -> Callable[[int], Beginning]:
        """Return a function that renders the first messages of a group; it returns None if the template refuses them.

        Args:
            most: how often it is called at most; one rendering of all messages replaces many.
            outline: that of the group.
        """
        known, common = None, 0
        if most > _FEW:
            given = with_arguments(messages, self.form)
            with suppress(TemplateError):
                known = self.chat.prefixes(given, prompt, group.parsed_tools, group.template_kwargs)
                common = alike(known.text, outline) if known else 0

        def written(count: int) -> Beginning:
            if known is not None and (end := known.end(count)) is not None:
                return min(end, common), known.text[min(end, common) : end] + known.parts[-1]
            budget.spend(count)
            text = self.written(group, messages[:count], prompt)
            return None if text is None else (0, text)

        return written

    def prompts(self, group: Conversations) -> Sequence[Prompt]:
        """Return the generation prompts that inference can choose from."""
        return tuple(Prompt)[1:] if self.chat.thinks(group.template_kwargs) else (Prompt.DEFAULT,)

    def shape_pieces(self, group: Conversations) -> ShapePieces:
        """Return the pieces of conversations, or of their beginnings.

        Raises:
            TemplateError: the template refuses them, or its text cannot be divided into turns.
        """
        return self.chat.shape_pieces(group, self.form)

    def turns(self, group: Conversations) -> list[TrainedTurn]:
        """Return the trained turns, and whether each is as at inference; raises as `shape_pieces` does."""

        def find() -> list[TrainedTurn]:
            return self.judged(group, self.shape_pieces(group))[1]

        return self.chat.remembered(f"turns {self.continued}", group, self.form, find)

    def judged(self, group: Conversations, written: ShapePieces) -> tuple[ShapePieces, list[TrainedTurn]]:
        """Return a shape's pieces and its trained turns; exact turns train the headers that inference lacks, too."""
        turns = judge(self, group, written)
        return with_headers(written, turns) if self.chat.exact and self.chat.prompts else (written, turns)


def judge(chat: ShapeFormat, group: Conversations, written: ShapePieces) -> list[TrainedTurn]:
    """Return the trained turns of a shape, in order, and whether each is exact.

    If there are so many that rendering the conversation for each takes too long, those that are left are not exact.

    Raises:
        TooManyTurnsError: the same, if every turn must be exact.
    """
    text = written.text
    messages = group.messages(["" if empty else padded(value) for value, empty in enumerate(group.empty)])

    found, turns = trained_turns(written, group), []
    if not found:
        return []
    budget = Budget(len(messages), whole=chat.budget)
    start, *asked = (
        chat.prefixes(group, messages, prompt, len(found), budget, text)
        for prompt in (Prompt.NONE, *chat.prompts(group))
    )

    def judged(turn: TrainedTurn) -> TrainedTurn:
        until = turn.message + 1
        own = (len(text), "") if until == len(messages) else start(until)
        prompts = () if own is None else (write(turn.message) for write in asked)
        between = _after_prompt(text, turn, prompts)
        same = until == len(messages) or _is_same(chat, group, turn, written, own, budget)
        header = len(between) if between and between.strip() and MARK_CLOSE not in between else 0
        return replace(turn, same=same, prompted=between is not None and not between.strip(), header=header)

    try:
        turns.extend(map(judged, found))
    except TooManyTurnsError:
        if chat.chat.exact:
            raise
        turns += [replace(turn, same=False) for turn in found[len(turns) :]]
    return turns


def _after_prompt(text: str, turn: TrainedTurn, prompts: Iterable[Beginning]) -> str | None:
    """Return the shortest text between one of the prompts and the trained part; None if no prompt starts the text."""
    shortest = None
    for prompt in prompts:
        shared, rest = prompt or (0, text)
        if prompt is None or shared + len(rest) > turn.end or not text.startswith(rest, shared):
            continue
        between = text[shared + len(rest) : turn.start]
        if not between.strip():
            return between
        shortest = between if shortest is None or len(between) < len(shortest) else shortest
    return shortest


def with_headers(written: ShapePieces, turns: Sequence[TrainedTurn]) -> tuple[ShapePieces, list[TrainedTurn]]:
    """Train the text between the prompt and a turn too: the template writes it, so the model must generate it."""
    headed = {turn.start: turn for turn in turns if turn.header}
    if not headed:
        return written, list(turns)
    slots, found = {slot.column: slot for slot in written.slots if slot.column >= 0}, []
    for pieces in (written.pieces, written.stopped):
        bounds = accumulate((len(_part(piece, slots)) for piece in pieces), initial=0)
        parts = list(zip(pieces, pairwise(bounds), strict=True))
        first = {start: piece for piece, (start, _) in parts if start in headed}
        pieces, starts = [], [*headed]
        for piece, (start, end) in parts:
            turn = headed[starts[place]] if (place := bisect_left(starts, end)) < len(starts) else None
            if turn is None or end <= turn.start - turn.header or piece.text is None:
                pieces.append(piece)
                continue
            cut = max(turn.start - turn.header - start, 0)
            like = first[turn.start]
            kind = like.part and (REASONING if CLOSE in piece.text[cut:] else CONTENT)
            header = replace(like, text=piece.text[cut:], column=-1, control=piece.control, part=kind)
            pieces += [*([replace(piece, text=piece.text[:cut])] if cut else []), header]
        found.append(pieces)
    begun = {turn.start: replace(turn, start=turn.start - turn.header, prompted=True) for turn in headed.values()}
    return ShapePieces(written.slots, *found), [begun.get(turn.start, turn) for turn in turns]


def trained_turns(written: ShapePieces, group: Conversations) -> list[TrainedTurn]:
    """Return the trained turns of the assistant in a shape, in order.

    Text of a generation block belongs to the message whose content the block has, else to the next answer.
    """
    bounds = accumulate(map(len, written.parts), initial=0)
    trained = [
        (start, end, piece.message)
        for piece, (start, end) in zip(written.stopped, pairwise(bounds), strict=True)
        if piece.weight > 0 and piece.role == "assistant"
    ]
    answers = [index for index, turn in enumerate(group.turns) if turn.role == "assistant"]
    found: dict[int, TrainedTurn] = {}
    latest = -1
    for run in _adjacent(trained):
        place = bisect_right(answers, latest)
        following = answers[place] if place < len(answers) else -1
        latest = next((message for _, _, message in run if message >= 0), following)
        for start, end, message in run:
            latest = message if message >= 0 else latest
            known = found.get(latest)
            found[latest] = TrainedTurn(latest, known.start if known else start, end)
    return sorted((turn for turn in found.values() if turn.message >= 0), key=lambda turn: turn.message)


def _is_same(
    chat: ShapeFormat, group: Conversations, turn: TrainedTurn, written: ShapePieces, own: Beginning, budget: Budget
) -> bool:
    """Return whether the conversation up to a turn starts with the same text and trains the same part of it.

    Args:
        own: the outline of the conversation up to the turn, as the template writes it; None if it refuses that.
    """
    if own is None:
        return True  # no other text can train it or be compared with it
    text, (shared, rest) = written.text, own
    trained = text[turn.start : turn.end].rstrip() or text[: turn.end].rstrip()
    begins = shared >= turn.end or rest.startswith(text[shared : turn.end])
    further = text[turn.end : shared] + rest[max(turn.end - shared, 0) :]
    if begins and not further.strip() and not trained.endswith(MARK_CLOSE):
        return True
    if not begins and written.stopped == written.pieces and not text.startswith(rest.rstrip(), shared):
        return False
    budget.spend(_LAID_OUT * turn.message)
    try:
        alone = chat.shape_pieces(start_of(group, turn.message + 1))
    except TemplateError:
        return True
    (*_, last) = trained_turns(alone, group) or [turn]
    numbers = _values_until(group, turn.message + 1)
    slots = [replace(slot, value=numbers[slot.value]) if slot.value >= 0 else slot for slot in alone.slots]
    return replace(alone, slots=slots).text[: last.end] == text[: turn.end]


def _part(piece: Piece, slots: Mapping[int, Slot]) -> str:
    """Return the outline of a piece; values have white space around them."""
    return slots[piece.column].padded if piece.text is None else piece.text


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


def start_of(group: Conversations, count: int) -> Conversations:
    """Return the first `count` messages of conversations."""
    kept = _values_until(group, count)
    values, empty = ([column[value] for value in kept] for column in (group.values, group.empty))
    following = group.turns[count] if count < len(group.turns) else group.following
    return replace(group, turns=group.turns[:count], values=values, empty=empty, following=following)
