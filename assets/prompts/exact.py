"""Exact turns: trained in the context, and with the text, that inference has.

At inference the model reads `messages[:k]` with the generation prompt and writes turn k. In the text of a whole
conversation a turn can differ: templates drop the reasoning of earlier turns, or end the last turn in another way.
`judge` finds such turns by comparing outlines, once per shape. `texts_of` splits the conversations of a shape into
texts in which every turn is as at inference; turns whose texts start with each other share a text.

Most templates write the last answer of a conversation as the continuation of the generation prompt. Some do not:

- gpt-oss drops the reasoning of tool calls from the conversation as soon as an answer follows, but not from the prompt;
- DeepSeek-R1 prompts with `<think>`, but takes the reasoning out of contents that have it.

For these, `ContinuedPrompt` composes the text of what the template writes for the messages before the answer, and of
what it writes after the last of these messages for the answer. A content with inline reasoning is hidden from the
template's search for `</think>`, so that it is written whole. All text is the template's or the row's.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.conversations import ArgumentForm, Conversations
from tokenloom.assets.prompts.outline import Message, Prompt, ShapeError, alike, attempt
from tokenloom.assets.prompts.spans import CLOSE, CONTENT, OPEN, REASONING, ShapePieces, outline_of
from tokenloom.assets.prompts.turns import messages_of
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.stage.rows import count_rows, first_of_row
from tokenloom.errors import TemplateError
from tokenloom.resources.templates.jinja import JinjaTemplate
from tokenloom.resources.templates.marks import GENERATION_CLOSE, GENERATION_OPEN, MARK_CLOSE, MARK_OPEN

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

_END, _HIDDEN_OPEN, _HIDDEN_CLOSE = (f"{MARK_OPEN}{name}{MARK_CLOSE}" for name in ("end", "open", "close"))
_BLOCKS = re.compile(f"[{GENERATION_OPEN}{GENERATION_CLOSE}]")


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
        for text in {*self._counts, *other._counts}:
            found = other._counts.get(text, np.zeros((len(self._rows), 2), np.int64))
            self._counts.setdefault(text, np.zeros_like(found))[rows] = found[rows]

    def counters(self, table: pa.Table) -> dict[str, int]:
        """Return the counters of a chunk; `table` has its texts."""
        kept = np.isin(self._rows, table[ROW].to_numpy())
        trained, not_exact = sum((counts[kept].sum(axis=0) for counts in self._counts.values()), np.zeros(2, np.int64))
        return {TURNS: int(trained), NOT_EXACT: int(not_exact), TEXTS: table.num_rows, **self.found}


@dataclass(frozen=True)
class ShapeFormat:
    """How a chat template writes the conversations of a shape, and their beginnings.

    Args:
        template: the template; a `ContinuedPrompt` if the last answer continues the generation prompt.
        variables: returns the template's variables for messages and a generation prompt.
        pieces: returns the pieces of conversations; raises a `TemplateError` if the template refuses them, or if its
            text cannot be divided into turns.
        form: converts the arguments of tool calls to the form that the template renders.
        prompts: returns the generation prompts that inference can choose from.
        trained: the indices of the messages that are trained.
        exact: whether each turn must be as at inference.
        remembered: returns the turns that a function finds in conversations, or those of the same shape before.
        other: returns the format in which the last answer continues the generation prompt.
        budget: that of all texts of the conversations, if they are split.
    """

    template: JinjaTemplate
    variables: Callable[[Sequence[Message], int], dict[str, Any]]
    pieces: Callable[[Conversations], ShapePieces]
    form: ArgumentForm
    prompts: Callable[[], Sequence[Prompt]]
    trained: Sequence[int]
    exact: bool
    remembered: Callable[[Conversations, Callable[[], list[TrainedTurn]]], list[TrainedTurn]]
    other: Callable[[], ShapeFormat]
    budget: Budget | None = None

    @property
    def continued(self) -> bool:
        """Whether the last answer continues the generation prompt."""
        return isinstance(self.template, ContinuedPrompt)

    def continuing(self) -> ShapeFormat:
        """Return the format in which it does."""
        return replace(self.other(), budget=self.budget)

    def written(self, messages: Sequence[Message], prompt: Prompt = Prompt.NONE) -> str | None:
        """Render messages; None if the template refuses them."""
        return attempt(lambda: self.template.render(self.variables(messages, prompt)))

    def beginnings(
        self, messages: Sequence[Message], prompt: Prompt, most: int, budget: Budget, outline: str
    ) -> Callable[[int], Beginning]:
        """Return a function that renders the first messages; it returns None if the template refuses them.

        Args:
            most: how often it is called at most; one rendering of all messages replaces many.
            outline: that of the conversations.
        """
        # all beginnings together are as long as the square of the conversation, so that comparing each takes too long:
        # what a rendering of the whole has in common with the outline is compared once
        whole, common = None, 0
        if most > _FEW:
            with suppress(TemplateError):
                whole = self.template.prefixes(self.variables(messages, prompt))
                common = alike(whole.text, outline) if whole else 0

        def written(count: int) -> Beginning:
            if whole is not None and (end := whole.end(count)) is not None:
                return min(end, common), whole.text[min(end, common) : end] + whole.parts[-1]
            budget.spend(count)
            text = self.written(messages[:count], prompt)
            return None if text is None else (0, text)

        return written

    def turns(self, group: Conversations) -> list[TrainedTurn]:
        """Return the trained turns, and whether each is as at inference; raises as `pieces` does."""
        return self.remembered(group, lambda: self.judged(group, self.pieces(group))[1])

    def judged(self, group: Conversations, written: ShapePieces) -> tuple[ShapePieces, list[TrainedTurn]]:
        """Return a shape's pieces and its trained turns; exact turns train the headers that inference lacks, too."""
        turns = judge(self, group, written)
        headed = self.exact and self.template.reads("add_generation_prompt")
        return with_headers(written, turns) if headed else (written, turns)


