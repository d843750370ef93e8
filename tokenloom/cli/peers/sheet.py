"""A YAML that `tokenloom import` writes: settings, each with the key that it came from as a comment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tokenloom.cli.peers.keys import KINDS, Keys, table
from tokenloom.cli.starter.starter_yaml import comment, scalar
from tokenloom.config.address import BUCKETS
from tokenloom.config.dataset import check_config
from tokenloom.config.yaml_file import parse_yaml
from tokenloom.errors import ConfigError, redacted

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

    def take(self, keys: Keys, section: str) -> None:
        """Set what the table's rules of a section say about the keys of a mapping.

        Raises:
            ConfigError: a key holds something else than the other tool reads.
        """
        for key, rule in table(keys.report.tool)["rules"][section].items():
            given = keys.get(key, *KINDS[rule["is"]], default=rule.get("default"))
            if given is None:
                continue
            given = given.lower() if rule["is"] == "word" else given
            values = rule.get("values")
            if values is not None and given not in values:
                raise keys.refuse(key, f"{given!r} is not one of {', '.join(map(str, values))}")
            value = given if values is None else values[given]
            if value is None:
                keys.note("taken", key, f"{rule['to']}: off")
            else:
                self.set(rule["to"], value, keys, key, rule.get("why", ""))
            if values is not None and (text := rule.get("differs", {}).get(given)) is not None:
                keys.warn(key, text)

    def take_type(self, keys: Keys, name: str) -> None:
        """Set what the table says about a type of rows."""
        for setting, value in table(keys.report.tool)["types"][name].items():
            self.set(setting, value, keys, "type")

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
        for name in sorted(self.settings, key=_position):
            at = tree
            *parents, last = name.split(".")
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


def _position(name: str) -> tuple[int, bool]:
    section = name.partition(".")[0]
    return SECTIONS.index(section), name != "dataset.name"


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
