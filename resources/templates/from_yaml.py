"""The templates that a YAML names: compiled, tried on small inputs, with errors located in the YAML."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, SandboxError, TemplateError, did_you_mean

if TYPE_CHECKING:
    from tokenloom.resources.templates.jinja import JinjaTemplate

_PART = re.compile(r"\{\{|\}\}|\{([^{}\n]*)\}|[{}]")


@dataclass(frozen=True)
class TemplatePart:
    """A literal or a field (a column's name), with its line in the template, counted from 0."""

    text: str
    is_field: bool
    line: int


def without_final_newline(text: str) -> str:
    """Return the text without one final line break, the one that a YAML block adds."""
    return text[:-2] if text.endswith("\r\n") else text[:-1] if text.endswith("\n") else text


def parse_custom(config: PipelineConfig) -> list[TemplatePart]:
    """Split the YAML's custom template into literals and fields; `{{` and `}}` are literal braces.

    Raises:
        ConfigError: the template has an unmatched brace.
    """
    text = without_final_newline(config.prompt_template.template or "")
    parts: list[TemplatePart] = []
    literal, at, line = "", 0, 0
    for match in _PART.finditer(text):
        literal += text[at : match.start()]
        line += text.count("\n", at, match.start())
        at = match.end()
        if match.group() in ("{{", "}}"):
            literal += match.group()[0]
        elif match.group(1) is None or not match.group(1).strip():
            message = f"a lone {match.group()!r}; write {{{{ or }}}} for a literal brace"
            raise config.fault("prompt_template.template", message, line)
        else:
            parts += [TemplatePart(literal, False, line)] * bool(literal)
            parts.append(TemplatePart(match.group(1).strip(), True, line))
            literal = ""
    literal += text[at:]
    return parts + [TemplatePart(literal, False, text.count("\n"))] * bool(literal)


def columns_used(config: PipelineConfig, known: Collection[str]) -> dict[str, int]:
    """Return the columns that the template names, each with its first line in the template, counted from 0.

    Args:
        known: the data's columns, and those that `column_mapping` names.

    Raises:
        ConfigError: the template cannot be parsed, or `label_column` or `input_columns` do not match it.
    """
    prompt = config.prompt_template
    if prompt.format_type == "custom":
        columns: dict[str, int] = {}
        fields = [part for part in parse_custom(config) if part.is_field]
        for field in fields:
            columns.setdefault(field.text, field.line)
        label, count = prompt.label_column, sum(field.text == prompt.label_column for field in fields)
        if label and count > 1:
            message = f"the template must contain {{{label}}} exactly once, found {count}"
            raise config.fault("prompt_template.label_column", message)
    else:
        columns = {name: line - 1 for name, line in _compiled(config).undeclared(known).items()}
    for trained in prompt.trained_columns:
        if trained not in columns:
            setting = "prompt_template.label_column" if trained == prompt.label_column else "prompt_template.train_on"
            message = f"the template does not use {trained}, only {', '.join(columns) or 'no column'}"
            raise config.fault(setting, f"{message}{did_you_mean(trained, columns)}")
    _check_input_columns(config, columns)
    if prompt.format_type == "jinja":
        check_separate(config, columns)
    return columns


def _check_input_columns(config: PipelineConfig, columns: dict[str, int]) -> None:
    """
    Raises:
        ConfigError: `input_columns` lists other columns than the template uses.
    """
    prompt = config.prompt_template
    listed = columns if prompt.input_columns is None else prompt.input_columns
    unused = [name for name in listed if name not in columns]
    faults = [config.fault("prompt_template.input_columns", f"the template does not use {name}") for name in unused]
    for name, line in columns.items():
        if name not in listed and name not in prompt.trained_columns:
            faults.append(config.fault("prompt_template.template", f"{name} is not among input_columns", line))
    if faults:
        raise ConfigError([fault.faults[0] for fault in faults])


_LISTS_TRIED = 16
"""Number of columns that are tried as a list."""

TEMPLATE = "prompt_template.template"
CHAT_TEMPLATE = "tokenizer.chat_template"

_SHORT_CHAT = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": "Answer"}]
_TRIAL_CHATS = (_SHORT_CHAT, [{"role": "system", "content": "Rule"}, *_SHORT_CHAT, *_SHORT_CHAT])


def check_separate(config: PipelineConfig, columns: Iterable[str]) -> None:
    """Check that the YAML's Jinja template does not mix trained columns with others in one expression.

    Raises:
        ConfigError: it does, or it has generation marks, and `train_on` lists columns all the same.
    """
    from tokenloom.resources.templates.jinja import SPECIAL_TOKENS

    prompt = config.prompt_template
    template = _compiled(config)
    if template.marks_generation and isinstance(prompt.train_on, tuple):
        reason = "because the template's {% generation %} marks decide what is trained"
        raise config.fault("prompt_template.train_on", f"has no effect, {reason}; remove one of them")
    if template.marks_generation or prompt.train_on == "all" or not prompt.trained_columns:
        return
    trained, names = frozenset(prompt.trained_columns), list(columns)
    trials: list[dict[str, Any]] = [dict.fromkeys(names, value) for value in ("text", 1)]
    trials += [{**trials[1], name: ["text", "text"]} for name in names[:_LISTS_TRIED]]
    for trial in trials:
        with suppress(TemplateError):  # values of these types can be unfit
            for part in template.parts({**dict.fromkeys(SPECIAL_TOKENS, ""), **trial}, names, trained) or ():
                if part.columns & trained and part.columns - trained:
                    raise config.fault(TEMPLATE, f"template, line {part.line}: {mixes(part.columns)}", part.line - 1)


def mixes(columns: Iterable[str]) -> str:
    """Return the message for an expression that mixes trained columns with others."""
    return (
        f"one expression mixes {' and '.join(sorted(columns))}, so what is trained of it is unknown; write it as two "
        "output nodes, such as {{ question }} {{ answer }}, or put {% generation %} marks around what is trained"
    )


def fields_template(config: PipelineConfig, fields: Iterable[str], tokens: Mapping[str, str]) -> JinjaTemplate:
    """Compile the YAML's Jinja template over columns.

    Raises:
        ConfigError: the template has a syntax error, or the sandbox refuses it.
    """
    return _compiled(config, trials=[{**tokens, **dict.fromkeys(fields, "text")}])


def chat_template(config: PipelineConfig, source: str, tokens: Mapping[str, str]) -> JinjaTemplate:
    """Compile a chat template, from the YAML or from the tokenizer.

    Raises:
        ConfigError: the template has a syntax error, or the sandbox refuses it.
    """
    common = {**config.prompt_template.template_kwargs, **tokens}
    common |= {"tools": None, "documents": None, "add_generation_prompt": False}
    return _compiled(config, source, [{**common, "messages": messages} for messages in _TRIAL_CHATS])


def _compiled(
    config: PipelineConfig, chat: str | None = None, trials: Iterable[Mapping[str, Any]] = ()
) -> JinjaTemplate:
    """Compile a template, and render small inputs, so that the sandbox's refusals are found before any row is rendered.

    Errors that the template raises itself are ignored here: it can refuse these inputs and accept the rows.

    Args:
        chat: the text of a chat template; None for the YAML's own Jinja template.
        trials: the variables of these inputs.

    Raises:
        ConfigError: the template has a syntax error, or the sandbox refuses it; with its line in the YAML, or with the
            name of the file that contains the template.
    """
    from tokenloom.resources.templates.jinja import JinjaTemplate

    own = config.prompt_template.template
    try:
        source = without_final_newline(own or "") if chat is None else chat
        template = JinjaTemplate(source, config.prompt_template.date_string)
        for variables in trials:
            try:
                template.render(variables)
            except TemplateError as error:
                if isinstance(error, SandboxError):
                    raise
        return template
    except TemplateError as error:
        setting, given = (TEMPLATE, own) if chat is None else (CHAT_TEMPLATE, config.tokenizer.chat_template)
        inline = given is not None and (chat is None or "{{" in given or "{%" in given)
        origin = "template" if inline else given or "the tokenizer's own template"
        message = f"{origin}{str(error).removeprefix('template')}"
        raise config.fault(setting, message, error.line - 1 if inline and error.line else None) from error
