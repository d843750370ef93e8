"""Builds the function that renders a chunk: from rows in canonical form to texts with spans."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.messages import join_messages
from tokenloom.assets.prompts.few_shot.examples import fixed_examples
from tokenloom.assets.prompts.images import Illustrated
from tokenloom.assets.prompts.segments import (
    SegmentedTexts,
    check_token_settings,
    custom_pieces,
    token_documents,
    with_bos,
)
from tokenloom.assets.prompts.spans import SPANS, Piece, assemble, border_rule, flat_spans, span_lists
from tokenloom.assets.prompts.truncation_order import check_length_settings
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.forms import FIELDS, ROW_WEIGHT, Form, form_named
from tokenloom.assets.stage.images import IN_TEXT, MARK
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.stage.rows import in_pairs
from tokenloom.config import PipelineConfig
from tokenloom.config.trained_kinds import trains_only_answers
from tokenloom.config.yaml_file import LARGEST_FILE, read_small_text
from tokenloom.errors import ConfigError, TemplateError
from tokenloom.resources.sources.resolve import local_path
from tokenloom.resources.tables.json_text import read_json_value
from tokenloom.resources.tables.ragged import SIDES, one_array, row_of
from tokenloom.resources.tokenizers import TokenizerSpec

if TYPE_CHECKING:
    from tokenloom.assets.prompts.chat import ChatFormat

Render = Callable[[pa.Table], ChunkOutput]
"""Renders a chunk of rows in canonical form; a pure function of the chunk."""

SET_TEMPLATE = "set tokenizer.chat_template, for example to chatml (`tokenloom templates` lists the built-in ones)"
NO_CHAT_TEMPLATE = f"the rows are conversations, but the tokenizer has no chat template; {SET_TEMPLATE}"


def renderer(
    config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec, examples: pa.Table | None = None
) -> Render:
    """Return the function that renders a chunk of a dataset.

    Args:
        mapping: the dataset's resolved column mapping, as JSON.
        examples: the examples of `few_shot.source`; default: they are read from the file.

    Raises:
        ConfigError: the template, the tokenizer and the form of the rows do not fit together.
    """
    images = spec.images(config)
    render = _renderer(config if images is None else _with_marks(config), mapping, spec, examples)
    render = Weighted(render) if mapping.get("weight") is not None else render
    return render if images is None else Illustrated(render, images)


def _with_marks(config: PipelineConfig) -> PipelineConfig:
    """Return the config with a mark in place of each `<image>` of its template."""
    prompt = config.prompt_template
    if prompt.template is None or IN_TEXT not in prompt.template:
        return config
    marked = prompt.model_copy(update={"template": prompt.template.replace(IN_TEXT, MARK)})
    return config.model_copy(update={"prompt_template": marked})


def trained_renderer(
    config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec, examples: pa.Table | None = None
) -> Render:
    """Return `renderer`, without the rows whose messages all say that they are not trained."""
    render = renderer(config, mapping, spec, examples)
    if not form_named(mapping["form"]).trained or not is_chat(config, mapping, spec):
        return render
    from tokenloom.assets.prompts.accepted import TrainedOnly
    from tokenloom.assets.prompts.text_ranges import ranges_of

    return TrainedOnly(render, ranges_of(config.prompt_template))


def _renderer(
    config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec, examples: pa.Table | None
) -> Render:
    prompt, form = config.prompt_template, form_named(mapping["form"])
    if form.encoded:
        check_token_settings(config, mapping)
        return token_documents
    if prompt.add_eos and spec.eos is None:
        message = "the tokenizer has no EOS token; set special_tokens.eos, or prompt_template.add_eos: false"
        raise config.fault("tokenizer.special_tokens", message)
    if prompt.add_bos is True and spec.bos is None:
        raise config.fault("prompt_template.add_bos", "the tokenizer has no BOS token; set special_tokens.bos")
    bos, eos = added_tokens(config, spec)
    check_length_settings(config, mapping)
    chat = is_chat(config, mapping, spec)
    check_turns(config, form, chat)
    if prompt.train_ranges and not chat:
        message = "has no effect: it is for messages, and these rows do not go through a chat template; omit it"
        raise config.fault("prompt_template.train_ranges", message)
    check_kinds(config, form, chat)
    if chat:
        return conversation_renderer(config, mapping, spec, examples)
    refuse_tools(config)
    if form.spoken:
        omit = ", or omit history with dataset.columns" if "history" in mapping["roles"] else ""
        raise config.fault("tokenizer.chat_template", f"{NO_CHAT_TEMPLATE}{omit}")
    if not prompt.few_shot.count:
        return _text_renderer(config, mapping, spec, bos, eos)
    if form.promptless:
        message = f"{form.promptless} has no prompts to add examples to; set count: 0"
        raise config.fault("prompt_template.few_shot.count", message)
    from tokenloom.assets.prompts.few_shot.plain_text import PlainTextFewShot

    render, bare = (_text_renderer(config, mapping, spec, None, end) for end in (eos, None))
    examples = examples if examples is not None else fixed_examples(config, mapping)
    fixed = None if examples is None else _all_rendered(config, bare(examples))
    return PlainTextFewShot(render, bare, prompt.few_shot, fixed, bos, spec.bos)


def conversation_renderer(
    config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec, examples: pa.Table | None = None
) -> Render:
    """Return `renderer` for rows that go through the chat template."""
    form = form_named(mapping["form"])
    whole = form.prompted and form.answered and config.prompt_template.train_on == "all"
    config = trained_in_pairs(config, spec, whole) if form.prompted else config
    chat = chat_format(config, spec)
    check_template_shows_kinds(config, chat)
    render: Render = (chat if form.trained else replace(chat, generation_prompt=True, eos=None)).render
    if tools := declared_tools(config):
        check_tools(config, chat, tools)
        render = WithTools(render, tools)
    render = Pairs(render) if form.judged else Joined(render) if whole else render
    if not config.prompt_template.few_shot.count:
        return render
    if not form.trained:
        raise config.fault("prompt_template.few_shot.count", "prompts without answers cannot be examples; set count: 0")
    from tokenloom.assets.prompts.few_shot.chat_turns import ChatFewShot

    examples = examples if examples is not None else fixed_examples(config, mapping)
    if examples is not None:
        _all_rendered(config, render(examples))
    return ChatFewShot(render, config.prompt_template, examples)


def is_chat(config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec) -> bool:
    """Return whether rows go through the chat template.

    They do if the YAML asks for it, and if prompts are messages. Conversations and completions also do if the YAML has
    no template and the tokenizer has a chat template.

    Raises:
        ConfigError: the YAML asks for a chat template, but the tokenizer has none.
    """
    prompt, form = config.prompt_template, form_named(mapping["form"])
    if form.prompted:
        return True
    if prompt.format_type == "chat" and not spec.chat_template:
        message = f"`chat` needs a chat template, and the tokenizer has none; {SET_TEMPLATE}"
        raise config.fault("prompt_template.format_type", message)
    free = prompt.format_type == "custom" and "chat" in form.format_types
    return prompt.format_type == "chat" or (free and bool(spec.chat_template))


def chat_format(config: PipelineConfig, spec: TokenizerSpec) -> ChatFormat:
    """Return the chat template with the settings that decide what is trained.

    Raises:
        ConfigError: the template has a syntax error, or the sandbox refuses it.
    """
    from tokenloom.assets.prompts.chat import ChatFormat
    from tokenloom.resources.templates.from_yaml import chat_template

    prompt = config.prompt_template
    template = chat_template(config, spec.chat_template or "", spec.tokens())
    added = added_tokens(config, spec, chat=True)
    return ChatFormat(template, prompt, spec.tokens(), spec.control, *added, images=spec.images(config))


def added_tokens(config: PipelineConfig, spec: TokenizerSpec, chat: bool = False) -> tuple[str | None, str | None]:
    """Return the BOS and EOS to add if a template does not write them, or None.

    Args:
        chat: whether it is the chat template.
    """
    prompt = config.prompt_template
    adds = prompt.add_bos is True or (prompt.add_bos and spec.adds_bos and not (chat and prompt.add_bos == "template"))
    return spec.bos if adds else None, spec.eos if prompt.add_eos else None


def trained_in_pairs(config: PipelineConfig, spec: TokenizerSpec, whole: bool = False) -> PipelineConfig:
    """Return the config for prompts with completions in messages: only completions are trained, unless `whole`.

    Raises:
        ConfigError: the tokenizer has no chat template.
    """
    if not spec.chat_template:
        raise config.fault("tokenizer.chat_template", NO_CHAT_TEMPLATE)
    prompt = config.prompt_template
    if prompt.train_on != "all" or whole:
        return config
    every = {"train_on": ("system", "user", "assistant", "tool")}  # all of a completion, no template text
    return config.model_copy(update={"prompt_template": prompt.model_copy(update=every)})


def renders_in_python(render: Render) -> bool:
    """Return whether Jinja renders every row, one at a time, so that threads would not speed it up."""
    while (inner := getattr(render, "render", None)) is not None:
        render = inner
    return getattr(getattr(render, "__self__", None), "opacity", None) is not None


@dataclass(frozen=True)
class Assembled:
    """Renders rows whose texts have the same pieces, without Jinja.

    Args:
        pieces: the parts of each text, in order.
        fields: the columns that the pieces refer to by number.
    """

    pieces: tuple[Piece, ...]
    fields: tuple[str, ...]

    def __call__(self, table: pa.Table) -> ChunkOutput:
        columns = [one_array(table[name]) for name in self.fields]
        return ChunkOutput(assemble(one_array(table[ROW]), self.pieces, columns), table.num_rows)


@dataclass(frozen=True)
class Joined:
    """Renders prompts with their completions as one conversation; every message can be trained."""

    render: Render

    def __call__(self, table: pa.Table) -> ChunkOutput:
        joined = join_messages(one_array(table["prompt"]), one_array(table["completion"]))
        return self.render(table.drop_columns(["prompt", "completion"]).append_column("messages", joined))


@dataclass(frozen=True)
class Pairs:
    """Renders prompts with completions; chosen and rejected completions stay in pairs."""

    render: Render

    def __call__(self, table: pa.Table) -> ChunkOutput:
        names = {side: f"{side}_completion" for side in SIDES}
        return in_pairs(self.render)(table.rename_columns([names.get(name, name) for name in table.column_names]))


@dataclass(frozen=True)
class Weighted:
    """Renders rows that have a loss weight, which multiplies the weights of their spans."""

    render: Render

    def __call__(self, table: pa.Table) -> ChunkOutput:
        if ROW_WEIGHT not in table.column_names:  # rows without answers, for inference
            return self.render(table)
        out = self.render(table.drop_columns([ROW_WEIGHT]))
        places = np.searchsorted(table[ROW].to_numpy(), out.table[ROW].to_numpy())
        weights, texts = table[ROW_WEIGHT].to_numpy()[places], out.table
        for index, field in enumerate(texts.schema):
            if field.type == SPANS:
                spans = flat_spans(texts[field.name])
                weighed = replace(spans, weight=spans.weight * weights[row_of(spans.counts)])
                texts = texts.set_column(index, field.name, span_lists(spans.counts, *weighed.columns))
        return replace(out, table=texts)


def _text_renderer(
    config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec, bos: str | None, eos: str | None
) -> Render:
    """Return the function that renders rows with the YAML's template, or without a template."""
    prompt, form = config.prompt_template, form_named(mapping["form"])
    border = border_rule(spec) if ends_prompts(config, mapping) else None
    if form is FIELDS:
        fields = list(mapping["roles"])
        if prompt.format_type == "custom":
            return Assembled(tuple(custom_pieces(config, fields, spec, bos, eos, border)), tuple(fields))
        from tokenloom.assets.prompts.jinja_fields import FieldsFormat
        from tokenloom.resources.templates.from_yaml import fields_template

        template, train_all = fields_template(config, fields, spec.tokens()), prompt.train_on == "all"
        if not (template.marks_generation or prompt.trained_columns or train_all):
            message = "mark what is trained with {% generation %}, or set label_column or train_on: all"
            raise config.fault("prompt_template.template", message)
        listed = tuple(name for name in prompt.trained_columns if name != prompt.label_column)
        given = (spec.tokens(), spec.control, bos, eos, border, listed)
        return FieldsFormat(template, tuple(fields), prompt.label_column, train_all, *given).render
    if not form.written:
        if prompt.add_bos is True:
            message = "segments hold the whole text; write the BOS token in the first segment"
            raise config.fault("prompt_template.add_bos", message)
        return SegmentedTexts(spec.control, prompt.train_on == "all")
    pieces = list[Piece]()
    for index, role in enumerate(form.written.values()):
        weight, own = float(role != "input" or prompt.train_on == "all"), border if role == "answer" else None
        pieces.append(Piece(None, index, role, index, weight, border=own))
    end = [Piece(eos, role=pieces[-1].role, weight=1.0, control=True)] if eos else []
    return Assembled(tuple(with_bos([*pieces, *end], bos)), tuple(form.written))