def judge(chat: ShapeFormat, group: Conversations, written: ShapePieces) -> list[TrainedTurn]:
    """Return the trained turns of a shape, in order, and whether each is exact.

    If there are so many that rendering the conversation for each takes too long, those that are left are not exact.

    Raises:
        TooManyTurnsError: the same, if every turn must be exact.
    """
    text = written.text
    # tracked values show where a template trims them in one place, and not in another
    messages = group.messages(group.tracked)

    trained, turns = trained_turns(written, group), []
    if not trained:
        return []
    budget = Budget(len(messages), whole=chat.budget)
    start, *asked = (
        chat.beginnings(messages, prompt, len(trained), budget, text) for prompt in (Prompt.NONE, *chat.prompts())
    )

    def judged(turn: TrainedTurn) -> TrainedTurn:
        until = turn.message + 1
        ended = (len(text), "") if until == len(messages) else start(until)
        prompts = () if ended is None else (write(turn.message) for write in asked)
        between = _after_prompt(text, turn, prompts)
        same = until == len(messages) or _is_same(chat, group, turn, written, ended, budget)
        # the model cannot write a header that has the value of another message
        header = len(between) if between and between.strip() and MARK_CLOSE not in between else 0
        return replace(turn, same=same, prompted=between is not None and not between.strip(), header=header)

    try:
        turns.extend(map(judged, trained))
    except TooManyTurnsError:
        if chat.exact:
            raise
        turns += [replace(turn, same=False) for turn in trained[len(turns) :]]
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
    slots, both = {slot.column: slot for slot in written.slots if slot.column >= 0}, []
    for pieces in (written.pieces, written.stopped):
        bounds = accumulate((len(outline_of(piece, slots)) for piece in pieces), initial=0)
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
        both.append(pieces)
    begun = {turn.start: replace(turn, start=turn.start - turn.header, prompted=True) for turn in headed.values()}
    return replace(written, pieces=both[0], stopped=both[1]), [begun.get(turn.start, turn) for turn in turns]


def trained_turns(written: ShapePieces, group: Conversations) -> list[TrainedTurn]:
    """Return the trained turns of the assistant in a shape, in order."""
    answers = [index for index, turn in enumerate(group.turns) if turn.role == "assistant"]
    bounds = pairwise(accumulate(map(len, written.parts), initial=0))
    turns: dict[int, TrainedTurn] = {}
    for message, (start, end) in zip(messages_of(written.stopped, answers), bounds, strict=True):
        if message is not None and message >= 0:
            turns[message] = replace(turns.get(message, TrainedTurn(message, start, end)), end=end)
    return sorted(turns.values(), key=lambda turn: turn.message)


