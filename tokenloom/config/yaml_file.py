"""Reads a YAML file into settings, remembers the line of each one, and says each fault in one sentence with its
place.
"""

from __future__ import annotations

import errno
import os
import re
import reprlib
import stat
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from tokenloom.config.schema import Constant
from tokenloom.errors import ConfigError, Fault, did_you_mean

CHOICE = "# Choice "
"""Start of the first line of a choice. It ends before the first line that is not a comment."""


def check_no_open_choice(settings: Mapping[str, Any], text: str, path: Path) -> None:
    """Refuse a YAML that offers choices of which none is uncommented.

    Args:
        settings: the settings of the YAML.
        text: its text.

    Raises:
        ConfigError: the message names the lines of each choice.
    """
    if "tokenizer" in settings or "prompt_template" in settings or CHOICE not in text:
        return
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(CHOICE)]
    spans = []
    for start in starts:
        end = next((n for n in range(start, len(lines)) if not lines[n].startswith("#")), len(lines))
        spans.append(f"{start + 2} to {end}")
    if spans:
        listed = " or ".join(filter(None, [", ".join(spans[:-1]), spans[-1]]))
        message = f"choose which columns to train on: remove the '# ' before each of lines {listed}"
        raise ConfigError.at(f"{path}:{starts[0] + 1}", message)


def open_regular(path: str, flags: int) -> int:
    """Open a regular file, as `opener` of `open`; for others raise an OSError, without waiting for a pipe's writer."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file", path)


def read_small_file(path: Path, largest: int) -> bytes:
    """Return the content of a regular file.

    Args:
        largest: limit in bytes.

    Raises:
        OSError: it cannot be read, is not a regular file, or is larger; `strerror` says which.
    """
    with open(path, "rb", opener=open_regular) as file:
        found = os.fstat(file.fileno())
        content = file.read(largest + 1) if found.st_size <= largest else b""
    if max(found.st_size, len(content)) > largest:
        raise OSError(errno.EFBIG, f"larger than {largest >> 20} MiB", str(path))
    return content


def read_small_text(path: Path, largest: int) -> str:
    r"""Return the text of a regular file, with `\n` for every line end, as Python reads text files.

    Raises:
        OSError: as for `read_small_file`.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_small_file(path, largest).decode().replace("\r\n", "\n").replace("\r", "\n")


Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Location = tuple[str | int, ...]
"""Keys and list indexes that lead to a setting, from the top of the file."""

SUFFIXES = (".yaml", ".yml")

LARGEST_FILE = 4 << 20
"""Most bytes that a file can have."""

DEEPEST = 32
"""Most levels of nesting that a file can have."""

MOST_NODES, MOST_CHARACTERS = 100_000, 2 * LARGEST_FILE
"""Most values, and most characters in them, that a file can have, counting those of aliases at each use."""

LONGEST_NAME = 1000
"""Most characters of the name of a setting."""

LARGEST_NUMBER = 256
"""Most bits of an integer."""

MOST_FAULTS, MOST_SHOWN = 50, 80
"""Most faults reported for one file, and most characters of a value that a message shows."""

_KINDS = {"int": "integer", "float": "number", "timestamp": "timestamp", "binary": "binary value", "bool": "boolean"}


@dataclass(frozen=True)
class Origin:
    """Where a config came from: its file, and the line of every setting."""

    path: Path
    lines: Mapping[Location, int] = field(repr=False)
    blocks: frozenset[Location] = field(repr=False)

    def line(self, location: Location, offset: int | None = None) -> int:
        """Return the line of a setting, or of the nearest enclosing section in the file, counted from 1.

        Args:
            location: keys from the top of the file.
            offset: line inside a block of text (`|` or `>`), counted from 0.
        """
        nearest = location
        while nearest and nearest not in self.lines:
            nearest = nearest[:-1]
        line = self.lines.get(nearest, 1)
        return line + 1 + offset if offset is not None and nearest == location and nearest in self.blocks else line


