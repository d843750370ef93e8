"""Conversations through a chat template: layouts, and what of them is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from tokenloom.assets.prompts.conversations import Conversations, Message, Turn, alike, conversations
from tokenloom.assets.prompts.layout import roles_trained, split_control, with_bos
from tokenloom.assets.prompts.spans import Piece
from tokenloom.assets.prompts.turn_boundaries import REPEATED, Outline, divide, mark
from tokenloom.assets.prompts.verify import Shape, ShapeError, render_verified
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PromptTemplateConfig
from tokenloom.resources.tables.ragged import one_array
from tokenloom.resources.templates.static_analysis import Kind
from tokenloom.resources.templates.jinja import JinjaTemplate, Slot


@dataclass(frozen=True)
class ChatFormat:
    """A chat template and how its text is trained.

    Args:
        template: the compiled template.
        prompt: the YAML's prompt_template section.
        tokens: bos_token, eos_token, pad_token and unk_token as the template reads them.
        control: the tokenizer's control tokens.
        bos, eos: tokens to add where the template does not, or None.
        generation_prompt: whether the template begins an answer behind the last message.
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
        shapes = self._shapes(one_array(table[ROW]), alike(messages, tools))
        return render_verified(self.template, shapes, table.num_rows, self.opacity is None)

    @cached_property
    def opacity(self) -> str | None:
        """Why the template does not only place contents, or None where it does."""
        return self.template.opacity({"messages": Kind.MESSAGES})

    def written(self, messages: Sequence[Message], asked: bool, tools: Any = None) -> str:
        """What the template makes of messages as it reads them.

        Args:
            asked: whether with a generation prompt.
            tools: descriptions of tools as it reads them.

        Raises:
            TemplateError: it refuses them.
        """
        return self.template.render(self._variables(messages, tools, asked))

    def _shapes(self, rows: pa.Array, groups: Iterator[Conversations]) -> Iterator[Shape]:
        for group in groups:
            yield Shape(
                rows.take(pa.array(group.rows)),
                group.values,
                group.empty,
                lambda values, group=group: self._variables(
                    group.messages(values), _tools(group), self.generation_prompt
                ),
                lambda slots, group=group: self._layout(slots, group),
                range(len(group.turns), len(group.values)),
            )

    def _variables(self, messages: Sequence[Message], tools: Any, asked: bool) -> dict[str, Any]:
        dated = {"date_string": self.prompt.date_string} if self.prompt.date_string else {}
        return {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": asked,
            **dated,
            **self.tokens,
        }

    def _layout(self, slots: list[Slot], group: Conversations) -> tuple[list[Piece], list[Piece]]:
        constants = _strings([[(turn.name, turn.tool_calls) for turn in group.turns], group.parsed_tools])
        if any(token in text for text in constants for token in self.control):
            message = "a name, a tool or a tool call holds a control token's text"
            raise ShapeError("control_token_in_content", message)
        outline = self._outline(slots, group)
        pieces, answered = self._pieces(outline, group)
        self._check_repeated(slots, pieces)
        eos = None if self._marked and outline.closing else self.eos  # the stop is there, trained or not as marked
        return pieces, with_bos(_with_stop(pieces, answered, eos), self.bos)

    @property
    def _marked(self) -> bool:
        """Whether the template's generation marks say what is trained."""
        return self.template.marks_generation and self.prompt.train_on in ("completions", "last")

    def _check_repeated(self, slots: Sequence[Slot], pieces: Sequence[Piece]) -> None:
        """
        Raises:
            ShapeError: what is trained is written in several places: nothing tells which is the answer.
        """
        trained = {piece.column for piece in pieces if piece.text is None and piece.weight}
        values = [slot.value for slot in slots if slot.value >= 0 and slot.column in trained]
        if len(set(values)) < len(values) and self.prompt.train_on != "all":
            raise ShapeError("content_repeated", REPEATED)

    def _outline(self, slots: list[Slot], group: Conversations) -> Outline:
        """
        Raises:
            ShapeError: the template leaves out tools, calls of them, or what was thought before the last answer.
        """

        def write(messages: Sequence[Message], tools: bool, asked: bool) -> str:
            return self.written(messages, asked, _tools(group) if tools else None)

        messages = group.messages(["" if nothing else mark(value) for value, nothing in enumerate(group.empty)])
        outline = Outline(slots, messages, group.owners, write, self.control)
        outline.check_tools(bool(group.tools))
        placed = {slot.value for slot in slots}
        lost = {
            owner
            for value, owner in enumerate(group.owners)
            if value >= len(group.turns) and value not in placed and not group.empty[value]
        }
        last = _last_answer(group.turns)
        asked = max((index for index, turn in enumerate(group.turns[: last + 1]) if turn.role == "user"), default=-1)
        reasoned = [index for index in range(asked + 1, last + 1) if group.turns[index].reasons]
        if lost.intersection(reasoned[-1:]):
            message = f"the chat template leaves out the reasoning of message {reasoned[-1]}, part of the last answer"
            raise ShapeError("reasoning_ignored", message)
        return outline.without_reasoning(lost) if lost else outline

    def _pieces(self, outline: Outline, group: Conversations) -> tuple[list[Piece], Answered | None]:
        """The pieces, each message outside of generation blocks with the stop that the template puts behind it.

        Returns:
            The pieces, and where the last answer ends; None where that is not known.
        """
        turns, owners = group.turns, group.owners
        marked = self._marked
        own = [turn.weight or 0.0 for turn in turns] if marked else self._weights(turns)
        everything = float(self.prompt.train_on == "all" and not marked)
        weigh = self._by_marks(outline.slots, group) if marked else lambda slot: everything
        last = _last_answer(turns)
        regions = outline.regions([index for index, weight in enumerate(own) if weight != everything], marked)
        if everything and last >= 0 and own[last] == everything:
            with suppress(ShapeError):  # only to see whether it is stopped
                regions += outline.regions([last], marked)
        pieces: list[Piece] = []
        answered: Answered | None = None
        stop_of, stop_weight, spoken = -1, 0.0, 0
        for slot, region, is_stop in divide(outline.slots, regions):
            generated = marked and slot.generated > 0
            if slot.value >= 0:
                message = owners[slot.value]
                weight, role = weigh(slot) if marked else own[message], turns[message].role
                pieces += [Piece(None, slot.column, role, message, weight)] * (slot.column >= 0)
                stop_of, stop_weight, spoken = (-1 if generated else message), weight, slot.generated
                answered = Answered(message, len(pieces), weight) if role == "assistant" else answered
                continue
            if region is not None:
                role, weight = turns[region.message].role, own[region.message]
                pieces += split_control(slot.text, self.control, weight=weight, role=role, message=region.message)
                if role == "assistant" and not is_stop:
                    answered = Answered(region.message, len(pieces), weight)
                stop_of, stop_weight = (region.message if region.stops_behind else -1), weight
                continue
            weight = weigh(slot)
            role = "assistant" if generated else "template"
            literal = split_control(slot.text, self.control, weight=weight, role=role)
            if stop_of >= 0 and not generated and (stop_weight or weight):
                stop, literal = _split_stop(slot.text, literal, outline.closing or "", self.control)
                role = turns[stop_of].role
                pieces += [Piece(part.text, -1, role, stop_of, stop_weight, part.control) for part in stop]
            if generated and spoken != slot.generated and slot.text.strip():
                said = 0 if outline.stop_of(slot.text.rstrip()) else _solid(literal)
                answered = Answered(last, len(pieces) + said, weight)
            pieces += literal
            stop_of = -1
        return pieces, answered if answered and answered.message == last else None

    def _by_marks(self, slots: Sequence[Slot], group: Conversations) -> Callable[[Slot], float]:
        """Trained is what lies inside the template's generation blocks; a message's own weight goes first."""
        turns = group.turns
        spoken = _speakers(slots, group) if any(turn.weight is not None for turn in turns) else {}
        last = max((slot.generated for slot in slots), default=0)

        def weigh(slot: Slot) -> float:
            message = group.owners[slot.value] if slot.value >= 0 else spoken.get(slot.generated, -1)
            own = turns[message].weight if message >= 0 else None
            trained = slot.generated > 0 and (self.prompt.train_on != "last" or slot.generated == last)
            return float(trained) if own is None else own

        return weigh

    def _weights(self, turns: Sequence[Turn]) -> list[float]:
        """Trained are the messages of the chosen roles; a message's own weight goes first."""
        chosen, last = roles_trained(self.prompt), _last_answer(turns)
        return [
            float(turn.role in chosen and (self.prompt.train_on != "last" or index == last))
            if turn.weight is None
            else turn.weight
            for index, turn in enumerate(turns)
        ]


