"""Reads a YAML file into settings and remembers the line of each one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tokenloom.errors import ConfigError, Fault, did_you_mean

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Location = tuple[str | int, ...]
"""Keys and list indexes that lead to a setting, from the top of the file."""

SUFFIXES = (".yaml", ".yml")

DEEPEST = 32
"""Most levels of nesting that a file can have."""


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
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError.at(str(path), f"no such file{_similar_file(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError.at(str(path), f"cannot be read: {reason}") from None
    return parse_yaml(text, path)


def parse_yaml(text: str, path: Path) -> tuple[dict[str, Any], Origin]:
    """Parse the text of a YAML file.

    Args:
        path: the file, for error messages and the default name of the dataset.

    Raises:
        ConfigError: the text is not YAML, does not hold settings, or sets one twice.
    """
    try:
        node = yaml.compose(text, Loader=Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError.at(place, f"not valid YAML: {problem}") from None
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError.at(f"{path}:1", f"expected settings such as `dataset:`, got {_kind(node)}")
    lines: dict[Location, int] = {}
    blocks: set[Location] = set()
    faults = [Fault(f"{path}:{line}", message) for line, message in _record_lines(node, (), lines, blocks)]
    if faults:
        raise ConfigError(faults)
    try:
        settings = yaml.load(text, Loader=Loader)  # a safe loader: plain values only
    except yaml.YAMLError as error:
        raise ConfigError.at(str(path), f"not plain YAML: {getattr(error, 'problem', error)}") from None
    return settings, Origin(path, lines, frozenset(blocks))


def _record_lines(
    node: yaml.Node, at: Location, lines: dict[Location, int], blocks: set[Location], depth: int = 0
) -> Iterator[tuple[int, str]]:
    """Fill `lines` with the line of every key and item; yield (line, message) for each duplicate key."""
    if depth > DEEPEST:
        yield node.start_mark.line + 1, f"nested more than {DEEPEST} levels deep"
        return
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            location = (*at, str(key.value))
            line = key.start_mark.line + 1
            if location in lines:
                yield line, f"{'.'.join(map(str, location))}: set twice, first on line {lines[location]}"
            lines.setdefault(location, line)
            if isinstance(value, yaml.ScalarNode) and value.style in ("|", ">"):
                blocks.add(location)
            yield from _record_lines(value, location, lines, blocks, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines.setdefault((*at, index), item.start_mark.line + 1)
            yield from _record_lines(item, (*at, index), lines, blocks, depth + 1)


def _kind(node: yaml.Node | None) -> str:
    if node is None:
        return "an empty file"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"


def _similar_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    return did_you_mean(path.name, names)
