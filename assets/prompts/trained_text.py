"""What is trained of the text that a chat template writes for the conversations of one shape.

Each message's content is a slot of the template; `train_on`, the row's own weights or the template's
`{% generation %}` blocks give its training weight. A trained message includes the stop that the template writes after
it; if the template writes none after the last answer, EOS is added (`add_eos`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise

from tokenloom.assets.prompts.conversations import Conversations, Turn
from tokenloom.assets.prompts.kinds import AnswerKinds
from tokenloom.assets.prompts.outline import ShapeError
from tokenloom.assets.prompts.spans import CONTENT, STOP, Piece, ShapePieces, split_control
from tokenloom.assets.prompts.turns import (
    REPEATED,
    AnswerEnd,
    TurnBoundaries,
    divide,
    with_stop,
    without_trailing_space,
)
from tokenloom.config import PromptTemplateConfig
from tokenloom.config.trained_kinds import roles_trained
from tokenloom.resources.templates.jinja import Probed, Slot


@dataclass(frozen=True)
class TrainedText:
    """The settings that decide what is trained of a template's text.

    Args:
        prompt: the YAML's prompt_template section.
        control: the tokenizer's control tokens.
        eos: the token to add if the template does not write it, or None.
        weights: the weight of each part of an answer if `train_on` has weights by kind, else None.
        marks_generation: whether the template has `{% generation %}` blocks.
    """

    prompt: PromptTemplateConfig
    control: tuple[str, ...]
    eos: str | None
    weights: dict[str, float] | None
    marks_generation: bool

    @property
    def marked(self) -> bool:
        """Whether the template's `{% generation %}` blocks decide what is trained."""
        chosen = self.prompt.train_on in ("completions", "last") or self.prompt.weights is not None
        return self.marks_generation and chosen

    @property
    def stop(self) -> str:
        """The `part` of pieces that are a stop."""
        return "" if self.weights is None else STOP

    def shape_pieces(self, outline: TurnBoundaries, probed: Probed, group: Conversations) -> ShapePieces:
        """Return the pieces of a shape of conversations.

        Raises:
            ShapeError: a trained part of the text is unknown or ambiguous.
        """
        pieces, answer_end = self._pieces(outline, group)
        trained = {piece.column for piece in pieces if piece.text is None and piece.weight}
        values = [slot.value for slot in probed.slots if slot.value >= 0 and slot.column in trained]
        if len(set(values)) < len(values) and self.prompt.train_on != "all":
            raise ShapeError("content_repeated", REPEATED)
        parts = AnswerKinds(pieces, outline, len(group.turns), self.weights, self.marked).divide()
        pieces = list(chain(*parts))
        if answer_end is not None:
            answer_end = answer_end._replace(at=sum(map(len, parts[: answer_end.at])))
        eos = None if self.marked and outline.closing else self.eos  # the template writes a stop; marks decide on it
        if group.following and answer_end and answer_end.message == len(group.turns) - 1 and not self.marked:
            eos = outline.stop_before(group.following.spoken or group.following.role) or eos
        return ShapePieces(probed.slots, pieces, with_stop(pieces, answer_end, eos, self.stop), probed.looks)

    def marked_pieces(self, slots: Sequence[Slot], group: Conversations) -> tuple[list[Piece], list[Piece]]:
        """Return the pieces of a text that the generation blocks divide, without and with EOS.

        Raises:
            ShapeError: its parts have different weights.
        """
        weigh = self.by_marks(slots, group)
        if self.weights and len(set(self.weights.values())) > 1:
            message = "it is not clear which kind each part of an answer is, because the chat template changes it"
            raise ShapeError("kind_unknown", message)
        pieces: list[Piece] = []
        end: AnswerEnd | None = None
        for slot in slots:
            role = "assistant" if slot.generated else "template"
            part = CONTENT if self.weights and slot.generated and weigh(slot) else ""
            pieces += split_control(slot.text, self.control, weight=weigh(slot), role=role, part=part)
            if slot.generated and slot.text.strip():
                count = without_trailing_space(pieces)
                end = AnswerEnd(-1, count - pieces[count - 1].control, weigh(slot))
        return pieces, with_stop(pieces, end, self.eos, self.stop)

    def _pieces(self, outline: TurnBoundaries, group: Conversations) -> tuple[list[Piece], AnswerEnd | None]:
        """Convert the template's slots to pieces.

        A message outside of generation blocks gets the stop that the template writes after it.

        Returns:
            the pieces, and where the last answer ends, or None if unknown.
        """
        turns, owners = group.turns, group.owners
        marked = self.marked
        weights = self.weigh(turns, marked)
        template_weight = float(self.prompt.train_on == "all" and not marked)
        weigh = self.by_marks(outline.slots, group) if marked else lambda slot: template_weight
        trained = [weight not in (0, template_weight) for weight in weights]
        last = last_answer(turns)
        weighed = [index for index, weight in enumerate(weights) if weight != template_weight]
        bounds = outline.turn_bounds(weighed, marked)
        unknown = {index for index, turn in enumerate(turns) if turn.is_constant and trained[index]}
        if unknown - {turn.message for turn in bounds}:
            raise ShapeError("not_text", "a message whose content is not text cannot be trained")
        if template_weight and last >= 0 and weights[last] == template_weight:
            with suppress(ShapeError):  # these bounds only show whether the last answer has a stop
                bounds += outline.turn_bounds([last], marked)
        pieces: list[Piece] = []
        answer_end: AnswerEnd | None = None
        # the message whose stop can follow, that stop's weight, and the generation block of the latest value
        stop_of, stop_weight, block = -1, 0.0, 0
        for slot, turn, is_stop in divide(outline.slots, bounds):
            generated = marked and slot.generated > 0
            if slot.value >= 0:
                message = owners[slot.value]
                weight, role = weigh(slot) if marked else weights[message], turns[message].role
                pieces += [Piece(None, slot.column, role, message, weight)] * (slot.column >= 0)
                stop_of, stop_weight, block = (-1 if generated else message), weight, slot.generated
                answer_end = AnswerEnd(message, len(pieces), weight) if role == "assistant" else answer_end
                continue
            if turn is not None:
                role, weight = turns[turn.message].role, weights[turn.message]
                part = self.stop if is_stop and weight and role == "assistant" else ""
                given = {"weight": weight, "role": role, "message": turn.message, "part": part}
                pieces += split_control(slot.text, self.control, **given)
                if role == "assistant" and not is_stop:
                    answer_end = AnswerEnd(turn.message, len(pieces), weight)
                stop_of, stop_weight = (turn.message if turn.stop_follows else -1), weight
                continue
            weight = weigh(slot)
            role = "assistant" if generated else "template"
            literal = split_control(slot.text, self.control, weight=weight, role=role)
            if stop_of >= 0 and not generated and (stop_weight or weight):
                stop = outline.stop_after(stop_of, slot.text)
                ends = {"weight": stop_weight, "role": turns[stop_of].role, "message": stop_of}
                ends |= {"part": self.stop} if stop_weight and ends["role"] == "assistant" else {}
                pieces += split_control(stop, self.control, **ends)
                literal = split_control(slot.text[len(stop) :], self.control, weight=weight, role=role)
            if generated and block != slot.generated and slot.text.strip():
                count = 0 if outline.stop_of(slot.text.rstrip()) else without_trailing_space(literal)
                answer_end = AnswerEnd(last, len(pieces) + count, weight)
            pieces += literal
            stop_of = -1
        return pieces, answer_end if answer_end and answer_end.message == last else None

    def by_marks(self, slots: Sequence[Slot], group: Conversations) -> Callable[[Slot], float]:
        """Return the weight of each slot: 1 inside the template's generation blocks, unless its message has its own.

        Messages of other roles than the assistant have the weight that `train_on` gives them, if it has weights.
        """
        turns, weights, by_role = group.turns, self.weigh(group.turns, True), self.prompt.weights or {}
        block_messages = _message_of_block(slots, group) if any(turn.weight is not None for turn in turns) else {}
        last = max((slot.generated for slot in slots), default=0)

        def weigh(slot: Slot) -> float:
            message = group.owners[slot.value] if slot.value >= 0 else block_messages.get(slot.generated, -1)
            if message >= 0 and turns[message].role in by_role:
                return weights[message]
            own = turns[message].weight if message >= 0 else None
            trained = slot.generated > 0 and (self.prompt.train_on != "last" or slot.generated == last)
            return float(trained) if own is None else own

        return weigh

    def weigh(self, turns: Sequence[Turn], marked: bool = False) -> list[float]:
        """Return the weight of each message: its own, else 1 if `train_on` includes it.

        With weights in `train_on`, it is multiplied by the weight of its role; the parts of answers are weighed later.

        Args:
            marked: whether the template's `{% generation %}` blocks decide what is trained of the assistant's messages.
        """
        chosen, last, by_role = roles_trained(self.prompt.train_on), last_answer(turns), self.prompt.weights or {}
        weights = []
        for index, turn in enumerate(turns):
            trains = turn.role in chosen and (self.prompt.train_on != "last" or index == last)
            trains &= not marked or turn.role in by_role
            own = float(trains) if turn.weight is None else turn.weight
            weights.append(own * by_role.get(turn.role, 1.0))
        return weights


def last_answer(turns: Sequence[Turn]) -> int:
    """Return the index of the last answer, or -1."""
    return max((index for index, turn in enumerate(turns) if turn.role == "assistant"), default=-1)


def _message_of_block(slots: Sequence[Slot], group: Conversations) -> dict[int, int]:
    """Match generation blocks to messages: by the content in the block, else block n is answer n.

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
