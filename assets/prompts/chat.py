"""Renders conversations through a chat template, and decides what of their text is trained.

Conversations of one shape share a layout. Each message's content is a slot of the template; `train_on`, the row's own
weights or the template's `{% generation %}` blocks give its training weight. A trained message includes the stop that
the template writes after it; if the template writes none after the last answer, EOS is added (`add_eos`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from tokenloom.assets.prompts.conversations import Conversations, Message, Turn, conversations, group_by_shape
from tokenloom.assets.prompts.exact_turns import Layout, TrainedTurn, TurnCounts, judge, texts_of, verdict_by_row
from tokenloom.assets.prompts.layout import roles_trained, split_control, with_bos
from tokenloom.assets.prompts.spans import Piece
from tokenloom.assets.prompts.turn_boundaries import REPEATED, Outline, divide, mark
from tokenloom.assets.prompts.verify import Shape, ShapeError, render_verified
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PromptTemplateConfig
from tokenloom.resources.tables.ragged import one_array
from tokenloom.resources.templates.jinja import JinjaTemplate, Slot
from tokenloom.resources.templates.static_analysis import Kind


@dataclass(frozen=True)
class ChatFormat:
    """A chat template with the settings that decide what is trained.

    Args:
        template: the compiled template.
        prompt: the YAML's prompt_template section.
        tokens: bos_token, eos_token, pad_token and unk_token, as the template reads them.
        control: the tokenizer's control tokens.
        bos, eos: tokens to add if the template does not write them, or None.
        generation_prompt: whether to render with `add_generation_prompt`.
    """

    template: JinjaTemplate
    prompt: PromptTemplateConfig
    tokens: dict[str, str]
    control: tuple[str, ...]
    bos: str | None
    eos: str | None
    generation_prompt: bool = False

    def render(self, table: pa.Table) -> ChunkOutput:
        """Render a chunk of conversations, or of prompts and completions."""
        messages = conversations(table, self.prompt.system)
        tools = one_array(table["tools"]) if "tools" in table.column_names else None
        rows, groups = one_array(table[ROW]), group_by_shape(messages, tools)
        exact, counts = self.prompt.turns == "exact", TurnCounts(rows)
        texts = (enumerate(texts_of(self, group)) if exact else [(0, group)] for group in groups)
        shapes = self._shapes(rows, chain.from_iterable(texts), counts)
        out = render_verified(self.template, shapes, table.num_rows, self.opacity is None)
        out = verdict_by_row(out) if exact else out
        return replace(out, counters=counts.counters(out.table))

    def turns(self, group: Conversations) -> list[TrainedTurn]:
        """Return the trained turns of a shape, and whether each is as it is at inference.

        Raises:
            TemplateError: the template refuses the conversations, or its text cannot be divided into turns.
        """
        return judge(self, group, self.laid_out(group))

    def trained(self, turns: Sequence[Turn]) -> list[int]:
        """Return the indices of the messages that the settings and the row's weights train."""
        return [index for index, weight in enumerate(self._weights(turns)) if weight]

    def laid_out(self, group: Conversations) -> Layout:
        """Return the layout of a shape.

        Raises:
            TemplateError: as `turns` does.
        """
        return self._layout(self.template.probe(self._reader(group), group.empty), group)

    @cached_property
    def opacity(self) -> str | None:
        """The reason why the template does more than place contents, or None if it only places them."""
        return self.template.opacity({"messages": Kind.MESSAGES})

    def written(self, messages: Sequence[Message], prompted: bool, tools: Any = None) -> str:
        """Render messages as the template reads them.

        Args:
            prompted: whether to add a generation prompt.
            tools: tool descriptions as the template reads them.

        Raises:
            TemplateError: the template refuses the messages.
        """
        return self.template.render(self._variables(messages, tools, prompted))

    def _shapes(
        self, rows: pa.Array, texts: Iterator[tuple[int, Conversations]], counts: TurnCounts
    ) -> Iterator[Shape]:
        """Yield the shapes of conversations, each with the number of the text among those of its rows."""

        def pieces(slots: list[Slot], number: int, group: Conversations) -> tuple[list[Piece], list[Piece]]:
            layout = self._layout(slots, group)
            counts.put(number, group.rows, judge(self, group, layout))
            return layout.pieces, with_bos(layout.stopped, self.bos)

        for number, group in texts:
            yield Shape(
                rows.take(pa.array(group.rows)),
                group.values,
                group.empty,
                self._reader(group),
                lambda slots, number=number, group=group: pieces(slots, number, group),
                range(len(group.turns), len(group.values)),
            )

    def _reader(self, group: Conversations) -> Callable[[Sequence[str]], dict[str, Any]]:
        """Return the function from the values of a row to the template's variables."""
        return lambda values: self._variables(group.messages(values), _tools(group), self.generation_prompt)

    def _variables(self, messages: Sequence[Message], tools: Any, prompted: bool) -> dict[str, Any]:
        dated = {"date_string": self.prompt.date_string} if self.prompt.date_string else {}
        return {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": prompted,
            **dated,
            **self.tokens,
        }

    def _layout(self, slots: list[Slot], group: Conversations) -> Layout:
        constants = _strings([[(turn.name, turn.tool_calls) for turn in group.turns], group.parsed_tools])
        if any(token in text for text in constants for token in self.control):
            message = "a name, a tool or a tool call contains a control token's text"
            raise ShapeError("control_token_in_content", message)
        outline = self._outline(slots, group)
        pieces, answer_end = self._pieces(outline, group)
        self._check_repeated(slots, pieces)
        eos = None if self._marked and outline.closing else self.eos  # the template writes a stop; marks decide on it
        return Layout(slots, pieces, _with_stop(pieces, answer_end, eos))

    @property
    def _marked(self) -> bool:
        """Whether the template's `{% generation %}` blocks decide what is trained."""
        return self.template.marks_generation and self.prompt.train_on in ("completions", "last")

    def _check_repeated(self, slots: Sequence[Slot], pieces: Sequence[Piece]) -> None:
        """Check that each trained content is written once.

        Raises:
            ShapeError: a trained content is written in several places, so that the answer's position is ambiguous.
        """
        trained = {piece.column for piece in pieces if piece.text is None and piece.weight}
        values = [slot.value for slot in slots if slot.value >= 0 and slot.column in trained]
        if len(set(values)) < len(values) and self.prompt.train_on != "all":
            raise ShapeError("content_repeated", REPEATED)

    def _outline(self, slots: list[Slot], group: Conversations) -> Outline:
        """Return the outline of a group's conversations.

        Raises:
            ShapeError: the template omits tools, tool calls, or the reasoning of the last answer.
        """

        def write(messages: Sequence[Message], tools: bool, prompted: bool) -> str:
            return self.written(messages, prompted, _tools(group) if tools else None)

        messages = group.messages(["" if empty else mark(value) for value, empty in enumerate(group.empty)])
        outline = Outline(slots, messages, group.owners, write, self.control)
        outline.check_tools(bool(group.tools))
        placed = {slot.value for slot in slots}
        omitted = {
            owner
            for value, owner in enumerate(group.owners)
            if value >= len(group.turns) and value not in placed and not group.empty[value]
        }
        last = _last_answer(group.turns)
        question = max((index for index, turn in enumerate(group.turns[: last + 1]) if turn.role == "user"), default=-1)
        reasoned = [index for index in range(question + 1, last + 1) if group.turns[index].reasons]
        if omitted.intersection(reasoned[-1:]):
            message = f"the chat template omits the reasoning of message {reasoned[-1]}, part of the last answer"
            raise ShapeError("reasoning_ignored", message)
        return outline.without_reasoning(omitted) if omitted else outline

    def _pieces(self, outline: Outline, group: Conversations) -> tuple[list[Piece], AnswerEnd | None]:
        """Convert the template's slots to pieces.

        A message outside of generation blocks gets the stop that the template writes after it.

        Returns:
            the pieces, and where the last answer ends, or None if unknown.
        """
        turns, owners = group.turns, group.owners
        marked = self._marked
        weights = [turn.weight or 0.0 for turn in turns] if marked else self._weights(turns)
        template_weight = float(self.prompt.train_on == "all" and not marked)
        weigh = self._by_marks(outline.slots, group) if marked else lambda slot: template_weight
        last = _last_answer(turns)
        regions = outline.regions([index for index, weight in enumerate(weights) if weight != template_weight], marked)
        if template_weight and last >= 0 and weights[last] == template_weight:
            with suppress(ShapeError):  # the region only shows whether the last answer has a stop
                regions += outline.regions([last], marked)
        pieces: list[Piece] = []
        answer_end: AnswerEnd | None = None
        # the message whose stop can follow, that stop's weight, and the generation block of the latest value
        stop_of, stop_weight, block = -1, 0.0, 0
        for slot, region, is_stop in divide(outline.slots, regions):
            generated = marked and slot.generated > 0
            if slot.value >= 0:
                message = owners[slot.value]
                weight, role = weigh(slot) if marked else weights[message], turns[message].role
                pieces += [Piece(None, slot.column, role, message, weight)] * (slot.column >= 0)
                stop_of, stop_weight, block = (-1 if generated else message), weight, slot.generated
                answer_end = AnswerEnd(message, len(pieces), weight) if role == "assistant" else answer_end
                continue
            if region is not None:
                role, weight = turns[region.message].role, weights[region.message]
                pieces += split_control(slot.text, self.control, weight=weight, role=role, message=region.message)
                if role == "assistant" and not is_stop:
                    answer_end = AnswerEnd(region.message, len(pieces), weight)
                stop_of, stop_weight = (region.message if region.stop_follows else -1), weight
                continue
            weight = weigh(slot)
            role = "assistant" if generated else "template"
            literal = split_control(slot.text, self.control, weight=weight, role=role)
            if stop_of >= 0 and not generated and (stop_weight or weight):
                stop, literal = _split_stop(slot.text, literal, outline.closing or "", self.control)
                role = turns[stop_of].role
                pieces += [Piece(part.text, -1, role, stop_of, stop_weight, part.control) for part in stop]
            if generated and block != slot.generated and slot.text.strip():
                count = 0 if outline.stop_of(slot.text.rstrip()) else _without_trailing_space(literal)
                answer_end = AnswerEnd(last, len(pieces) + count, weight)
            pieces += literal
            stop_of = -1
        return pieces, answer_end if answer_end and answer_end.message == last else None

    def _by_marks(self, slots: Sequence[Slot], group: Conversations) -> Callable[[Slot], float]:
        """Return the weight of each slot: 1 inside the template's generation blocks, unless its message has its own."""
        turns = group.turns
        block_messages = _message_of_block(slots, group) if any(turn.weight is not None for turn in turns) else {}
        last = max((slot.generated for slot in slots), default=0)

        def weigh(slot: Slot) -> float:
            message = group.owners[slot.value] if slot.value >= 0 else block_messages.get(slot.generated, -1)
            own = turns[message].weight if message >= 0 else None
            trained = slot.generated > 0 and (self.prompt.train_on != "last" or slot.generated == last)
            return float(trained) if own is None else own

        return weigh

    def _weights(self, turns: Sequence[Turn]) -> list[float]:
        """Return the weight of each message: its own, else 1 if `train_on` includes it."""
        chosen, last = roles_trained(self.prompt), _last_answer(turns)
        return [
            float(turn.role in chosen and (self.prompt.train_on != "last" or index == last))
            if turn.weight is None
            else turn.weight
            for index, turn in enumerate(turns)
        ]


