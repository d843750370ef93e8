"""Reads a YAML file into a `PipelineConfig` or, where it mixes datasets, a `MixtureConfig`, and tells a wrong one apart
fault by fault, each with its line."""

from __future__ import annotations

import difflib
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from tokenloom.config.dataset import DATASET_NAME, Constant, PipelineConfig
from tokenloom.config.mixture import MixtureConfig
from tokenloom.errors import ConfigError, Fault

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Location = tuple[str | int, ...]
Config = PipelineConfig | MixtureConfig

UNAVAILABLE: Mapping[str, frozenset[Any]] = {
    "compute.engine": frozenset({"ray"}),
}
"""Settings that this version refuses: the values listed, or any value but the default where none is listed."""


@dataclass(frozen=True)
class Origin:
    """Where a config came from: its file, and the line of every setting."""

    path: Path
    lines: Mapping[Location, int] = field(repr=False)
    blocks: frozenset[Location] = field(repr=False)
    text: str = field(repr=False)

    def place(self, location: Location, offset: int | None = None) -> str:
        """`file:line` of a setting, or of the nearest section around it that the file holds.

        Args:
            location: keys from the top of the file.
            offset: line offset inside a block of text, counted from the block's first line.
        """
        found = location
        while found and found not in self.lines:
            found = found[:-1]
        line = self.lines.get(found, 1)
        if offset is not None and found == location and found in self.blocks:
            line += 1 + offset
        return f"{self.path}:{line}"


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read and check one YAML file.

    Raises:
        ConfigError: one fault for each thing wrong.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError([Fault(str(path), f"no such file{_nearest_file(path)}")]) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError([Fault(str(path), f"cannot be read: {reason}")]) from None
    return parse_config(text, path)


