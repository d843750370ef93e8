"""Reads a YAML file into settings and remembers the line of each one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tokenloom.config.open_choice import check_no_open_choice
from tokenloom.config.small_file import read_small_file
from tokenloom.errors import ConfigError, Fault, did_you_mean

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
