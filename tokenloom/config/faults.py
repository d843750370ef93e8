"""Faults of a config: turns Pydantic's errors into one sentence per setting, each with its place in the file."""

from __future__ import annotations

import re
import reprlib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from tokenloom.config.schema import Constant
from tokenloom.config.yaml_file import LARGEST_NUMBER, MOST_FAULTS, MOST_SHOWN, Location, Origin, more_faults
from tokenloom.errors import Fault, did_you_mean


def setting_fault(origin: Origin | None, setting: str, message: str, offset: int | None = None) -> Fault:
    """Return the fault of one setting.

    Args:
        origin: the config's file; None: the config came from Python, and the setting is its own place.
        setting: dotted name; the message is prefixed with it unless it already starts with it.
        message: what is wrong, and what to do about it.
        offset: line inside a block of text, counted from 0.
    """
    message = message if message.startswith(setting) else f"{setting}: {message}"
    location = tuple(int(part) if part.isdecimal() else part for part in setting.split("."))
    return Fault(f"{origin.path}:{origin.line(location, offset)}" if origin else setting, message)


def validation_faults(
    error: ValidationError, origin: Origin | None, model: type[BaseModel], misplaced: Mapping[str, str]
) -> list[Fault]:
    """Return one fault per setting, in file order, although Pydantic reports one per member of a union.

    Args:
        misplaced: error messages for settings that `model` does not have but another kind of YAML does, by name.
    """
    found: dict[Location, tuple[int, Any]] = {}
    for item in error.errors(include_url=False):
        location = _in_file(item["loc"], model)
        if location not in found:
            found[location] = origin.line(location) if origin else 0, item
    in_order = sorted(found.items(), key=lambda pair: pair[1][0])
    faults = [
        Fault(f"{origin.path}:{line}" if origin else "config", _sentence(item, location, model, misplaced))
        for location, (line, item) in in_order[:MOST_FAULTS]
    ]
    more = len(in_order) - MOST_FAULTS
    return [*faults, more_faults(str(origin.path) if origin else "config", more)] if more > 0 else faults


def _in_file(location: Location, model: Any) -> Location:
    """Return the part of a Pydantic location that names settings, without the tags of union members."""
    kept: list[str | int] = []
    for at, part in enumerate(location):
        fields = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
        if part in fields:
            if typing.get_origin(fields[part].annotation) is dict:
                return location[: at + 2]
            model = section_of(fields[part].annotation)
        elif not isinstance(part, int) and not fields:
            break
        kept.append(part)
    return tuple(kept)


def section_of(annotation: Any) -> Any:
    """Return the model that an annotation, or the items of a list, refers to; None for mappings and plain values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) is dict:
        return None
    for inner in typing.get_args(annotation):
        if inner is not types.NoneType and (model := section_of(inner)) is not None:
            return model
    return None


def _sentence(item: Any, location: Location, model: type[BaseModel], misplaced: Mapping[str, str]) -> str:
    name = ".".join(map(str, location)) or "the file"
    kind, given = item["type"], item.get("input")
    if kind == "extra_forbidden":
        unknown = f"unknown setting{did_you_mean(str(location[-1]), _settings_at(location[:-1], model))}"
        return f"{name}: {misplaced.get(name, unknown)}"
    if kind == "invalid_key":
        return f"{name}: names of settings must be text"
    if kind == "string_pattern_mismatch" and name == "dataset.reader.delimiter":
        return f"{name}: must be one ASCII character other than a quote or a line break, got {shown(given)}"
    if kind == "missing":
        return f"{name}: missing; it is required"
    takes = expected(location, model)
    if kind == "value_error":
        return f"{name}: {item['msg'].removeprefix('Value error, ')}"
    if isinstance(given, str) and takes.choices:
        return f"{name}: {shown(given)} is not one of {', '.join(takes.choices)}{did_you_mean(given, takes.choices)}"
    if kind.startswith(("greater", "less", "string_too", "string_pattern")):
        return f"{name}: {re.sub('^(Input|String) should', 'must', item['msg'])}, got {shown(given)}"
    return f"{name}: expected {takes.text}, got {shown(given)}"


@dataclass(frozen=True)
class Expected:
    """The values that a setting takes: in words, and as choices if there is a fixed list."""

    text: str
    choices: tuple[str, ...] = ()


_WORDS = {str: "text", int: "an integer", float: "a number", bool: "true or false", types.NoneType: "null"}


def expected(location: Location, model: Any) -> Expected:
    """Return the values that a setting takes.

    Args:
        model: the kind of YAML, such as `PipelineConfig`.
    """
    annotation: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        if typing.get_origin(annotation) is dict:
            annotation = typing.get_args(annotation)[1]
            break
        if model is None or part not in model.model_fields:
            return Expected("text")
        annotation = model.model_fields[part].annotation
        model = section_of(annotation)
    if location and isinstance(location[-1], int):
        return Expected("text" if model is None else "settings")
    literals, words = [], []
    for word, is_literal in _words(annotation):
        words.append(word)
        literals += [word] if is_literal else []
    return Expected(" or ".join(dict.fromkeys(words)), tuple(literals))


def _words(annotation: Any) -> list[tuple[str, bool]]:
    """Return the words for an annotation's values, and whether each is a literal value."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _words(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [word for inner in typing.get_args(annotation) for word in _words(inner)]
    if origin is typing.Literal:
        return [(str(choice), True) for choice in typing.get_args(annotation)]
    if origin is tuple:
        return [("a list", False)]
    if origin is dict:
        return [("a mapping", False)]
    if annotation is Constant:
        return [("{constant: a value}", False)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [("settings", False)]
    return [(_WORDS.get(annotation, "text"), False)]


def _settings_at(location: Location, model: Any) -> list[str]:
    for part in location:
        if isinstance(part, str) and model is not None and part in model.model_fields:
            model = section_of(model.model_fields[part].annotation)
    return list(model.model_fields) if model is not None else []


_short = reprlib.Repr()
_short.maxlist = _short.maxdict = _short.maxtuple = 9
_short.maxstring = _short.maxother = 60


def shown(value: Any) -> str:
    """Return a value as YAML users know it, shortened to 60 characters."""
    if isinstance(value, bool | None):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int) and value.bit_length() > LARGEST_NUMBER:
        return f"an integer of {value.bit_length():,} bits"
    text = repr(value[:MOST_SHOWN]) if isinstance(value, str) else _short.repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
