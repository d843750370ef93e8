"""Jinja templates that a YAML names: what they read, tried once, and their faults told at their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, SandboxError, TemplateError
from tokenloom.resources.templates.custom import without_final_newline
from tokenloom.resources.templates.jinja import JinjaTemplate

TEMPLATE = "prompt_template.template"
CHAT_TEMPLATE = "tokenizer.chat_template"

_ASKED = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": "Answer"}]
_TALKS = (_ASKED, [{"role": "system", "content": "Rule"}, *_ASKED, *_ASKED])


def undeclared(config: PipelineConfig) -> dict[str, int]:
    """Variables that the YAML's jinja template reads, each with its first line within the template, counted from 0.

    Raises:
        ConfigError: the template's syntax is wrong.
    """
    template = _compiled(config, TEMPLATE, without_final_newline(config.prompt_template.template or ""))
    return {name: line - 1 for name, line in template.undeclared().items()}


def fields_template(config: PipelineConfig, fields: Iterable[str], tokens: Mapping[str, str]) -> JinjaTemplate:
    """The YAML's jinja template over columns.

    Raises:
        ConfigError: its syntax is wrong, or the sandbox refuses it.
    """
    template = _compiled(config, TEMPLATE, without_final_newline(config.prompt_template.template or ""))
    _try(config, TEMPLATE, template, [{**tokens, **dict.fromkeys(fields, "text")}])
    return template


def chat_template(config: PipelineConfig, source: str, tokens: Mapping[str, str]) -> JinjaTemplate:
    """A chat template: the YAML's, or the tokenizer's own.

    Raises:
        ConfigError: its syntax is wrong, or the sandbox refuses it.
    """
    template = _compiled(config, CHAT_TEMPLATE, source)
    common = {**tokens, "tools": None, "documents": None, "add_generation_prompt": False}
    _try(config, CHAT_TEMPLATE, template, [{**common, "messages": talk} for talk in _TALKS])
    return template


def _compiled(config: PipelineConfig, setting: str, source: str) -> JinjaTemplate:
    try:
        return JinjaTemplate(source, config.prompt_template.date_string)
    except TemplateError as error:
        raise _fault(config, setting, error) from error


def _try(config: PipelineConfig, setting: str, template: JinjaTemplate, trials: Iterable[Mapping[str, Any]]) -> None:
    """Render small inputs: what the sandbox refuses then is the template's fault; what the template refuses is not."""
    for variables in trials:
        try:
            template.render(variables)
        except SandboxError as error:
            raise _fault(config, setting, error) from error
        except TemplateError:
            continue


def _fault(config: PipelineConfig, setting: str, error: TemplateError) -> ConfigError:
    """The error at its line in the YAML, or with the file that holds the template."""
    given = config.tokenizer.chat_template if setting == CHAT_TEMPLATE else config.prompt_template.template
    inline = given is not None and (setting == TEMPLATE or "{{" in given or "{%" in given)
    whose = "template" if inline else given or "the tokenizer's own template"
    message = f"{setting}: {whose}{str(error).removeprefix('template')}"
    return config.fault(setting, message, error.line - 1 if inline and error.line else None)