class AnswerEnd(NamedTuple):
    """Where an answer ends, without its stop.

    Args:
        message: index of the answer.
        at: number of pieces before the end.
        weight: training weight of the answer's last piece.
    """

    message: int
    at: int
    weight: float


def _tools(group: Conversations) -> Any:
    try:
        return group.parsed_tools
    except ValueError as error:
        raise ShapeError("tools_not_json", f"the tools are not valid JSON: {error}") from error


def _last_answer(turns: Sequence[Turn]) -> int:
    return max((index for index, turn in enumerate(turns) if turn.role == "assistant"), default=-1)


def _message_of_block(slots: Sequence[Slot], group: Conversations) -> dict[int, int]:
    """Return the message of each generation block: the one whose content is in the block, else answer n for block n.

    Blocks with no text between them count as one.

    Raises:
        ShapeError: the blocks do not match the answers one to one.
    """
    answers = [index for index, turn in enumerate(group.turns) if turn.role == "assistant"]
    first_of: dict[int, int] = {}  # the first of the adjacent blocks
    for before, slot in pairwise([Slot(-1, "", 0), *slots]):
        if slot.generated and slot.generated not in first_of:
            first_of[slot.generated] = first_of.get(before.generated, slot.generated)
    blocks = sorted(set(first_of.values()))
    messages = dict(zip(blocks, answers, strict=True)) if len(blocks) == len(answers) else {}
    consistent = all(
        messages.setdefault(first_of[slot.generated], group.owners[slot.value]) == group.owners[slot.value]
        for slot in slots
        if slot.generated and slot.value >= 0
    )
    if not consistent or not messages.keys() >= set(blocks):
        message = f"weights need one generation block per answer, found {len(blocks)} for {len(answers)} answers"
        raise ShapeError("generation_marks", message)
    return {block: messages[first] for block, first in first_of.items()}