def _is_same(
    chat: ShapeFormat, group: Conversations, turn: TrainedTurn, written: ShapePieces, ended: Beginning, budget: Budget
) -> bool:
    """Return whether the conversation up to a turn starts with the same text and trains the same part of it.

    Args:
        ended: the outline of the conversation up to the turn, as the template writes it; None if it refuses that.
    """
    if ended is None:
        return True  # no other text can train it or be compared with it
    text, (shared, rest) = written.text, ended
    # the same text up to the turn's end and none after it; and no value is last, which an added EOS would follow
    trained = text[turn.start : turn.end].rstrip() or text[: turn.end].rstrip()
    begins = shared >= turn.end or rest.startswith(text[shared : turn.end])
    further = text[turn.end : shared] + rest[max(turn.end - shared, 0) :]
    if begins and not further.strip() and not trained.endswith(MARK_CLOSE):
        return True
    # another text, which no EOS explains: none is added here, and it does not only end earlier
    if not begins and written.stopped == written.pieces and not text.startswith(rest.rstrip(), shared):
        return False
    budget.spend(_LAID_OUT * turn.message)
    try:
        alone = chat.pieces(start_of(group, turn.message + 1))
    except TemplateError:
        return True
    (*_, last) = trained_turns(alone, group) or [turn]
    numbers = _values_until(group, turn.message + 1)
    slots = [replace(slot, value=numbers[slot.value]) if slot.value >= 0 else slot for slot in alone.slots]
    return replace(alone, slots=slots).text[: last.end] == text[: turn.end]


def _values_until(group: Conversations, count: int) -> list[int]:
    """Return the indices of the values of the first `count` messages."""
    return [value for value, owner in enumerate(group.owners) if owner < count]


def start_of(group: Conversations, count: int) -> Conversations:
    """Return the first `count` messages of conversations."""
    numbers = _values_until(group, count)
    values, empty = ([column[value] for value in numbers] for column in (group.values, group.empty))
    following = group.turns[count] if count < len(group.turns) else group.following
    return replace(group, turns=group.turns[:count], values=values, empty=empty, following=following)


def texts_of(chat: ShapeFormat, group: Conversations) -> list[tuple[ShapeFormat, Conversations]]:
    """Split the conversations of a shape into texts with exact turns, the shortest first, each with its format.

    Each text is the start of the conversation. A turn is trained in the longest text that is the same up to the turn's
    end, and has weight 0 in all others. A turn that is not exact in any text is trained once like the others.
    """
    texts: list[tuple[ShapeFormat, Conversations]] = []
    chat = replace(chat, budget=Budget(len(group.turns), MOST_OF_TEXTS))
    left = [index for index in chat.trained if group.turns[index].role == "assistant"]
    others, text = len(left) < len(chat.trained), group
    while left:
        divided = None
        with suppress(TooManyTurnsError):
            divided = _divided(chat, text, left)
        if divided is None:  # the renderer rejects it, with the reason
            return [(chat, group)]
        left = [index for index in left if index not in divided.done]
        if divided.exact or others:
            texts.append((divided.chat, _masked(divided.text, left)))
        others = False
        if left:
            text = start_of(group, left[-1] + 1)
            text = _masked(text, set(range(len(text.turns))).difference(left))
    return texts[::-1] or [(chat, group)]


def verdict_by_row(out: ChunkOutput) -> ChunkOutput:
    """Return the texts of the rows without a rejected text, and one reject for each other row."""
    rejects = out.rejects.filter(pa.array(first_of_row(out.rejects)))
    table = out.table
    if rejects.num_rows:
        table = table.filter(pc.invert(pc.is_in(table[ROW], rejects[ROW].combine_chunks()))).combine_chunks()
    return replace(out, table=table, rejects=rejects, rows_out=count_rows(table))


@dataclass(frozen=True)
class _Divided:
    """A text that is divided into its turns.

    Args:
        exact: the messages whose turns it has as at inference.
        done: the messages that need no other text.
    """

    chat: ShapeFormat
    text: Conversations
    exact: Sequence[int]
    done: Collection[int]


def _divided(chat: ShapeFormat, text: Conversations, left: Sequence[int]) -> _Divided | None:
    """Return a text for some turns, or None if there is none.

    A text that cannot be divided into its turns is cut after the last of them, then trains only that one. If the last
    turn is not exact so, the text continues the generation prompt.

    Args:
        left: indices of the turns that are still to be trained; the text trains them.
    """
    last, ended = left[-1], start_of(text, left[-1] + 1)
    shorter = [ended, _masked(ended, left[:-1])]
    plain = next(_turns_of(chat, [text, *shorter]), None)
    divided = None
    if plain is not None:
        tried, turns = plain
        same = [turn for turn in turns if turn.same]
        exact = [turn.message for turn in same if turn.prompted or not _continues(chat, tried, turn.message)]
        at_end = len(tried.turns) == len(ended.turns)
        divided = _Divided(chat, tried, exact or [last] * at_end, {*exact, *[last] * at_end})
        if last in exact or not at_end:
            return divided
    for tried, turns in _turns_of(chat.continuing(), shorter):
        exact = [turn.message for turn in turns if turn.exact]
        if last in exact:
            return _Divided(chat.continuing(), tried, exact, exact)
    return divided


