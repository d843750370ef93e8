"""Renders conversations through a chat template, and decides what of their text is trained.

The texts of one shape have the same pieces. Each message's content is a slot of the template; `train_on`, the row's own
weights or the template's `{% generation %}` blocks give its training weight. A trained message includes the stop that
the template writes after it; if the template writes none after the last answer, EOS is added (`add_eos`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.accepted import (
    LOST,
    UNHEEDED,
    counter_of,
    divided_by_template,
    is_lost,
    readable,
    readable_form,
    taken,
    unread,
    with_inline_reasoning,
)
from tokenloom.assets.prompts.conversations import (
    ArgumentForm,
    Conversations,
    Turn,
    conversations,
    group_by_shape,
    parsed,
    unchanged,
    with_arguments,
    with_results_in_order,
)
from tokenloom.assets.prompts.exact import (
    ContinuedPrompt,
    ShapeFormat,
    ShapePieces,
    TrainedTurn,
    TurnCounts,
    texts_of,
    verdict_by_row,
)
from tokenloom.assets.prompts.images import PartTexts, Reading, divide_contents, put_texts, reads_parts
from tokenloom.assets.prompts.kinds import AnswerKinds
from tokenloom.assets.prompts.outline import Message, Prompt, ShapeError, mark
from tokenloom.assets.prompts.segments import split_control, with_bos
from tokenloom.assets.prompts.spans import CONTENT, KIND_PARTS, STOP, Piece, assemble
from tokenloom.assets.prompts.stand_ins import END, QUOTED, START, WHOLE, Filler, Sealer
from tokenloom.assets.prompts.text_ranges import Cuts, CutsOfRows, take_ranges
from tokenloom.assets.prompts.turns import (
    REPEATED,
    AnswerEnd,
    TurnBoundaries,
    divide,
    with_stop,
    without_trailing_space,
)
from tokenloom.assets.prompts.verify import (
    UNVERIFIED_RANGES,
    Shape,
    Variables,
    check_marks,
    render_verified,
)
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.stage.rows import count_rows
from tokenloom.config import PromptTemplateConfig, is_reserved_variable
from tokenloom.config.trained_kinds import roles_trained, trains_only_answers
from tokenloom.errors import TemplateError
from tokenloom.resources.processors.certificate import ImageTokens
from tokenloom.resources.tables.json_text import read_json_value, strings_in
from tokenloom.resources.tables.ragged import Ints, list_parts, one_array
from tokenloom.resources.templates.jinja import JinjaTemplate, Slot
from tokenloom.resources.templates.static_analysis import Kind

MOST_REMEMBERED = 1 << 24
"""Characters of the shapes that a process remembers."""

EXACT = "set prompt_template.turns: exact"
"""The remedy where only exact turns show what the model generates."""

_FEW = 8
"""Shapes of a chunk that are rendered with stand-ins first; if no row can use these, no other shape is."""


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
        by_kind: whether to divide answers into kinds if `train_on` has weights by kind.
        images: what the processor makes of images, or None.
    """

    template: JinjaTemplate
    prompt: PromptTemplateConfig
    tokens: dict[str, str]
    control: tuple[str, ...]
    bos: str | None
    eos: str | None
    generation_prompt: bool = False
    by_kind: bool = True
    images: ImageTokens | None = None

    def render(self, table: pa.Table) -> ChunkOutput:
        """Render a chunk of conversations, or of prompts and completions."""
        messages = conversations(table, self.prompt.system)
        messages = messages if self.writes("tool_call_id") else with_results_in_order(messages)
        tools, kwargs = (
            one_array(table[name]) if name in table.column_names else None for name in ("tools", "template_kwargs")
        )
        rows, counts = one_array(table[ROW]), TurnCounts(one_array(table[ROW]))
        messages, cuts, unheeded = take_ranges(messages, self.prompt)
        counts.found += Counter({UNHEEDED: unheeded})
        texts = PartTexts()
        if self.images is not None:
            messages, texts = divide_contents(rows, messages, self._reads_images)
        done, left, heeded = self._with_stand_ins(rows, messages, tools, kwargs, cuts, counts)
        groups = group_by_shape(messages, tools, kwargs, cuts, index=left)
        shapes = self._shapes(rows, (self._heeded(group, heeded) for group in groups), counts)
        out = render_verified(self.template, shapes, table.num_rows, self.opacity is None, texts)
        out = verdict_by_row(out) if self.exact else out
        if done:
            both = pa.concat_tables([*done, out.table])
            both = both.take(pc.sort_indices(both[ROW])).combine_chunks()
            out = replace(out, table=both, rows_out=count_rows(both) if self.exact else None)
        out = replace(out, table=put_texts(out.table, texts))
        return replace(out, counters=counts.counters(out.table))

    def _with_stand_ins(
        self,
        rows: pa.Array,
        messages: pa.Array,
        tools: pa.Array | None,
        kwargs: pa.Array | None,
        cuts: Cuts,
        counts: TurnCounts,
    ) -> tuple[list[pa.Table], Ints, TurnCounts]:
        """Render rows whose calls and tools differ with stand-ins for these, as far as the template places them.

        Returns:
            the texts; int64, the indices of the rows that are left; and where to count what is found in these.
        """
        left, done, heeded = np.arange(len(rows)), list[pa.Table](), counts
        if not self._depths or not _differs(messages, tools):
            return done, left, heeded
        tried, ranged = left, {row for row, _, _ in cuts}
        for depth in self._depths:
            sealer = Sealer((*self.control, self.tokens.get("eos_token", "")), self.template.mentions, depth)
            shapes = group_by_shape(messages, tools, kwargs, cuts, sealer, tried)
            groups = [self._heeded(shape, heeded) for shape in shapes]
            groups = [group for group in groups if group.own and int(group.rows[0]) not in ranged]
            heeded = TurnCounts(rows)
            for part in filter(None, (groups[:_FEW], groups[_FEW:])):
                found = TurnCounts(rows)
                out = render_verified(self.template, self._shapes(rows, part, found), len(rows), self.opacity is None)
                out = verdict_by_row(out) if self.exact else out
                kept, refused = (np.flatnonzero(np.isin(rows.to_numpy(), of)) for of in (out.table[ROW], _final(out)))
                counts.adopt(found, kept)
                left, tried = np.setdiff1d(left, kept), np.setdiff1d(tried, np.concatenate([kept, refused]))
                if not len(kept):
                    break  # the template reads such values
                done.append(out.table)
        return done, left, heeded

    @cached_property
    def _depths(self) -> Sequence[int]:
        """The depths of stand-ins that the template can take; see `Sealer`."""
        escaped = any(QUOTED.search(token) for token in self.control)
        none = (
            escaped or self.images is not None or any(sign in self.template.source for sign in (START, END, WHOLE[:6]))
        )
        return () if none else (0, 1, 2)

    @cached_property
    def _reads_images(self) -> Callable[[str], Reading]:
        """Return what the template reads of contents with images, by the role of their message."""
        token = self.images.token if self.images else ""
        return lru_cache(lambda role: reads_parts(lambda messages: self.written(messages, False), role, token))

    def shape_pieces(self, group: Conversations, form: ArgumentForm) -> ShapePieces:
        """Return the pieces of a shape of conversations.

        Raises:
            TemplateError: the template refuses the conversations, or its text cannot be divided into turns.
        """
        slots = self.template.probe(self._reader(group, form), group.empty)
        if group.own:
            self._check_first(slots, group, form)
        return self._shape_pieces(slots, group, form)

    def remembered(self, name: str, group: Conversations, form: ArgumentForm, find: Callable[[], Any]) -> Any:
        """Return what is found of conversations of one shape; other chunks have the same shapes."""
        if not group.own and any(turn.tool_calls or turn.role == "tool" for turn in group.turns):
            return find()  # calls that differ are shapes that no other chunk has
        key, known = (name, form.__name__, group.shape), self._known
        if (found := known.get(key)) is None:
            found = find()
            if sum(len(shape) for *_, shape in list(known)) > MOST_REMEMBERED:  # other threads add to it meanwhile
                known.clear()
            known[key] = found
        return found

    @cached_property
    def _known(self) -> dict[tuple[str, str, str], Any]:
        return {}

    @cached_property
    def weights(self) -> dict[str, float] | None:
        """The weight of each part of an answer if `train_on` has weights by kind, else None."""
        given = self.prompt.weights if self.by_kind else None
        return None if given is None else {part: given[kind] for kind, part in KIND_PARTS.items()}

    @cached_property
    def _whole(self) -> ChatFormat:
        """The format without division into kinds, which does not matter for the bounds of turns."""
        return self if self.weights is None else replace(self, by_kind=False)

    def prompts(self, kwargs: str) -> Sequence[Prompt]:
        """Return the generation prompts that inference can choose from: several if the template reads
        `enable_thinking` and nothing sets it."""
        chosen = "enable_thinking" in {*self.prompt.template_kwargs, *_parsed_kwargs(kwargs)}
        return tuple(Prompt)[1:] if not chosen and self.template.reads("enable_thinking") else (Prompt.DEFAULT,)

    def of_shape(self, group: Conversations) -> ShapeFormat:
        """Return how the template writes a group's conversations, with arguments in the form that it takes."""
        return self._whole._of_shape(group, self._argument_form(group))

    def _of_shape(self, group: Conversations, form: ArgumentForm) -> ShapeFormat:
        def variables(messages: Sequence[Message], prompt: int) -> dict[str, Any]:
            return self._asked(with_arguments(messages, form), prompt, _tools(group), group.template_kwargs)

        return ShapeFormat(
            self.template,
            variables,
            lambda texts: self.shape_pieces(texts, form),
            form,
            lambda: self.prompts(group.template_kwargs),
            [index for index, weight in enumerate(self._weights(group.turns)) if weight],
            self.exact,
            lambda texts, find: self.remembered("turns", texts, form, find),
            lambda: self.continued._of_shape(group, form),
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: what is computed from them can hold functions, which cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def continued(self) -> ChatFormat:
        """The format with a template that continues its generation prompts."""
        return self._continued

    @cached_property
    def _continued(self) -> ChatFormat:
        return replace(self, template=ContinuedPrompt.of(self.template))

    @property
    def exact(self) -> bool:
        """Whether each turn is trained in the context of inference."""
        return self.prompt.turns == "exact"

    @cached_property
    def opacity(self) -> str | None:
        """The reason why the template does more than place contents, or None if it only places them."""
        return self.template.opacity({"messages": Kind.MESSAGES})

    def written(self, messages: Sequence[Message], prompted: int, tools: Any = None, kwargs: str = "") -> str:
        """Render messages as the template reads them.

        Args:
            prompted: the generation prompt to add, a `Prompt`.
            tools: tool descriptions as the template reads them.
            kwargs: the row's own variables for the template, as JSON text.

        Raises:
            TemplateError: the template refuses the messages.
        """
        return self.template.render(self._asked(messages, prompted, tools, kwargs))

    def _asked(self, messages: Sequence[Message], prompted: int, tools: Any, kwargs: str) -> dict[str, Any]:
        """Return the template's variables for messages and a generation prompt."""
        thinking = {} if prompted <= Prompt.DEFAULT else {"enable_thinking": prompted == Prompt.THINKING}
        return {**self._variables(messages, tools, bool(prompted), kwargs), **thinking}

    def _shapes(self, rows: pa.Array, groups: Iterable[Conversations], counts: TurnCounts) -> Iterator[Shape]:
        for found in groups:

            def write(messages: Sequence[Message], found: Conversations = found) -> str:
                tools = found.own[0].tools if found.own else _tools(found)
                return self.written(messages, self.generation_prompt, tools, found.template_kwargs)

            group = readable(found.of_row(0) if found.own else found, self.template.roles, write)
            if found.own:
                turns = tuple(
                    replace(turn, fields=of.fields) for turn, of in zip(group.turns, found.turns, strict=True)
                )
                group = replace(group, turns=turns, own=found.own)
                if found.own[0].parsed and self._argument_form(group) is not parsed:
                    continue  # the template does not take objects
            shape = self.of_shape(group)
            if self._marked and not self.exact:
                yield self._shape(rows, group, shape, counts, 0)
                continue
            if not self.exact:
                parts = divided_by_template(group, shape.written, shape.prompts, given=True)
                yield from (self._shape(rows, part, self.of_shape(part), counts, 0) for part in parts)
                continue
            for part in divided_by_template(group, shape.written, shape.prompts):
                for number, (shared, text) in enumerate(texts_of(self.of_shape(part), part)):
                    written = self.continued if shared.continued else self
                    yield written._shape(rows, text, shared, counts, number)

    def _heeded(self, group: Conversations, counts: TurnCounts) -> Conversations:
        """Return a group without the weights of users' and other messages that `train_on` does not name.

        Counts these, and the fields that the template does not read; messages that lose text so are refused. The weight
        0 always holds, and so does any weight of the assistant's.
        """
        if not any(turn.weight or turn.fields for turn in group.turns):
            return group
        chosen, turns = roles_trained(self.prompt.train_on) | {"assistant"}, list(group.turns)
        weights, said = self._weights(group.turns), group.of_row(0).turns if group.own else group.turns
        for index, turn in enumerate(turns):
            if turn.weight and turn.role not in chosen:
                counts.found[UNHEEDED] += len(group.rows)
                turns[index] = turn = replace(turn, weight=None)
            for name in unread(said[index], self.writes):
                counts.found[counter_of(name, counts.found)] += len(group.rows)
                answers = turn.role == "assistant" and weights[index]
                if answers and turn.problem is None and is_lost(name, said[index], group.empty[index]):
                    turns[index] = turn = replace(turn, problem=("field_ignored", LOST.format(name)))
        return replace(group, turns=tuple(turns))

    @cached_property
    def writes(self) -> Callable[[str], bool]:
        """Return whether the template reads a field of messages, or writes all fields."""

        @lru_cache(maxsize=1024)
        def writes(name: str) -> bool:
            if self.template.mentions(name):
                return True
            said = {"role": "assistant", "content": "a", name: mark(0)}
            with suppress(TemplateError):
                return mark(0) in self.written([{"role": "user", "content": "q"}, said], False)
            return False

        return writes

    def _reader(self, group: Conversations, form: ArgumentForm) -> Variables:
        def variables(values: Sequence[str]) -> dict[str, Any]:
            messages = with_arguments(group.messages(values), form)
            return self._variables(messages, _tools(group), self.generation_prompt, group.template_kwargs)

        return variables

    def _reader_of_rows(
        self, group: Conversations, form: ArgumentForm
    ) -> Callable[[Sequence[str], int], dict[str, Any]]:
        def variables(values: Sequence[str], place: int) -> dict[str, Any]:
            messages = with_arguments(group.of_row(place).messages(values), form)
            return self._variables(messages, group.own[place].tools, self.generation_prompt, group.template_kwargs)

        return variables

    def _check_first(self, slots: Sequence[Slot], group: Conversations, form: ArgumentForm) -> None:
        """Check, before the text is divided into turns, that the first row's is that of the slots with its own values.

        Raises:
            TemplateError: it is not.
        """
        check_marks(slots, len(group.values))
        pieces = [Piece(slot.text if slot.value < 0 else None, slot.column) for slot in slots]
        first = [value.slice(0, 1) for value in group.values]
        columns = [slot.place(first[slot.value]) for slot in slots if slot.value >= 0]
        filler = Filler(group.own[:1], ())  # slots are not cut at control tokens
        text = assemble(pa.array([0], pa.int32()), pieces, columns, fill=filler.fill)["text"][0].as_py()
        values = [value[0].as_py() for value in first]
        if self.template.render(self._reader_of_rows(group, form)(values, 0)) != text:
            raise ShapeError("unverified_spans", "the template reads a value that has a stand-in")

    def _shape(
        self, rows: pa.Array, group: Conversations, shared: ShapeFormat, counts: TurnCounts, number: int
    ) -> Shape:
        """Describe how to render conversations of one shape. Exact turns split each into texts: `number` says which."""
        variables = self._reader(group, shared.form)

        def remedy() -> str:
            return EXACT if self._exact_helps(group) else ""

        def divided() -> tuple[Sequence[Slot], ShapePieces, list[TrainedTurn]]:
            def find() -> tuple[Sequence[Slot], ShapePieces, list[TrainedTurn]]:
                try:
                    written = self.shape_pieces(group, shared.form)
                except ShapeError as error:
                    if error.remedy and (exact := remedy()):
                        raise ShapeError(error.code, error.message, exact) from error
                    raise
                return written.slots, *shared.judged(group, written)

            return self.remembered("text", group, shared.form, find)

        def pieces_of(_: Sequence[Slot]) -> tuple[list[Piece], list[Piece]]:
            _, found, turns = divided()
            counts.put(number, group.rows, turns)
            return found.pieces, with_bos(found.stopped, self.bos)

        def readings(index: np.ndarray) -> Iterator[tuple[np.ndarray, Shape]]:
            """Yield the rows with inline reasoning as values, then each row as the generation marks divide it."""
            whole = taken(group, index)
            for places, split in with_inline_reasoning(whole):
                yield index[places], self._shape(rows, split, shared, counts, number)
            if self._marked and not group.own:
                for place in range(len(index)):
                    yield index[[place]], self._marked_row(rows, taken(whole, np.array([place])), variables)

        return Shape(
            rows.take(pa.array(group.rows)),
            group.values,
            group.empty,
            variables,
            pieces_of,
            [*range(len(group.turns), len(group.values)), *self._context_only(group)],
            None if group.around else readings,
            self.template if shared.continued else None,
            cuts=_cuts(rows, group),
            weights=self.weights,
            slots=lambda: divided()[0],
            filler=Filler(group.own, self.control) if group.own else None,
            of_row=self._reader_of_rows(group, shared.form) if group.own else None,
            remedy=remedy,
        )

    def _exact_helps(self, group: Conversations) -> bool:
        """Return whether a shape that is rejected as one text has exact turns, and the settings allow them."""
        exact_fits = not self.exact and trains_only_answers(self.prompt.train_on)
        if not exact_fits or self.prompt.format_type in ("preference", "kto"):
            return False
        exact = replace(self, prompt=self.prompt.model_copy(update={"turns": "exact"}))
        with suppress(TemplateError):
            shape = exact.of_shape(group)
            for part in divided_by_template(group, shape.written, shape.prompts):
                for shared, text in texts_of(exact.of_shape(part), part):
                    written = (exact.continued if shared.continued else exact).shape_pieces(text, shared.form)
                    placed = {slot.value for slot in written.slots}.union(exact._context_only(text))
                    if not all(empty or value in placed for value, empty in enumerate(text.empty[: len(text.turns)])):
                        return False
            return True
        return False

    def _context_only(self, group: Conversations) -> Iterator[int]:
        """Yield the contents next to tool calls that another text of the row trains: inference can drop them."""
        for index, turn in enumerate(group.turns):
            if self.exact and turn.role == "assistant" and turn.tool_calls and turn.weight == 0:
                yield index

    def _marked_row(self, rows: pa.Array, group: Conversations, variables: Variables) -> Shape:
        """Return the shape of one conversation whose text the generation marks divide, whatever is in the contents."""
        values = [value[0].as_py() for value in group.values]

        def pieces_of(slots: Sequence[Slot]) -> tuple[list[Piece], list[Piece]]:
            if any(token in value for value in values for token in self.control):
                raise ShapeError("control_token_in_content", "a content contains a control token's text")
            if _cuts(rows, group):
                raise ShapeError("unverified_ranges", UNVERIFIED_RANGES)
            weigh = self._by_marks(slots, group)
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
                    stopped = pieces[count - 1].control
                    end = AnswerEnd(-1, count - stopped, weigh(slot))
            return pieces, with_bos(with_stop(pieces, end, self.eos, self._stop), self.bos)

        place = rows.take(pa.array(group.rows))
        return Shape(place, [], [], lambda _: variables(values), pieces_of, weights=self.weights)

    def _argument_form(self, group: Conversations) -> ArgumentForm:
        """Return the form in which the template takes the arguments of a group's tool calls."""
        if not any(turn.tool_calls for turn in group.turns):
            return unchanged
        if any(turn.problem for turn in group.turns):
            return unchanged
        if group.own and group.own[0].parsed:
            group = group.of_row(0)

        def write(messages: Sequence[Message]) -> str:
            return self.written(messages, False, _tools(group), group.template_kwargs)

        return self.remembered("form", group, unchanged, lambda: readable_form(group.messages(group.marks), write))

    def _variables(self, messages: Sequence[Message], tools: Any, prompted: bool, kwargs: str) -> dict[str, Any]:
        dated = {"date_string": self.prompt.date_string} if self.prompt.date_string else {}
        return {
            **self.prompt.template_kwargs,
            **_parsed_kwargs(kwargs),
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": prompted,
            **dated,
            **self.tokens,
        }

    def _shape_pieces(self, slots: list[Slot], group: Conversations, form: ArgumentForm) -> ShapePieces:
        fields = with_arguments([turn.fields or {} for turn in group.turns], form)
        constants = strings_in([fields, group.parsed_tools, _parsed_kwargs(group.template_kwargs)])
        if any(token in text for text in constants for token in self.control):
            message = "a tool, a tool call or another field of a message contains a control token's text"
            raise ShapeError("control_token_in_content", message)
        check_marks(slots, len(group.values))
        outline = self._outline(slots, group, form)
        pieces, answer_end = self._pieces(outline, group)
        self._check_repeated(slots, pieces)
        parts = AnswerKinds(pieces, outline, len(group.turns), self.weights, self._marked).divide()
        pieces = list(chain(*parts))
        if answer_end is not None:
            answer_end = answer_end._replace(at=sum(map(len, parts[: answer_end.at])))
        eos = None if self._marked and outline.closing else self.eos  # the template writes a stop; marks decide on it
        if group.following and answer_end and answer_end.message == len(group.turns) - 1 and not self._marked:
            eos = outline.stop_before(group.following.spoken or group.following.role) or eos
        return ShapePieces(slots, pieces, with_stop(pieces, answer_end, eos, self._stop))

    @property
    def _marked(self) -> bool:
        """Whether the template's `{% generation %}` blocks decide what is trained."""
        chosen = self.prompt.train_on in ("completions", "last") or self.prompt.weights is not None
        return self.template.marks_generation and chosen

    @property
    def _stop(self) -> str:
        """The `part` of pieces that are a stop."""
        return "" if self.weights is None else STOP

    def _check_repeated(self, slots: Sequence[Slot], pieces: Sequence[Piece]) -> None:
        """Check that each trained content is written once.

        Raises:
            ShapeError: a trained content is written in several places, so that the answer's position is ambiguous.
        """
        trained = {piece.column for piece in pieces if piece.text is None and piece.weight}
        values = [slot.value for slot in slots if slot.value >= 0 and slot.column in trained]
        if len(set(values)) < len(values) and self.prompt.train_on != "all":
            raise ShapeError("content_repeated", REPEATED)

    def _outline(self, slots: list[Slot], group: Conversations, form: ArgumentForm) -> TurnBoundaries:
        """Return the outline of a group's conversations.

        Raises:
            ShapeError: the template omits tools, tool calls, or the reasoning of the last answer.
        """

        def write(messages: Sequence[Message], tools: bool, prompted: int) -> str:
            return self.written(messages, prompted, _tools(group) if tools else None, group.template_kwargs)

        messages = with_arguments(group.messages(group.marks), form)
        outline = TurnBoundaries(
            slots,
            messages,
            group.owners,
            write,
            self.control,
            self.tokens.get("eos_token"),
            self.prompts(group.template_kwargs),
        )
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
            remedy = "put it into the content as <think>…</think>, or use a chat template that writes reasoning"
            if group.around:
                remedy = "use a chat template that writes it"
            message = f"the chat template omits the reasoning of message {reasoned[-1]}, part of the last answer"
            raise ShapeError("reasoning_ignored", message, remedy)
        return outline.without_reasoning(omitted) if omitted else outline

    def _pieces(self, outline: TurnBoundaries, group: Conversations) -> tuple[list[Piece], AnswerEnd | None]:
        """Convert the template's slots to pieces.

        A message outside of generation blocks gets the stop that the template writes after it.

        Returns:
            the pieces, and where the last answer ends, or None if unknown.
        """
        turns, owners = group.turns, group.owners
        marked = self._marked
        weights = self._weights(turns, marked)
        template_weight = float(self.prompt.train_on == "all" and not marked)
        weigh = self._by_marks(outline.slots, group) if marked else lambda slot: template_weight
        trained = [weight not in (0, template_weight) for weight in weights]
        last = _last_answer(turns)
        bounds = outline.turn_bounds(
            [index for index, weight in enumerate(weights) if weight != template_weight], marked
        )
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
                part = self._stop if is_stop and weight and role == "assistant" else ""
                pieces += split_control(
                    slot.text, self.control, weight=weight, role=role, message=turn.message, part=part
                )
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
                ends |= {"part": self._stop} if stop_weight and ends["role"] == "assistant" else {}
                pieces += split_control(stop, self.control, **ends)
                literal = split_control(slot.text[len(stop) :], self.control, weight=weight, role=role)
            if generated and block != slot.generated and slot.text.strip():
                count = 0 if outline.stop_of(slot.text.rstrip()) else without_trailing_space(literal)
                answer_end = AnswerEnd(last, len(pieces) + count, weight)
            pieces += literal
            stop_of = -1
        return pieces, answer_end if answer_end and answer_end.message == last else None

    def _by_marks(self, slots: Sequence[Slot], group: Conversations) -> Callable[[Slot], float]:
        """Return the weight of each slot: 1 inside the template's generation blocks, unless its message has its own.

        Messages of other roles than the assistant have the weight that `train_on` gives them, if it has weights.
        """
        turns, weights, by_role = group.turns, self._weights(group.turns, True), self.prompt.weights or {}
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

    def _weights(self, turns: Sequence[Turn], marked: bool = False) -> list[float]:
        """Return the weight of each message: its own, else 1 if `train_on` includes it.

        With weights in `train_on`, it is multiplied by the weight of its role; the parts of answers are weighed later.

        Args:
            marked: whether the template's `{% generation %}` blocks decide what is trained of the assistant's messages.
        """
        chosen, last, by_role = roles_trained(self.prompt.train_on), _last_answer(turns), self.prompt.weights or {}
        weights = []
        for index, turn in enumerate(turns):
            trains = turn.role in chosen and (self.prompt.train_on != "last" or index == last)
            trains &= not marked or turn.role in by_role
            own = float(trains) if turn.weight is None else turn.weight
            weights.append(own * by_role.get(turn.role, 1.0))
        return weights


@lru_cache(maxsize=256)
def _parsed_kwargs(text: str) -> dict[str, Any]:
    """Return a row's own variables for the template.

    Raises:
        ShapeError: they are not a JSON object, or tokenloom itself sets one of them.
    """
    try:
        parsed = read_json_value(text) if text else {}
    except ValueError as error:
        raise ShapeError("template_kwargs", f"chat_template_kwargs is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ShapeError("template_kwargs", "chat_template_kwargs is not a JSON object")
    if reserved := next(filter(is_reserved_variable, parsed), None):
        message = f"chat_template_kwargs sets {reserved!r}, a variable that tokenloom itself passes to templates"
        raise ShapeError("template_kwargs", message)
    return parsed


def _cuts(rows: pa.Array, group: Conversations) -> dict[int, CutsOfRows]:
    """Return the weighted ranges of a group's values: by value, then by row position."""
    if not group.cuts:
        return {}
    numbers = rows.take(pa.array(group.rows)).to_pylist()
    found = {
        value: {row: ranges for place, row in enumerate(numbers) if (ranges := group.cuts_of(value, place))}
        for value in range(len(group.values))
    }
    return {value: ranges for value, ranges in found.items() if ranges}


def _differs(messages: pa.Array, tools: pa.Array | None) -> bool:
    """Return whether conversations differ in more than contents: messages have fields, or rows have tools."""
    fields = pc.struct_field(list_parts(messages)[1], "fields")
    return fields.null_count < len(fields) or (tools is not None and len(tools.unique()) > 1)


def _final(out: ChunkOutput) -> pa.ChunkedArray:
    """Return the rejected rows whose reason other stand-ins do not change."""
    others = pc.is_in(out.rejects["code"], pa.array(["template_refused", "unverified_spans"]))
    return out.rejects.filter(pc.invert(others))[ROW]


def _tools(group: Conversations) -> Any:
    try:
        return group.parsed_tools
    except ValueError as error:
        raise ShapeError("tools_not_json", f"the tools are not valid JSON: {error}") from error


def _last_answer(turns: Sequence[Turn]) -> int:
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
