"""Options that several commands share, how their values are read, and the files that they name."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.errors import ConfigError, visible

if TYPE_CHECKING:
    from tokenloom.config.schema import ComputeConfig
    from tokenloom.resources.engines.engine import ComputeEngine
    from tokenloom.resources.store import ArtifactStore

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

EXIT_CODES = (
    "exit codes: 0 success; 2 the config or the command is wrong; 3 the data failed validation; "
    "4 the store is damaged; 1 any other error"
)


def add_command(
    commands: Any, name: str, summary: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """Add a command to the `tokenloom` parser.

    Args:
        summary: what the command does, in a line without a full stop.
        run: runs the command and returns its exit code.
    """
    description = f"{summary[0].upper()}{summary[1:]}."
    parser = commands.add_parser(name, help=summary, description=description, epilog=EXIT_CODES)
    parser.set_defaults(run=run)
    return parser


def add_config(parser: argparse.ArgumentParser, kinds: str = "a dataset or a mixture") -> None:
    """Add the YAML file that a command works on."""
    parser.add_argument("config", metavar="CONFIG", help=f"YAML file of {kinds}")


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add `--store`."""
    text = (
        "store folder, or s3://bucket/prefix (default: $TOKENLOOM_STORE, else the nearest .tokenloom in or above the "
        "YAML's folder or the working directory, else a new one at the root of the project)"
    )
    parser.add_argument("--store", metavar="STORE", help=text)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and the rest on stderr")


def add_limit(
    parser: argparse.ArgumentParser, text: str = "use only the first N rows of each split; published as NAME@N"
) -> None:
    """Add `--limit`."""
    parser.add_argument("--limit", metavar="N", type=positive_integer, help=text)


def add_compute(parser: argparse.ArgumentParser) -> None:
    """Add `--workers` and `--engine`."""
    text = "number of chunks to process in parallel (default: compute.workers)"
    parser.add_argument("--workers", metavar="N", type=positive_integer, help=text)
    parser.add_argument("--engine", choices=("local", "ray"), help="where to run stages (default: compute.engine)")


def compute_engine(args: argparse.Namespace, compute: ComputeConfig) -> ComputeEngine | None:
    """Return the engine that `--workers` and `--engine` select; None: the one that the YAML sets.

    Args:
        compute: the YAML's section, for what the options leave open.
    """
    from tokenloom.resources.engines.engine import keep_memory_low, open_engine

    keep_memory_low()
    given = {"workers": args.workers, "engine": args.engine}
    chosen = {name: value for name, value in given.items() if value}
    return open_engine(compute.model_copy(update=chosen)) if chosen else None


def positive_integer(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def nonnegative_integer(text: str) -> int:
    """Parse an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer of at least 0, got {text!r}")
    return int(text)


def duration(option: str, text: str) -> timedelta:
    """Parse a duration such as `90s`, `30m`, `12h`, `1d` or `2w`.

    Args:
        option: the option that it was given to, for the error message.

    Raises:
        ConfigError: the text is not a duration.
    """
    if not (match := re.fullmatch(r"(\d{1,6})([smhdw])", text)):
        raise ConfigError.at(option, f"{text!r} is not a duration such as 90s, 30m, 12h, 1d or 2w")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def open_store(
    args: argparse.Namespace, folder: str | None = None, read_only: bool = False, heal_format: bool = False
) -> ArtifactStore:
    """Open the store that `--store` names; else the default one, whose address is printed on stderr.

    Args:
        folder: the folder of the YAML that the command works on.
        heal_format: whether to write a damaged or lost FORMAT again.
    """
    from tokenloom.resources.store import ArtifactStore
    from tokenloom.resources.store.versions import default_store

    if args.store:
        return ArtifactStore(args.store, read_only, heal_format)
    store = ArtifactStore(default_store(folder), read_only, heal_format)
    print(visible(f"store: {store.address}"), file=sys.stderr)
    return store


def named(target: str) -> tuple[str, str | None]:
    """Return the dataset or mixture that an argument names, by its name or by its YAML file, and the YAML's folder."""
    from tokenloom.config.dataset import load_config
    from tokenloom.config.yaml_file import is_yaml

    if not is_yaml(target):
        return target, None
    config = load_config(target)
    return config.dataset_name, config.folder


def check_file(option: str, target: str, force: bool, as_json: bool) -> None:
    """Check that a YAML can be written to a file, or to stdout as `-`.

    Args:
        option: the option that names the file.
        force: an existing file can be overwritten.
        as_json: stdout is taken by the output of `--json`.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = Path(target)
    if target == "-":
        if as_json:
            raise ConfigError.at(option, "- and --json both write to stdout; name a file")
    elif not target:
        raise ConfigError.at(option, "is empty; name a file, or - for stdout")
    elif path.is_dir():
        raise ConfigError.at(option, f"{target} is a folder; name a file")
    elif not path.parent.is_dir():
        raise ConfigError.at(option, f"no such folder: {path.parent}")
    elif path.exists() and not force:
        raise ConfigError.at(option, f"{target} exists; name another file, or add --force to overwrite it")


def write_file(option: str, target: str, text: str) -> None:
    """Write a text.

    Args:
        option: the option that names the file.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError.at(option, f"cannot write {target}: {error.strerror}") from error
