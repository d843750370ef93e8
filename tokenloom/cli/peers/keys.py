"""The keys of another tool's file: typed access with places, and a report that has every key in one of four lists."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from tokenloom.config.yaml_file import LARGEST_FILE, Loader, Location, Origin, parse_yaml, read_small_file, shown
from tokenloom.errors import ConfigError, did_you_mean

TOOLS = ("axolotl", "llamafactory", "trl")

LISTS = {
    "taken": "taken over",
    "elsewhere": "done by something else",
    "differs": "differs: read these",
    "training": "training only, or without a counterpart",
}
"""The lists of a report, with their headings."""

KINDS = {"text": (str,), "word": (str,), "flag": (bool,), "integer": (int,), "mapping": (dict,)}
"""What `is` says in the table; a word is the same in capitals."""

MOST_SENTENCES, MOST_GUESSES = 8, 20
"""Most sentences about one key, and most unknown keys for which a similar one is looked for."""

_WORDS = {str: "text", bool: "true or false", int: "an integer", float: "a number", list: "a list", dict: "a mapping"}


class Report:
    """What became of each key.

    Args:
        tool: the other tool, as the table names it.
    """

    def __init__(self, tool: str):
        self.tool, self.guesses = tool, MOST_GUESSES
        self._lists: dict[str, dict[str, dict[str, None]]] = {kind: {} for kind in LISTS}
        self._noted: set[Location] = set()

    def add(self, kind: str, at: Location, key: str, text: str) -> None:
        """Add a sentence about a key to a list; sentences of one key are joined."""
        self._lists[kind].setdefault(key, {})[text] = None
        self._noted.update(at[:length] for length in range(1, len(at) + 1))

    def has(self, at: Location) -> bool:
        """Return whether a key, or a key below it, is in one of the lists."""
        return at in self._noted

    def of(self, kind: str) -> dict[str, str]:
        """Return one of the lists: a text per key."""
        return {key: _joined([*texts]) for key, texts in self._lists[kind].items()}


def _joined(texts: list[str]) -> str:
    more = [f"and {len(texts) - MOST_SENTENCES:,} more"] if len(texts) > MOST_SENTENCES else []
    return "; ".join([*texts[:MOST_SENTENCES], *more])


@lru_cache
def table(tool: str) -> dict[str, Any]:
    """Return the fate of a tool's keys, as `keys.yaml` lists it, with that of the keys that all tools share.

    `training` is a pattern, and `read` has the keys that a rule or code reads.
    """
    tables = yaml.load(Path(__file__).with_name("keys.yaml").read_text(encoding="utf-8"), Loader)
    own, shared = tables[tool], tables["shared"]
    both = {kind: {**shared[kind], **own[kind]} for kind in ("rules", "elsewhere", "differs")}
    patterns = f"{shared['training']} {own['training']}".split()
    read = {*" ".join(own["code"].values()).split(), *(key for section in both["rules"].values() for key in section)}
    return {**own, **both, "training": re.compile("|".join(map(fnmatch.translate, patterns))), "read": read}


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
            self._add(kind, name, text)

    def warn(self, name: str, text: str) -> None:
        """Put a key on the list of differences, also where the tool's default applies."""
        self._add("differs", name, text)

    def _add(self, kind: str, name: str, text: str) -> None:
        self.report.add(kind, (*self.at, name), self.key(name), text)

    def refuse(self, name: str, message: str) -> ConfigError:
        """Return the error of a key, with its line."""
        at = f"{self.path}:{self.origin.line((*self.at, name))}" if self.origin else str(self.path)
        return ConfigError.at(at, f"{self.key(name)}: {message}")

    def rest(self, where: str = "here") -> None:
        """Put every key that is on no list yet on one; unknown keys are on the list of differences.

        Args:
            where: for known keys, where the tool does not read them.
        """
        known = table(self.report.tool)
        elsewhere, differs = known["elsewhere"], known["differs"]
        for name, value in self.settings.items():
            if self.report.has((*self.at, name)):
                continue
            if name in elsewhere:
                self.note("elsewhere", name, elsewhere[name])
            elif name in differs:
                if value is None or value is False:
                    self.note("elsewhere", name, "off, as here")
                else:
                    self.note("differs", name, differs[name])
            elif name in known["read"] and value is not None:
                self.note("elsewhere", name, f"not needed: {known['name']} does not read it {where}")
            elif known["training"].fullmatch(name):
                self.note("training", name, "")
            elif value is None:
                self.note("training", name, "not set")
            else:
                self.report.guesses -= 1
                names = [*elsewhere, *differs, *sorted(known["read"])] if self.report.guesses >= 0 else ()
                self.note("differs", name, f"not a known key{did_you_mean(name, names)}; it was not read")


def read_file(path: Path, tool: str | None) -> Keys:
    """Read a configuration of another tool, YAML or JSON.

    Args:
        tool: a tool that the table names; None: the one whose keys the file has.

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
    return Keys(settings, path, Report(tool or _tool(path, settings)), origin)


def _tool(path: Path, settings: Mapping[str, Any]) -> str:
    """Return the tool that a file is for.

    Raises:
        ConfigError: its keys do not say so.
    """
    counts = {tool: sum(settings.get(mark) is not None for mark in table(tool)["marks"].split()) for tool in TOOLS}
    best = max(counts.values())
    found = [tool for tool, count in counts.items() if count == best]
    if not best or len(found) > 1:
        raise ConfigError.at(str(path), f"its keys do not say which tool it is for; add --from {'|'.join(TOOLS)}")
    return found[0]
