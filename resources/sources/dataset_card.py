"""The configs that a dataset's card declares: the YAML at the start of its README.md, or `.huggingface.yaml`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import has_magic
from pathlib import Path
from typing import Any

import yaml

from tokenloom.config import DatasetConfig
from tokenloom.config.small_file import read_small_file
from tokenloom.config.yaml_file import MOST_NODES, Loader, check_expansion
from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.resources.sources.data_folder import SPLIT_NAME, TRAIN, Refuse, matching
from tokenloom.resources.sources.hub import LARGEST_CARD

CARDS = ("README.md", ".huggingface.yaml")
_BLOCK = re.compile(r"^(\s*---[\r\n]+)([\S\s]*?)([\r\n]+---(\r\n|\n|$))")
_WITHOUT_EFFECT = re.compile(
    "config_name|data_files|data_dir|default|version|description|drop_labels|drop_metadata|batch_size|chunksize"
)
"""Parameters that change no row."""

_SETTINGS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "sep": ("reader.delimiter", str),
    "delimiter": ("reader.delimiter", str),
    "encoding": ("encoding", str),
    "field": ("reader.root", lambda value: f"{value}[]"),
    "sample_by": ("reader.lines_per_row", lambda value: {"document": "file"}.get(value, value)),
    "columns": ("columns", tuple),
}
"""The setting of `dataset` that says the same as a parameter, and its value."""


@dataclass(frozen=True)
class CardConfig:
    """A config of a card.

    Args:
        name: its name.
        folder: the folder of its files, relative to that of the card; empty for the same.
        patterns: by split, the patterns of its files; None: the names of the files declare the splits.
        parameters: parameters of the reader.
    """

    name: str
    folder: str = ""
    patterns: Mapping[str, Sequence[str]] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names_hidden(self) -> bool:
        """Whether a pattern names hidden files or folders."""
        texts = [text for patterns in (self.patterns or {}).values() for text in patterns]
        return any(part.startswith(".") and part.strip(".") for text in texts for part in text.split("/"))

    def files(self, names: Sequence[str], refuse: Refuse) -> dict[str, list[str]]:
        """Return the files of each split that the card lists.

        Raises:
            The error of `refuse`: a pattern is not valid or matches no file, or a file is listed twice.
        """
        splits: dict[str, list[str]] = {}
        for split, patterns in (self.patterns or {}).items():
            for pattern in patterns:
                if "://" in pattern or pattern.startswith(("/", "..")):
                    raise refuse(f"config {self.name}: {pattern} is not in the folder; copy its files there")
                try:
                    found = matching(pattern, names)
                except ValueError as error:
                    raise refuse(f"config {self.name}: {pattern}: {error}") from None
                if not found and not has_magic(pattern):
                    raise refuse(f"config {self.name}: no file {pattern}{did_you_mean(pattern, names)}")
                splits.setdefault(split, []).extend(found)
            if not splits.get(split):
                raise refuse(f"config {self.name}: no file matches {', '.join(patterns)}, the files of {split}")
        places: dict[str, str] = {}
        for split, files in splits.items():
            for name in files:
                if name in places:
                    both = "twice" if places[name] == split else f"in {places[name]} and {split}"
                    raise refuse(f"config {self.name} lists {name} {both}; list it once")
                places[name] = split
        return splits

    def refuse_parameters(self, dataset: DatasetConfig, usual: str | None, refuse: Refuse) -> None:
        """Refuse parameters that change how files are read, unless the settings say the same.

        Args:
            usual: the delimiter of the files' format.
        """
        for name, value in self.parameters.items():
            if _WITHOUT_EFFECT.fullmatch(name) or (name in ("sep", "delimiter") and value == usual):
                continue
            if name not in _SETTINGS:
                raise refuse(f"config {self.name} sets {name}, which is not supported; name the files themselves")
            setting, translate = _SETTINGS[name]
            owner, _, last = setting.rpartition(".")
            if getattr(dataset.reader if owner else dataset, last) != translate(value):
                shown = [*translate(value)] if isinstance(value, list) else translate(value)
                raise refuse(f"config {self.name} sets {name}: {value!r}; set dataset.{setting}: {shown!r}")


def card_configs(folder: Path, refuse: Refuse) -> list[CardConfig]:
    """Return the configs that a folder's card declares; most cards declare none.

    Raises:
        The error of `refuse`: the card cannot be read, or is not valid.
    """
    card: dict[str, Any] = {}
    for name in CARDS:
        if not (folder / name).is_file():
            continue
        try:
            text = read_small_file(folder / name, LARGEST_CARD).decode(errors="replace")
            block = text if name.endswith(".yaml") else (found[2] if (found := _BLOCK.search(text)) else "")
            if "configs" not in block:
                continue
            check_expansion(block, name, max(MOST_NODES, len(block)))
            content = yaml.load(block, Loader=Loader)  # a safe loader
        except (ConfigError, OSError, yaml.YAMLError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            raise refuse(f"its {name}: {reason}") from None
        card |= content if isinstance(content, dict) else {}
    configs = card.get("configs") or []
    if not isinstance(configs, list) or not all(isinstance(each, dict) for each in configs):
        raise refuse("its README.md: configs must be a list of mappings with config_name")
    found = [_config(each, refuse) for each in configs]
    if len({each.name for each in found}) < len(found):
        raise refuse("its README.md: two configs have the same config_name")
    return found


def _config(declared: Mapping[str, Any], refuse: Refuse) -> CardConfig:
    name = declared.get("config_name")
    if not isinstance(name, str) or not name:
        raise refuse(f"its README.md: each config must have a config_name, a text; got {name!r}")
    folder = declared.get("data_dir") or ""
    normal = posixpath.normpath(folder) if isinstance(folder, str) and folder else ""
    if not isinstance(folder, str) or normal.startswith(("/", "..")):
        raise refuse(f"config {name}: data_dir must be a folder below that of README.md, got {folder!r}")
    patterns = _patterns(name, declared.get("data_files"), refuse)
    return CardConfig(name, "" if normal == "." else normal, patterns, declared)


def _patterns(name: str, files: Any, refuse: Refuse) -> dict[str, list[str]] | None:
    """Return the patterns of each split: `data_files` can be a text, a list of texts, or of `{split, path}`."""
    if files is None:
        return None
    given = [files] if isinstance(files, str) else files
    if isinstance(given, list) and given and all(isinstance(each, str) for each in given):
        return {TRAIN: given}
    patterns: dict[str, list[str]] = {}
    for each in given if isinstance(given, list) and given else [None]:
        split, path = (each.get("split"), each.get("path")) if isinstance(each, dict) else (None, None)
        paths = [path] if isinstance(path, str) else path
        valid = isinstance(split, str) and SPLIT_NAME.fullmatch(split) and isinstance(paths, list) and paths
        if not valid or not all(isinstance(path, str) for path in paths or ()) or split in patterns:
            expected = "a path, a list of paths, or a list of {split, path} with different splits"
            raise refuse(f"config {name}: data_files must be {expected}, got {files!r}")
        patterns[str(split)] = list(paths or ())
    return patterns


def chosen_config(
    configs: Sequence[CardConfig], wanted: str | None, declared: Callable[[str], Exception], refuse: Refuse
) -> CardConfig:
    """Return the config that is read; one without a name if the card declares none.

    Args:
        wanted: `dataset.config`.
        declared: returns the error about `dataset.config`.
        refuse: returns the error about the folder.
    """
    names = [each.name for each in configs]
    if wanted is not None and configs:
        if wanted not in names:
            raise declared(f"no config {wanted!r}; README.md declares {', '.join(names)}{did_you_mean(wanted, names)}")
        return configs[names.index(wanted)]
    default = [
        each for each in configs if len(configs) == 1 or each.name == "default" or each.parameters.get("default")
    ]
    if len(default) > 1:
        both = ", ".join(each.name for each in default)
        raise refuse(f"its README.md declares several default configs: {both}; set dataset.config")
    if configs and not default:
        raise declared(f"README.md declares several configs; set it to one of {', '.join(names)}")
    return default[0] if default else CardConfig("")
