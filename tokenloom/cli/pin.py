"""`tokenloom pin` and `tokenloom unpin`: keep a version that a training run needs, and release it again."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tokenloom.cli.options import add_command, add_json, add_store, named, open_store
from tokenloom.errors import ConfigError

if TYPE_CHECKING:
    from tokenloom.resources.store import ArtifactStore


def add_parser(commands: Any) -> None:
    """Add both commands to the `tokenloom` parser."""
    parser = add_command(commands, "pin", "keep a version of a dataset for a training run, whatever gc removes", run)
    text = "name of a dataset or mixture, or its YAML file; @VERSION: digest prefix or date (default: the latest)"
    parser.add_argument("dataset", metavar="NAME[@VERSION]", help=text)
    parser.add_argument("--as", metavar="RUN", dest="run_name", required=True, help="name of the training run")
    add_store(parser)
    add_json(parser)
    parser = add_command(commands, "unpin", "release a version that a training run pinned", release)
    parser.add_argument("dataset", metavar="NAME", help="name of a dataset or mixture, or its YAML file")
    parser.add_argument("--as", metavar="RUN", dest="run_name", required=True, help="name of the training run")
    add_store(parser)


def run(args: argparse.Namespace) -> int:
    """Pin a version, and print it."""
    from tokenloom.resources.store.manifest import MIXTURE
    from tokenloom.resources.store.versions import LOADED

    name, folder = named(args.dataset)
    store = open_store(args, folder)
    name, version = _target(store, name)
    is_mixture = version is None and MIXTURE in (store.stages(name) if name in store.datasets() else ())
    try:
        pin = store.pin(name, args.run_name, version, MIXTURE if is_mixture else LOADED)
    except ValueError as error:
        raise ConfigError.at("--as", str(error)) from error
    if args.json:
        print(json.dumps(asdict(pin)))
    else:
        print(f"{pin} is pinned as {pin.run}; gc keeps it until: tokenloom unpin {pin.dataset} --as {pin.run}")
    return 0


def release(args: argparse.Namespace) -> int:
    """Remove a pin."""
    name, folder = named(args.dataset)
    store = open_store(args, folder)
    try:
        store.pins.remove(name, args.run_name)
    except ValueError as error:
        raise ConfigError.at("--as", str(error)) from error
    print(f"{name} is no longer pinned as {args.run_name}")
    return 0


def _target(store: ArtifactStore, name: str) -> tuple[str, str | None]:
    """Return the dataset and the version that a name means. Names of limited builds have an @ too."""
    if "@" not in name or name in store.datasets():
        return name, None
    dataset, _, version = name.rpartition("@")
    return dataset, version
