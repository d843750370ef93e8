"""Prompts for inference: the text before a row's answer, identical to that in the row's training text.

Rows without a chat template are cut where the answer starts. Conversations end with the template's generation prompt,
which is compared with the training text: it is an error if a template prompts the model with other text than it was
trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.mapping import WEIGHT
from tokenloom.assets.columns.messages import join_messages, messages_of
from tokenloom.assets.columns.source_expressions import as_text
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.prompts.conversations import conversations
from tokenloom.assets.prompts.few_shot.chat_turns import ChatFewShot
from tokenloom.assets.prompts.few_shot.plain_text import ANSWER, PlainTextFewShot
from tokenloom.assets.prompts.render import (
    WithTools,
    chat_format,
    conversation_renderer,
    declared_tools,
    is_chat,
    renderer,
    trained_in_pairs,
)
from tokenloom.assets.prompts.spans import SPACE, FlatSpans, flat_spans, span_lists
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.forms import FIELDS, MESSAGES, form_named
from tokenloom.assets.stage.rejects import ROW, join_rejects, reject_rows
from tokenloom.config import PipelineConfig
from tokenloom.errors import TemplateError
from tokenloom.resources.tables.ragged import (
    Ints,
    flags_of,
    list_array,
    list_parts,
    offsets_of,
    one_array,
    ranges,
    row_of,
    sum_rows,
    text_array,
    text_parts,
)
from tokenloom.resources.templates.jinja import JinjaTemplate
from tokenloom.resources.tokenizers import TokenizerSpec

PLACEHOLDER = "answer"
"""Replaces a missing answer, to find where it would start."""


def prompt_renderer(
    config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec
) -> Callable[[pa.Table], ChunkOutput]:
    """Return the function that renders a chunk as prompts: texts up to the answer, with untrained spans.

    It takes rows in canonical form, with or without answers.

    Raises:
        ConfigError: as `renderer` does, or the position of the answer is unknown.
    """
    prompt, form = config.prompt_template, form_named(mapping["form"])
    if is_chat(config, mapping, spec):
        config = trained_in_pairs(config, spec) if form.prompted else config
        render = conversation_renderer(config, mapping, spec)
        shots = render if isinstance(render, ChatFewShot) else None
        return ChatPrompts(chat_format(config, spec), shots, declared_tools(config), prompt.system)
    render = renderer(config, {name: value for name, value in mapping.items() if name != WEIGHT}, spec)
    marks = prompt.format_type == "jinja" and JinjaTemplate(prompt.template or "").marks_generation
    if form.name == "segments":
        message = "segments have no one answer, so where the prompt ends is unknown"
        raise config.fault("dataset.column_mapping.segments", message)
    if form.name == "tokens":
        message = "the rows are token ids, whose prompts are not known; ask for prompts of texts or messages"
        raise config.fault("prompt_template.format_type", message)
    if form.promptless or (form is FIELDS and not (prompt.trained_columns or marks)):
        message = "without it the answer's position is unknown, and so is where the prompt ends; set label_column"
        raise config.fault("prompt_template.label_column", message)
    answers = tuple(name for name, role in form.written.items() if role == "answer")
    return TextPrompts(render, prompt.trained_columns if form is FIELDS else answers)


@dataclass(frozen=True)
class TextPrompts:
    """Renders rows and cuts them where the answer starts.

    Args:
        render: renders whole rows.
        answers: the columns that are trained; none if the template's `{% generation %}` blocks mark the answer.
    """

    render: Callable[..., ChunkOutput]
    answers: tuple[str, ...]

    def __call__(self, table: pa.Table) -> ChunkOutput:
        usable = np.ones(table.num_rows, bool)
        for answer in self.answers:
            own, _ = as_text(one_array(table[answer]))
            given = flags_of(pc.not_equal(own, ""))
            usable &= given
            if not given.all():
                filled = pc.if_else(pa.array(given), own, PLACEHOLDER)
                table = table.set_column(table.schema.get_field_index(answer), answer, filled)
        out = self.render(table, usable) if isinstance(self.render, PlainTextFewShot) else self.render(table)
        spans = flat_spans(out.table["spans"])
        ends = _first_start(spans, spans.role == ANSWER)
        prompts, empty = _cut(out.table, ends), pa.array(ends == 0)
        rejects = _without_prompt(prompts[ROW].filter(empty), out.table["text"].filter(empty))
        return replace(out, table=prompts.filter(pc.invert(empty)), rejects=join_rejects([out.rejects, rejects]))


@dataclass(frozen=True)
class ChatPrompts:
    """Renders conversations without their last answer, with a generation prompt.

    Args:
        chat: the chat template.
        shots: adds few-shot examples, or None.
        tools: the YAML's tools as JSON text, or "".
        system: the YAML's system message, or None.
    """

    chat: ChatFormat
    shots: ChatFewShot | None
    tools: str
    system: str | None

    def __call__(self, table: pa.Table) -> ChunkOutput:
        rows_in, rejects = table.num_rows, []
        if self.shots is not None:
            extended = self.shots.extend_all(table)
            table, rejects = extended.table, [extended.rejects]
        messages, answers = _split_answer(table)
        empty = pa.array(np.diff(list_parts(messages)[0]) == 0)
        rows = one_array(table[ROW])
        rejects.append(_without_prompt(rows.filter(empty), answers.filter(empty)))
        keep = pc.invert(empty)
        before, answers = messages.filter(keep), answers.filter(keep)
        shared = [name for name in ("tools", "template_kwargs") if name in table.column_names]
        more = {name: one_array(table[name]).filter(keep) for name in shared}
        whole = join_messages(before, messages_of("assistant", answers, np.ones(len(answers), bool))).cast(MESSAGES)
        asked, said = (pa.table({ROW: rows.filter(keep), "messages": each, **more}) for each in (before, whole))
        prompts = self._render(replace(self.chat, generation_prompt=True), asked, ("system",))
        trained = self._render(self.chat, said, "last")
        both = np.intersect1d(prompts.table[ROW].to_numpy(), trained.table[ROW].to_numpy())
        others = trained.rejects.filter(pc.invert(pc.is_in(trained.rejects[ROW], one_array(prompts.rejects[ROW]))))
        kept = [out.table.filter(pc.is_in(out.table[ROW], pa.array(both))) for out in (prompts, trained)]
        checked = self._checked(*(table.combine_chunks() for table in kept))
        return ChunkOutput(checked, rows_in, join_rejects([*rejects, prompts.rejects, others]))

    def _render(self, chat: ChatFormat, table: pa.Table, train_on: Any) -> ChunkOutput:
        prompt = chat.prompt.model_copy(update={"train_on": train_on, "turns": "together"})
        render = replace(chat, prompt=prompt, eos=None).render
        return (WithTools(render, self.tools) if self.tools else render)(table)

    def _checked(self, prompts: pa.Table, trained: pa.Table) -> pa.Table:
        """Check that each prompt is where its training text has the answer, and return the prompts, untrained.

        A template without generation prompts can lack the answer's header; then the training text is cut instead.

        Raises:
            TemplateError: the training text does not start with the prompt, or has more text before the answer.
        """
        bounds, data = text_parts(prompts["text"])
        whole_bounds, whole = text_parts(trained["text"])
        lengths = np.diff(bounds)
        spans = flat_spans(trained["spans"])
        row = row_of(spans.counts)
        last = np.zeros(len(lengths), np.int64)
        np.maximum.at(last, row, spans.message)
        answer = _first_start(spans, spans.message == last[row])
        start = np.minimum(_first_start(spans, spans.weight > 0), answer)
        fits = lengths <= answer
        compared = np.where(fits, lengths, 0)
        same = data[ranges(bounds[:-1], compared)] == whole[ranges(whole_bounds[:-1], compared)]
        fits &= sum_rows(same.astype(np.int64), offsets_of(compared)) == compared
        gap = np.where(fits, np.maximum(start - lengths, 0), 0)
        blank = SPACE[whole[ranges(whole_bounds[:-1] + lengths, gap)]]
        fits &= sum_rows(blank.astype(np.int64), offsets_of(gap)) == gap
        if fits.all():
            return _cut(prompts, lengths)
        if not self.chat.template.reads("add_generation_prompt"):
            shorter = _cut(trained, start)
            chosen = pa.array(np.where(fits, np.arange(len(fits)), np.arange(len(fits)) + len(fits)))
            return pa.concat_tables([_cut(prompts, lengths), shorter]).take(chosen).combine_chunks()
        bad = int(np.flatnonzero(~fits)[0])
        prompt = prompts["text"][bad].as_py()
        text = trained["text"][bad].as_py().encode()[: int(answer[bad])].decode()
        at = max(next((at for at, (a, b) in enumerate(zip(prompt, text, strict=False)) if a != b), len(text)) - 20, 0)
        raise TemplateError(
            f"row {prompts[ROW][bad].as_py()}: the chat template's generation prompt differs from the training text "
            f"before the answer: …{prompt[at:]!r} and …{text[at:]!r}; make the two agree in tokenizer.chat_template"
        )


def _without_prompt(rows: pa.Array | pa.ChunkedArray, shown: pa.Array | pa.ChunkedArray) -> pa.Table:
    return reject_rows(one_array(rows), "prompts", "no_prompt", "", "no text comes before the answer", one_array(shown))


def _split_answer(table: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Return the conversations without weights and without their final answer, and the answer or `PLACEHOLDER`."""
    pairs = "messages" not in table.column_names and pa.types.is_list(table.schema.field("prompt").type)
    offsets, flat = list_parts(one_array(table["prompt"]) if pairs else conversations(table, None))
    columns = dict(zip(flat.type.names, flat.flatten(), strict=True))
    lengths = np.diff(offsets)
    last = pa.array(offsets[1:] - 1, mask=(lengths == 0) | pairs)
    answered = pc.equal(columns["role"].take(last), "assistant").fill_null(False)
    content = columns["content"].take(last)
    has_text = pc.and_(answered, pc.not_equal(pc.utf8_trim_whitespace(content), "")).fill_null(False)
    columns["weight"] = pa.nulls(len(flat), pa.float32())
    flat = pa.StructArray.from_arrays(list(columns.values()), fields=list(flat.type))
    lengths -= flags_of(answered)
    before = list_array(offsets_of(lengths), flat.take(pa.array(ranges(offsets[:-1], lengths)))).cast(MESSAGES)
    return before, pc.if_else(has_text, content, PLACEHOLDER)


def _first_start(spans: FlatSpans, members: npt.NDArray[np.bool_]) -> Ints:
    """Return int64 [rows]: the start of each row's first member span, or the text's end.

    Args:
        members: bool [spans].
    """
    starts = np.append(spans.end, 0)[spans.offsets[1:] - 1].copy()
    places = np.flatnonzero(members)[::-1]
    starts[row_of(spans.counts)[places]] = spans.start[places]
    return starts


def _cut(table: pa.Table, ends: Ints) -> pa.Table:
    """Return each text up to a byte position, untrained; `ends` is int64 [rows]."""
    bounds, data = text_parts(table["text"])
    spans = flat_spans(table["spans"])
    row = row_of(spans.counts)
    kept = spans.start < ends[row]
    counts = np.bincount(row[kept], minlength=len(ends))
    weight = np.zeros(int(kept.sum()), np.float32)
    start, end = spans.start[kept], np.minimum(spans.end, ends[row])[kept]
    cut = span_lists(counts, start, end, spans.role[kept], spans.message[kept], weight, spans.control[kept])
    text = text_array(offsets_of(ends), data[ranges(bounds[:-1], ends)])
    return pa.table({ROW: one_array(table[ROW]), "text": text, "spans": cut})
