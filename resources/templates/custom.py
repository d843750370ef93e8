"""Templates of the YAML: `custom` ones with `{column}` taken apart, and which columns any template names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError

_PART = re.compile(r"\{\{|\}\}|\{([^{}\n]*)\}|[{}]")


@dataclass(frozen=True)
class Part:
    """A literal, or a field (its name), at a line of the template."""

    text: str
    is_field: bool
    line: int


def without_final_newline(text: str) -> str:
    """The text without one final line break, the one that a YAML block adds."""
    return text[:-2] if text.endswith("\r\n") else text[:-1] if text.endswith("\n") else text


def parse_custom(config: PipelineConfig) -> list[Part]:
    """The parts of a custom template; `{{` and `}}` are literal braces.

    Raises:
        ConfigError: a single brace.
    """
    text = without_final_newline(config.prompt_template.template or "")
    parts: list[Part] = []
    literal, at = "", 0
    for match in _PART.finditer(text):
        literal += text[at : match.start()]
        at = match.end()
        line = text.count("\n", 0, match.start())
        if match.group() in ("{{", "}}"):
            literal += match.group()[0]
        elif match.group(1) is None or not match.group(1).strip():
            message = f"prompt_template.template: a lone {match.group()!r}; write {{{{ or }}}} for a literal brace"
            raise config.fault("prompt_template.template", message, line)
        else:
            parts += [Part(literal, False, line)] * bool(literal) + [Part(match.group(1).strip(), True, line)]
            literal = ""
    literal += text[at:]
    return parts + [Part(literal, False, text.count("\n"))] * bool(literal)


def field_names(config: PipelineConfig) -> dict[str, int]:
    """The columns that the template names, each with its line within the template; checks the label and inputs.

    Raises:
        ConfigError: the template cannot be parsed, or `label_column` and `input_columns` do not fit it.
    """
    prompt = config.prompt_template
    if prompt.format_type == "custom":
        found: dict[str, int] = {}
        for part in parse_custom(config):
            if part.is_field:
                found.setdefault(part.text, part.line)
        labels = [part for part in parse_custom(config) if part.is_field and part.text == prompt.label_column]
        if prompt.label_column and len(labels) != 1:
            message = f"the template holds {{{prompt.label_column}}} {len(labels)} times, not once"
            raise config.fault("prompt_template.label_column", f"prompt_template.label_column: {message}")
    else:
        from tokenloom.resources.templates.declared import undeclared

        found = undeclared(config)
        if prompt.label_column and prompt.label_column not in found:
            raise config.fault(
                "prompt_template.label_column",
                f"prompt_template.label_column: the template does not use {prompt.label_column}",
            )
    return _listed_inputs(config, found)


def _listed_inputs(config: PipelineConfig, found: dict[str, int]) -> dict[str, int]:
    """`found`, held against `input_columns` where those are given."""
    prompt = config.prompt_template
    if prompt.input_columns is None:
        return found
    unused = [name for name in prompt.input_columns if name not in found]
    setting = "prompt_template.input_columns"
    faults = [config.fault(setting, f"{setting}: the template does not use {name}") for name in unused]
    setting = "prompt_template.template"
    for name, line in found.items():
        if name not in prompt.input_columns and name != prompt.label_column:
            faults.append(config.fault(setting, f"{setting}: {name} is not among input_columns", line))
    if faults:
        raise ConfigError([fault.faults[0] for fault in faults])
    return found
