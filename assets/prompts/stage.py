"""prompts: each row's text, and spans that say whose part each byte is and how much it is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tokenloom.assets.prompts.few_shot.fixed_file import fixed_examples
from tokenloom.assets.prompts.give_up import check_lengths
from tokenloom.assets.prompts.layout import custom_layout, with_bos
from tokenloom.assets.prompts.spans import ROLES, Piece, assemble
from tokenloom.assets.prompts.tools import WithTools, check_tools, declared_tools, refuse_tools
from tokenloom.assets.stage.definition import ChunkOutput, Context, Stage, Work, read_settings
from tokenloom.assets.stage.pairs import in_pairs
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.store.objects import encode_table
from tokenloom.resources.tables.preference_pairs import SIDES
from tokenloom.resources.tables.ragged import one_array
from tokenloom.resources.tokenizers import TokenizerSpec, declared_tokenizer

if TYPE_CHECKING:
    from tokenloom.assets.prompts.chat import ChatFormat
    from tokenloom.resources.store import Manifest


class PromptsStage(Stage):
    name = "prompts"
    version = 3
    upstream = ("columns",)
    libraries = ("pyarrow", "numpy", "jinja2")
    droppable = True

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        """Return the settings that render every row; `prepare` adds those that only chats read."""
        prompt = config.prompt_template
        read = ["format_type", "train_on", "add_bos", "add_eos"]
        read += ["template", "label_column"] if prompt.template else []
        read += ["date_string"] if prompt.format_type == "jinja" else []
        read += ["few_shot.count", "few_shot.seed"] if prompt.few_shot.count else []
        return _of_prompts(config, *read)

    def declared(self, config: PipelineConfig) -> dict[str, Any]:
        source = ("few_shot.source",) if config.prompt_template.few_shot.count else ()
        chat = _of_prompts(config, "system", "date_string", "tools", *source)
        return {**self.settings(config), **declared_tokenizer(config), **chat}

    def prepare(self, context: Context) -> Work:
        spec = context.tokenizer
        mapping = context.manifest("columns").facts["mapping"]
        examples = fixed_examples(context.config, mapping)
        render = renderer(context.config, mapping, spec, examples)
        chat = is_chat(context.config, mapping, spec)
        sides = {"chat_template": digest_json(spec.chat_template)} if chat else {}
        if examples is not None:
            sides["few_shot"] = digest_bytes(memoryview(encode_table(examples, compressed=False)))
        if tools := declared_tools(context.config):
            sides["tools"] = digest_json(tools)
        spoken = _of_prompts(context.config, "system", "date_string") if chat else {}
        settings = {**spoken, **_tokens_read(context.config, mapping, spec, chat)}
        return Work(
            context.input_chunks("columns"),
            render,
            sides,
            settings,
            lambda: _notes(context.config, mapping, spec),
            holds_lock=_compares_every_row(render),
        )

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """Return the names of the roles that spans hold as numbers."""
        return {"roles": list(ROLES)}


STAGE = PromptsStage()

Render = Callable[[pa.Table], ChunkOutput]


def renderer(
    config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec, examples: pa.Table | None = None
) -> Render:
    """What renders a chunk in canonical form: a pure function of the chunk.

    Args:
        examples: what `few_shot.source` holds; default: it is read.

    Raises:
        ConfigError: the template, the tokenizer and the data's form do not fit each other.
    """
    prompt = config.prompt_template
    if prompt.add_eos and spec.eos is None:
        message = "the tokenizer names no EOS; set special_tokens.eos, or prompt_template.add_eos: false"
        raise config.fault("tokenizer.special_tokens", f"tokenizer.special_tokens: {message}")
    if prompt.add_bos is True and spec.bos is None:
        raise config.fault(
            "prompt_template.add_bos", "prompt_template.add_bos: the tokenizer names no BOS; set special_tokens.bos"
        )
    bos, eos = _added(config, spec)
    form = mapping["form"]
    check_lengths(config, mapping)
    if is_chat(config, mapping, spec):
        return conversation_renderer(config, mapping, spec, examples)
    refuse_tools(config)
    if form == "messages":
        raise config.fault(
            "tokenizer.chat_template",
            "tokenizer.chat_template: the data are conversations, but there is no chat template",
        )
    if not prompt.few_shot.count:
        return _texts(config, mapping, spec, bos, eos)
    if form == "text":
        raise config.fault(
            "prompt_template.few_shot.count",
            "prompt_template.few_shot.count: plain text has no prompts that examples could stand before; set count: 0",
        )
    from tokenloom.assets.prompts.few_shot.before_texts import TextShots

    render, bare = (_texts(config, mapping, spec, None, end) for end in (eos, None))
    examples = examples if examples is not None else fixed_examples(config, mapping)
    fixed = None if examples is None else whole(config, bare(examples))
    return TextShots(render, bare, prompt.few_shot, fixed, bos, spec.bos)


def conversation_renderer(
    config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec, examples: pa.Table | None = None
) -> Render:
    """`renderer` where rows go through the chat template."""
    pairs = mapping["form"] in ("preference", "kto")
    config = trained_in_pairs(config, spec) if pairs else config
    render: Render = chat_format(config, spec).render
    if tools := declared_tools(config):
        check_tools(config, chat_format(config, spec), tools)
        render = WithTools(render, tools)
    render = Pairs(render) if pairs else render
    if not config.prompt_template.few_shot.count:
        return render
    from tokenloom.assets.prompts.few_shot.before_turns import TurnShots

    examples = examples if examples is not None else fixed_examples(config, mapping)
    if examples is not None:
        whole(config, render(examples))
    return TurnShots(render, config.prompt_template, examples)


def whole(config: PipelineConfig, rendered: ChunkOutput) -> pa.Table:
    """What a file's examples were rendered to.

    Raises:
        ConfigError: one could not be rendered.
    """
    if rendered.rejects.num_rows:
        reject, name = rendered.rejects.slice(0, 1).to_pylist()[0], config.prompt_template.few_shot.source
        message = f"{name}, example {reject[ROW] + 1}: {reject['message']}"
        raise config.fault("prompt_template.few_shot.source", f"prompt_template.few_shot.source: {message}")
    return rendered.table


def _texts(
    config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec, bos: str | None, eos: str | None
) -> Render:
    """What renders rows through a template of the YAML's own, or through none."""
    prompt, form = config.prompt_template, mapping["form"]
    if form == "fields":
        fields = list(mapping["roles"])
        if prompt.format_type == "custom":
            return Assembled(tuple(custom_layout(config, fields, spec.control, bos, eos)), tuple(fields))
        return _jinja(config, fields, spec, bos, eos)
    everything = float(prompt.train_on == "all")
    if form == "text":
        pieces, fields = [Piece(None, 0, "text", 0, 1.0)], ["text"]
    else:
        pieces, fields = (
            [Piece(None, 0, "input", 0, everything), Piece(None, 1, "answer", 1, 1.0)],
            ["prompt", "completion"],
        )
    ending = [Piece(eos, role=pieces[-1].role, weight=1.0, control=True)] if eos else []
    return Assembled(tuple(with_bos([*pieces, *ending], bos)), tuple(fields))


