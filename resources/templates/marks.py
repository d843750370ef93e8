"""What a template can be asked about values, and the marks that stand for values in its variables and its outlines.

Contents stand there as marks with their number; a field of a row stands as a `Standing`, which knows what the row that
is rendered has there. The questions are answered for whole columns: Arrow's kernels search, compare, strip and escape
the values of all rows at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from threading import Lock
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

GENERATION = "{% generation %}"
"""Counts as a column: all that generation blocks write is made from it."""

Op = tuple[str, Any]
"""What is done to a text: ("left", chars) and ("right", chars) strip characters, None for white space, from a side;
("json", ascii) escapes it as JSON does, without the quotes; ("length", None) counts its characters; ("dumps", options)
writes an object as JSON, indented by a number of spaces more."""

Ops = tuple[Op, ...]


class Question(NamedTuple):
    """What a template asks of a value.

    Args:
        source: which value: the number of a content, or the `place` of a field.
        ops: what is done to it before.
        kind: one of `in`, `startswith`, `endswith`, `==`, `filled`, or Python's name of a comparison with a number; of
            fields also `same`, `value` and `structure`.
        argument: what it is compared with, or what is searched for.
    """

    source: Any
    ops: Ops
    kind: str
    argument: Any


Answers = dict[Question, Any]


@dataclass
class Looks:
    """What a template asks of contents while it is rendered.

    Args:
        answers: the questions, in order, with their answers.
        reason: why these do not show what the template does with other contents; None if they do.
        marks_blocks: whether the outline has marks around generation blocks.
    """

    answers: Answers = field(default_factory=dict)
    reason: str | None = None
    marks_blocks: bool = False


class Standing(str):
    """A text that stands for a field: a value of a call, a tool or a message that is not a content.

    An argument of a call stands in the messages of an outline as text, or as an object: `{standing: 0}`.

    Attributes:
        value: what the row that is rendered has there.
        place: the field's number among those of its row, and within an object that it is in, or -1.
        answers: where questions about it are noted.
        is_object: whether each row has an object there, or the JSON text of one.
    """

    value: Any
    is_object: bool = False
    place: tuple[int, int]
    answers: Answers

    @classmethod
    def of(cls, value: Any, number: int, answers: Answers, inner: int = -1) -> Standing:
        made = cls(f"{FIELD_OPEN}{number}{f'/{inner}' * (inner >= 0)}{FIELD_CLOSE}")
        made.value, made.place, made.answers = value, (number, inner), answers
        return made


MARK_OPEN, MARK_CLOSE = "\ue0d0", "\ue0d1"
GENERATION_OPEN, GENERATION_CLOSE = "\ue0d2", "\ue0d3"
FIELD_SIGNS = FIELD_OPEN, FIELD_CLOSE, TRACKS = "\ue0d8", "\ue0d9", "\ue0da"
"""Separates the number of a tracked value from that of what is done to it; no template searches for it."""

MARKS = (MARK_OPEN, MARK_CLOSE, GENERATION_OPEN, GENERATION_CLOSE)
"""Private-use characters that mark contents and generation blocks in outlines."""

MARK = re.compile(f"{MARK_OPEN}([0-9]+){MARK_CLOSE}")
TRACKED = re.compile(f"{MARK_OPEN}([0-9]+){TRACKS}([^{MARK_CLOSE}]*){MARK_CLOSE}")
"""A tracked content in a template's variables: its number, and the text that the template gets; "" for a mark."""
OUTLINED = re.compile(f"{MARK_OPEN}([0-9]+)(?:{TRACKS}([0-9]*))?{MARK_CLOSE}|([{GENERATION_OPEN}{GENERATION_CLOSE}])")
"""The marks of an outline: the number of a content and of what is done to it, or that of a generation block."""
FIELDS = re.compile(f"{FIELD_OPEN}([0-9]+)(?:/([0-9]+))?(?:{TRACKS}([0-9]+))?{FIELD_CLOSE}")
"""The marks of fields: their number, that within an object, and that of what is done to them."""

_OPS: list[Ops] = [()]
_NUMBER_OF: dict[Ops, int] = {(): 0}
_NUMBERING = Lock()


def number_of(ops: Ops) -> int:
    with _NUMBERING:  # several threads render at once, and a number stands for the same for all
        if ops not in _NUMBER_OF:
            _NUMBER_OF[ops] = len(_OPS)
            _OPS.append(ops)
        return _NUMBER_OF[ops]


def ops_of(number: str | None) -> Ops:
    """Return what is done to the value of a mark."""
    return _OPS[int(number or 0)]


def mark(number: int) -> str:
    """Return the mark of a content in an outline that does not show what is done to contents."""
    return f"{MARK_OPEN}{number}{MARK_CLOSE}"


def tracked(number: int, text: str = "") -> str:
    """Return what stands for a content in a template's variables, and shows in outlines what is done to it.

    Args:
        text: what the template gets for it; default: a mark, for which no template searches.
    """
    return f"{MARK_OPEN}{number}{TRACKS}{text}{MARK_CLOSE}"


def with_tracked(value: Any, texts: Sequence[str]) -> Any:
    """Return messages with tracked texts in place of the marks of contents. Other marks stay."""
    if isinstance(value, str):
        by_number = dict(enumerate(texts))
        return MARK.sub(lambda match: by_number.get(int(match[1])) or match[0], value)
    if isinstance(value, dict):
        return {name: with_tracked(inner, texts) for name, inner in value.items()}
    return [with_tracked(inner, texts) for inner in value] if isinstance(value, list) else value


