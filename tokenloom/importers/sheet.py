"""An import's two sides: the keys of another tool's file, each with what becomes of it, and the YAML written from them.

Every key ends in one of four lists of a report. Every setting has the key that it came from as a comment.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from tokenloom.assets.columns.message_objects import CONTENT_FIELDS, ROLE_FIELDS
from tokenloom.assets.schema.profiles import ROLE_NAMES
from tokenloom.assets.stage.forms import REASONING_FIELDS
from tokenloom.config.address import BUCKETS
from tokenloom.config.dataset import check_config
from tokenloom.config.yaml_file import (
    LARGEST_FILE,
    Loader,
    Location,
    Origin,
    comment,
    parse_yaml,
    read_small_file,
    scalar,
    shown,
)
from tokenloom.errors import ConfigError, did_you_mean, redacted
from tokenloom.importers import TOOLS

LISTS = {
    "taken": "taken over",
    "elsewhere": "done by something else",
    "differs": "differs: read these",
    "training": "training only, or without a counterpart",
}
"""The lists of a report, with their headings."""

SENTENCES = (*LISTS, "warns", "refuses")
"""What a rule of the table can say about its key: see `keys.yaml`."""

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
        # A section counts as noted once one of its keys is: what is left in it is put on a list by its own `rest`.
        self._noted.update(at[:length] for length in range(1, len(at) + 1))

    def has(self, at: Location) -> bool:
        """Return whether a key, or a key below it, is in one of the lists."""
        return at in self._noted

    def of(self, kind: str) -> dict[str, str]:
        """Return one of the lists: a text per key."""
        joined: dict[str, str] = {}
        for key, texts in self._lists[kind].items():
            more = [f"and {len(texts) - MOST_SENTENCES:,} more"] if len(texts) > MOST_SENTENCES else []
            joined[key] = "; ".join([*islice(texts, MOST_SENTENCES), *more])
        return joined


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
            self.report.add(kind, (*self.at, name), self.key(name), text)

    def warn(self, name: str, text: str) -> None:
        """Put a key on the list of differences, also where the tool's default applies."""
        self.report.add("differs", (*self.at, name), self.key(name), text)

    def required(self, name: str, what: str) -> str:
        """Return a text that must be set.

        Args:
            what: what it names, for the error.

        Raises:
            ConfigError: it is not set, or empty.
        """
        if not (text := self.get(name, str)):
            raise self.refuse(name, f"missing; it names the {what}")
        return text

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
                fate = "elsewhere", elsewhere[name]
            elif name in differs:
                off = value is None or value is False
                fate = ("elsewhere", "off, as here") if off else ("differs", differs[name])
            elif name in known["read"] and value is not None:
                fate = "elsewhere", f"not needed: {known['name']} does not read it {where}"
            elif known["training"].fullmatch(name):
                fate = "training", ""
            elif value is None:
                fate = "training", "not set"
            else:
                self.report.guesses -= 1
                names = [*elsewhere, *differs, *sorted(known["read"])] if self.report.guesses >= 0 else ()
                fate = "differs", f"not a known key{did_you_mean(name, names)}; it was not read"
            self.note(fate[0], name, fate[1])


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
    if tool is not None:
        return Keys(settings, path, Report(tool), origin)
    # The tool with the most of its marks, unless two have as many: many keys of Transformers are in all files.
    counts = {tool: sum(settings.get(mark) is not None for mark in table(tool)["marks"].split()) for tool in TOOLS}
    best = max(counts.values())
    found = [tool for tool, count in counts.items() if count == best]
    if not best or len(found) > 1:
        raise ConfigError.at(str(path), f"its keys do not say which tool it is for; add --from {'|'.join(TOOLS)}")
    return Keys(settings, path, Report(found[0]), origin)


SECTIONS = ("dataset", "tokenizer", "prompt_template", "dedup", "length", "mixture", "dataloader")
"""Order of the sections."""

FILES = ("json", "jsonl", "csv", "tsv", "parquet", "arrow", "txt", "text", "gz", "zst")
"""Endings of files with rows."""

_TOKEN = re.compile(r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16})")
"""Access tokens of Hugging Face, GitHub and AWS."""