def _turns_of(chat: ShapeFormat, texts: Sequence[Conversations]) -> Iterator[tuple[Conversations, list[TrainedTurn]]]:
    """Divide texts into their turns. Skips texts for which the template does not allow it."""
    for text in texts:
        try:
            yield text, chat.turns(text)
        except TooManyTurnsError:
            raise
        except TemplateError:
            continue


def _continues(chat: ShapeFormat, text: Conversations, message: int) -> bool:
    """Return whether a turn is as at inference if its text is written as a continuation of the generation prompt."""
    alone = _masked(start_of(text, message + 1), range(message))
    found = (turn for _, turns in _turns_of(chat.continuing(), [alone]) for turn in turns)
    return any(turn.message == message and turn.exact for turn in found)


def _masked(group: Conversations, messages: Collection[int]) -> Conversations:
    masked = frozenset(messages)
    turns = (replace(turn, weight=0.0) if index in masked else turn for index, turn in enumerate(group.turns))
    return replace(group, turns=tuple(turns))


class ContinuedPrompt(JinjaTemplate):
    """The template; a conversation that ends with an answer starts with the generation prompt, if that is possible."""

    @classmethod
    def of(cls, template: JinjaTemplate) -> ContinuedPrompt:
        """Return the template with continued prompts."""
        return cls(*template.__reduce__()[1])

    def __reduce__(self) -> tuple[Any, ...]:
        return ContinuedPrompt, super().__reduce__()[1]

    def prefixes(self, variables: Mapping[str, Any]) -> None:
        """Return None: the last answer of each beginning continues its own prompt."""

    def _run(self, variables: Mapping[str, Any]) -> str:
        whole = super()._run(variables)
        messages = variables["messages"]
        if variables["add_generation_prompt"] or len(messages) < 2 or messages[-1]["role"] != "assistant":
            return whole
        with suppress(TemplateError):
            return self._continued(whole, variables) or whole
        return whole

    def _continued(self, whole: str, variables: Mapping[str, Any]) -> str | None:
        """Return the text with the last answer after the generation prompt; None if there is none, or `whole` is it."""
        *before, answer = variables["messages"]
        context, prompt = (self._plain(variables, before, prompted) for prompted in (False, True))
        if whole.startswith(prompt) or not prompt.startswith(context):
            return None
        opening = prompt[len(context) :]
        for form in (answer, *_with_thought_after(opening, answer)):
            turn = self._turn(variables, [*before, form])
            if turn is None:
                continue
            shown = turn.replace(_HIDDEN_OPEN, OPEN).replace(_HIDDEN_CLOSE, CLOSE)
            header = "" if _BLOCKS.sub("", shown).startswith(opening) else self._header(variables, before)
            if shown.startswith(header) and _BLOCKS.sub("", shown).startswith(header + opening):
                return context + shown.removeprefix(header)
        return None

    def _header(self, variables: Mapping[str, Any], before: Sequence[Message]) -> str:
        """Return what the template writes before the content of a plain answer; "" if unknown."""
        turn = self._turn(variables, [*before, {"role": "assistant", "content": _END}]) or ""
        return _BLOCKS.sub("", turn.rpartition(_END)[0])

    def _turn(self, variables: Mapping[str, Any], messages: Sequence[Message]) -> str | None:
        """Return what the template writes for the last message, after the message before it; None if unknown."""
        whole, context = (self._plain(variables, given, False) for given in (messages, messages[:-1]))
        if whole.startswith(context):
            return whole[len(context) :]
        # the message before can be written in another way when it is the last: then its end is marked
        *earlier, asked, answer = messages
        if not isinstance(asked.get("content"), str):
            return None
        ended = [*earlier, {**asked, "content": asked["content"] + _END}]
        whole, context = (self._plain(variables, given, False) for given in ([*ended, answer], ended))
        end, (_, found, rest) = context.rpartition(_END)[2], whole.rpartition(_END)
        return rest[len(end) :] if found and _END in context and rest.startswith(end) else None

    def _plain(self, variables: Mapping[str, Any], messages: Sequence[Message], prompted: bool) -> str:
        return super()._run({**variables, "messages": messages, "add_generation_prompt": prompted})


def _with_thought_after(given: str, answer: Message) -> Iterator[Message]:
    """Yield an answer with inline reasoning whose thought a generation prompt opens, with hidden tags.

    The opening tag, with the white space after it, is the one of the prompt.
    """
    content = answer.get("content")
    if not isinstance(content, str) or CLOSE not in content or not given.rstrip().endswith(OPEN):
        return
    whole = given[given.rindex(OPEN) :] + content.removeprefix(OPEN).lstrip("\n")
    yield {**answer, "content": whole.replace(OPEN, _HIDDEN_OPEN).replace(CLOSE, _HIDDEN_CLOSE)}
