"""Renders conversations through a chat template, shape by shape.

The texts of one shape have the same pieces, which `trained_text` weighs. Rows that differ in calls and tools are one
shape as far as they answer alike what the template asks of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache, partial
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
    with_turns,
)
from tokenloom.assets.prompts.conversations import (
    ArgumentForm,
    Conversations,
    conversations,
    group_by_shape,
    parsed_kwargs,
    unchanged,
    with_arguments,
    with_results_in_order,
)
from tokenloom.assets.prompts.exact import (
    ContinuedPrompt,
    ShapeFormat,
    TrainedTurn,
    TurnCounts,
    texts_of,
    verdict_by_row,
)
from tokenloom.assets.prompts.images import PartTexts, Reading, divide_contents, put_texts, reads_parts
from tokenloom.assets.prompts.outline import Message, Prompt, ShapeError
from tokenloom.assets.prompts.row_fields import FieldFinder, FieldTexts, alike
from tokenloom.assets.prompts.segments import with_bos
from tokenloom.assets.prompts.spans import KIND_PARTS, ShapePieces
from tokenloom.assets.prompts.text_ranges import take_ranges
from tokenloom.assets.prompts.trained_text import TrainedText, last_answer
from tokenloom.assets.prompts.turns import TurnBoundaries
from tokenloom.assets.prompts.verify import (
    CHANGED,
    UNVERIFIED_RANGES,
    Layout,
    Shape,
    Variables,
    check_marks,
    render_verified,
)
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW, join_rejects
from tokenloom.assets.stage.rows import count_rows
from tokenloom.config import PromptTemplateConfig
from tokenloom.config.trained_kinds import roles_trained, trains_only_answers
from tokenloom.errors import DeadlineError, TemplateError
from tokenloom.resources.processors.certificate import ImageTokens
from tokenloom.resources.tables.json_text import strings_in
from tokenloom.resources.tables.ragged import flags_of, list_parts, one_array
from tokenloom.resources.templates.jinja import LOOKS, JinjaTemplate, Slot
from tokenloom.resources.templates.marks import (
    FIELD_SIGNS,
    QUOTED,
    Answers,
    Looks,
    answers_alike,
    bare,
    is_tracked,
    mark,
    tracked,
    with_tracked,
)

MOST_REMEMBERED = 1 << 24
"""Characters of the shapes that a process remembers."""

EXACT = "set prompt_template.turns: exact"
"""The remedy where only exact turns show what the model generates."""

_OF_CONTENTS = pa.array([CHANGED[0], "template_refused", "content_dropped"])
"""Codes of rejects that what a template asks of contents can be the reason of."""

_FEW = 8
"""Shapes of a chunk that differ in fields; if no row of these can be rendered with another, no other shape is tried."""
_ALONE = 4
"""Rows of a shape that share their answers about fields with no other; after so many, the others are rendered alone."""


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
        grouped = partial(group_by_shape, messages, tools, kwargs, cuts)
        done, left, heeded = list[ChunkOutput](), np.arange(len(rows)), counts
        if self._takes_fields and _differs(messages, tools):
            done, heeded = [*self._by_fields(rows, grouped, {row for row, _, _ in cuts}, counts)], TurnCounts(rows)
            settled = [row for out in done for one in (out.table, out.rejects) for row in one[ROW].to_pylist()]
            left = left[~np.isin(rows.to_numpy(), settled)]
        groups = grouped(index=left)
        shapes = self._shapes(rows, (self._heeded(group, heeded) for group in groups), counts)
        out = render_verified(self.template, shapes, table.num_rows, texts)
        out = verdict_by_row(out) if self.exact else out
        changed = out.rejects.filter(pc.is_in(out.rejects["code"], _OF_CONTENTS))[ROW].to_numpy()
        changed = np.flatnonzero(np.isin(rows.to_numpy(), changed[~np.isin(changed, list(texts.texts))]))
        if len(changed):
            led = [*self._by_contents(rows, grouped(index=changed), counts)]
            right = pa.array([row for one in led for row in one.table[ROW].to_pylist()], pa.int32())
            out = replace(out, rejects=out.rejects.filter(pc.invert(pc.is_in(out.rejects[ROW], right))))
            done += led
        if done:
            both = pa.concat_tables([*(one.table for one in done), out.table])
            both = both.take(pc.sort_indices(both[ROW])).combine_chunks()
            rejects = join_rejects([*(one.rejects for one in done), out.rejects])
            out = replace(out, table=both, rejects=rejects, rows_out=count_rows(both) if self.exact else None)
        out = replace(out, table=put_texts(out.table, texts))
        return replace(out, counters=counts.counters(out.table))

    def _by_fields(
        self, rows: pa.Array, grouped: Callable[..., Iterator[Conversations]], ranged: set[int], counts: TurnCounts
    ) -> Iterator[ChunkOutput]:
        """Yield the texts and verdicts of rows whose calls and tools differ, but which answer alike what the template
        asks of these.

        Args:
            grouped: groups the rows by shape.
            ranged: indices of the rows with ranges.
        """
        finder = FieldFinder((*self.control, self.tokens.get("eos_token", "")))
        groups = [self._heeded(group, counts) for group in grouped(finder=finder)]
        groups, settled = [group for group in groups if group.own and int(group.rows[0]) not in ranged], 0
        for number, group in enumerate(groups):
            waiting, alone = np.arange(len(group.rows)), 0
            while len(waiting) and alone < _ALONE and (settled or number < _FEW):
                led, found = group.led_by(waiting), TurnCounts(rows)
                try:  # all that is rendered of the first row asks questions
                    for shape in self._shapes(rows, [led], found):
                        shape.layout()
                except DeadlineError as error:
                    error.row = rows[int(led.rows[0])].as_py()
                    raise
                except TemplateError:
                    pass  # the verdict on all rows that answer alike
                same = alike(led.own, led.answers)
                shapes = self._shapes(rows, [taken(led, np.flatnonzero(same))], found)
                out = render_verified(self.template, shapes, len(rows))
                out = verdict_by_row(out) if self.exact else out
                others = pc.is_in(out.rejects["code"], pa.array(["template_refused", "unverified_spans"]))
                out = replace(out, rejects=out.rejects.filter(pc.invert(others)))  # these can name a field's value
                counts.adopt(found, np.flatnonzero(np.isin(rows.to_numpy(), out.table[ROW])))
                settled += out.table.num_rows + out.rejects.num_rows
                yield out
                alone = alone + 1 if same.sum() == 1 else 0
                waiting = waiting[~same]

    def _by_contents(
        self, rows: pa.Array, groups: Iterable[Conversations], counts: TurnCounts
    ) -> Iterator[ChunkOutput]:
        """Yield the texts of rows whose contents answer what the template asks in another way than marks do.

        One row leads those that answer alike: what is asked of their shape is asked of its contents.
        """
        chat = replace(self)  # remembers what it finds of these rows for this chunk only
        for group in groups:
            group, left = self._heeded(group, TurnCounts(rows)), np.arange(len(group.rows))
            for places, part in ((left, group), *with_inline_reasoning(group)):
                waiting = np.flatnonzero(np.isin(places, left))
                while len(waiting):
                    led, found = replace(taken(part, waiting), led=True), TurnCounts(rows)
                    asked, looks = chat._readable(led), Looks()
                    with suppress(TemplateError):
                        variables = chat._reader(asked, chat._argument_form(asked))(asked.tracked)
                        self.template.probe(variables, looks)
                    same = answers_alike(looks.answers, asked.values)
                    same = np.ones(len(waiting), bool) if same is None else flags_of(same)
                    same[0], led = True, taken(led, np.flatnonzero(same))
                    waiting = waiting[~same]
                    if looks.reason is not None:
                        continue
                    out = render_verified(self.template, chat._shapes(rows, [led], found), len(rows))
                    out = verdict_by_row(out) if self.exact else out
                    settled = np.flatnonzero(np.isin(rows.to_numpy(), out.table[ROW]))
                    counts.adopt(found, settled)
                    left = left[~np.isin(group.rows[left], settled)]
                    yield replace(out, rejects=out.rejects[:0])

    @cached_property
    def _takes_fields(self) -> bool:
        """Whether rows can differ in fields: marks of these are text that no control token or template has."""
        escaped = any(QUOTED.search(token) for token in self.control)
        return not escaped and self.images is None and not any(sign in self.template.source for sign in FIELD_SIGNS)

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
        probed = self.template.probe(self._reader(group, form)(group.tracked))
        if group.led and probed.looks.reason is not None:  # its text depends on the first row
            raise ShapeError(*CHANGED)
        fields = with_arguments([turn.fields or {} for turn in group.turns], form)
        constants = strings_in([fields, group.parsed_tools, parsed_kwargs(group.template_kwargs)])
        if any(token in text for text in constants for token in self.control):
            message = "a tool, a tool call or another field of a message contains a control token's text"
            raise ShapeError("control_token_in_content", message)
        check_marks(probed.slots, len(group.values))
        return self._trained.shape_pieces(self._outline(probed.slots, group, form), probed, group)

    def _outline(self, slots: list[Slot], group: Conversations, form: ArgumentForm) -> TurnBoundaries:
        """Return the outline of a group's conversations.

        Raises:
            ShapeError: the template omits tools, tool calls, or the reasoning of the last answer.
        """

        messages = with_arguments(group.messages(group.marks), form)
        outline = TurnBoundaries(
            slots,
            messages,
            group.owners,
            self._writer(group),
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
        last = last_answer(group.turns)
        question = max((index for index, turn in enumerate(group.turns[: last + 1]) if turn.role == "user"), default=-1)
        reasoned = [index for index in range(question + 1, last + 1) if group.turns[index].reasons]
        if omitted.intersection(reasoned[-1:]):
            remedy = "put it into the content as <think>…</think>, or use a chat template that writes reasoning"
            if group.around:
                remedy = "use a chat template that writes it"
            message = f"the chat template omits the reasoning of message {reasoned[-1]}, part of the last answer"
            raise ShapeError("reasoning_ignored", message, remedy)
        return outline.without_reasoning(omitted) if omitted else outline

    @cached_property
    def _trained(self) -> TrainedText:
        return TrainedText(self.prompt, self.control, self.eos, self.weights, self.template.marks_generation)

    def remembered(self, name: str, group: Conversations, form: ArgumentForm, find: Callable[[], Any]) -> Any:
        """Return what is found of conversations of one shape; other chunks have the same shapes."""
        if not group.own and any(turn.tool_calls or turn.role == "tool" for turn in group.turns):
            return find()  # calls that differ are shapes that no other chunk has
        entries = self._known.setdefault((name, form.__name__, group.shape), [])
        for answers, found in list(entries):
            if not answers or alike(group.own[:1], answers)[0]:
                group.answers.update(answers)
                return found
        found = find()
        if sum(len(shape) * len(others) for (*_, shape), others in list(self._known.items())) > MOST_REMEMBERED:
            self._known.clear()  # other threads add to it meanwhile
        entries.append((dict(group.answers), found))
        return found

    @cached_property
    def _known(self) -> dict[tuple[str, str, str], list[tuple[Answers, Any]]]:
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
        chosen = "enable_thinking" in {*self.prompt.template_kwargs, *parsed_kwargs(kwargs)}
        return tuple(Prompt)[1:] if not chosen and self.template.reads("enable_thinking") else (Prompt.DEFAULT,)

    def of_shape(self, group: Conversations) -> ShapeFormat:
        """Return how the template writes a group's conversations, with arguments in the form that it takes."""
        return self._whole._of_shape(group, self._argument_form(group))

    def _of_shape(self, group: Conversations, form: ArgumentForm) -> ShapeFormat:
        def variables(messages: Sequence[Message], prompt: int) -> dict[str, Any]:
            return self._asked(with_arguments(messages, form), prompt, group.parsed_tools, group.template_kwargs)

        return ShapeFormat(
            self.template,
            variables,
            lambda texts: self.shape_pieces(texts, form),
            form,
            lambda: self.prompts(group.template_kwargs),
            [index for index, weight in enumerate(self._trained.weigh(group.turns)) if weight],
            self.exact,
            lambda texts, find: self.remembered("turns", texts, form, find),
            lambda: self.continued._of_shape(group, form),
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: what is computed from them can hold functions, which cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def continued(self) -> ChatFormat:
        """The format with a template that continues its generation prompts."""
        return replace(self, template=ContinuedPrompt.of(self.template))

    @property
    def exact(self) -> bool:
        """Whether each turn is trained in the context of inference."""
        return self.prompt.turns == "exact"

    @cached_property
    def opacity(self) -> str | None:
        """The reason why the template does more with contents than place them and ask about them, or None.

        It is that of a plain conversation; each shape has its own.
        """
        roles = ("system", *("user", "assistant") * 2)
        said = [{"role": role, "content": tracked(at)} for at, role in enumerate(roles)]
        return self.template.opacity(self._variables(talk, None, False, "") for talk in (said, said[1:]))

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

    def _writer(self, group: Conversations) -> Callable[..., str]:
        """Return what renders a group's messages; if its first row leads, its contents are in place of their marks."""

        def write(messages: Sequence[Message], tools: bool = True, prompted: int = Prompt.NONE) -> str:
            given = with_tracked([*messages], group.tracked) if group.led else messages
            text = self.written(given, prompted, group.parsed_tools if tools else None, group.template_kwargs)
            return bare(text) if group.led else text

        return write

    def _asked(self, messages: Sequence[Message], prompted: int, tools: Any, kwargs: str) -> dict[str, Any]:
        """Return the template's variables for messages and a generation prompt."""
        thinking = {} if prompted <= Prompt.DEFAULT else {"enable_thinking": prompted == Prompt.THINKING}
        looks = {LOOKS: Looks()} if is_tracked([*messages, tools]) else {}
        return {**self._variables(messages, tools, bool(prompted), kwargs), **thinking, **looks}

    def _shapes(self, rows: pa.Array, groups: Iterable[Conversations], counts: TurnCounts) -> Iterator[Shape]:
        for group in map(self._readable, groups):
            shape = self.of_shape(group)
            if self._trained.marked and not self.exact:
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

    def _readable(self, group: Conversations) -> Conversations:
        """Return a group with roles and contents in the form in which the template reads them."""
        write = partial(self._writer(group), prompted=self.generation_prompt)
        if not any(turn.content_kind for turn in group.turns):
            return readable(group, self.template.roles, write)

        def find() -> list[dict[str, Any]]:
            turns = readable(group, self.template.roles, write).turns
            return [{"spoken": turn.spoken, "as_text": turn.as_text, "problem": turn.problem} for turn in turns]

        forms = self.remembered("read", group, unchanged, find)
        return with_turns(group, [replace(turn, **form) for turn, form in zip(group.turns, forms, strict=True)])

    def _heeded(self, group: Conversations, counts: TurnCounts) -> Conversations:
        """Return a group without the weights of users' and other messages that `train_on` does not name.

        Counts these, and the fields that the template does not read; messages that lose text so are refused. The weight
        0 always holds, and so does any weight of the assistant's.
        """
        if not any(turn.weight or turn.fields for turn in group.turns):
            return group
        chosen, turns = roles_trained(self.prompt.train_on) | {"assistant"}, list(group.turns)
        weights, said = self._trained.weigh(group.turns), group.of_row(0).turns if group.own else group.turns
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
        def variables(values: Sequence[str], place: int = -1) -> dict[str, Any]:
            read = group.of_row(place) if group.own and place >= 0 else group
            messages = with_arguments(read.messages(values), form)
            return self._variables(messages, read.parsed_tools, self.generation_prompt, group.template_kwargs)

        return variables

    def _shape(
        self, rows: pa.Array, group: Conversations, shared: ShapeFormat, counts: TurnCounts, number: int
    ) -> Shape:
        """Describe how to render conversations of one shape. Exact turns split each into texts: `number` says which."""
        variables = self._reader(group, shared.form)

        def remedy() -> str:
            return EXACT if self._exact_helps(group) else ""

        def find() -> tuple[Layout, list[TrainedTurn]]:
            try:
                written = self.shape_pieces(group, shared.form)
            except ShapeError as error:
                if error.remedy and (exact := remedy()):
                    raise ShapeError(error.code, error.message, exact) from error
                raise
            judged, turns = shared.judged(group, written)
            looks = None if shared.continued else written.looks  # a continued prompt looks at the text itself
            return Layout(written.slots, looks, judged.pieces, with_bos(judged.stopped, self.bos)), turns

        def layout() -> Layout:
            found, turns = self.remembered("text", group, shared.form, find)
            counts.put(number, group.rows, turns)
            return found

        def readings(index: np.ndarray) -> Iterator[tuple[np.ndarray, Shape]]:
            """Yield the rows with inline reasoning as values, then each row as the generation marks divide it."""
            whole = taken(group, index)
            for places, split in with_inline_reasoning(whole):
                yield index[places], self._shape(rows, split, shared, counts, number)
            if self._trained.marked and not group.own:
                for place in range(len(index)):
                    yield index[[place]], self._marked_row(rows, taken(whole, np.array([place])), variables)

        return Shape(
            rows.take(pa.array(group.rows)),
            group.values,
            group.empty,
            variables,
            layout,
            [*range(len(group.turns), len(group.values)), *self._context_only(group)],
            None if group.around else readings,
            self.template if shared.continued else None,
            cuts=group.cuts_by_row(rows),
            weights=self.weights,
            filler=FieldTexts(group.own, self.control) if group.own else None,
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

        def layout() -> Layout:
            slots, _ = self.template.probe(variables(values))
            if any(token in value for value in values for token in self.control):
                raise ShapeError("control_token_in_content", "a content contains a control token's text")
            if group.cuts_by_row(rows):
                raise ShapeError("unverified_ranges", UNVERIFIED_RANGES)
            pieces, stopped = self._trained.marked_pieces(slots, group)
            return Layout(slots, None, pieces, with_bos(stopped, self.bos))

        place = rows.take(pa.array(group.rows))
        return Shape(place, [], [], lambda *_: variables(values), layout, weights=self.weights)

    def _argument_form(self, group: Conversations) -> ArgumentForm:
        """Return the form in which the template takes the arguments of a group's tool calls."""
        if not any(turn.tool_calls for turn in group.turns):
            return unchanged
        if any(turn.problem for turn in group.turns):
            return unchanged
        write = self._writer(group)
        return self.remembered("form", group, unchanged, lambda: readable_form(group.messages(group.marks), write))

    def _variables(self, messages: Sequence[Message], tools: Any, prompted: bool, kwargs: str) -> dict[str, Any]:
        dated = {"date_string": self.prompt.date_string} if self.prompt.date_string else {}
        return {
            **self.prompt.template_kwargs,
            **parsed_kwargs(kwargs),
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": prompted,
            **dated,
            **self.tokens,
        }


def _differs(messages: pa.Array, tools: pa.Array | None) -> bool:
    """Return whether conversations differ in more than contents: messages have fields, or rows have tools."""
    fields = pc.struct_field(list_parts(messages)[1], "fields")
    return fields.null_count < len(fields) or (tools is not None and len(tools.unique()) > 1)