_ADDRESSES = ("dataset.name", "tokenizer.name_or_path", "tokenizer.processor")

_HARMLESS, _QUERY = re.compile(r"\?(?:download|raw|dl|ref)=[\w./-]{0,64}$"), re.compile(r"[?#][^\s'\"<>]*")
"""Ends of addresses that are not credentials: of settings that are addresses, and of others, such as prompts."""


@dataclass(frozen=True)
class Setting:
    """A value, the key that it came from, or None, and a comment."""

    value: Any
    keys: Keys | None
    key: str
    why: str = ""


@dataclass
class Sheet:
    """The settings of one YAML, by dotted name.

    Args:
        label: what the dataset is called in the other tool's file.
        folder: the folder of the YAML, which its relative paths start from.
    """

    label: str
    folder: Path
    settings: dict[str, Setting] = field(default_factory=dict)
    evaluation: bool = False

    def copy(self, label: str) -> Sheet:
        """Return a sheet with the same settings, which can be changed alone."""
        return replace(self, label=label, settings=dict(self.settings))

    def set(self, setting: str, value: Any, keys: Keys, key: str, why: str = "") -> None:
        """Set a setting to what a key of the other tool says.

        Args:
            key: its name; reported as taken over if it is set, else the comment says that it is the tool's default.
            why: a comment.
        """
        _refuse_secrets(value, keys, key, _HARMLESS if setting in _ADDRESSES else _QUERY)
        self.settings[setting] = Setting(value, keys, key, why)
        keys.note("taken", key, setting)

    def set_address(self, setting: str, address: str, keys: Keys, key: str) -> None:
        """Set a setting to an address, which is written as seen from the YAML if it is a local path."""
        self.set(setting, self.path(address, keys) or address, keys, key)

    def take(self, keys: Keys, section: str) -> None:
        """Apply the table's rules of a section to the keys of a mapping.

        Raises:
            ConfigError: a key holds something else than the other tool reads, or has no counterpart.
        """
        for key, rule in table(keys.report.tool)["rules"][section].items():
            for setting, value in rule.get("sets", {}).items():
                self.set(setting, value, keys, key, rule.get("whys", {}).get(setting, ""))
            given = keys.get(key, *KINDS[rule["is"]], default=rule.get("default")) if "is" in rule else None
            if "to" in rule and given is not None:
                given = given.lower() if rule["is"] == "word" else given
                values = rule.get("values")
                if values is not None and given not in values:
                    raise keys.refuse(key, f"{given!r} is not one of {', '.join(map(str, values))}")
                value = given if values is None else values[given]
                if value is None:
                    keys.note("taken", key, f"{rule['to']}: off")
                else:
                    self.set(rule["to"], value, keys, key, rule.get("why", ""))
            for kind in SENTENCES:
                text = rule.get(kind)
                if isinstance(text, dict):
                    text = text.get(given)
                elif rule.get("is") == "flag" and not given:
                    text = None
                if text and kind == "warns":
                    keys.warn(key, text)
                elif text and kind != "refuses":
                    keys.note(kind, key, text)
                elif text and key in keys:
                    raise keys.refuse(key, text)

    def get(self, setting: str) -> Any:
        """Return the value of a setting, or None."""
        return self.settings[setting].value if setting in self.settings else None

    def path(self, address: str, keys: Keys) -> str | None:
        """Return a local path as the YAML names it, or None if the address is not a local path.

        The other tool starts at the working directory; if there is no such file, it is looked for next to its
        configuration.
        """
        if "://" in address or "\0" in address:
            return None
        try:
            given = Path(address).expanduser()
            if found := next((base / given for base in (Path(), keys.path.parent) if (base / given).exists()), None):
                return self._relative(found)
        except (OSError, RuntimeError):  # too long a name, or no such user
            return None
        local = address.startswith((".", "/", "~")) or address.rpartition(".")[2].lower() in FILES or "*" in address
        return self._relative(given) if local else None

    def _relative(self, found: Path) -> str:
        if found.is_absolute():
            return found.as_posix()
        try:
            return Path(os.path.relpath(found, self.folder)).as_posix()
        except ValueError:  # another drive
            return found.resolve().as_posix()

    def check(self, header: list[str], path: Path) -> str:
        """Return the YAML, checked as `tokenloom build` checks it.

        Args:
            header: lines to write first, as comments.

        Raises:
            ConfigError: a value is not one that its setting takes; the fault names the key that it came from.
        """
        lines = [*self._lines(header)]
        text = "".join(f"{line}\n" for line, _ in lines)
        origins = [origin for line, origin in lines for _ in range(line.count("\n") + 1)]
        try:
            check_config(*parse_yaml(text, path))
        except ConfigError as error:
            # A fault names a line of a YAML that nobody has seen yet; the user knows the key that the line came from.
            fault = error.faults[0]
            number = fault.place.rpartition(":")[2]
            origin = origins[int(number) - 1] if number.isdecimal() and int(number) <= len(origins) else None
            if origin is None or origin.keys is None:
                raise
            raise origin.keys.refuse(origin.key, f"becomes {fault.message}") from None
        return text

    def _lines(self, header: list[str]) -> Iterator[tuple[str, Setting | None]]:
        """Yield each line, or block of lines, with the setting that it is about."""
        for line in header:
            yield f"#{comment(line)[3:]}", None
        tree: dict[str, Any] = {}
        # Sections have a fixed order; within one the settings keep theirs, after the source of the rows.
        order = {name: (SECTIONS.index(name.partition(".")[0]), name != "dataset.name") for name in self.settings}
        for name in sorted(order, key=order.__getitem__):
            at, (*parents, last) = tree, name.split(".")
            for parent in parents:
                at = at.setdefault(parent, {})
            at[last] = self.settings[name]
        yield from _written(tree, "")


