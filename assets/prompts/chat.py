"""Conversations through a chat template: shapes, layouts, and what of them is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.layout import roles_trained, split_control, with_bos
from tokenloom.assets.prompts.spans import Piece
from tokenloom.assets.prompts.verified import Shape, render_verified
from tokenloom.assets.rejects import ROW
from tokenloom.assets.stage import ChunkOutput
from tokenloom.assets.templates.jinja import JinjaTemplate, Slot
from tokenloom.config import PromptTemplateConfig
from tokenloom.resources.ragged import list_array, list_parts, offsets_of, one_array

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_LETTERS = {"system": "s", "user": "u", "assistant": "a", "tool": "t"}


@dataclass(frozen=True)
class ChatFormat:
    """A chat template and how its text is trained.

    Args:
        template: the compiled template.
        prompt: the YAML's prompt_template section.
        tokens: bos_token, eos_token, pad_token and unk_token as the template reads them.
        control: the tokenizer's control tokens.
        bos, eos: tokens to add where the template does not, or None.
    """

    template: JinjaTemplate
    prompt: PromptTemplateConfig
    tokens: dict[str, str]
    control: tuple[str, ...]
    bos: str | None
    eos: str | None

    def render(self, table: pa.Table) -> ChunkOutput:
        """Render a chunk of conversations, or of prompts and completions."""
        messages = one_array(table["messages"]) if "messages" in table.column_names else _as_messages(table)
        rows = one_array(table[ROW])
        return render_verified(
            self.template, self._shapes(rows, _with_system(messages, self.prompt.system)), table.num_rows
        )

    def _shapes(self, rows: pa.Array, messages: pa.Array) -> Iterator[Shape]:
        offsets, flat = list_parts(messages)
        role, content = pc.struct_field(flat, "role"), pc.struct_field(flat, "content")
        letters = pa.array(list(_LETTERS.values())).take(pc.index_in(role, pa.array(list(_LETTERS))))
        letters = pc.if_else(pc.equal(content, ""), pc.utf8_upper(letters), letters)
        shapes = pc.binary_join(list_array(offsets, letters), "").dictionary_encode()
        group = shapes.indices.to_numpy()
        for index, letters in enumerate(shapes.dictionary.to_pylist()):
            members = np.flatnonzero(group == index)
            values = [content.take(pa.array(offsets[members] + k)) for k in range(len(letters))]
            yield self._shape(rows.take(pa.array(members)), letters, values)

    def _shape(self, rows: pa.Array, letters: str, values: Sequence[pa.Array]) -> Shape:
        roles = [next(role for role, letter in _LETTERS.items() if letter == found.lower()) for found in letters]

        empty = [found.isupper() for found in letters]
        return Shape(
            rows,
            values,
            empty,
            lambda contents: self._variables(roles, contents),
            lambda slots: self._layout(slots, roles),
        )

    def _closing(self, roles: Sequence[str]) -> str:
        """What the template writes behind the answer of a conversation that ends with it."""
        if not roles:
            return ""
        slots = self.template.probe(lambda contents: self._variables(roles, contents), [False] * len(roles))
        return slots[-1].text.rstrip() if slots and slots[-1].value < 0 else ""

    def _variables(self, roles: Sequence[str], contents: Sequence[str]) -> dict[str, Any]:
        said = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        dated = {"date_string": self.prompt.date_string} if self.prompt.date_string else {}
        return {
            "messages": said,
            "tools": None,
            "documents": None,
            "add_generation_prompt": False,
            **dated,
            **self.tokens,
        }

    def _layout(self, slots: list[Slot], roles: list[str]) -> tuple[list[Piece], list[Piece]]:
        if self.template.marks_generation and self.prompt.train_on in ("completions", "last"):
            pieces = self._by_marks(slots, roles)
        else:
            pieces = self._by_roles(slots, roles)
        return pieces, with_bos(_with_stop(pieces, self.eos), self.bos)

    def _by_marks(self, slots: list[Slot], roles: list[str]) -> list[Piece]:
        """Trained is what lies inside the template's generation blocks."""
        generated = np.array([slot.generated for slot in slots], np.int64)
        runs = np.cumsum(np.diff(generated, prepend=0) == 1)
        last = max((run for slot, run in zip(slots, runs, strict=True) if slot.generated), default=0)
        pieces: list[Piece] = []
        for slot, run in zip(slots, runs, strict=True):
            weight = float(slot.generated and (self.prompt.train_on != "last" or run == last))
            if slot.value < 0:
                pieces += split_control(
                    slot.text, self.control, weight=weight, role="assistant" if slot.generated else "template"
                )
            else:
                pieces.append(Piece(None, slot.column, roles[slot.value], slot.value, weight))
        return pieces

    def _by_roles(self, slots: list[Slot], roles: list[str]) -> list[Piece]:
        """Trained are the messages of the chosen roles, each with the stop that the template puts behind it."""
        chosen = roles_trained(self.prompt)
        last = max((index for index, role in enumerate(roles) if role == "assistant"), default=-1)
        everything = float(self.prompt.train_on == "all")
        closing = self._closing(roles[: last + 1])
        pieces: list[Piece] = []
        stop_of = -1
        for slot in slots:
            if slot.value >= 0:
                trained = roles[slot.value] in chosen and (self.prompt.train_on != "last" or slot.value == last)
                pieces.append(Piece(None, slot.column, roles[slot.value], slot.value, float(trained)))
                stop_of = slot.value if trained else -1
                continue
            literal = split_control(slot.text, self.control, weight=everything)
            if stop_of >= 0:
                stop, literal = _split_stop(slot.text, literal, closing)
                pieces += [Piece(part.text, -1, roles[stop_of], stop_of, 1.0, part.control) for part in stop]
            pieces += literal
            stop_of = -1
        return pieces


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
    if eos is None or stopped or (places and not pieces[places[-1]].weight):
        return pieces
    return [*pieces[:after], Piece(eos, role="assistant", weight=1.0, control=True), *pieces[after:]]