def is_yaml(path: str | Path) -> bool:
    """Return whether a path has the suffix of a YAML file."""
    return Path(path).suffix in SUFFIXES


def read_yaml(path: Path) -> tuple[dict[str, Any], Origin]:
    """Read the settings of a YAML file.

    Raises:
        ConfigError: the file cannot be read, or does not hold settings.
    """
    try:
        text = read_small_file(path, LARGEST_FILE).decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError.at(str(path), f"no such file{_similar_file(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise _data(path) or ConfigError.at(str(path), f"cannot be read: {reason}") from None
    try:
        settings, origin = parse_yaml(text, path)
    except ConfigError as error:
        raise _data(path) or error from None
    if not {"dataset", "mixture"} & settings.keys() and (data := _data(path)):
        raise data
    return settings, origin


def _data(path: Path) -> ConfigError | None:
    """Return what to tell if a file without settings is data rather than a YAML, judged by its name."""
    if is_yaml(path):
        return None
    return ConfigError.at(str(path), f"is not a YAML file of settings; if it is data, run: tokenloom inspect {path}")


def parse_yaml(text: str, path: Path) -> tuple[dict[str, Any], Origin]:
    """Parse the text of a YAML file.

    Args:
        path: the file, for error messages and the default name of the dataset.

    Raises:
        ConfigError: the text is not YAML, is too large with its aliases expanded, does not hold settings, sets one
            twice, or leaves a choice of `tokenloom inspect` open.
    """
    try:
        check_expansion(text, path)
        node = yaml.compose(text, Loader=Loader)
    except (yaml.YAMLError, ValueError) as error:  # the loader raises ValueError for impossible code points
        raise _not_yaml(error, path) from None
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError.at(f"{path}:1", f"expected settings such as `dataset:`, got {_kind(node)}")
    lines: dict[Location, int] = {}
    blocks: set[Location] = set()
    constructor = Loader("")  # a safe loader: plain values only
    faults = [Fault(f"{path}:{line}", message) for line, message in _record_lines(node, (), lines, blocks, constructor)]
    if faults:
        more = len(faults) - MOST_FAULTS
        raise ConfigError([*faults[:MOST_FAULTS], more_faults(str(path), more)] if more > 0 else faults)
    try:
        settings = constructor.construct_document(node)
    except yaml.YAMLError as error:
        raise _not_yaml(error, path) from None
    check_no_open_choice(settings, text, path)
    return settings, Origin(path, lines, frozenset(blocks))


def more_faults(place: str, count: int) -> Fault:
    """Return the fault that counts those that are not listed."""
    return Fault(place, f"{count:,} more faults")


def check_expansion(text: str, path: Path | str, most: int = MOST_NODES) -> None:
    """Check the size of a file with all its aliases expanded, without expanding them.

    Args:
        path: the file, for error messages.
        most: maximum number of values.

    Raises:
        ConfigError: it has too many values or characters, is nested too deep, or an alias refers to itself.
        YAMLError: the text is not YAML.
    """
    # A few aliases of aliases expand a file of a kilobyte to billions of values. So the size of each anchor is taken
    # where it ends, with what its own aliases expand to, and added again at each alias.
    sizes: dict[str, tuple[int, int]] = {}
    opened: list[tuple[str | None, int, int]] = []
    values = characters = 0
    for event in yaml.parse(text, Loader=Loader):
        fault = ""
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, *_ in opened):
                fault = f"the alias *{event.anchor} refers to itself"
            more = sizes.get(event.anchor, (0, 0))
            values, characters = values + more[0], characters + more[1]
        elif isinstance(event, yaml.ScalarEvent):
            values, characters = values + 1, characters + len(event.value)
            if event.anchor:
                sizes[event.anchor] = 1, len(event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, values, characters))
            values += 1
            if len(opened) > DEEPEST + 1:
                fault = f"nested more than {DEEPEST} levels deep"
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values_before, characters_before = opened.pop()
            if anchor:
                sizes[anchor] = values - values_before, characters - characters_before
        if values > most:
            fault = f"more than {most:,} values, counting those of aliases"
        elif characters > MOST_CHARACTERS:
            fault = f"more than {MOST_CHARACTERS:,} characters, counting those of aliases"
        if fault:
            raise ConfigError.at(f"{path}:{event.start_mark.line + 1}", fault)