def _refuse_secrets(value: Any, keys: Keys, key: str, query: re.Pattern[str]) -> None:
    """
    Args:
        query: ends of addresses that are not credentials.

    Raises:
        ConfigError: a value of the other tool's file has credentials, which are not written into a YAML.
    """
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _refuse_secrets(part, keys, key, query)
    elif isinstance(value, str):
        bare = query.sub("", value)
        if _TOKEN.search(value) or redacted(bare) != bare:
            of_bucket = value.partition("://")[0].lower() in BUCKETS
            names = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" if of_bucket else "HF_TOKEN for Hugging Face"
            remedy = f"remove them and set {names}, or download the files and name these"
            raise keys.refuse(key, f"holds credentials, which `tokenloom import` does not write into a YAML; {remedy}")


def label_of(address: str) -> str:
    """Return what to call a dataset: the last part of its address, without the ending of a file."""
    last = address.rstrip("/").rpartition("/")[2]
    return Path(last).stem if Path(last).suffix.lstrip(".").lower() in FILES else last


def _written(tree: Mapping[str, Any], indent: str) -> Iterator[tuple[str, Setting | None]]:
    for name, entry in tree.items():
        start = f"{indent}{scalar(name)}:"
        if not isinstance(entry, Setting):
            yield start, None
            yield from _written(entry, f"{indent}  ")
            continue
        origin = ""
        if entry.keys:
            given = entry.key in entry.keys.settings
            origin = entry.keys.key(entry.key) if given else f"default of {entry.keys.key(entry.key)}"
        note = comment("; ".join(filter(None, (origin, entry.why))))
        yield f"{start}{_block(entry.value, indent + '  ', note)}", entry


def _block(value: Any, indent: str, note: str) -> str:
    """Return a value with its comment: texts of several lines as a block if YAML can write them so."""
    if isinstance(value, str) and "\n" in value:
        dumped = yaml.safe_dump({"": value}, default_style="|", allow_unicode=True, width=1 << 30)
        head, _, body = dumped.partition(": ")[2].partition("\n")
        if head.startswith("|"):
            lines = (f"{indent}{line[2:]}" if line else "" for line in body.split("\n")[:-1])
            return "\n".join((f" {head}{note}", *lines))
    if isinstance(value, list) and value and isinstance(value[0], dict):
        shown = ("{" + ", ".join(f"{name}: {scalar(each)}" for name, each in item.items()) + "}" for item in value)
        return "\n".join((note, *(f"{indent}- {item}" for item in shown)))
    return f" {scalar(value)}{note}"


