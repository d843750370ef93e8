"""`tokenloom import`: turns a configuration of axolotl, LLaMA-Factory or TRL into YAMLs."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.cli.options import add_command, add_json
from tokenloom.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from tokenloom.cli.peers.keys import Keys
    from tokenloom.cli.peers.sheet import Sheet

MOST_SHOWN, LONGEST = 100, 400
"""Most keys of each list that are printed and written into a YAML, and most characters of each."""


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    summary = "turn a configuration of axolotl, LLaMA-Factory or TRL into YAML files"
    parser = add_command(commands, "import", summary, run)
    parser.add_argument("file", metavar="FILE", help="training configuration of the other tool")
    text = "the tool that FILE is for (default: known by its keys)"
    parser.add_argument("--from", dest="tool", choices=("axolotl", "llamafactory", "trl"), help=text)
    parser.add_argument("--entry", metavar="NAME", help="import only this dataset of FILE")
    text = "LLaMA-Factory: dataset_info.json (default: in dataset_dir, or next to FILE)"
    parser.add_argument("--dataset-info", metavar="FILE", help=text)
    text = "file or folder to write, or - for stdout (default: FILE's name with -data, in the working directory)"
    parser.add_argument("--out", metavar="PATH", help=text)
    parser.add_argument("--force", action="store_true", help="overwrite existing YAML files")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write one YAML per dataset, for several also one of their mixture, and report what became of every key."""
    from tokenloom.cli.output.targets import check_file, write_file
    from tokenloom.cli.peers.keys import LISTS, read_file
    from tokenloom.cli.terminal.console import open_console, say

    path = Path(args.file)
    keys = read_file(path, args.tool)
    tool = keys.report.tool
    target = _target(path, args.out)
    sheets = _with_validation(_read(keys, tool, target.parent, Path(args.dataset_info) if args.dataset_info else None))
    if args.entry:
        labels = [sheet.label for sheet in sheets]
        sheets = [sheet for sheet in sheets if sheet.label == args.entry]
        if not sheets:
            known = did_you_mean(args.entry, labels) or f"; it has {', '.join(labels)}"
            raise ConfigError.at("--entry", f"{path} has no dataset {args.entry!r}{known}")
    written = _texts(sheets, keys, tool, target)
    if args.out == "-" and len(written) > 1:
        raise ConfigError.at("--out", f"{len(written)} YAML files cannot be written to stdout; name a folder")
    if args.out and args.out.endswith("/"):
        target.parent.mkdir(parents=True, exist_ok=True)
    for file in written:
        if file.exists() and file.samefile(path):
            raise ConfigError.at("--out", f"{file} is the file to import; name another one")
        check_file("--out", args.out if args.out == "-" else str(file), args.force, args.json)
    console = open_console(stderr=args.json or args.out == "-", width=160)
    if args.json:
        report = {kind: keys.report.of(kind) for kind in LISTS}
        print(json.dumps({"tool": tool, "files": [*map(str, written)], **report}, ensure_ascii=False))
    for kind, heading in LISTS.items():
        if entries := _shown(keys.report.of(kind)):
            say(console, f"{heading}:")
            bare = [key for key, text in entries.items() if not text]
            for key, text in entries.items():
                if text:
                    say(console, f"  {key}: {text}" if kind != "taken" else f"  {key} -> {text}")
            if bare:
                say(console, f"  {', '.join(bare)}")
    files = [*map(str, written)]
    if args.out == "-":
        sys.stdout.write(next(iter(written.values())))
        say(console, "Save it as a .yaml file; build with: tokenloom build FILE")
        return 0
    for file, text in written.items():
        write_file("--out", str(file), text)
    apart = sum(sheet.evaluation for sheet in sheets)
    builds = " && ".join(
        shlex.join(["tokenloom", "build", file]) for file in dict.fromkeys([*files[:apart], files[-1]])
    )
    say(console, f"Wrote {', '.join(files)}; build with: {builds}")
    return 0


def _shown(entries: dict[str, str]) -> dict[str, str]:
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
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).strip("-.") or "imported"
    if out is None or out == "-":
        return Path(f"{name}-data.yaml")
    return Path(out) / f"{name}.yaml" if Path(out).is_dir() or out.endswith("/") else Path(out)


def _read(keys: Keys, tool: str, folder: Path, info: Path | None) -> list[Sheet]:
    from tokenloom.cli.peers import axolotl, llamafactory, trl

    if tool == "llamafactory":
        sheets = llamafactory.read(keys, folder, info)
    elif info is not None:
        raise ConfigError.at("--dataset-info", f"has no effect for {tool}")
    else:
        sheets = (axolotl if tool == "axolotl" else trl).read(keys, folder)
    keys.rest()
    return sheets