def is_chat(config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec) -> bool:
    """Whether rows go through the chat template: asked for, or no template given and there is one."""
    prompt = config.prompt_template
    if mapping["form"] in ("preference", "kto"):
        return True
    if prompt.format_type == "chat" and not spec.chat_template:
        raise config.fault(
            "prompt_template.format_type",
            "prompt_template.format_type: chat needs a chat template; set tokenizer.chat_template",
        )
    free = prompt.format_type == "custom" and mapping["form"] in ("messages", "completion")
    return prompt.format_type == "chat" or (free and bool(spec.chat_template))


@dataclass(frozen=True)
class Assembled:
    """Renders rows of one layout; `fields` are the columns that its pieces count."""

    pieces: tuple[Piece, ...]
    fields: tuple[str, ...]

    def __call__(self, table: pa.Table) -> ChunkOutput:
        columns = [one_array(table[name]) for name in self.fields]
        return ChunkOutput(assemble(one_array(table[ROW]), self.pieces, columns), table.num_rows)


def _jinja(config: PipelineConfig, fields: list[str], spec: TokenizerSpec, bos: str | None, eos: str | None) -> Render:
    from tokenloom.assets.prompts.fields import FieldsFormat
    from tokenloom.resources.templates.declared import fields_template

    prompt = config.prompt_template
    template = fields_template(config, fields, spec.tokens())
    train_all = prompt.train_on == "all"
    if not (template.marks_generation or prompt.label_column or train_all):
        message = (
            "prompt_template.template: mark what is trained with {% generation %}, or set label_column or train_on: all"
        )
        raise config.fault("prompt_template.template", message)
    return FieldsFormat(
        template, tuple(fields), prompt.label_column, train_all, spec.tokens(), spec.control, bos, eos
    ).render