def bare(text: str) -> str:
    """Return an outline, or a text of a template's variables, with a `mark` in place of each tracked content."""
    return TRACKED.sub(lambda match: mark(int(match[1])), text)


def mark_of(source: int | Standing, ops: Ops) -> str:
    """Return what an outline has in place of a value to which something is done."""
    if isinstance(source, int):
        return f"{MARK_OPEN}{source}{TRACKS}{number_of(ops)}{MARK_CLOSE}"
    return f"{source[:-1]}{TRACKS}{number_of(ops)}{FIELD_CLOSE}" if ops else str(source)


def is_tracked(variables: Any) -> bool:
    """Return whether a template's variables have tracked contents or fields."""
    text = json.dumps(variables, ensure_ascii=False, default=str)
    return TRACKS in text or FIELD_OPEN in text


def is_field(value: Any) -> bool:
    """Return whether a value can differ between rows: a text without white space around it, or a number."""
    if isinstance(value, str):
        return bool(value) and value == value.strip()
    return type(value) is int or (type(value) is float and isfinite(value))


def with_fields(value: Any, put: Callable[[Any], Any]) -> Any:
    """Return a value of JSON with others in place of its fields, in order."""
    if isinstance(value, dict):
        return {name: with_fields(inner, put) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_fields(inner, put) for inner in value]
    return put(value) if is_field(value) else value


def kind_of_field(value: Any) -> str:
    """Return a text that rows must share in place of a field."""
    sign = type(value).__name__[0] if not isinstance(value, str) else "q" if QUOTED.search(value) else "s"
    return f"{FIELD_OPEN}{sign}"


def structure(value: Any) -> str:
    """Return the JSON text of a value, with what rows must share in place of its fields."""
    return json.dumps(with_fields(value, kind_of_field), ensure_ascii=False)


QUOTED = re.compile(r'["\\\x00-\x1f]')
"""What JSON escapes."""


def as_object(value: Any) -> Any:
    """Return an object that is given as such, or as its JSON text."""
    return json.loads(value) if isinstance(value, str) else value


def dumped(value: Any, options: Any) -> str:
    """Return an object as JSON, given the argument of an operation `dumps`."""
    indented, given = options
    return json.dumps(value, **dict(given)).replace("\n", "\n" + " " * indented)


WHITE_SPACE = "".join(char for char in map(chr, range(0x3001)) if char.isspace())
"""The characters that Python's `str.strip` strips, and therefore Jinja's `trim`."""

_KERNELS: dict[str, Callable[[pa.Array, Any], pa.Array]] = {
    "in": pc.match_substring,
    "startswith": pc.starts_with,
    "endswith": pc.ends_with,
    "==": pc.equal,
    "filled": lambda values, _: pc.not_equal(values, ""),
    "__eq__": pc.equal,
    "__ne__": pc.not_equal,
    "__lt__": pc.less,
    "__le__": pc.less_equal,
    "__gt__": pc.greater,
    "__ge__": pc.greater_equal,
}


def applied(values: pa.Array, ops: Ops) -> pa.Array:
    """Return string values [n] stripped and escaped, or their lengths, int32 [n]."""
    for kind, given in ops:
        if kind == "json":
            values = _escaped(values, given)
        elif kind == "length":
            values = pc.utf8_length(values)
        elif given != "":
            strip = pc.utf8_ltrim if kind == "left" else pc.utf8_rtrim
            values = strip(values, characters=WHITE_SPACE if given is None else given)
    return values


def answers_alike(answers: Answers, values: Sequence[pa.Array]) -> pa.Array | None:
    """Return bool [rows], which rows answer a template's questions as the rendered contents did; None for all.

    Args:
        values: string arrays [rows], by number of the content.
    """
    alike = None
    for (source, ops, kind, argument), answer in answers.items():
        same = pc.equal(_KERNELS[kind](applied(values[source], ops), argument), answer)
        alike = same if alike is None else pc.and_(alike, same)
    return alike


def _escaped(values: pa.Array, ascii: bool) -> pa.Array:
    """Return strings escaped as in JSON, without the quotes."""
    if ascii:
        return pa.array([json.dumps(value)[1:-1] for value in values.to_pylist()], pa.string())
    controls = [chr(code) for code in range(32)]
    any_control = pc.any(pc.match_substring_regex(values, r"[\x00-\x1f]"), min_count=0).as_py()
    for char in ("\\", '"', *(controls if any_control else ())):
        values = pc.replace_substring(values, char, json.dumps(char)[1:-1])
    return values


def written(values: Sequence[Any], ops: Ops) -> pa.Array:
    """Return what a template writes for fields [n], which are values of JSON: strings [n]."""
    if ops and ops[0][0] == "dumps":
        values, ops = [dumped(as_object(value), ops[0][1]) for value in values], ops[1:]
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
    return applied(pa.array(texts, pa.string()), ops)


def answered(question: Question, values: Callable[[tuple[int, int]], Sequence[Any]]) -> list[Any]:
    """Return how rows answer a question about one of their fields.

    Args:
        values: returns the fields of all rows in a place.
    """
    own = values(question.source)
    match question.kind:
        case "structure":
            return [structure(as_object(value)) for value in own]
        case "value":
            return [json.dumps(value, ensure_ascii=False) for value in own]
        case "same":
            place, ops = question.argument
            return pc.equal(written(own, question.ops), written(values(place), ops)).to_pylist()
    return _KERNELS[question.kind](written(own, question.ops), question.argument).to_pylist()