class Answered(NamedTuple):
    """Where an answer ends but for its stop.

    Args:
        message: the answer.
        at: how many pieces stand before.
        weight: of the answer's end.
    """

    message: int
    at: int
    weight: float


def _tools(group: Conversations) -> Any:
    try:
        return group.parsed_tools
    except ValueError as error:
        raise ShapeError("tools_not_json", f"the tools are not JSON: {error}") from error


def _last_answer(turns: Sequence[Turn]) -> int:
    return max((index for index, turn in enumerate(turns) if turn.role == "assistant"), default=-1)


def _speakers(slots: Sequence[Slot], group: Conversations) -> dict[int, int]:
    """The message that each generation block renders: the one whose content it holds, else, for block n, answer n.

    Raises:
        ShapeError: that cannot be told.
    """
    answers = [index for index, turn in enumerate(group.turns) if turn.role == "assistant"]
    blocks = {slot.generated for slot in slots if slot.generated}
    found = dict(enumerate(answers, 1)) if max(blocks, default=0) == len(answers) else {}
    told = all(
        found.setdefault(slot.generated, group.owners[slot.value]) == group.owners[slot.value]
        for slot in slots
        if slot.generated and slot.value >= 0
    )
    if not told or not blocks <= found.keys():
        message = f"weights need one generation block for each answer: there are {len(blocks)} for {len(answers)}"
        raise ShapeError("generation_marks", message)
    return found


