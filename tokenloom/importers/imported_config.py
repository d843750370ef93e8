"""Imports a configuration of another tool: checked YAMLs of its datasets and mixture, and what became of each key."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.importers import TOOLS
from tokenloom.importers.sheet import FILES, LISTS, Keys, Sheet, read_file, table

MOST_SHOWN, LONGEST = 100, 400
"""Most keys of each list that are printed and written into a YAML, and most characters of each."""

WITH_DATASET_INFO = ("llamafactory",)
"""Tools that have a file of datasets beside their configuration."""


@dataclass(frozen=True)
class ImportedConfig:
    """What a configuration of another tool became. Nothing is written yet.

    Args:
        tool: the other tool.
        folder: the folder of the YAML files, which their relative paths start from.
        texts: the text of each YAML file by its path, the one to build last at the end.
        report: a list per kind: keys that were `taken` over, with the setting; that are done `elsewhere`; of which
            something `differs`; and of `training` only. Each has a text per key.
        to_build: the YAML files to build, in order; a mixture builds its datasets.
    """

    tool: str
    folder: Path
    texts: dict[Path, str]
    report: dict[str, dict[str, str]]
    to_build: tuple[Path, ...]


def import_config(
    file: str | os.PathLike[str],
    tool: str | None = None,
    entry: str | None = None,
    dataset_info: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
) -> ImportedConfig:
    """Turn a configuration of axolotl, LLaMA-Factory or TRL into the texts of YAML files. Writes nothing.

    Args:
        file: the training configuration of the other tool.
        tool: `axolotl`, `llamafactory` or `trl`; default: the one whose keys the file has.
        entry: import only this dataset of the file.
        dataset_info: LLaMA-Factory's `dataset_info.json`; default: in its `dataset_dir`, or next to the file.
        out: the file, or folder of the files, that will be written, which relative paths start from; default: the
            file's name with `-data`, in the working directory.

    Raises:
        ConfigError: a key has no counterpart or holds something else than the tool reads; the error names its line.
    """
    if tool not in (None, *TOOLS):
        raise ConfigError.at("--from", f"{tool!r} is not one of {', '.join(TOOLS)}{did_you_mean(tool, TOOLS)}")
    path, info = Path(file), None if dataset_info is None else Path(dataset_info)
    keys = read_file(path, tool)
    tool, target = keys.report.tool, _target(path, None if out is None else os.fspath(out))
    module: Any = import_module(f"tokenloom.importers.{tool}")
    if info is not None and tool not in WITH_DATASET_INFO:
        raise ConfigError.at("--dataset-info", f"has no effect for {tool}")
    sheets = module.read(keys, target.parent, *([info] if tool in WITH_DATASET_INFO else []))
    keys.rest()
    sheets = _with_validation(sheets)
    if entry:
        labels = [sheet.label for sheet in sheets]
        sheets = [sheet for sheet in sheets if sheet.label == entry]
        if not sheets:
            hint = did_you_mean(entry, labels) or f"; it has {', '.join(labels)}"
            raise ConfigError.at("--entry", f"{path} has no dataset {entry!r}{hint}")
    texts = _written(sheets, keys, module, target)
    files, evaluations = [*texts], sum(sheet.evaluation for sheet in sheets)
    to_build = tuple(dict.fromkeys([*files[:evaluations], files[-1]]))
    return ImportedConfig(tool, target.parent, texts, {kind: keys.report.of(kind) for kind in LISTS}, to_build)


def shown_entries(entries: dict[str, str]) -> dict[str, str]:
    """Return the first entries of a list, without line breaks, and how many more there are."""
    shown: dict[str, str] = {}
    for key, text in islice(entries.items(), MOST_SHOWN):
        key, text = ("".join(char if char.isprintable() else repr(char)[1:-1] for char in part) for part in (key, text))
        shown[key if len(key) <= LONGEST else f"{key[:LONGEST]}…"] = text
    if len(entries) > MOST_SHOWN:
        shown["…"] = f"and {len(entries) - MOST_SHOWN:,} more; --json lists all"
    return shown


def _target(path: Path, out: str | None) -> Path:
    """Return the file to write; those of single datasets are named after it."""
    name = _file_name(path.stem, "imported")
    if out is None:
        return Path(f"{name}-data.yaml")
    return Path(out) / f"{name}.yaml" if Path(out).is_dir() or out.endswith("/") else Path(out)


def _with_validation(sheets: list[Sheet]) -> list[Sheet]:
    """Return the only dataset with the only evaluation set as its validation split, if they differ in their file."""
    trained, held = ([sheet for sheet in sheets if sheet.evaluation is flag] for flag in (False, True))
    if len(trained) != 1 or len(held) != 1:
        return sheets
    first, second = trained[0], held[0]
    sources = ("dataset.name", "dataset.splits")
    names, splits = ([sheet.get(setting) for sheet in (first, second)] for setting in sources)
    others = [
        {name: each.value for name, each in sheet.settings.items() if name not in sources} for sheet in (first, second)
    ]
    # One dataset has one set of settings and reads every file of a split: the two can differ in their files alone.
    files = all(isinstance(name, str) and name.rpartition(".")[2].lower() in FILES for name in names)
    alike = names[0] != names[1] and others[0] == others[1] and all(each in (None, ["train"]) for each in splits)
    if not (files and alike):
        return sheets
    origin, validation = first.settings["dataset.name"], second.settings["dataset.name"]
    assert origin.keys is not None and validation.keys is not None
    both = dict(zip(("train", "validation"), names, strict=True))
    first.set("dataset.name", both, origin.keys, origin.key, f"and {validation.keys.key(validation.key)}")
    first.settings.pop("dataset.splits", None)
    return [first]


def _written(sheets: Sequence[Sheet], keys: Keys, module: Any, target: Path) -> dict[Path, str]:
    """Return the checked text of each YAML, the one to build last."""
    trained = [sheet for sheet in sheets if not sheet.evaluation]
    names = {id(sheet): target.stem for sheet in trained} if len(trained) == 1 else {}
    for sheet in sheets:
        if id(sheet) not in names:
            stem = _file_name(sheet.label, "dataset")
            name = f"{target.stem}-{'eval-' if sheet.evaluation else ''}{stem}"[:90]
            while name in names.values():
                name += "_"
            names[id(sheet)] = name
    members = [names[id(sheet)] for sheet in trained]
    # axolotl compares the rows of all datasets: here each loses the rows that are in those before it.
    for number, sheet in enumerate(trained[1:], 1):
        if (setting := sheet.settings.get("dedup")) is not None:
            sheet.settings["dedup"] = replace(setting, value={**setting.value, "against": members[:number]})
    mixture = Sheet("", target.parent)
    # TRL's `fraction` is a weight of the mixture; of one dataset alone, that many of its rows.
    if len(trained) == 1 and "fraction" in trained[0].settings:
        trained[0].settings["dataset.fraction"] = trained[0].settings.pop("fraction")
    if len(trained) > 1:
        _set_mixture(mixture, trained, members, keys, module)
    tool = table(keys.report.tool)["name"]
    header = [f"From {keys.path.name} of {tool}, by `tokenloom import`. Comments name the keys."]
    header += [f"Differs: {key}: {text}" for key, text in shown_entries(keys.report.of("differs")).items()]
    ordered = sorted(sheets, key=lambda sheet: not sheet.evaluation)
    written = {target.with_name(f"{names[id(sheet)]}.yaml"): sheet for sheet in ordered}
    written |= {target: mixture} if mixture.settings else {}
    return {path: sheet.check(header, path) for path, sheet in written.items()}


def _file_name(text: str, default: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.") or default


def _set_mixture(mixture: Sheet, sheets: Sequence[Sheet], names: Sequence[str], keys: Keys, module: Any) -> None:
    weights, key, differs = module.mixture(keys, sheets)
    if differs:
        keys.warn(key, differs)
    shares = [{"weight": weight, "by": "rows"} for weight in weights or ()] or [{"weight": "size"}] * len(names)
    entries = [{"dataset": name, **share} for name, share in zip(names, shares, strict=True)]
    _name_splits_alike(sheets)
    mixture.set("mixture", entries, keys, key, "" if weights else "each by its rows, as they are")
    # Batches are those of the mixture: a loader's settings in the YAML of one dataset would have no effect.
    mixture.settings |= {name: each for name, each in sheets[0].settings.items() if name.startswith("dataloader.")}
    for sheet in sheets:
        sheet.settings = {name: each for name, each in sheet.settings.items() if name not in mixture.settings}


def _name_splits_alike(sheets: Sequence[Sheet]) -> None:
    """Call the splits of all datasets of a mixture `train`, if they have different names.

    Those of the hub are read from the files that `push_to_hub` writes.
    """
    if len({tuple(sheet.get("dataset.splits") or ()) for sheet in sheets}) == 1:
        return
    for sheet in sheets:
        name, splits = sheet.settings["dataset.name"], [*(sheet.get("dataset.splits") or ())]
        renamed = len(splits) == 1 and splits[0] != "train" and re.fullmatch(r"[\w.-]+/[\w.-]+", name.value)
        if not renamed or name.keys is None:
            continue
        folder = sheet.get("dataset.config") or "default"
        files = f"{name.value}/{'data' if folder == 'default' else folder}/{splits[0]}-*"
        sheet.set("dataset.name", {"train": f"hf://datasets/{files}"}, name.keys, name.key)
        text = f"a mixture needs one name for the split: {files} is read as train"
        name.keys.warn(name.key, f"{text}; correct it if files have other names")
        for setting in ("splits", "config", "revision"):
            sheet.settings.pop(f"dataset.{setting}", None)
