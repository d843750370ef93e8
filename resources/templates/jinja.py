"""Compiles and renders Jinja templates in the sandbox, and finds where a template places each value.

`probe` renders a template once with traced values: it returns where each is placed, what the template strips from it,
and what it asks of it. The caller verifies the result against real renderings.
`parts` returns which columns each part of its text was made from.
Templates get the same environment as in `transformers`: block trimming, `raise_exception`, `strftime_now`, `tojson`,
loop controls and `{% generation %}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import chain, count
from traceback import walk_tb
from typing import Any, NamedTuple

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import pyarrow as pa

from tokenloom.errors import DeadlineError, SandboxError, TemplateError
from tokenloom.resources.templates import sandbox
from tokenloom.resources.templates.marks import (
    GENERATION,
    GENERATION_OPEN,
    MARKS,
    OUTLINED,
    Looks,
    Ops,
    applied,
    mark_of,
    ops_of,
)
from tokenloom.resources.templates.prefix_texts import ITEM_MARK, PrefixTexts, mark_items
from tokenloom.resources.templates.sandbox import MeteredContext, Sandbox
from tokenloom.resources.templates.trace import Traced, TracedPart, looking, parts_of, traced, with_marks, with_values
from tokenloom.resources.templates.traced_sandbox import TracedSandbox, trace, trace_looks

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Variables that every template gets."""

_DATES = datetime(2001, 2, 3, 4, 5, 6), datetime(2038, 11, 29, 18, 47, 58)
"""Two dates that differ in every part: a template whose text is the same on both does not depend on the date."""

_DATE_FORMATS = ("%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y", "%Y/%m/%d")
"""Formats of `date_string` that can mean one date only, next to ISO 8601."""

_SHOWN_DATE = 40
"""Characters of a `date_string` that is not a date, in messages."""

MOST_CHARACTERS, MOST_TOKENS = 1_000_000, 20_000
"""Largest template: characters, and tokens of its syntax. The longest published ones have 20,000 and 2,700."""

_OUTSIDE_LOOP = "{% break %} and {% continue %} must be in a loop, not in a block or macro within it"
_NESTED = "nested too deeply"
LOOKS = "_looks"
"""The variable with the `Looks` of a rendering whose values are tracked; templates do not get it."""


_blocks = count(1)
"""Numbers the generation blocks of all traced renderings."""


class _Generation(jinja2.ext.Extension):
    """The tags `{% generation %}…{% endgeneration %}` around the text that the model generates."""

    tags = {"generation"}  # noqa: RUF012

    def filter_stream(self, stream: Any) -> Iterator[Any]:
        """Limit the number of tokens: compiling a template takes time and memory for each."""
        for number, token in enumerate(stream):
            if number >= MOST_TOKENS:
                raise jinja2.TemplateSyntaxError(f"a template can have at most {MOST_TOKENS:,} tokens", token.lineno)
            yield token

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    @jinja2.pass_context
    def _mark(self, context: Any, caller: Any) -> str:
        if not isinstance(context.environment, TracedSandbox):
            return caller()
        return Traced(parts_of(caller())).made_from(frozenset([GENERATION]), block=next(_blocks))


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _date_as(date: str, form: str) -> str:
    """Return a date, in ISO 8601 or one of `_DATE_FORMATS`, in a format of `strftime`. If it has that, it is unchanged.

    Raises:
        SecurityError: the text is not a date.
    """
    for known in (form, None, *_DATE_FORMATS):
        try:
            read = datetime.strptime(date, known) if known else datetime.fromisoformat(date)
        except ValueError:
            continue
        if (written := read.strftime(form)) == date or known != form:
            return written
    shown = date if len(date) <= _SHOWN_DATE else f"{date[:_SHOWN_DATE]}…"
    raise jinja2.exceptions.SecurityError(
        f"it asks for a date as {form!r}, but prompt_template.date_string is {shown!r}; write it like 2024-07-26"
    )


def _environment(kind: type[Sandbox], date: str | datetime) -> Sandbox:
    environment = kind(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])

    def strftime_now(form: str) -> str:
        return _date_as(date, form) if isinstance(date, str) else date.strftime(form)

    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise, strftime_now=strftime_now)
    environment.meter()
    return environment


