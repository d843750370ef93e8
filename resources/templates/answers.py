"""What values are after a template has stripped or escaped them, and how they answer its questions.

Contents are Arrow columns, of which all rows are answered at once; the fields of a row are values of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.templates.trace import Answers, Ops, Question, as_object, dumped, structure

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
