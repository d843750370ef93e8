"""Prompts for inference: what stands before the answer of a row, as the model that was trained on it has read it.

Texts are cut where the answer begins. Chats end with the template's own generation prompt, which is held against the
row's training text: a template that would have the model go on from something else than what it was trained on is an
error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.forms import MESSAGES
from tokenloom.assets.columns.messages import join_messages, messages_of
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.prompts.conversations import conversations
from tokenloom.assets.prompts.few_shot.plain_text import ANSWER, PlainTextFewShot
from tokenloom.assets.prompts.few_shot.chat_turns import ChatFewShot
from tokenloom.assets.prompts.spans import FlatSpans, flat_spans, span_lists
from tokenloom.assets.prompts.render import chat_format, conversation_renderer, is_chat, renderer, trained_in_pairs
from tokenloom.assets.prompts.tools import WithTools, declared_tools
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW, join_rejects, reject_rows
from tokenloom.config import PipelineConfig
from tokenloom.errors import TemplateError
from tokenloom.resources.tables.ragged import (
    Ints,
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
"""Stands for an answer that a row has not, so that it can be seen where one would begin."""

_WHITE_SPACE = np.isin(np.arange(256), list(b" \t\n\r\v\f"))


def prompt_renderer(
    config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec
) -> Callable[[pa.Table], ChunkOutput]:
    """What renders a chunk in canonical form, answers given or not, as prompts: texts whose spans are all untrained.

    Raises:
        ConfigError: as `renderer` does; or nothing tells where an answer begins.
    """
    prompt, form = config.prompt_template, mapping["form"]
    if is_chat(config, mapping, spec):
        pairs = form in ("preference", "kto")
        config = trained_in_pairs(config, spec) if pairs else config
        render = conversation_renderer(config, mapping, spec)
        shots = render if isinstance(render, ChatFewShot) else None
        return ChatPrompts(chat_format(config, spec), shots, declared_tools(config), prompt.system)
    render = renderer(config, mapping, spec)
    marks = prompt.format_type == "jinja" and JinjaTemplate(prompt.template or "").marks_generation
    if form == "text" or (form == "fields" and not (prompt.label_column or marks)):
        message = "nothing tells where an answer begins, so that there is no prompt; set label_column"
        raise config.fault("prompt_template.label_column", f"prompt_template.label_column: {message}")
    answer = prompt.label_column if form == "fields" else "completion"
    return TextPrompts(render, answer)


@dataclass(frozen=True)
class TextPrompts:
    """Renders rows and cuts them where the answer begins.

    Args:
        render: renders whole rows.
        answer: the column that holds the answer, or None where only the template's marks tell.
    """

    render: Callable[..., ChunkOutput]
    answer: str | None

    def __call__(self, table: pa.Table) -> ChunkOutput:
        usable = np.ones(table.num_rows, bool)
        if self.answer is not None:
            own = one_array(table[self.answer])
            usable = np.asarray(pc.not_equal(own, "").to_numpy(zero_copy_only=False), bool)
            filled = pc.if_else(pa.array(usable), own, PLACEHOLDER)
            table = table.set_column(table.schema.get_field_index(self.answer), self.answer, filled)
        out = self.render(table, usable) if isinstance(self.render, PlainTextFewShot) else self.render(table)
        spans = flat_spans(out.table["spans"])
        ends = _first_start(spans, spans.role == ANSWER)
        made, empty = _cut(out.table, ends), pa.array(ends == 0)
        rejects = _without_prompt(made[ROW].filter(empty), out.table["text"].filter(empty))
        return replace(out, table=made.filter(pc.invert(empty)), rejects=join_rejects([out.rejects, rejects]))


@dataclass(frozen=True)
class ChatPrompts:
    """Renders conversations without their last answer, up to where the model goes on.

    Args:
        chat: the chat template.
        shots: puts examples before the rows, or None.
        tools: the YAML's tools, as JSON text; empty: none.
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
        messages, answers = _divided(table)
        empty = pa.array(np.diff(list_parts(messages)[0]) == 0)
        rows = one_array(table[ROW])
        rejects.append(_without_prompt(rows.filter(empty), answers.filter(empty)))
        keep = pc.invert(empty)
        asked, answers = messages.filter(keep), answers.filter(keep)
        tools = {"tools": one_array(table["tools"]).filter(keep)} if "tools" in table.column_names else {}
        whole = join_messages(asked, messages_of("assistant", answers, np.ones(len(answers), bool))).cast(MESSAGES)
        prompts, trained = (
            self._render(chat, pa.table({ROW: rows.filter(keep), "messages": talks, **tools}), train_on)
            for chat, talks, train_on in (
                (replace(self.chat, generation_prompt=True), asked, ("system",)),
                (self.chat, whole, "last"),
            )
        )
        both = np.intersect1d(prompts.table[ROW].to_numpy(), trained.table[ROW].to_numpy())
        others = trained.rejects.filter(pc.invert(pc.is_in(trained.rejects[ROW], one_array(prompts.rejects[ROW]))))
        kept = [out.table.filter(pc.is_in(out.table[ROW], pa.array(both))) for out in (prompts, trained)]
        made = self._held(*(table.combine_chunks() for table in kept))
        return ChunkOutput(made, rows_in, join_rejects([*rejects, prompts.rejects, others]))

    def _render(self, chat: ChatFormat, table: pa.Table, train_on: Any) -> ChunkOutput:
        prompt = chat.prompt.model_copy(update={"train_on": train_on})
        render = replace(chat, prompt=prompt, eos=None).render
        return (WithTools(render, self.tools) if self.tools else render)(table)

    def _held(self, prompts: pa.Table, trained: pa.Table) -> pa.Table:
        """The prompts, each held against its training text.

        Raises:
            TemplateError: the training text does not begin with the prompt, or goes on, untrained, behind it.
        """
        bounds, data = text_parts(prompts["text"])
        whole_bounds, whole = text_parts(trained["text"])
        lengths = np.diff(bounds)
        spans = flat_spans(trained["spans"])
        row = row_of(spans.counts)
        last = np.zeros(len(lengths), np.int64)
        np.maximum.at(last, row, spans.message)
        answer = _first_start(spans, spans.message == last[row])
        begin = np.minimum(_first_start(spans, spans.weight > 0), answer)
        fits = lengths <= answer
        compared = np.where(fits, lengths, 0)
        same = data[ranges(bounds[:-1], compared)] == whole[ranges(whole_bounds[:-1], compared)]
        fits &= sum_rows(same.astype(np.int64), offsets_of(compared)) == compared
        gap = np.where(fits, np.maximum(begin - lengths, 0), 0)
        blank = _WHITE_SPACE[whole[ranges(whole_bounds[:-1] + lengths, gap)]]
        fits &= sum_rows(blank.astype(np.int64), offsets_of(gap)) == gap
        if fits.all():
            return _cut(prompts, lengths)
        if not self.chat.template.reads("add_generation_prompt"):
            shorter = _cut(trained, begin)
            chosen = pa.array(np.where(fits, np.arange(len(fits)), np.arange(len(fits)) + len(fits)))
            return pa.concat_tables([_cut(prompts, lengths), shorter]).take(chosen).combine_chunks()
        bad = int(np.flatnonzero(~fits)[0])
        told = prompts["text"][bad].as_py()
        read = trained["text"][bad].as_py().encode()[: int(answer[bad])].decode()
        at = max(next((at for at, (a, b) in enumerate(zip(told, read, strict=False)) if a != b), len(read)) - 20, 0)
        raise TemplateError(
            f"row {prompts[ROW][bad].as_py()}: the chat template's prompt for generation goes on …{told[at:]!r}, the "
            f"text to train on …{read[at:]!r} before the answer: the model would be asked what it was not trained on; "
            "make the two agree in tokenizer.chat_template"
        )