@lru_cache(maxsize=32)
def _compile(source: str, date: str | datetime) -> tuple[jinja2.Template, jinja2.nodes.Template, set[str]]:
    """Return the compiled template, its syntax tree, and the variables that it reads but does not set."""
    environment = _environment(Sandbox, date)
    try:
        tree = environment.parse(source)
        return environment.from_string(source), tree, jinja2.meta.find_undeclared_variables(tree)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"template, line {error.lineno}: {error.message}", error.lineno) from error
    except SyntaxError as error:  # from Python, in the code that Jinja generated
        outside_loop = "loop" in str(error.msg)
        raise TemplateError(f"template: {_OUTSIDE_LOOP if outside_loop else _NESTED}") from error
    except (RecursionError, MemoryError) as error:
        raise TemplateError(f"template: {_NESTED}") from error
    except (ValueError, OverflowError) as error:  # a number that Python cannot parse
        raise TemplateError(f"template: {error}") from error


@lru_cache(maxsize=32)
def _compile_traced(
    source: str, date: str | datetime, columns: tuple[str, ...] | None, trained: frozenset[str], marks_items: bool
) -> jinja2.Template | None:
    """Return the template so that it keeps the parts of traced values, and notes its looks at them.

    Args:
        columns, trained: as in `JinjaTemplate.parts`; None for contents and fields.
        marks_items: whether to mark messages; if the template does not write them one by one, the result is None.
    """
    environment = _environment(TracedSandbox, date)
    tree = environment.parse(source)
    if marks_items and not mark_items(tree, "messages"):
        return None
    if columns is None:
        trace_looks(tree, environment)
    else:
        trace(tree, columns, trained, environment)
    tree.set_environment(environment)
    try:
        return environment.from_string(tree)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise TemplateError(f"template: {_NESTED}") from error


@dataclass(frozen=True)
class Slot:
    """One part of a template's output: a value, or text of the template's own.

    Args:
        value: number of the value that is placed here, or -1 for the template's own text.
        text: the template's own text, or "".
        generated: number of the `{% generation %}` block around this part, counted from 1; 0 for none.
        column: number of this slot among the slots with a value, or -1.
        ops: what the template does to the value: strip characters, and escape it as `tojson` does, without the quotes.
    """

    value: int
    text: str
    generated: int
    column: int = -1
    ops: Ops = ()

    @property
    def escaped(self) -> bool:
        return any(kind == "json" for kind, _ in self.ops)

    @property
    def mark(self) -> str:
        """What an outline has here if its values are `tracked`."""
        return self.text if self.value < 0 else mark_of(self.value, self.ops)

    def place(self, values: pa.Array) -> pa.Array:
        """Return string values as the template writes them: stripped and escaped."""
        return applied(values, self.ops)


class Probed(NamedTuple):
    """The slots of a template's text, in output order, and what it asks of the values."""

    slots: list[Slot]
    looks: Looks


