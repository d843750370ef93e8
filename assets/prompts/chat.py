"""Conversations through a chat template: layouts, and what of them is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from tokenloom.assets.prompts.conversations import Conversations, Turn, alike, conversations
from tokenloom.assets.prompts.layout import roles_trained, split_control, with_bos
from tokenloom.assets.prompts.spans import Piece
from tokenloom.assets.prompts.verified import Shape, ShapeError, render_verified
from tokenloom.assets.rejects import ROW
from tokenloom.assets.stage import ChunkOutput
from tokenloom.assets.templates.analysis import Kind
from tokenloom.assets.templates.jinja import JinjaTemplate, Slot
from tokenloom.config import PromptTemplateConfig
from tokenloom.errors import TemplateError
from tokenloom.resources.ragged import one_array


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

    def _shapes(self, rows: pa.Array, groups: Iterator[Conversations]) -> Iterator[Shape]:
        for group in groups:
            yield Shape(
                rows.take(pa.array(group.rows)),
                group.contents,
                group.empty,
                lambda contents, group=group: self._variables(group, group.turns, contents),
                lambda slots, group=group: self._layout(slots, group),
            )

    def _variables(self, group: Conversations, turns: Sequence[Turn], contents: Sequence[str]) -> dict[str, Any]:
        said = [turn.message(content) for turn, content in zip(turns, contents, strict=True)]
        dated = {"date_string": self.prompt.date_string} if self.prompt.date_string else {}
        try:
            tools = group.parsed_tools
        except ValueError as error:
            raise ShapeError("tools_not_json", f"the tools are not JSON: {error}") from error
        return {
            "messages": said,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": self.generation_prompt,
            **dated,
            **self.tokens,
        }

    def _layout(self, slots: list[Slot], group: Conversations) -> tuple[list[Piece], list[Piece]]:
        self._check_tools(group)
        pieces = self._pieces(slots, group)
        return pieces, with_bos(_with_stop(pieces, self.eos), self.bos)

    def _pieces(self, slots: list[Slot], group: Conversations) -> list[Piece]:
        """The slots, each message outside of generation blocks with the stop that the template puts behind it."""
        turns = group.turns
        marked = self.template.marks_generation and self.prompt.train_on in ("completions", "last")
        weigh = self._by_marks(slots, turns) if marked else self._by_roles(turns)
        closing = "" if marked else self._closing(group, _last_answer(turns) + 1)
        pieces: list[Piece] = []
        stop_of, stop_weight = -1, 0.0
        for slot in slots:
            weight, generated = weigh(slot), marked and slot.generated > 0
            if slot.value >= 0:
                pieces.append(Piece(None, slot.column, turns[slot.value].role, slot.value, weight))
                stop_of, stop_weight = (-1 if generated else slot.value), weight
                continue
            role = "assistant" if generated else "template"
            literal = split_control(slot.text, self.control, weight=weight, role=role)
            if stop_of >= 0 and not generated and (stop_weight or weight):
                stop, literal = _split_stop(slot.text, literal, closing)
                role = turns[stop_of].role
                pieces += [Piece(part.text, -1, role, stop_of, stop_weight, part.control) for part in stop]
            pieces += literal
            stop_of = -1
        return pieces

    def _by_marks(self, slots: list[Slot], turns: Sequence[Turn]) -> Callable[[Slot], float]:
        """Trained is what lies inside the template's generation blocks; a message's own weight goes first."""
        spoken = _speakers(slots, turns) if any(turn.weight is not None for turn in turns) else {}
        last = max((slot.generated for slot in slots), default=0)

        def weigh(slot: Slot) -> float:
            message = slot.value if slot.value >= 0 else spoken.get(slot.generated, -1)
            own = turns[message].weight if message >= 0 else None
            trained = slot.generated > 0 and (self.prompt.train_on != "last" or slot.generated == last)
            return float(trained) if own is None else own

        return weigh

    def _by_roles(self, turns: Sequence[Turn]) -> Callable[[Slot], float]:
        """Trained are the messages of the chosen roles; a message's own weight goes first.

        Raises:
            ShapeError: nothing tells the text of a tool call, which counts unlike the template's own, from the latter.
        """
        chosen, last = roles_trained(self.prompt), _last_answer(turns)
        everything = float(self.prompt.train_on == "all")
        weights = [
            float(turn.role in chosen and (self.prompt.train_on != "last" or index == last))
            if turn.weight is None
            else turn.weight
            for index, turn in enumerate(turns)
        ]
        if any(turn.tool_calls and weight != everything for turn, weight in zip(turns, weights, strict=True)):
            message = "to train tool calls, use a chat template with {% generation %} marks and train_on: completions"
            raise ShapeError("tool_calls", message)
        return lambda slot: weights[slot.value] if slot.value >= 0 else everything

    def _check_tools(self, group: Conversations) -> None:
        """
        Raises:
            ShapeError: names, tools or tool calls hold a control token's text, or the template leaves out tool calls.
        """
        turns = group.turns
        constants = _strings([[(turn.name, turn.tool_calls) for turn in turns], group.parsed_tools])
        if any(token in text for text in constants for token in self.control):
            message = "a name, a tool or a tool call holds a control token's text"
            raise ShapeError("control_token_in_content", message)
        callers = [index for index, turn in enumerate(turns) if turn.tool_calls]
        written = self._written(group, turns) if callers else None
        for index in callers:
            without = [*turns[:index], replace(turns[index], tool_calls=()), *turns[index + 1 :]]
            if self._written(group, without) == written:
                message = f"the chat template leaves out the tool calls of message {index}"
                raise ShapeError("tool_calls_ignored", message)

    def _written(self, group: Conversations, turns: Sequence[Turn]) -> str | None:
        """What the template makes of the first row with these turns, None where it refuses them."""
        contents = [content[0].as_py() for content in group.contents]
        try:
            return self.template.render(self._variables(group, turns, contents))
        except TemplateError:
            return None

    def _closing(self, group: Conversations, count: int) -> str:
        """What the template writes behind the answer of a conversation that ends with message `count` - 1."""
        if not count:
            return ""
        turns = group.turns[:count]
        slots = self.template.probe(lambda contents: self._variables(group, turns, contents), [False] * count)
        return slots[-1].text.rstrip() if slots and slots[-1].value < 0 else ""


def _last_answer(turns: Sequence[Turn]) -> int:
    return max((index for index, turn in enumerate(turns) if turn.role == "assistant"), default=-1)


def _speakers(slots: list[Slot], turns: Sequence[Turn]) -> dict[int, int]:
    """The message that each generation block renders: the one whose content it holds, else, for block n, answer n.

    Raises:
        ShapeError: that cannot be told.
    """
    answers = [index for index, turn in enumerate(turns) if turn.role == "assistant"]
    blocks = {slot.generated for slot in slots if slot.generated}
    found = dict(enumerate(answers, 1)) if max(blocks, default=0) == len(answers) else {}
    told = all(
        found.setdefault(slot.generated, slot.value) == slot.value
        for slot in slots
        if slot.generated and slot.value >= 0
    )
    if not told or not blocks <= found.keys():
        message = f"weights need one generation block for each answer: there are {len(blocks)} for {len(answers)}"
        raise ShapeError("generation_marks", message)
    return found


def _split_stop(text: str, literal: list[Piece], closing: str) -> tuple[list[Piece], list[Piece]]:
    """Divide the text behind a message into its stop and the rest.

    The stop is a control token (with white space before it), else what the template closes a conversation with.
    """
    blank = [piece for piece in literal[:1] if not piece.control and not (piece.text or "").strip()]
    rest = literal[len(blank) :]
    if rest and rest[0].control:
        return [*blank, rest[0]], rest[1:]
    if closing and text.startswith(closing):
        weight = literal[0].weight if literal else 0.0
        after = [Piece(text[len(closing) :], weight=weight)] if len(text) > len(closing) else []
        return [Piece(closing)], after
    return [], literal


def _with_stop(pieces: list[Piece], eos: str | None) -> list[Piece]:
    """The pieces with EOS right behind the last answer, where that is trained and the template puts no stop there."""
    places = [index for index, piece in enumerate(pieces) if piece.text is None and piece.role == "assistant"]
    after = places[-1] + 1 if places else len(pieces)
    stopped = any(piece.weight and (piece.control or (piece.text or "").strip()) for piece in pieces[after:])
    weight = pieces[places[-1]].weight if places else 1.0
    if eos is None or stopped or not weight:
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