def parse_config(text: str, path: Path) -> Config:
    """Check the text of one YAML file; `path` names it in messages and gives the dataset its default name."""
    try:
        node = yaml.compose(text, Loader=Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError([Fault(place, f"not valid YAML: {problem}")]) from None
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError([Fault(f"{path}:1", "expected settings such as `dataset:`, found something else")])
    lines: dict[Location, int] = {}
    blocks: set[Location] = set()
    faults = [Fault(f"{path}:{line}", message) for line, message in _record_lines(node, (), lines, blocks)]
    origin = Origin(path, lines, frozenset(blocks), text)
    if faults:
        raise ConfigError(faults)
    try:
        data = yaml.load(text, Loader=Loader)  # a safe loader: plain values only
    except yaml.YAMLError as error:
        raise ConfigError([Fault(str(path), f"not plain YAML: {getattr(error, 'problem', error)}")]) from None
    return check_config(data, origin)


def check_config(data: Mapping[str, Any], origin: Origin | None = None) -> Config:
    """Check settings; `origin` tells where they stand.

    Raises:
        ConfigError: one fault for each thing wrong, in file order.
    """
    model: type[Config] = PipelineConfig if data.get("mixture") is None else MixtureConfig
    try:
        config: Config = model.model_validate(data)
    except ValidationError as error:
        found = sorted(_faults(error, origin, model), key=lambda pair: pair[0])
        raise ConfigError([fault for _, fault in found]) from None
    config._origin = origin
    if not re.fullmatch(DATASET_NAME, config.dataset_name):
        message = f"name: {config.dataset_name!r} is no dataset's name; set `name:` to letters, digits, _, . and -"
        raise config.fault("name", message)
    refused = [
        config.fault(name, f"{name}: {_shown(value)} is not available in this version")
        for name, value in _unavailable(config)
    ]
    wrong = _idle(config) if isinstance(config, PipelineConfig) else config.contradictions()
    refused += [config.fault(name, f"{name}: {message}") for name, message in wrong]
    if refused:
        raise ConfigError([error.faults[0] for error in refused])
    return config


def _record_lines(
    node: yaml.Node, at: Location, lines: dict[Location, int], blocks: set[Location], depth: int = 0
) -> Iterator[tuple[int, str]]:
    """Fill `lines` with the line of every key and item; yield (line, message) for keys that occur twice."""
    if depth > 32:
        yield node.start_mark.line + 1, "nested too deeply"
        return
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            location = (*at, str(key.value))
            line = key.start_mark.line + 1
            if location in lines:
                yield line, f"{'.'.join(map(str, location))}: given twice, first on line {lines[location]}"
            lines.setdefault(location, line)
            if isinstance(value, yaml.ScalarNode) and value.style in ("|", ">"):
                blocks.add(location)
            yield from _record_lines(value, location, lines, blocks, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines.setdefault((*at, index), item.start_mark.line + 1)
            yield from _record_lines(item, (*at, index), lines, blocks, depth + 1)


def _faults(error: ValidationError, origin: Origin | None, model: type[Config]) -> Iterator[tuple[int, Fault]]:
    """One fault a setting, although pydantic reports one for each member of a union."""
    seen: set[Location] = set()
    for item in error.errors():
        location = _in_file(item["loc"], model)
        if location in seen:
            continue
        seen.add(location)
        place = origin.place(location) if origin else "config"
        line = int(place.rpartition(":")[2]) if origin else 0
        yield line, Fault(place, _sentence(item, location, model))


def _in_file(location: Location, model: Any) -> Location:
    """The part of a pydantic location that names settings, without the tags of union members."""
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
    """The model, list item's model, or None, that an annotation leads to; a mapping leads to none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) is dict:
        return None
    for inner in typing.get_args(annotation):
        if inner is not types.NoneType and (model := section_of(inner)) is not None:
            return model
    return None


def _sentence(item: Any, location: Location, model: type[Config]) -> str:
    name = ".".join(map(str, location)) or "the file"
    kind, given = item["type"], item.get("input")
    if kind == "extra_forbidden" and model is MixtureConfig and name in PipelineConfig.model_fields:
        return f"{name}: a mixture has none: it belongs into the YAML of a dataset that `mixture:` names"
    if kind == "extra_forbidden":
        return f"{name}: unknown setting{nearest(str(location[-1]), _settings_at(location[:-1], model))}"
    if kind == "invalid_key":
        return f"{name}: names of settings are text"
    if kind == "string_pattern_mismatch" and name == "dataset.reader.delimiter":
        return f"{name}: {_shown(given)} is not one ASCII character, other than a quote or a line break"
    if kind == "missing":
        return f"{name}: missing; it is required"
    takes = expected(location, model)
    if kind == "value_error":
        return f"{name}: {item['msg'].removeprefix('Value error, ')}"
    if isinstance(given, str) and takes.choices:
        return f"{name}: {given!r} is not one of {', '.join(takes.choices)}{nearest(given, takes.choices)}"
    if kind.startswith(("greater", "less", "string_too", "string_pattern")):
        return f"{name}: {_shown(given)}: {item['msg'][0].lower()}{item['msg'][1:]}"
    return f"{name}: expected {takes.text}, found {_shown(given)}"


@dataclass(frozen=True)
class Expected:
    """What a setting takes: in words, and its choices where it has a fixed list."""

    text: str
    choices: tuple[str, ...] = ()


_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "null"}


def expected(location: Location, model: Any = PipelineConfig) -> Expected:
    """What a setting of a kind of YAML takes."""
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
    parts = _words(annotation)
    choices = tuple(part for part in parts if part.startswith("\0"))
    named = [part.removeprefix("\0") for part in parts]
    return Expected(" or ".join(dict.fromkeys(named)), tuple(choice.removeprefix("\0") for choice in choices))


def _words(annotation: Any) -> list[str]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _words(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [word for inner in typing.get_args(annotation) for word in _words(inner)]
    if origin is typing.Literal:
        return [f"\0{choice}" for choice in typing.get_args(annotation)]
    if origin is tuple:
        return ["a list"]
    if origin is dict:
        return ["a mapping"]
    if annotation is Constant:
        return ["{constant: a value}"]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return ["settings"]
    return [_WORDS.get(annotation, "text")]


def _settings_at(location: Location, model: Any) -> list[str]:
    for part in location:
        if isinstance(part, str) and model is not None and part in model.model_fields:
            model = section_of(model.model_fields[part].annotation)
    return list(model.model_fields) if model is not None else []


def _shown(value: Any) -> str:
    shown = repr(value) if isinstance(value, str) else "null" if value is None else str(value)
    if isinstance(value, bool):
        shown = shown.lower()
    return shown if len(shown) <= 60 else shown[:57] + "…"


def nearest(given: str, names: Any) -> str:
    """`; did you mean …?` where a name is near, else nothing."""
    close = difflib.get_close_matches(given, list(names), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _nearest_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    return nearest(path.name, names)


def _idle(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    """Settings that others keep from having any effect, or any sense, and why."""
    length, longest = config.length, config.tokenizer.max_length
    if length.stride and length.strategy != "split":
        yield "length.stride", f"strategy: {length.strategy} makes no pieces that could overlap; set strategy: split"
    elif length.stride and length.packing == "concat":
        yield "length.stride", "packing: concat cuts without overlap; set packing: none or best_fit"
    elif length.stride >= longest:
        yield "length.stride", f"{length.stride} leaves no room for new tokens in max_length {longest}"
    if twice := [name for index, name in enumerate(length.give_up) if name in length.give_up[:index]]:
        yield "length.give_up", f"{twice[0]} is listed twice"


def _unavailable(config: Config) -> Iterator[tuple[str, Any]]:
    for name, values in UNAVAILABLE.items():
        holder: Any = config
        *sections, last = name.split(".")
        for section in sections:
            holder = getattr(holder, section)
        value = getattr(holder, last)
        default = type(holder).model_fields[last].get_default(call_default_factory=True)
        if value in values if values else value != default:
            yield name, value
