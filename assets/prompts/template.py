"""Templates of the YAML: `custom` ones with `{column}`, and which columns any template names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tokenloom.assets.prompts.spans import Piece
from tokenloom.config import PipelineConfig, PromptTemplateConfig
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
        from tokenloom.assets.prompts.jinja import undeclared

        found = undeclared(config)
        if prompt.label_column and prompt.label_column not in found:
            raise config.fault(
                "prompt_template.label_column",
                f"prompt_template.label_column: the template does not use {prompt.label_column}",
            )
    faults = [
        config.fault(
            "prompt_template.input_columns", f"prompt_template.input_columns: the template does not use {name}"
        )
        for name in prompt.input_columns or ()
        if name not in found
    ]
    if faults:
        raise ConfigError([fault.faults[0] for fault in faults])
    return found


def custom_layout(
    config: PipelineConfig, fields: list[str], control: tuple[str, ...], bos: str | None, eos: str | None
) -> list[Piece]:
    """The layout of a custom template: BOS, the parts, and EOS right after the answer.

    Args:
        fields: names of the columns, in the order in which `assemble` is given them.
        control: the tokenizer's control tokens, which count as such in the template's own text.
        bos, eos: tokens to add, or None.
    """
    prompt = config.prompt_template
    everything = 1.0 if prompt.train_on == "all" else 0.0
    pieces: list[Piece] = []
    for part in parse_custom(config):
        if not part.is_field:
            pieces += split_control(part.text, control, weight=everything)
        elif part.text == prompt.label_column:
            pieces.append(Piece(None, fields.index(part.text), "answer", weight=1.0))
            pieces += [Piece(eos, role="answer", weight=1.0, control=True)] * bool(eos)
        else:
            pieces.append(Piece(None, fields.index(part.text), "input", weight=everything))
    if prompt.label_column is None and eos:
        pieces.append(Piece(eos, weight=1.0, control=True))
    return with_bos(pieces, bos)


def with_bos(pieces: list[Piece], bos: str | None) -> list[Piece]:
    """The pieces behind exactly one BOS: the template's own where it begins with one, but for white space."""
    solid = (piece for piece in pieces if piece.control or piece.text is None or piece.text.strip())
    first = next(solid, None)
    if bos is None or (first is not None and first.control and first.text == bos):
        return pieces
    return [Piece(bos, control=True), *pieces]


def split_control(text: str, control: tuple[str, ...], **attributes: float | int | str) -> list[Piece]:
    """A literal of a template as pieces, its control tokens apart."""
    if not control or not text:
        return [Piece(text, **attributes)] * bool(text)  # pyright: ignore[reportArgumentType]
    longest_first = "|".join(re.escape(token) for token in sorted(control, key=lambda token: (-len(token), token)))
    names = set(control)
    return [
        Piece(part, control=part in names, **attributes)  # pyright: ignore[reportArgumentType]
        for part in re.split(f"({longest_first})", text)
        if part
    ]


def roles_trained(prompt: PromptTemplateConfig) -> frozenset[str]:
    """Roles whose messages are trained, for `train_on` other than `last`."""
    if prompt.train_on == "all":
        return frozenset({"system", "user", "assistant", "tool"})
    if isinstance(prompt.train_on, tuple):
        return frozenset(prompt.train_on)
    return frozenset({"assistant"})
