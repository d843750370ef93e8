"""What values are after a template has stripped or escaped them, and how they answer its questions.

Contents are Arrow columns, of which all rows are answered at once; the fields of a row are values of JSON.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.templates.trace import Answers, Ops, Question, dumped, structure

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

_ANSWERS: dict[str, Callable[[Any, Any], Any]] = {
    "in": operator.contains,
    "startswith": str.startswith,
    "endswith": str.endswith,
    "==": operator.eq,
    "filled": lambda text, _: bool(text),
    **{kind: getattr(operator, kind) for kind in _KERNELS if kind.startswith("__")},
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


def written(value: Any, ops: Ops) -> Any:
    """Return what a template writes for a field of a row: a text, a number, or an object in or as JSON."""
    if ops and ops[0][0] == "dumps":
        value, ops = dumped(json.loads(value) if isinstance(value, str) else value, ops[0][1]), ops[1:]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    for kind, given in ops:
        if kind == "length":
            return len(text)
        if kind == "json":
            text = json.dumps(text, ensure_ascii=given)[1:-1]
        else:
            text = text.lstrip(given) if kind == "left" else text.rstrip(given)
    return text


def answer_of(question: Question, value: Callable[[tuple[int, int]], Any]) -> Any:
    """Return how a row answers a question about one of its fields.

    Args:
        value: returns the row's value of a place.
    """
    own = value(question.source)
    match question.kind:
        case "structure":
            return structure(json.loads(own) if isinstance(own, str) else own)
        case "value":
            return json.dumps(own, ensure_ascii=False)
        case "same":
            place, ops = question.argument
            return written(own, question.ops) == written(value(place), ops)
    return _ANSWERS[question.kind](written(own, question.ops), question.argument)
