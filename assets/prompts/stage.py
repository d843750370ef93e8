"""prompts: each row's text, with spans that give the role and the training weight of each byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from tokenloom.assets.prompts.few_shot.examples import fixed_examples
from tokenloom.assets.prompts.render import (
    added_tokens,
    chat_format,
    declared_tools,
    ends_prompts,
    is_chat,
    renderer,
    renders_in_python,
    trained_renderer,
)
from tokenloom.assets.prompts.segments import CONTRACT as TOKENIZED
from tokenloom.assets.prompts.spans import (
    CONTENT,
    IMAGE,
    RULES,
    SPAN_ROLES,
    SPANS,
    STOP,
    Rule,
    border_rule,
    partition_text,
)
from tokenloom.assets.stage.contract import Contract, column, row_column
from tokenloom.assets.stage.definition import FIXED_TEXTS, Context, Reads, Stage, Work, settings
from tokenloom.assets.stage.forms import MESSAGES, form_named
from tokenloom.assets.stage.images import IMAGES_OF_ROW
from tokenloom.assets.stage.names import COLUMNS
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.stage.rows import LABEL
from tokenloom.config import PipelineConfig
from tokenloom.config.trained_kinds import weights_in_words
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.blobs.blobs import MEDIA
from tokenloom.resources.store.objects import digest_table
from tokenloom.resources.tokenizers import TokenizerSpec, declared_tokenizer

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest


CONTRACT = Contract(
    "One rendered row, or with `turns: exact` one of its texts.",
    {
        ROW: row_column(),
        "text": column("The rendered text, with all control tokens.", pa.string()),
        "spans": column(
            "Spans that partition the text: start and end in bytes, role (its number in the manifest's facts), message "
            "or field (-1: neither), loss weight (0: masked), and whether the span is a control token.",
            SPANS,
        ),
        LABEL: column("KTO only: whether the answer is desired.", pa.bool_(), required=False),
        MEDIA: column("The images of the text, in the order of their tokens.", IMAGES_OF_ROW, required=False),
    },
    {"spans partition the text": partition_text},
    pairs=True,
)


_CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_OPAQUE = (
    "{%- for m in messages %}{{ '<|im_start|>' }}{{ m.role | upper }}: {{ '%05.2f' | format(loop.index / 3) }} "
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content | trim }}{% endif %}{% endfor %}{{ [1.5, none, 'é'] | tojson }}"
)
_JINJA = (
    "{{ question | trim }} {{ 'été ıß' | title }} {{ ['a<é', none] | tojson }}: "
    "{% generation %}{{ answer }}{% endgeneration %}"
)
_FIELDS = {"form": "fields", "roles": {"question": "question", "answer": "answer"}, "answer": "answer"}
_CUSTOM = {"template": "Q: {question}\n\nA: {answer}\n", "label_column": "answer"}


def probe() -> list[pa.Table]:
    return [
        *_rendered(_CUSTOM, _FIELDS, _fields()),
        *_rendered({"format_type": "jinja", "template": _JINJA}, _FIELDS, _fields()),
        *_rendered({"format_type": "chat", "system": "Be brief."}, {"form": "messages"}, _talks(), _CHAT),
        *_rendered({"format_type": "chat", "train_on": "completions"}, {"form": "messages"}, _talks(), _OPAQUE),
    ]


def _rendered(prompt: dict[str, Any], mapping: dict[str, Any], rows: pa.Table, chat: str | None = None) -> Any:
    config = PipelineConfig.from_mapping({"dataset": {"name": "probe"}, "prompt_template": prompt})
    control = ("<|im_start|>", "<|im_end|>", "</s>", "<s>")
    output = renderer(config, mapping, TokenizerSpec({}, "<s>", "</s>", None, None, control, chat, "<s>"))(rows)
    return output.table, output.rejects


def _fields() -> pa.Table:
    numbers = pa.array(range(len(FIXED_TEXTS)), pa.int32())
    return pa.table({ROW: numbers, "question": pa.array(FIXED_TEXTS), "answer": pa.array(FIXED_TEXTS[::-1])})


def _talks() -> pa.Table:
    talks = [
        [{"role": "user", "content": text}, {"role": "assistant", "content": f"{number}, {text}"}]
        for number, text in enumerate(FIXED_TEXTS)
    ]
    numbers = pa.array(range(len(talks)), pa.int32())
    return pa.table({ROW: numbers, "messages": pa.array(talks, MESSAGES), "tools": [""] * len(talks)})


_TEMPLATE = "set tokenizer.chat_template to a template that writes them (`tokenloom templates` lists the built-in ones)"
_MARKED = "set tokenizer.chat_template to a template with {% generation %} marks, such as chatml"
_EXACT = "set prompt_template.turns: exact if the message says so; else "


class PromptsStage(Stage):
    name = "prompts"
    description = "The rows as text, with a role and a loss weight for each part of it."
    version = 9
    upstream = (COLUMNS,)
    libraries = ("pyarrow", "numpy", "jinja2")
    reads = (
        settings("prompt_template", "format_type", "train_on", "add_bos", "add_eos"),
        settings("prompt_template", "template", "label_column", when="prompt_template.template"),
        settings("prompt_template", "date_string", when=lambda config: config.prompt_template.format_type == "jinja"),
        settings("prompt_template.few_shot", "count", "seed", when="prompt_template.few_shot.count"),
        settings("prompt_template", "system", "date_string", "turns", where="chat"),
        settings("prompt_template", "template_kwargs", "train_ranges", given=True, where="chat"),
        settings("prompt_template", "tools", "template_kwargs", where="later"),
        settings("prompt_template.few_shot", "source", when="prompt_template.few_shot.count", where="later"),
        Reads(declared_tokenizer, "later"),
    )
    droppable = True
    facts_ahead, marked = True, True
    section = "prompt_template"
    remedies: ClassVar = {
        "content_dropped": f"{_EXACT}set tokenizer.chat_template to a template that writes every message, such as "
        "chatml (`tokenloom templates`), or train on rows that it can represent",
        "content_parts": "join the parts of the content to one text",
        "content_repeated": "mask the message with train: false, or set tokenizer.chat_template to another one",
        "control_token_in_content": "write it differently in the data",
        "field_ignored": "move the text to content, reasoning_content or tool_calls, set train: false, or use a chat "
        "template that writes the field",
        "image_marks": "write one <image> for each image in the data or the template, or use a chat template that "
        "writes image parts",
        "generation_marks": "use a template with one {% generation %} block per answer, or omit weights of messages",
        "invalid_ranges": "correct the ranges: characters of the content from 0, both ends included, without overlaps",
        "kind_unknown": "give the kinds the same weight in prompt_template.train_on, or use another chat template",
        "no_prompt": "map the prompt with dataset.column_mapping",
        "not_text": "give it as text, or do not train it: train: false",
        "reasoning": _EXACT + _MARKED,
        "reasoning_ignored": _EXACT + _TEMPLATE,
        "template_kwargs": "correct the row's chat_template_kwargs",
        "template_refused": "change the rows as the template asks, or set tokenizer.chat_template to one that takes "
        "them, such as chatml (`tokenloom templates`)",
        "too_few_examples": "lower prompt_template.few_shot.count",
        "too_many_turns": "split the conversation into shorter ones",
        "tool_calls": _EXACT + _MARKED,
        "tool_calls_ignored": _TEMPLATE,
        "tools_ignored": _TEMPLATE,
        "tools_not_json": "write tools as the JSON text of a list",
        "unknown_role": "rename the role, or set tokenizer.chat_template to one that writes it, such as chatml",
        "unverified_ranges": "use a chat template that writes contents unchanged, such as chatml",
        "unverified_spans": _MARKED,
    }

    def prepare(self, context: Context) -> Work:
        config, spec, mapping = context.config, context.tokenizer, context.facts(COLUMNS)["mapping"]
        examples, chat = fixed_examples(config, mapping), is_chat(config, mapping, spec)
        if not chat and ends_prompts(config, mapping):
            spec = replace(spec, border=_border(context, spec))
        render = trained_renderer(config, mapping, spec, examples)
        sides = {"chat_template": digest_json(spec.chat_template)} if chat else {}
        if examples is not None:
            sides["few_shot"] = digest_table(examples)
        if (images := spec.images(config)) is not None:
            sides["processor"] = digest_json([images.token, images.before, images.after])
        if tools := declared_tools(config):
            sides["tools"] = digest_json(tools)
        spoken = self.read(config, "chat") if chat else {}
        border = {"border": spec.border} if spec.border is not None else {}
        settings = {**spoken, **border, **_tokens_read(config, mapping, spec, chat)}
        notes = partial(_notes, config, mapping, spec)
        # rows with tools differ in more than contents, which Python reads row by row
        holds_lock = renders_in_python(render) or "tools" in mapping.get("roles", ())
        return Work(self.inputs(context), render, sides, settings, notes, holds_lock=holds_lock)

    def notices(self, context: Context, manifest: Manifest) -> list[str]:
        if not manifest.counters:
            return []
        from tokenloom.assets.prompts.accepted import notices

        return notices(manifest.counters)

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """Return the names of the roles that spans hold as numbers."""
        weighed, config = context.config.prompt_template.weights is not None, context.config
        if config.media is not None:
            return {"roles": list(SPAN_ROLES)}
        return {"roles": [role for role in SPAN_ROLES if role != IMAGE and (weighed or role not in (CONTENT, STOP))]}

    def contract(self, columns: pa.Schema) -> Contract:
        """Return the contract of texts, or that of documents that are token ids."""
        return TOKENIZED if "input_ids" in columns.names else CONTRACT

    def shown(self, config: PipelineConfig, manifest: Manifest, first: pa.Table) -> dict[str, Any]:
        return {**super().shown(config, manifest, first), "certificate": manifest.notes.get("certificate") or None}


STAGE = PromptsStage()


def _border(context: Context, spec: TokenizerSpec) -> Rule:
    """Return which white space can end a prompt; computed once per store and tokenizer."""
    depends = {**spec.digests, **{name: metadata.version(name) for name in ("tokenloom", "tokenizers")}}
    known = context.store.probes.recalled("border", 1, depends, lambda: border_rule(spec))
    for rule in RULES:
        if rule == known:
            return rule
    return border_rule(spec)  # no build stores another text


def _tokens_read(config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec, chat: bool) -> dict[str, Any]:
    """Return what rendering reads of the tokenizer: all special tokens for Jinja templates, else BOS and EOS."""
    prompt = config.prompt_template
    adds = {"adds_bos": spec.adds_bos} if isinstance(prompt.add_bos, str) else {}
    if chat or prompt.format_type == "jinja":
        return {"special_tokens": spec.tokens(), "control": list(spec.control), **adds}
    bos, eos = added_tokens(config, spec)
    tokens = {"bos_token": spec.bos if prompt.few_shot.count else bos, "eos_token": eos}
    control = {"control": list(spec.control)} if not form_named(mapping["form"]).written else {}
    return {"special_tokens": tokens, **control, **adds}


def _notes(config: PipelineConfig, mapping: Mapping[str, Any], spec: TokenizerSpec) -> dict[str, Any]:
    """Return the chat template's certificate and what the build reports about it, if there is a chat template."""
    if not is_chat(config, mapping, spec):
        return {}
    from tokenloom.assets.prompts.chat_certificate import certificate, ends_before_space, notices

    chat = chat_format(config, spec)
    findings, weights = certificate(chat), config.prompt_template.train_on
    said = notices(findings) + ([weights_in_words(weights)] if isinstance(weights, dict) else [])
    return {"certificate": findings, "notices": said, "ends_before_space": ends_before_space(chat)}