def _without_prompt(rows: pa.Array | pa.ChunkedArray, shown: pa.Array | pa.ChunkedArray) -> pa.Table:
    message = "nothing is said before the answer"
    return reject_rows(one_array(rows), "prompts", "no_prompt", "", message, one_array(shown))


def _divided(table: pa.Table) -> tuple[pa.Array, pa.Array]:
    """The conversations, unweighted and without the answer that they end with; and that, or what stands for it."""
    pairs = "messages" not in table.column_names and pa.types.is_list(table.schema.field("prompt").type)
    offsets, flat = list_parts(one_array(table["prompt"]) if pairs else conversations(table, None))
    columns = dict(zip(flat.type.names, flat.flatten(), strict=True))
    lengths = np.diff(offsets)
    last = pa.array(offsets[1:] - 1, mask=(lengths == 0) | pairs)
    answered = pc.equal(columns["role"].take(last), "assistant").fill_null(False)
    content = columns["content"].take(last)
    said = pc.and_(answered, pc.not_equal(pc.utf8_trim_whitespace(content), "")).fill_null(False)
    columns["weight"] = pa.nulls(len(flat), pa.float32())
    flat = pa.StructArray.from_arrays(list(columns.values()), fields=list(flat.type))
    lengths -= np.asarray(answered.to_numpy(zero_copy_only=False), np.int64)
    asked = list_array(offsets_of(lengths), flat.take(pa.array(ranges(offsets[:-1], lengths)))).cast(MESSAGES)
    return asked, pc.if_else(said, content, PLACEHOLDER)


def _first_start(spans: FlatSpans, members: npt.NDArray[np.bool_]) -> Ints:
    """int64 [rows]: where the first member of each row's spans starts, the text's end where there is none."""
    found = np.append(spans.end, 0)[spans.offsets[1:] - 1].copy()
    places = np.flatnonzero(members)[::-1]
    found[row_of(spans.counts)[places]] = spans.start[places]
    return found


def _cut(table: pa.Table, ends: Ints) -> pa.Table:
    """The texts up to a byte each, untrained."""
    bounds, data = text_parts(table["text"])
    spans = flat_spans(table["spans"])
    row = row_of(spans.counts)
    kept = spans.start < ends[row]
    counts = np.bincount(row[kept], minlength=len(ends))
    nothing = np.zeros(int(kept.sum()), np.float32)
    begins, until = spans.start[kept], np.minimum(spans.end, ends[row])[kept]
    cut = span_lists(counts, begins, until, spans.role[kept], spans.message[kept], nothing, spans.control[kept])
    text = text_array(offsets_of(ends), data[ranges(bounds[:-1], ends)])
    return pa.table({ROW: one_array(table[ROW]), "text": text, "spans": cut})
