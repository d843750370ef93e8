"""The keys of another tool's file: typed access with places, and a report that has every key in one of four lists."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from tokenloom.config.yaml_file import LARGEST_FILE, Loader, Location, Origin, parse_yaml, read_small_file, shown
from tokenloom.errors import ConfigError, did_you_mean

LISTS = {
    "taken": "taken over",
    "elsewhere": "done by something else",
    "differs": "differs: read these",
    "training": "training only, or without a counterpart",
}
"""The lists of a report, with their headings."""

_WORDS = {str: "text", bool: "true or false", int: "an integer", float: "a number", list: "a list", dict: "a mapping"}


@dataclass
class Report:
    """What became of each key, by list: a sentence per key."""

    taken: dict[str, str] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)
    differs: dict[str, str] = field(default_factory=dict)
    training: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, key: str, text: str) -> None:
        """Add a sentence about a key to a list; sentences of one key are joined."""
        entries = self.of(kind)
        known = entries.setdefault(key, text)
        if text not in known:
            entries[key] = f"{known}; {text}"

    def has(self, key: str) -> bool:
        """Return whether a key, or a key below it, is in one of the lists."""
        return any(
            known == key or known.startswith((f"{key}.", f"{key}[")) for kind in LISTS for known in self.of(kind)
        )

    def of(self, kind: str) -> dict[str, str]:
        """Return one of the lists."""
        return getattr(self, kind)


@lru_cache
def table(tool: str) -> dict[str, Any]:
    """Return the keys of a tool that no setting takes, as `keys.yaml` lists them, with those that all tools share."""
    tables = yaml.load(Path(__file__).with_name("keys.yaml").read_text(encoding="utf-8"), Loader)
    own, shared = tables[tool], tables["shared"]
    both = {kind: {**shared[kind], **own[kind]} for kind in ("elsewhere", "differs")}
    return {**own, **both, "training": f"{shared['training']} {own['training']}"}


class Keys:
    """A mapping of another tool's file.

    Args:
        settings: the keys and their values.
        path: the file.
        report: gets what becomes of the keys.
        origin: the lines of the file; None: it is JSON.
        at: the keys and indexes that lead to this mapping.
    """

    def __init__(
        self, settings: Mapping[Any, Any], path: Path, report: Report, origin: Origin | None, at: Location = ()
    ):
        self.settings = {str(name): value for name, value in settings.items()}
        self.path, self.report, self.origin, self.at = path, report, origin, at

    def __contains__(self, name: str) -> bool:
        return self.settings.get(name) is not None

    def key(self, name: str) -> str:
        """Return how reports and comments name a key, such as `datasets[0].path`."""
        text = ""
        for part in (*self.at, name):
            text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
        return text

    def get(self, name: str, *kinds: type, default: Any = None) -> Any:
        """Return a value, or the default if it is not set.

        Raises:
            ConfigError: it is of another type than `kinds`.
        """
        value = self.settings.get(name)
        if value is None:
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.refuse(name, f"expected {' or '.join(_WORDS[kind] for kind in kinds)}, got {shown(value)}")
        return value

    def number(self, name: str) -> int | float | None:
        """Return a number, also one that YAML reads as text, such as `5e-5`; None if it is not set."""
        value = self.get(name, int, float, str)
        try:
            return float(value) if isinstance(value, str) else value
        except ValueError:
            raise self.refuse(name, f"expected a number, got {shown(value)}") from None

    def texts(self, name: str) -> list[str]:
        """Return a list of texts; a single text is a list of one."""
        value = self.get(name, str, list, default=[])
        values: list[Any] = [value] if isinstance(value, str) else value
        if wrong := [each for each in values if not isinstance(each, str)]:
            raise self.refuse(name, f"expected a list of texts, got {shown(wrong[0])}")
        return values

    def section(self, name: str) -> Keys:
        """Return the mapping that a key holds; an empty one if it is not set."""
        return Keys(self.get(name, dict, default={}), self.path, self.report, self.origin, (*self.at, name))

    def sections(self, name: str) -> list[Keys]:
        """Return the mappings of the list that a key holds."""
        found: list[Keys] = []
        for index, item in enumerate(self.get(name, list, default=[])):
            if not isinstance(item, dict):
                raise self.refuse(name, f"expected a list of mappings, got {shown(item)}")
            found.append(Keys(item, self.path, self.report, self.origin, (*self.at, name, index)))
        return found

    def note(self, kind: str, name: str, text: str) -> None:
        """Put a key on one of the lists, if it is set."""
        if name in self.settings:
            self.report.add(kind, self.key(name), text)

    def warn(self, name: str, text: str) -> None:
        """Put a key on the list of differences, also where the tool's default applies."""
        self.report.add("differs", self.key(name), text)

    def refuse(self, name: str, message: str) -> ConfigError:
        """Return the error of a key, with its line."""
        at = f"{self.path}:{self.origin.line((*self.at, name))}" if self.origin else str(self.path)
        return ConfigError.at(at, f"{self.key(name)}: {message}")

    def rest(self, tool: str) -> None:
        """Put every key that is on no list yet on one; unknown keys are on the list of differences."""
        known = table(tool)
        elsewhere, differs, patterns = known["elsewhere"], known["differs"], known["training"].split()
        for name, value in self.settings.items():
            if self.report.has(self.key(name)):
                continue
            if name in elsewhere:
                self.note("elsewhere", name, elsewhere[name])
            elif name in differs:
                if value is None or value is False:
                    self.note("elsewhere", name, "off, as here")
                else:
                    self.note("differs", name, differs[name])
            elif any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                self.note("training", name, "")
            elif value is None:
                self.note("training", name, "not set")
            else:
                names = [*elsewhere, *differs, *patterns, *known["known"].split()]
                self.note("differs", name, f"not a known key{did_you_mean(name, names)}; it was not read")


def read_file(path: Path) -> Keys:
    """Read a configuration of another tool, YAML or JSON.

    Raises:
        ConfigError: it cannot be read, or does not hold settings.
    """
    try:
        text = read_small_file(path, LARGEST_FILE).decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError.at(str(path), "no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError.at(str(path), f"cannot be read: {reason}") from None
    settings, origin = parse_yaml(text.replace("\t", "  ") if path.suffix == ".json" else text, path)
    return Keys(settings, path, Report(), origin)
