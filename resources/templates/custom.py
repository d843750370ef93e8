"""`custom` templates: plain text with `{column}` placeholders."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tokenloom.config import PipelineConfig

_PART = re.compile(r"\{\{|\}\}|\{([^{}\n]*)\}|[{}]")


@dataclass(frozen=True)
class Part:
    """A literal or a field (a column's name), with its line in the template, counted from 0."""

    text: str
    is_field: bool
    line: int


def without_final_newline(text: str) -> str:
    """Return the text without one final line break, the one that a YAML block adds."""
    return text[:-2] if text.endswith("\r\n") else text[:-1] if text.endswith("\n") else text


def parse_custom(config: PipelineConfig) -> list[Part]:
    """Split the YAML's custom template into literals and fields; `{{` and `}}` are literal braces.

    Raises:
        ConfigError: the template has an unmatched brace.
    """
    text = without_final_newline(config.prompt_template.template or "")
    parts: list[Part] = []
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
            parts += [Part(literal, False, line)] * bool(literal) + [Part(match.group(1).strip(), True, line)]
            literal = ""
    literal += text[at:]
    return parts + [Part(literal, False, text.count("\n"))] * bool(literal)
