"""prompts: each row's text, and spans that say whose part each byte is and how much it is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from tokenloom.assets.lengths import check_lengths
from tokenloom.assets.pairs import LABEL, in_pairs
from tokenloom.assets.prompts.layout import custom_layout, with_bos
from tokenloom.assets.prompts.spans import ROLES, SPANS, Piece, assemble, partition_text
from tokenloom.assets.rejects import ROW
from tokenloom.assets.stage import ChunkOutput, Context, Stage, Work
from tokenloom.assets.templates.custom import without_final_newline
from tokenloom.config import PipelineConfig
from tokenloom.errors import TemplateError
from tokenloom.resources.digest import digest_json
from tokenloom.resources.ragged import one_array
from tokenloom.resources.sides import SIDES
from tokenloom.resources.tokenizers import TokenizerSpec, declared_tokenizer

if TYPE_CHECKING:
    from tokenloom.assets.prompts.chat import ChatFormat
    from tokenloom.assets.templates.jinja import JinjaTemplate
    from tokenloom.resources.store import Manifest


class PromptsStage(Stage):
    name = "prompts"
    version = 3
    upstream = ("columns",)
    libraries = ("pyarrow", "jinja2")
    output_schema: ClassVar = {ROW: (pa.int32(),), "text": (pa.string(),), "spans": (SPANS,)}
    optional_columns: ClassVar = {LABEL: (pa.bool_(),)}
    checks: ClassVar = {"spans partition the text": partition_text}

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        prompt = config.prompt_template
        read = ("format_type", "template", "label_column", "system", "train_on", "add_bos", "add_eos", "date_string")
        return prompt.model_dump(mode="json", include=set(read))

    def declared(self, config: PipelineConfig) -> dict[str, Any]:
        return {**self.settings(config), **declared_tokenizer(config)}

    def prepare(self, context: Context) -> Work:
        spec = context.tokenizer
        mapping = context.manifest("columns").facts["mapping"]
        render = renderer(context.config, mapping, spec)
        sides = {"chat_template": digest_json(spec.chat_template)} if _is_chat(context.config, mapping, spec) else {}
        settings = {"special_tokens": spec.tokens(), "control": list(spec.control), "adds_bos": spec.adds_bos}
        return Work(
            context.input_chunks("columns"), render, sides, settings, lambda: _notes(context.config, mapping, spec)
        )

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        return {"roles": list(ROLES)}


STAGE = PromptsStage()

Render = Callable[[pa.Table], ChunkOutput]


def renderer(config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec) -> Render:
    """What renders a chunk in canonical form: a pure function of the chunk.

    Raises:
        ConfigError: the template, the tokenizer and the data's form do not fit each other.
        TemplateError: the template's syntax is wrong.
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
    if form in ("preference", "kto"):
        return _preference(config, spec)
    if form == "fields":
        fields = list(mapping["roles"])
        if prompt.format_type == "custom":
            pieces = custom_layout(config, fields, spec.control, bos, eos)
            return lambda table: _assembled(table, pieces, fields)
        return _jinja(config, fields, spec, bos, eos)
    if _is_chat(config, mapping, spec):
        return _chat(config, spec).render
    if form == "messages":
        raise config.fault(
            "tokenizer.chat_template",
            "tokenizer.chat_template: the data are conversations, but there is no chat template",
        )
    everything = float(prompt.train_on == "all")
    if form == "text":
        pieces, fields = [Piece(None, 0, "text", 0, 1.0)], ["text"]
    else:
        pieces, fields = (
            [Piece(None, 0, "input", 0, everything), Piece(None, 1, "answer", 1, 1.0)],
            ["prompt", "completion"],
        )
    ending = [Piece(eos, role=pieces[-1].role, weight=1.0, control=True)] if eos else []
    complete = with_bos([*pieces, *ending], bos)
    return lambda table: _assembled(table, complete, fields)


def _is_chat(config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec) -> bool:
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


def _assembled(table: pa.Table, pieces: list[Piece], fields: list[str]) -> ChunkOutput:
    made = assemble(one_array(table[ROW]), pieces, [one_array(table[name]) for name in fields])
    return ChunkOutput(made, table.num_rows)


def _jinja(config: PipelineConfig, fields: list[str], spec: TokenizerSpec, bos: str | None, eos: str | None) -> Render:
    from tokenloom.assets.prompts.fields import FieldsFormat

    prompt = config.prompt_template
    template = _compiled(config, "prompt_template.template", without_final_newline(prompt.template or ""))
    train_all = prompt.train_on == "all"
    if not (template.marks_generation or prompt.label_column or train_all):
        message = (
            "prompt_template.template: mark what is trained with {% generation %}, or set label_column or train_on: all"
        )
        raise config.fault("prompt_template.template", message)
    return FieldsFormat(
        template, tuple(fields), prompt.label_column, train_all, spec.tokens(), spec.control, bos, eos
    ).render


def _added(config: PipelineConfig, spec: TokenizerSpec) -> tuple[str | None, str | None]:
    """BOS and EOS to add where a template does not, or None."""
    prompt = config.prompt_template
    bos = spec.bos if prompt.add_bos is True or (prompt.add_bos == "auto" and spec.adds_bos) else None
    return bos, spec.eos if prompt.add_eos else None


def _notes(config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec) -> dict[str, Any]:
    """The certificate of the chat template, where there is one."""
    from tokenloom.assets.prompts.certificate import certificate

    if mapping["form"] in ("preference", "kto") or _is_chat(config, mapping, spec):
        return {"certificate": certificate(_chat(config, spec))}
    return {}


def _chat(config: PipelineConfig, spec: TokenizerSpec) -> ChatFormat:
    from tokenloom.assets.prompts.chat import ChatFormat

    prompt = config.prompt_template
    template = _compiled(config, "tokenizer.chat_template", spec.chat_template or "")
    return ChatFormat(template, prompt, spec.tokens(), spec.control, *_added(config, spec))


def _preference(config: PipelineConfig, spec: TokenizerSpec) -> Render:
    """Prompts and completions in messages; completions alone are trained, chosen and rejected ones in pairs."""
    if not spec.chat_template:
        message = "tokenizer.chat_template: preference data are conversations, but there is no chat template"
        raise config.fault("tokenizer.chat_template", message)
    prompt = config.prompt_template
    if prompt.train_on == "all":  # every message of a completion, nothing of the template's own
        every = {"train_on": ("system", "user", "assistant", "tool")}
        config = config.model_copy(update={"prompt_template": prompt.model_copy(update=every)})
    render = in_pairs(_chat(config, spec).render)
    names = {side: f"{side}_completion" for side in SIDES}
    return lambda table: render(table.rename_columns([names.get(name, name) for name in table.column_names]))


def _compiled(config: PipelineConfig, setting: str, source: str) -> JinjaTemplate:
    from tokenloom.assets.templates.jinja import JinjaTemplate

    try:
        return JinjaTemplate(source, config.prompt_template.date_string)
    except TemplateError as error:
        raise config.fault(setting, f"{setting}: {error}") from error