def _not_yaml(error: Exception, path: Path) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    place = f"{path}:{mark.line + 1}" if mark else str(path)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return ConfigError.at(place, f"not valid YAML: {problem[:MOST_SHOWN]}")


def _record_lines(
    node: yaml.Node, at: Location, lines: dict[Location, int], blocks: set[Location], constructor: Any
) -> Iterator[tuple[int, str]]:
    """Fill `lines` with the line of every key and item; yield (line, message) for each fault."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                yield line, f"{_dotted(at)}names of settings must be text"
                continue
            if len(key.value) > LONGEST_NAME:
                yield line, f"{_dotted(at)}a name of {len(key.value):,} characters; at most {LONGEST_NAME} are allowed"
                continue
            location = (*at, str(key.value))
            # Of two equal keys YAML keeps the last without a word.
            if location in lines:
                yield line, f"{_dotted(location)}set twice, first on line {lines[location]}"
            lines.setdefault(location, line)
            if isinstance(value, yaml.ScalarNode) and value.style in ("|", ">"):
                blocks.add(location)
            yield from _record_lines(value, location, lines, blocks, constructor)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines.setdefault((*at, index), item.start_mark.line + 1)
            yield from _record_lines(item, (*at, index), lines, blocks, constructor)
    else:
        yield from _value_fault(node, at, constructor)


def _value_fault(node: Any, at: Location, constructor: Any) -> Iterator[tuple[int, str]]:
    """Yield the fault of a single value that Python cannot hold, such as the date 2026-13-45."""
    kind, shown = node.tag.rpartition(":")[2], node.value[:MOST_SHOWN]
    try:
        value = constructor.construct_object(node)
    except yaml.YAMLError as error:
        yield node.start_mark.line + 1, f"{_dotted(at)}{getattr(error, 'problem', None) or 'not plain YAML'}"
        return
    except (ValueError, OverflowError):
        value = None
    if (value is None and kind in _KINDS) or (isinstance(value, int) and value.bit_length() > LARGEST_NUMBER):
        yield node.start_mark.line + 1, f"{_dotted(at)}not a valid {_KINDS[kind]}: {shown}"


def _dotted(location: Location) -> str:
    return f"{'.'.join(map(str, location))}: " if location else ""


def _kind(node: yaml.Node | None) -> str:
    if node is None:
        return "an empty file"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"


def _similar_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if is_yaml(entry)]
    except OSError:
        return ""
    return did_you_mean(path.name, names)


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
    # Each member of a union has its own error: the first one stands for the setting.
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
    # Locations of Pydantic have the tags of union members between names: a part that is neither a field of the model
    # nor an index is such a tag, and nothing after it is in the file.
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
        kept, *metadata = typing.get_args(annotation)
        given = [getattr(each, "json_schema_input_type", PydanticUndefined) for each in metadata]
        return _words(next((each for each in given if each is not PydanticUndefined), kept))
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


LINE_BREAKS = set("\r\n\x85\u2028\u2029")
"""Characters that end a line in YAML."""


def scalar(value: Any) -> str:
    """Return a value as YAML on one line."""
    # Only in double quotes can line breaks be escaped; elsewhere YAML writes several lines.
    for style in (None, '"'):
        shown = yaml.safe_dump([value], default_flow_style=True, default_style=style, allow_unicode=True, width=1 << 30)
        if not set(shown.strip()) & LINE_BREAKS:
            break
    return shown.strip()[1:-1]


def comment(text: str) -> str:
    """Return a text, which can come from the data, as a comment at the end of a line."""
    line = " ".join(text.split())
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
    return f"  # {shown}" if shown else ""