def ends_prompts(config: PipelineConfig, mapping: Mapping[str, Any]) -> bool:
    """Return whether a prompt without a chat template ends where an answer's column starts."""
    form = form_named(mapping["form"])
    return "answer" in form.written.values() or (form is FIELDS and bool(config.prompt_template.trained_columns))


def _all_rendered(config: PipelineConfig, rendered: ChunkOutput) -> pa.Table:
    """Return the rendered examples of a file.

    Raises:
        ConfigError: an example could not be rendered.
    """
    if rendered.rejects.num_rows:
        reject, name = rendered.rejects.slice(0, 1).to_pylist()[0], config.prompt_template.few_shot.source
        raise config.fault("prompt_template.few_shot.source", f"{name}, example {reject[ROW] + 1}: {reject['message']}")
    return rendered.table


_TRAIN_ON = "prompt_template.train_on"


def check_kinds(config: PipelineConfig, form: Form, chat: bool) -> None:
    """Check that rows of a form can have weights by kind.

    Args:
        chat: whether the rows go through a chat template.

    Raises:
        ConfigError: they cannot.
    """
    weights = config.prompt_template.weights
    if weights is None:
        return
    if not chat:
        need = "weights by kind need rows that go through a chat template, but these do not"
        raise config.fault(_TRAIN_ON, f"{need}; set train_on: completions")
    if not form.trained:
        raise config.fault(_TRAIN_ON, "weights have no effect on prompts without answers; remove train_on")
    uneven = [f"{name}: {weight:g}" for name, weight in weights.items() if weight not in (0, 1)]
    if form.judged and uneven:
        message = f"the losses of {form.name} data have no weights; use 0 and 1 in place of {', '.join(uneven)}"
        raise config.fault(_TRAIN_ON, message)


