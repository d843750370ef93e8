"""Source expressions: the values of `dataset.column_mapping`, which define where a role's values come from.

An expression is a column or path; a template, which is text with `{path}` in it; a choice, such as `choices[{answer}]`
or `choices.text[choices.label={key}]`; or a constant.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from tokenloom.config import Constant
from tokenloom.resources.tables.nested_paths import QUOTED, Path, parse_path

_PATH = rf"(?:{QUOTED}|[^{{}}`])+"
_PART = re.compile(rf"\{{\{{|\}}\}}|\{{({_PATH})\}}|[{{}}]")
_LABELS = rf"(?:{QUOTED}|[^{{}}`\[\]=]|\[-?\d+\])+"
_CHOICE = re.compile(rf"({_PATH}?)\[(?:({_LABELS})=)?\{{({_PATH})\}}\]")
_STYLED = re.compile(rf"({_PATH}):([^`:]*)")
_WHOLLY_QUOTED = re.compile(rf"(?:(?:^|\.)(?:{QUOTED}|[^`{{}}.\[]+)|\[-?\d+\])+")
STYLES = ("lines", "letters", "next_line", "turns", "functions")


@dataclass(frozen=True)
class Placeholder:
    """A path inside a template.

    Args:
        style: how a list of texts is laid out: `lines`, one per line, or `letters`, as "A. …", "B. …". `next_line`: as
            `lines`, after a line break, or nothing if there is no text.
    """

    path: Path
    style: str = "lines"

    def __str__(self) -> str:
        return f"{{{self.path}{'' if self.style == 'lines' else f':{self.style}'}}}"


@dataclass(frozen=True)
class Turns:
    """A list of texts, or of [question, answer], as messages: the first is the user's, and speakers alternate.

    Args:
        style: `turns`; or `functions`: tools, of which those without a type are written as `{"type": "function",
            "function": …}`.
    """

    path: Path
    style: str = "turns"

    def __str__(self) -> str:
        return f"{{{self.path}:{self.style}}}"


@dataclass(frozen=True)
class Template:
    """Literal text and placeholders."""

    parts: tuple[str | Placeholder, ...]

    def __str__(self) -> str:
        shown = (p if isinstance(p, Placeholder) else p.replace("{", "{{").replace("}", "}}") for p in self.parts)
        return "".join(map(str, shown))


@dataclass(frozen=True)
class Choice:
    """One item of each row's list.

    Args:
        items: the list.
        key: the item's index or letter, or its label.
        labels: a list of labels in which to look up `key`; default: `key` is an index or letter.
    """

    items: Path
    key: Path
    labels: Path | None = None

    def __str__(self) -> str:
        return f"{self.items}[{f'{self.labels}=' if self.labels else ''}{{{self.key}}}]"


@dataclass(frozen=True)
class WithContext:
    """A prompt followed by a blank line and a context, which can be empty."""

    prompt: SourceExpression
    context: SourceExpression

    def __str__(self) -> str:
        return str(self.prompt)


SourceExpression = Path | Template | Turns | Choice | Constant | WithContext


def parse_source(text: str | Constant, columns: Collection[str] = ()) -> SourceExpression:
    """Parse an expression for a dataset with these columns. Text that is the name of a column always means that column.

    `str(source)` parses back to the same source without knowing the columns.

    Raises:
        ValueError: a brace is not matched, the style after a colon is unknown, or text follows a choice.
    """
    if isinstance(text, Constant):
        return text
    if text in columns or not re.search(r"[{}]", text) or _WHOLLY_QUOTED.fullmatch(text):
        return parse_path(text, columns)
    if match := _CHOICE.fullmatch(text):
        items, labels, key = match.groups()
        label_path = parse_path(labels, columns) if labels else None
        return Choice(parse_path(items, columns), parse_path(key, columns), label_path)
    if (start := _CHOICE.match(text)) and parse_path(start.group(1), columns).column in columns:
        raise ValueError(
            f"{text!r}: nothing can follow a choice; put a field of the chosen item before the brackets, "
            f"e.g. {start.group(1)}.text[{{{start.group(3)}}}]"
        )
    parts = tuple(_joined(_template_parts(text, columns)))
    styles = ("turns", "functions")
    turns = [Turns(part.path, part.style) for part in parts if isinstance(part, Placeholder) and part.style in styles]
    if turns and len(parts) > 1:
        what = "a conversation" if turns[0].style == "turns" else "tools"
        raise ValueError(f"{text!r}: {turns[0]} is {what}, to which no text can be added")
    return turns[0] if turns else Template(parts)


def with_context(sources: Mapping[str, SourceExpression]) -> dict[str, SourceExpression]:
    """Return sources with the context, if there is one, as part of the prompt."""
    joined = dict(sources)
    context = joined.pop("context", None)
    return joined if context is None else {**joined, "prompt": WithContext(joined["prompt"], context)}


def paths_of(source: SourceExpression) -> tuple[Path, ...]:
    """Return all paths that a source reads."""
    if isinstance(source, WithContext):
        return (*paths_of(source.prompt), *paths_of(source.context))
    if isinstance(source, Template):
        return tuple(part.path for part in source.parts if isinstance(part, Placeholder))
    if isinstance(source, Choice):
        return (source.items, source.key, *((source.labels,) if source.labels else ()))
    if isinstance(source, Turns):
        return (source.path,)
    return (source,) if isinstance(source, Path) else ()


def _template_parts(text: str, columns: Collection[str]) -> Iterator[str | Placeholder]:
    at = 0
    for match in _PART.finditer(text):
        yield text[at : match.start()]
        at = match.end()
        inner = match.group(1)
        if match.group() in ("{{", "}}"):
            yield match.group()[0]
        elif inner is None or not inner.strip():
            raise ValueError(f"unmatched {match.group()[0]!r}; write {{{{ or }}}} for a literal brace")
        else:
            yield _placeholder(inner if inner in columns else inner.strip(), columns)
    yield text[at:]


def _placeholder(text: str, columns: Collection[str]) -> Placeholder:
    if text in columns or not (styled := _STYLED.fullmatch(text)):
        return Placeholder(parse_path(text, columns))
    name, style = styled.groups()
    if style not in STYLES:
        raise ValueError(
            f"{{{text}}}: unknown style {style!r}; use letters, next_line, turns or functions, or put a name with a "
            "colon in backticks"
        )
    return Placeholder(parse_path(name, columns), style)


def _joined(parts: Iterator[str | Placeholder]) -> Iterator[str | Placeholder]:
    """Yield the parts with adjacent literals joined."""
    literal = ""
    for part in parts:
        if isinstance(part, str):
            literal += part
            continue
        if literal:
            yield literal
        literal = ""
        yield part
    if literal:
        yield literal
