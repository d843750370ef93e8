"""`tokenloom check`: finds the faults of YAMLs without reading data, for editors and CI."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenloom.cli.options import add_command, add_json
from tokenloom.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    parser = add_command(commands, "check", "check YAML files, alone and together, without reading data", run)
    parser.add_argument("paths", metavar="CONFIG|FOLDER", nargs="+", help="YAML files, or folders of them")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print what the YAMLs declare, or all their faults."""
    from tokenloom.assets.building.target import read_files
    from tokenloom.config import MixtureConfig

    declared = read_files([*_files(args.paths)])
    faults = [*dict.fromkeys(fault for _, error in sorted(declared.faults.items()) for fault in error.faults)]
    names: dict[str, list[str]] = {"datasets": [], "mixtures": []}
    for config in declared.configs.values():
        names["mixtures" if isinstance(config, MixtureConfig) else "datasets"].append(config.dataset_name)
    if args.json:
        found = [{"place": fault.place, "message": fault.message} for fault in faults]
        print(json.dumps({**names, "faults": found}))
        return ConfigError.exit_code if faults else 0
    if faults:
        raise ConfigError(faults)
    counted = (f"{len(some):,} {kind[: None if len(some) != 1 else -1]}" for kind, some in names.items() if some)
    print(f"{', '.join(counted)}: no faults")
    return 0


def _files(paths: Sequence[str]) -> Iterator[Path]:
    """Yield the YAMLs that some paths name, each once.

    Raises:
        ConfigError: a path does not exist, or a folder has no YAML.
    """
    from tokenloom.assets.building.target import yaml_files

    seen = set[Path]()
    for path in map(Path, paths):
        if path.is_dir() and not yaml_files(path):
            raise ConfigError.at(str(path), "this folder has no YAML file")
        for file in yaml_files(path) if path.is_dir() else [path]:
            if file.resolve() not in seen:
                seen.add(file.resolve())
                yield file