def _as_messages(table: pa.Table) -> pa.Array:
    """Prompt and completion as a conversation, with the system message where there is one."""
    system, prompt, completion = (one_array(table[name]) for name in ("system", "prompt", "completion"))
    spoken = np.asarray(pc.not_equal(system, "").to_numpy(zero_copy_only=False), bool)
    content = pa.concat_arrays([system, prompt, completion])
    count = table.num_rows
    order = (np.arange(count)[:, None] + np.array([0, count, 2 * count])).ravel()
    present = np.column_stack([spoken, np.ones((count, 2), bool)]).ravel()
    role = pa.array(np.tile(["system", "user", "assistant"], count)[present], pa.string())
    struct = pa.StructArray.from_arrays(
        [role, content.take(pa.array(order[present]))], fields=list(MESSAGES.value_type)
    )
    return list_array(offsets_of(spoken + 2), struct).cast(MESSAGES)


def _with_system(messages: pa.Array, system: str | None) -> pa.Array:
    """The conversations, each that begins with no system message behind the YAML's."""
    if system is None:
        return messages
    offsets, flat = list_parts(messages)
    role, content = pc.struct_field(flat, "role"), pc.struct_field(flat, "content")
    lengths = np.diff(offsets)
    first = role.take(pa.array(offsets[:-1]))
    lacking = np.asarray(pc.not_equal(first, "system").to_numpy(zero_copy_only=False), bool)
    grown = offsets_of(lengths + lacking)
    source = np.full(grown[-1], len(flat), np.int64)
    inherited = np.ones(grown[-1], bool)
    inherited[grown[:-1][lacking]] = False
    source[inherited] = np.arange(len(flat))
    index = pa.array(source)
    role = pa.concat_arrays([role, pa.array(["system"])]).take(index)
    content = pa.concat_arrays([content, pa.array([system])]).take(index)
    return list_array(grown, pa.StructArray.from_arrays([role, content], fields=list(MESSAGES.value_type))).cast(
        MESSAGES
    )