def set_tokenizer(keys: Keys, sheet: Sheet, model: str, tokenizer: str, setting: str = "name_or_path") -> None:
    """Set the tokenizer from the key of its own, or else from that of the model.

    Raises:
        ConfigError: neither is set.
    """
    named = tokenizer if tokenizer in keys else model
    if (address := keys.get(named, str)) is None:
        raise keys.refuse(model, "missing; it names the tokenizer")
    sheet.set_address(f"tokenizer.{setting}", address, keys, named)
    if named != model and model in keys:
        keys.note("elsewhere", model, f"names the model; the tokenizer is {named}'s")


_FIELDS = {"role": ROLE_FIELDS, "content": CONTENT_FIELDS, "reasoning_content": REASONING_FIELDS}

_SLICE = re.compile(r"([^\[\]]+)(?:\[(-?\d+%?)?:(-?\d+%?)?\])?")


def note_field(keys: Keys, key: str, name: str) -> None:
    """Report a key with the name of a field of messages: fields are found by their usual names."""
    if (field := keys.get(key, str)) is None:
        return
    if field in _FIELDS.get(name, (name,)):
        keys.note("elsewhere", key, "fields of messages are found by their names")
    else:
        keys.note("differs", key, f"the field {field!r} is not found by its name; rename it to {name!r} in the data")


def note_speakers(keys: Keys, key: str, role: str, names: Sequence[Any]) -> None:
    """Report a key with the names of speakers: they are known by their usual names."""
    if other := [name for name in names if role_of(name) != role_of(role)]:
        keys.note("differs", key, f"speakers called {other[0]!r} are not read as {role}; rename them")
    else:
        keys.note("elsewhere", key, "the usual names of speakers are known")


def role_of(speaker: Any) -> str:
    """Return the role that a speaker is known by."""
    return ROLE_NAMES.get(str(speaker).lower(), str(speaker))


def set_split(keys: Keys, sheet: Sheet, name: str, default: str) -> None:
    """Set the split of a dataset. A slice such as `train[:500]` becomes a number or a fraction of rows.

    Raises:
        ConfigError: it is a slice that has no counterpart.
    """
    given = keys.get(name, str, default=default)
    if not (found := _SLICE.fullmatch(given)):  # such as `a+b`, or a slice of rows and percents with a step
        raise keys.refuse(name, f"no counterpart for {given!r}; name one split, and set dataset.max_rows or fraction")
    split, start, end = found.groups()
    sheet.set("dataset.splits", [split], keys, name)
    # `train[:500]` is a number of rows; percents, of both bounds, a fraction; rows from the middle have no counterpart.
    if start in (None, "0", "0%") and end and end[0] != "-" and not end.endswith("%"):
        sheet.set("dataset.max_rows", int(end), keys, name, "the first rows")
    elif start or end:
        bounds = [(start or "0%"), (end or "100%")]
        if not all(bound.endswith("%") for bound in bounds):
            raise keys.refuse(name, f"no counterpart for {given!r}; set dataset.max_rows, or split the file")
        # A negative bound counts from the end: train[:-20%] is the first 80 %.
        first, last = (int(bound[:-1]) % 100 if bound[0] == "-" else int(bound[:-1]) for bound in bounds)
        share = (last - first) / 100
        if not 0 < share <= 1:
            raise keys.refuse(name, f"{given!r} has no rows")
        if share < 1:
            set_fraction(keys, sheet, name, share)


def set_fraction(keys: Keys, sheet: Sheet, name: str, share: float) -> None:
    """Set the fraction of the rows to read."""
    sheet.set("dataset.fraction", share, keys, name, "rows are chosen by their content")
    keys.warn(name, "as many rows, but other ones: dataset.fraction chooses by content")


def set_validation_fraction(keys: Keys, sheets: Sequence[Sheet], name: str) -> None:
    """Set `val_split` of the datasets that are trained on."""
    size = keys.number(name) or 0
    if size >= 1:
        keys.warn(name, f"{size:g} rows: set dataset.val_split to the fraction that they are of all rows")
        return
    keys.note("taken", name, "dataset.val_split" if size else "no validation set")
    if size and not any(sheet.evaluation for sheet in sheets):
        for sheet in sheets:
            sheet.set("dataset.val_split", size, keys, name, "rows are chosen by their content")
