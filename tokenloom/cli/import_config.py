"""`tokenloom import`: turns a configuration of axolotl, LLaMA-Factory or TRL into YAMLs."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import Any

from tokenloom.cli.options import add_command, add_json, check_file, write_file
from tokenloom.errors import ConfigError
from tokenloom.importers import TOOLS


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    summary = "turn a configuration of axolotl, LLaMA-Factory or TRL into YAML files"
    parser = add_command(commands, "import", summary, run)
    parser.add_argument("file", metavar="FILE", help="training configuration of the other tool")
    text = "the tool that FILE is for (default: known by its keys)"
    parser.add_argument("--from", dest="tool", choices=TOOLS, help=text)
    parser.add_argument("--entry", metavar="NAME", help="import only this dataset of FILE")
    text = "LLaMA-Factory: dataset_info.json (default: in dataset_dir, or next to FILE)"
    parser.add_argument("--dataset-info", metavar="FILE", help=text)
    text = "file or folder to write, or - for stdout (default: FILE's name with -data, in the working directory)"
    parser.add_argument("--out", metavar="PATH", help=text)
    parser.add_argument("--force", action="store_true", help="overwrite existing YAML files")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write one YAML per dataset, for several also one of their mixture, and report what became of every key."""
    from tokenloom.cli.terminal import open_console, say
    from tokenloom.importers.imported_config import import_config, shown_entries
    from tokenloom.importers.sheet import LISTS

    to_stdout = args.out == "-"
    imported = import_config(args.file, args.tool, args.entry, args.dataset_info, None if to_stdout else args.out)
    files = [*map(str, imported.texts)]
    if to_stdout and len(files) > 1:
        raise ConfigError.at("--out", f"{len(files)} YAML files cannot be written to stdout; name a folder")
    if args.out and args.out.endswith("/"):
        imported.folder.mkdir(parents=True, exist_ok=True)
    for file in imported.texts:
        if file.exists() and file.samefile(args.file):
            raise ConfigError.at("--out", f"{file} is the file to import; name another one")
        check_file("--out", args.out if to_stdout else str(file), args.force, args.json)
    console = open_console(stderr=args.json or to_stdout, width=160)
    if args.json:
        print(json.dumps({"tool": imported.tool, "files": files, **imported.report}, ensure_ascii=False))
    for kind, heading in LISTS.items():
        if entries := shown_entries(imported.report[kind]):
            say(console, f"{heading}:")
            bare = [key for key, text in entries.items() if not text]
            for key, text in entries.items():
                if text:
                    say(console, f"  {key}: {text}" if kind != "taken" else f"  {key} -> {text}")
            if bare:
                say(console, f"  {', '.join(bare)}")
    if to_stdout:
        sys.stdout.write(next(iter(imported.texts.values())))
        say(console, "Save it as a .yaml file; build with: tokenloom build FILE")
        return 0
    for file, text in imported.texts.items():
        write_file("--out", str(file), text)
    builds = " && ".join(shlex.join(["tokenloom", "build", str(file)]) for file in imported.to_build)
    say(console, f"Wrote {', '.join(files)}; build with: {builds}")
    return 0