def _with_validation(sheets: list[Sheet]) -> list[Sheet]:
    """Return the only dataset with the only evaluation set as its validation split, if they differ in their file."""
    from tokenloom.cli.peers.sheet import FILES

    trained, held = ([sheet for sheet in sheets if sheet.evaluation is flag] for flag in (False, True))
    if len(trained) != 1 or len(held) != 1:
        return sheets
    first, second = trained[0], held[0]
    sources = ("dataset.name", "dataset.splits")
    names, splits = ([sheet.get(setting) for sheet in (first, second)] for setting in sources)
    others = [
        {name: each.value for name, each in sheet.settings.items() if name not in sources} for sheet in (first, second)
    ]
    files = all(isinstance(name, str) and name.rpartition(".")[2].lower() in FILES for name in names)
    if (
        not files
        or names[0] == names[1]
        or others[0] != others[1]
        or any(each not in (None, ["train"]) for each in splits)
    ):
        return sheets
    origin, validation = first.settings["dataset.name"], second.settings["dataset.name"]
    assert origin.keys is not None and validation.keys is not None
    both = dict(zip(("train", "validation"), names, strict=True))
    first.set("dataset.name", both, origin.keys, origin.key, f"and {validation.keys.key(validation.key)}")
    first.settings.pop("dataset.splits", None)
    return [first]


def _texts(sheets: Sequence[Sheet], keys: Keys, tool: str, target: Path) -> dict[Path, str]:
    """Return the checked text of each YAML, the one to build last."""
    from tokenloom.cli.peers.axolotl import dedup_against
    from tokenloom.cli.peers.keys import table
    from tokenloom.cli.peers.sheet import Sheet

    trained = [sheet for sheet in sheets if not sheet.evaluation]
    names = {id(sheet): target.stem for sheet in trained} if len(trained) == 1 else {}
    for sheet in sheets:
        if id(sheet) not in names:
            stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", sheet.label).strip("-.") or "dataset"
            name = f"{target.stem}-{'eval-' if sheet.evaluation else ''}{stem}"[:90]
            while name in names.values():
                name += "_"
            names[id(sheet)] = name
    dedup_against(trained, [names[id(sheet)] for sheet in trained])
    mixture = Sheet("", target.parent)
    if len(trained) > 1:
        _set_mixture(mixture, trained, [names[id(sheet)] for sheet in trained], keys, tool)
    header = [f"From {keys.path.name} of {table(tool)['name']}, by `tokenloom import`. Comments name the keys."]
    header += [f"Differs: {key}: {text}" for key, text in _shown(keys.report.of("differs")).items()]
    ordered = sorted(sheets, key=lambda sheet: not sheet.evaluation)
    texts = {target.with_name(f"{names[id(sheet)]}.yaml"): sheet for sheet in ordered}
    if mixture.settings:
        texts[target] = mixture
    return {path: sheet.check(header, path) for path, sheet in texts.items()}


def _set_mixture(mixture: Sheet, sheets: Sequence[Sheet], names: Sequence[str], keys: Keys, tool: str) -> None:
    from tokenloom.cli.peers import llamafactory, trl

    weights, key, differs = None, "datasets", ""
    if tool == "llamafactory":
        weights, key, differs = llamafactory.weights(keys, len(sheets))
    elif tool == "trl":
        weights = trl.weights([*sheets])
        key = next((name for name in ("dataset_mixture", "dataset_mixer", "datasets") if name in keys), "datasets")
    if differs:
        keys.warn(key, differs)
    entries: list[dict[str, Any]] = [{"dataset": name} for name in names]
    for number, entry in enumerate(entries):
        entry |= {"weight": weights[number], "by": "rows"} if weights else {"weight": "size"}
    _name_splits_alike(sheets)
    mixture.set("mixture", entries, keys, key, "" if weights else "each by its rows, as they are")
    for name in [name for name in sheets[0].settings if name.startswith("dataloader.")]:
        mixture.settings[name] = sheets[0].settings[name]
        for sheet in sheets:
            sheet.settings.pop(name, None)


def _name_splits_alike(sheets: Sequence[Sheet]) -> None:
    """Call the splits of all datasets of a mixture `train`, if they have different names.

    Those of the hub are read from the files that `push_to_hub` writes.
    """
    if len({tuple(sheet.get("dataset.splits") or ()) for sheet in sheets}) == 1:
        return
    for sheet in sheets:
        name, splits = sheet.settings["dataset.name"], sheet.get("dataset.splits") or ()
        if (
            len(splits) != 1
            or splits[0] == "train"
            or name.keys is None
            or not re.fullmatch(r"[\w.-]+/[\w.-]+", name.value)
        ):
            continue
        folder = sheet.get("dataset.config") or "default"
        files = f"{name.value}/{'data' if folder == 'default' else folder}/{splits[0]}-*"
        sheet.set("dataset.name", {"train": f"hf://datasets/{files}"}, name.keys, name.key)
        name.keys.warn(
            name.key,
            f"a mixture needs one name for the split: {files} is read as train; correct it if files have other names",
        )
        for setting in ("splits", "config", "revision"):
            sheet.settings.pop(f"dataset.{setting}", None)