def check_turns(config: PipelineConfig, form: Form, chat: bool) -> None:
    """Check that `turns: exact` fits the other settings and the form of the rows.

    Raises:
        ConfigError: it does not.
    """
    prompt = config.prompt_template
    if prompt.turns == "together":
        return
    if not chat:
        message = "exact needs rows that go through a chat template, but these do not; set turns: together"
    elif form.judged:
        message = f"{form.name} data train one answer per row, which leaves no turns to separate; set turns: together"
    elif not trains_only_answers(prompt.train_on):
        message = "exact trains what the model writes at inference; set train_on: completions, or turns: together"
    elif config.length.strategy == "drop_turns":
        message = "exact gives each row several texts, and drop_turns shortens whole rows; set length.strategy: smart"
    else:
        return
    raise config.fault("prompt_template.turns", message)


def check_template_shows_kinds(config: PipelineConfig, chat: ChatFormat) -> None:
    """Check that the chat template shows the kinds of a plain answer, if their weights differ.

    Raises:
        ConfigError: it does not.
    """
    if chat.weights is None or len(set(chat.weights.values())) == 1:
        return
    from tokenloom.assets.prompts.conversations import one_conversation

    answered = [{"role": "user", "content": "QUESTION"}, {"role": "assistant", "content": "ANSWER"}]
    for reject in chat.render(one_conversation(answered)).rejects.to_pylist():
        if reject["code"] == "kind_unknown":
            raise config.fault(_TRAIN_ON, reject["message"])