def _of_prompts(config: PipelineConfig, *names: str) -> dict[str, Any]:
    return read_settings(config, *(f"prompt_template.{name}" for name in names))


def _tokens_read(config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec, chat: bool) -> dict[str, Any]:
    """What rendering reads of the tokenizer: all of its special tokens where a Jinja template may, else BOS and EOS."""
    prompt = config.prompt_template
    adds = {"adds_bos": spec.adds_bos} if prompt.add_bos == "auto" else {}
    if chat or prompt.format_type == "jinja":
        return {"special_tokens": spec.tokens(), "control": list(spec.control), **adds}
    bos, eos = _added(config, spec)
    tokens = {"bos_token": spec.bos if prompt.few_shot.count else bos, "eos_token": eos}
    return {
        "special_tokens": tokens,
        **({"control": list(spec.control)} if mapping["form"] == "fields" else {}),
        **adds,
    }


def _added(config: PipelineConfig, spec: TokenizerSpec) -> tuple[str | None, str | None]:
    """BOS and EOS to add where a template does not, or None."""
    prompt = config.prompt_template
    bos = spec.bos if prompt.add_bos is True or (prompt.add_bos == "auto" and spec.adds_bos) else None
    return bos, spec.eos if prompt.add_eos else None


def _notes(config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec) -> dict[str, Any]:
    """The certificate of the chat template, where there is one."""
    from tokenloom.assets.prompts.certificate import certificate

    if mapping["form"] in ("preference", "kto") or is_chat(config, mapping, spec):
        return {"certificate": certificate(chat_format(config, spec))}
    return {}


def chat_format(config: PipelineConfig, spec: TokenizerSpec) -> ChatFormat:
    from tokenloom.assets.prompts.chat import ChatFormat
    from tokenloom.resources.templates.declared import chat_template

    prompt = config.prompt_template
    template = chat_template(config, spec.chat_template or "", spec.tokens())
    return ChatFormat(template, prompt, spec.tokens(), spec.control, *_added(config, spec))


def trained_in_pairs(config: PipelineConfig, spec: TokenizerSpec) -> PipelineConfig:
    """The config for prompts and completions in messages: completions alone are trained.

    Raises:
        ConfigError: there is no chat template.
    """
    if not spec.chat_template:
        message = "tokenizer.chat_template: preference data are conversations, but there is no chat template"
        raise config.fault("tokenizer.chat_template", message)
    prompt = config.prompt_template
    if prompt.train_on != "all":
        return config
    every = {"train_on": ("system", "user", "assistant", "tool")}  # of a completion; nothing of the template's own
    return config.model_copy(update={"prompt_template": prompt.model_copy(update=every)})


@dataclass(frozen=True)
class Pairs:
    """Renders prompts with completions, chosen and rejected ones in pairs."""

    render: Render

    def __call__(self, table: pa.Table) -> ChunkOutput:
        names = {side: f"{side}_completion" for side in SIDES}
        return in_pairs(self.render)(table.rename_columns([names.get(name, name) for name in table.column_names]))


def _compares_every_row(render: Render) -> bool:
    """Whether each row is rendered by Jinja, one at a time."""
    while (inner := getattr(render, "render", None)) is not None:
        render = inner
    return getattr(getattr(render, "__self__", None), "opacity", None) is not None