def _split_stop(
    text: str, literal: list[Piece], closing: str, control: tuple[str, ...]
) -> tuple[list[Piece], list[Piece]]:
    """Divide the text behind a message into its stop and the rest.

    The stop is a control token (with white space before it), else what the template closes a conversation with.
    """
    blank = [piece for piece in literal[:1] if not piece.control and not (piece.text or "").strip()]
    rest = literal[len(blank) :]
    if rest and rest[0].control:
        return [*blank, rest[0]], rest[1:]
    if closing and text.startswith(closing):
        return split_control(closing, control), split_control(text[len(closing) :], control, weight=literal[0].weight)
    return [], literal


def _solid(literal: Sequence[Piece]) -> int:
    """How many pieces of a literal stand before the white space at its end."""
    return max(index for index, piece in enumerate(literal, 1) if piece.control or (piece.text or "").strip())


def _with_stop(pieces: list[Piece], answered: Answered | None, eos: str | None) -> list[Piece]:
    """The pieces with EOS right behind the last answer, where that is trained and the template puts no stop there."""
    if eos is None or answered is None or not answered.weight:
        return pieces
    after, weight = answered.at, answered.weight
    stopped = any(piece.weight and (piece.control or (piece.text or "").strip()) for piece in pieces[after:])
    if stopped:
        return pieces
    return [*pieces[:after], Piece(eos, role="assistant", weight=weight, control=True), *pieces[after:]]


def _strings(value: Any) -> Iterator[str]:
    """All texts within nested lists and objects, names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from (name, *_strings(inner))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)