@dataclass(frozen=True)
class WithTools:
    """Renders conversations; rows without tools get the YAML's. `tools` is JSON text."""

    render: Callable[[pa.Table], ChunkOutput]
    tools: str

    def __call__(self, table: pa.Table) -> ChunkOutput:
        if "tools" not in table.column_names:
            described = pa.repeat(pa.scalar(self.tools, pa.string()), table.num_rows)
            return self.render(table.append_column("tools", described))
        own = one_array(table["tools"])
        described = pc.if_else(pc.equal(own, ""), self.tools, own)
        return self.render(table.set_column(table.schema.get_field_index("tools"), "tools", described))


def declared_tools(config: PipelineConfig) -> str:
    """Return the YAML's tools as JSON text, or "" for none.

    Raises:
        ConfigError: the file does not exist, or the tools are not a JSON list of objects with a name each.
    """
    given = config.prompt_template.tools
    if given is None:
        return ""
    if isinstance(given, str):
        inline = given.lstrip().startswith(("[", "{"))
        try:
            tools = read_json_value(given if inline else _read_file(config, given))
        except ValueError as error:
            raise _tools_fault(config, f"{'the text' if inline else given} is not valid JSON: {error}") from error
    else:
        tools = list(given)
    if not isinstance(tools, list) or not tools:
        raise _tools_fault(config, f"expected a list of tool descriptions, found {_shown(tools)}")
    for number, tool in enumerate(tools, 1):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not (isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"]):
            example = '{"type": "function", "function": {"name": "lookup", "parameters": {}}}'
            raise _tools_fault(config, f"tool {number} has no name: {_shown(tool)}; describe it like {example}")
    try:
        return json.dumps(tools, ensure_ascii=False)
    except TypeError as error:
        message = f"a tool contains a value that JSON cannot represent: {error}; put it in quotes"
        raise _tools_fault(config, message) from error


def check_tools(config: PipelineConfig, chat: ChatFormat, tools: str) -> None:
    """Check that the chat template renders the tools.

    Raises:
        ConfigError: the chat template omits the tools, or they contain a control token's text.
    """
    for token in chat.control:
        if token in tools:
            raise _tools_fault(config, f"a tool contains the text of the control token {token}; rephrase it")
    user, answer = {"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}
    for messages in ([user, answer], [{"role": "system", "content": "rule"}, user, answer], [user]):
        try:
            without_tools, with_tools = (chat.written(messages, False, given) for given in (None, json.loads(tools)))
        except TemplateError:
            continue
        if without_tools == with_tools:
            message = "the chat template omits tools; set tokenizer.chat_template to one that reads `tools`"
            raise _tools_fault(config, message)
        return


def refuse_tools(config: PipelineConfig) -> None:
    """Check that a dataset without a chat template has no tools and no variables for a chat template.

    Raises:
        ConfigError: the YAML has them.
    """
    need = "need a chat template, but these rows do not use one; set format_type: chat"
    if config.prompt_template.tools is not None:
        raise _tools_fault(config, f"tools {need}")
    if config.prompt_template.template_kwargs:
        raise config.fault("prompt_template.template_kwargs", f"these variables {need}")


def _read_file(config: PipelineConfig, name: str) -> str:
    path = local_path(config, name)
    if path is None or not path.is_file():
        raise _tools_fault(config, f"no such file: {name}")
    try:
        return read_small_text(path, LARGEST_FILE)
    except OSError as error:
        raise _tools_fault(config, f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _tools_fault(config, f"{name} is not UTF-8 text") from error


def _shown(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"


def _tools_fault(config: PipelineConfig, message: str) -> ConfigError:
    return config.fault("prompt_template.tools", message)