def _split_stop(
    text: str, literal: list[Piece], closing: str, control: tuple[str, ...]
) -> tuple[list[Piece], list[Piece]]:
    """Split the text after a message into its stop and the rest.

    The stop is a control token with the white space before it, else the text that ends a conversation (`closing`).
    """
    blank = [piece for piece in literal[:1] if not piece.control and not (piece.text or "").strip()]
    rest = literal[len(blank) :]
    if rest and rest[0].control:
        return [*blank, rest[0]], rest[1:]
    if closing and text.startswith(closing):
        return split_control(closing, control), split_control(text[len(closing) :], control, weight=literal[0].weight)
    return [], literal


def _without_trailing_space(literal: Sequence[Piece]) -> int:
    """Return the number of pieces before the trailing white space."""
    return max(index for index, piece in enumerate(literal, 1) if piece.control or (piece.text or "").strip())


def _with_stop(pieces: list[Piece], answer_end: AnswerEnd | None, eos: str | None) -> list[Piece]:
    """Add EOS right after the last answer, if the answer is trained and the template writes no stop after it."""
    if eos is None or answer_end is None or not answer_end.weight:
        return pieces
    after, weight = answer_end.at, answer_end.weight
    stopped = any(piece.weight and (piece.control or (piece.text or "").strip()) for piece in pieces[after:])
    if stopped:
        return pieces
    return [*pieces[:after], Piece(eos, role="assistant", weight=weight, control=True), *pieces[after:]]


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in nested lists and objects, field names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from (name, *_strings(inner))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)