class JinjaTemplate:
    """A compiled template.

    Args:
        source: the template's text.
        date_string: the date that `strftime_now` writes in the format that the template asks for; None refuses texts
            that change with the date.

    Raises:
        TemplateError: the template has a syntax error, uses other templates, or is too large.
    """

    def __init__(self, source: str, date_string: str | None = None):
        if any(mark in source for mark in MARKS):
            raise TemplateError("template: private-use characters U+E0D0 to U+E0D3 are reserved; remove them")
        if len(source) > MOST_CHARACTERS:
            found = f"found {len(source):,}"
            raise TemplateError(f"template: a template can have at most {MOST_CHARACTERS:,} characters, {found}")
        self.source, self._date_string = source, date_string
        self._template, self._tree, self._names = _compile(source, _DATES[0] if date_string is None else date_string)
        self._read = frozenset(node.name for node in self._tree.find_all(jinja2.nodes.Name))
        texts = (node.value for node in self._tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str))
        self._mentioned = {*texts, *(node.attr for node in self._tree.find_all(jinja2.nodes.Getattr))}
        self._globals = dict(self._template.globals)
        dated = date_string is None and self.reads("strftime_now")
        self._another_day = _compile(source, _DATES[1])[0] if dated else None
        self.marks_generation = re.search(r"\{%-?\s*generation\b", source) is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return JinjaTemplate, (self.source, self._date_string)

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the text for these variables.

        Raises:
            SandboxError: the template tries to leave the sandbox, or does too much work.
            TemplateError: the template raises an error; the message names the line.
            DeadlineError: rendering takes `deadline.SECONDS`.
        """
        return self._run(variables)

    def prefixes(self, variables: Mapping[str, Any]) -> PrefixTexts | None:
        """Return the texts, or the outlines, for the beginnings of `messages`, or None if one text does not show them.

        Raises:
            TemplateError: the template refuses the variables.
        """
        marked = None if self._another_day is not None else self._traced(marks_items=True)
        if marked is None:
            return None
        text = self._run(variables)
        parts = self._outline(variables, variables.get(LOOKS) or Looks(), marked).split(ITEM_MARK)
        same = ITEM_MARK not in text and "".join(parts) == text
        return PrefixTexts(text, parts, len(variables["messages"])) if same else None

    def _traced(
        self, columns: tuple[str, ...] | None = None, trained: frozenset[str] = frozenset(), marks_items: bool = False
    ) -> jinja2.Template | None:
        date = _DATES[0] if self._date_string is None else self._date_string
        return _compile_traced(self.source, date, columns, trained, marks_items)

    def parts(
        self, variables: Mapping[str, Any], columns: Iterable[str], trained: frozenset[str]
    ) -> tuple[TracedPart, ...] | None:
        """Return the parts of the text, which know their columns; None if they do not join to the text.

        Args:
            columns: the variables to trace.
            trained: those that are trained; `GENERATION` for what generation blocks write.

        Raises:
            TemplateError: as `render` does.
        """
        text, template = self.render(variables), self._traced(tuple(columns), trained)
        values = {name: traced(variables[name], frozenset([name])) for name in columns}
        made = "" if template is None else self._text(template, template.globals, {**variables, **values})
        return parts_of(made) if str.__eq__(made, text) else None

    def opacity(self, variables: Iterable[Mapping[str, Any]]) -> str | None:
        """Return why the template does more with tracked values than place them and ask about them, or None.

        Args:
            variables: of which the first count that the template does not refuse.
        """
        for given in variables:
            looks = Looks()
            with suppress(TemplateError):
                self._run({**given, LOOKS: looks})
                return looks.reason
        return None

    def reads(self, name: str) -> bool:
        """Return whether the template uses a variable or function of this name."""
        return name in self._read

    def mentions(self, name: str) -> bool:
        """Return whether the template has this name or text anywhere in its expressions."""
        return name in self._mentioned

    @cached_property
    def roles(self) -> frozenset[str]:
        """The texts that the template compares the roles of messages with."""
        found: list[Any] = []
        for compared in self._tree.find_all(jinja2.nodes.Compare):
            inner = [compared.expr, *compared.find_all(jinja2.nodes.Node)]
            if any(_name_of(node) == "role" for node in inner):
                values = [node.value for node in inner if isinstance(node, jinja2.nodes.Const)]
                found += chain.from_iterable(value if isinstance(value, list | tuple) else [value] for value in values)
        return frozenset(name for name in found if isinstance(name, str) and name != "role")

    def undeclared(self, known: Collection[str] = ()) -> dict[str, int]:
        """Return the variables that the template expects, without special tokens, each with its first line.

        Args:
            known: the variables that it will get; only these can be ones that it also sets, as in a branch.
        """
        stored = {node.name for node in self._tree.find_all(jinja2.nodes.Name) if node.ctx != "load"}
        names = self._names - set(self._globals) - set(SPECIAL_TOKENS) - (stored - set(known))
        lines = dict.fromkeys(sorted(names), 1)
        for node in reversed(list(self._tree.find_all(jinja2.nodes.Name))):
            if node.name in lines:
                lines[node.name] = node.lineno
        return lines

    def probe(self, variables: Mapping[str, Any], looks: Looks | None = None) -> Probed:
        """Return the template's slots.

        Args:
            variables: the template's variables; values in them are `tracked`.
            looks: gets what the template asks of values, also if it then refuses them.

        Raises:
            TemplateError: the template refuses the values.
        """
        looks = looks or Looks()
        looks.marks_blocks = True
        text = self._run({**variables, LOOKS: looks})
        slots: list[Slot] = []
        at = blocks = generated = column = 0
        for match in OUTLINED.finditer(text):
            slots += [Slot(-1, text[at : match.start()], generated)] * (match.start() > at)
            at = match.end()
            if match[1] is not None:
                slots.append(Slot(int(match[1]), "", generated, column, ops_of(match[2])))
                column += 1
            else:
                blocks += match[3] == GENERATION_OPEN
                generated = blocks if match[3] == GENERATION_OPEN else 0
        return Probed(slots + [Slot(-1, text[at:], generated)] * (at < len(text)), looks)

    def _run(self, variables: Mapping[str, Any]) -> str:
        """Return the text; the outline if the variables have `LOOKS`."""
        if (looks := variables.get(LOOKS)) is not None:
            return self._outline(variables, looks, self._traced())
        text = self._text(self._template, self._globals, variables)
        other = self._another_day
        if other is None or self._text(other, dict(other.globals), variables) == text:
            return text
        line = next(node.lineno for node in self._tree.find_all(jinja2.nodes.Name) if node.name == "strftime_now")
        message = "it asks for today's date; set prompt_template.date_string to freeze it"
        raise SandboxError(f"template, line {line}: refused by the sandbox: {message}", line)

    def _outline(self, variables: Mapping[str, Any], looks: Looks, template: Any) -> str:
        variables = {name: value for name, value in variables.items() if name != LOOKS}
        if self._another_day is not None:
            self._run(variables)  # refuses a text that changes with the date
        try:
            with looking(looks, template.root_render_func.__globals__, template.get_corresponding_lineno):
                text = self._text(template, template.globals, with_values(variables))
        except TemplateError:
            self._text(self._template, self._globals, variables)  # its message names no traced types
            raise
        return with_marks(text, looks.marks_blocks)

    def _text(self, template: jinja2.Template, functions: Mapping[str, Any], variables: Mapping[str, Any]) -> str:
        context = MeteredContext(template.environment, {**functions, **variables})
        context.given = variables
        thread = sandbox.start(context)
        try:
            try:
                text: str = template.environment.concat(template.root_render_func(context))
            except DeadlineError:
                raise
            except BaseException:
                sandbox.stop(thread)
                raise
            sandbox.stop(thread)
            return text
        except Exception as error:  # a template can raise anything
            line = self._line(template, error)
            place = f"template, line {line}" if line else "template"
            if isinstance(error, DeadlineError):
                message = f"one row takes more than {sandbox.SECONDS} s; report the template, and use another one"
                raise DeadlineError(f"{place}: {message}") from error
            if isinstance(error, jinja2.exceptions.SecurityError | RecursionError | MemoryError | OverflowError):
                raise SandboxError(f"{place}: refused by the sandbox: {error}", line) from error
            own = isinstance(error, jinja2.TemplateError)
            raise TemplateError(f"{place}: {error if own else f'{type(error).__name__}: {error}'}", line) from error

    @staticmethod
    def _line(template: jinja2.Template, error: BaseException) -> int | None:
        """Return the template's line that raised an error, or None."""
        code = template.root_render_func.__globals__
        own = [line for frame, line in walk_tb(error.__traceback__) if frame.f_globals is code]
        return template.get_corresponding_lineno(own[-1]) if own else None


def _name_of(node: jinja2.nodes.Node) -> Any:
    """Return the name of the variable or field that an expression reads, or None."""
    match node:
        case jinja2.nodes.Name(name=name) | jinja2.nodes.Getattr(attr=name):
            return name
        case jinja2.nodes.Getitem(arg=jinja2.nodes.Const(value=name)):
            return name
    return None
