"""`tokenloom push`: sends a dataset's rows to the Hugging Face Hub, with a card that says what they are."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.cli.build import build_target
from tokenloom.cli.options import add_command, add_compute, add_config, add_json, add_limit, add_store
from tokenloom.errors import ConfigError

if TYPE_CHECKING:
    from tokenloom.assets.building.build import Build

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

REPLACED = ["data/*.parquet", "tokenizer/*"]
"""Files of an earlier push, which are deleted if this one does not have them."""


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    summary = "send a dataset's rows to the Hugging Face Hub, building what is missing"
    parser = add_command(commands, "push", summary, run)
    add_config(parser, "a dataset")
    parser.add_argument(
        "repository", metavar="ORG/NAME", nargs="?", help="dataset repository; created if it is missing"
    )
    parser.add_argument("--revision", "--branch", metavar="BRANCH", help="branch; created if missing (default: main)")
    parser.add_argument("--private", action="store_true", help="make a repository that is created private")
    parser.add_argument("--message", metavar="TEXT", help="commit message (default: the dataset and its version)")
    parser.add_argument("--split", metavar="SPLIT", action="append", help="only this split; can be repeated")
    parser.add_argument("--to", metavar="FOLDER", help="write what would be sent to a new folder, and send nothing")
    parser.add_argument("--overwrite", action="store_true", help="with --to: replace an earlier push in FOLDER")
    parser.add_argument("--dry-run", action="store_true", help="print what would be sent, and send nothing")
    add_store(parser)
    add_limit(parser)
    add_compute(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Build what is missing, write the files, and send those that the repository does not have."""
    from rich.console import Console

    from tokenloom.cli.output.hub_folder import write_hub_folder
    from tokenloom.cli.terminal.console import say, size
    from tokenloom.config import PipelineConfig
    from tokenloom.config.dataset import load_config

    sends = args.to is None and not args.dry_run
    if args.repository is None and sends:
        raise ConfigError.at("ORG/NAME", "is missing; name a repository, or write the files with --to FOLDER")
    if args.repository is not None and not REPOSITORY.fullmatch(args.repository):
        raise ConfigError.at("ORG/NAME", f"{args.repository!r} is not a repository such as org/name")
    config = load_config(args.config)
    if not isinstance(config, PipelineConfig):
        raise ConfigError.at("CONFIG", "is a mixture; push its datasets, and mix them where you train")
    target = build_target(args, config, Console(stderr=True)).target
    build = next(iter(target.builds.values()))
    manifest = build.manifest("sequences")
    splits = _splits(target, args.split)
    repository, console = str(args.repository or "ORG/NAME"), Console(stderr=args.json)
    with _folder(args) as folder:
        tokenizer = build.store.objects.mapped(manifest.facts["tokenizer"])
        files, version = write_hub_folder(folder, repository, manifest, splits, tokenizer, _summary(build))
        total = sum(path.stat().st_size for path in files)
        report: dict[str, Any] = {"dataset": target.name, "version": version, "repository": args.repository}
        report |= {"files": [path.relative_to(folder).as_posix() for path in files], "bytes": total}
        if sends:
            message = args.message or f"{target.name}, version {manifest.digest[:12]}"
            report["commit"] = _send(folder, repository, args.revision, args.private, message)
    if args.dry_run:
        for path in report["files"]:
            say(console, path)
    what = f"{len(files)} files, {size(total)}"
    if sends:
        say(console, f"pushed {what} to {args.repository}, without what the hub had: {report['commit']}")
        say(console, f"version {version}")
    else:
        say(console, f"{what}{f' in {args.to}' if args.to else ''}; nothing was sent")
    if args.json:
        print(json.dumps(report))
    return 0


def _splits(target: Any, names: Sequence[str] | None) -> dict[str, Any]:
    """Open splits that have rows.

    Raises:
        ConfigError: one does not exist or has images.
    """
    from tokenloom.cli.output.export_folder import open_splits

    found = {}
    for name in names or [None]:
        found |= {split: opened for split, opened in open_splits(target, name).items() if len(opened)}
    if any(opened.images is not None for opened in found.values()):
        raise ConfigError.at(
            "CONFIG", "has images, which a push does not hold; use `export --to parquet`, and `hf upload`"
        )
    if not found:
        raise ConfigError.at("--split", "has no rows")
    return found


@contextmanager
def _folder(args: argparse.Namespace) -> Iterator[Path]:
    """Yield the folder to write: that of `--to`, or one that is deleted afterwards."""
    from tokenloom.cli.output.targets import check_folder, new_folder
    from tokenloom.loaders.datasets.hub import ABOUT

    if args.to is None:
        with tempfile.TemporaryDirectory(prefix="tokenloom-push-") as folder:
            yield Path(folder)
        return
    with new_folder(check_folder(args.to, args.overwrite, "--to", ABOUT), args.overwrite) as (folder, _):
        yield folder


def _summary(build: Build) -> dict[str, Any]:
    """Return what the card says of how a dataset was built, without paths."""
    from tokenloom.resources.store.manifest import TRAINED
    from tokenloom.resources.visible import as_markdown

    manifests = {stage: build.manifest(stage) for stage in build.stages}
    counts = ("rows_in", "rows_out", "rejected", "filtered")
    sequences, name = manifests["sequences"], build.config.tokenizer.name_or_path
    is_local = name is None or Path(name).expanduser().exists() or not REPOSITORY.fullmatch(name)
    trained, tokens = sequences.counters.get(TRAINED, 0), sequences.total("tokens")
    certificate: Sequence[Mapping[str, str]] = manifests["prompts"].notes.get("certificate") or ()
    return {
        "lines": [f"- {tokens:,} tokens, {trained:,} of them trained."],
        "tokenizer": "trained on the dataset" if name is None else "a local one" if is_local else f"`{name}`",
        "stages": {
            stage: [manifest.total(count) for count in counts]
            for stage, manifest in manifests.items()
            if stage != "tokenizer"
        },
        "certificate": [f"- {finding['name']}: {as_markdown(finding['found'])}" for finding in certificate],
    }


def _send(folder: Path, repository: str, branch: str | None, private: bool, message: str) -> str:
    """Send a folder in one commit, and return the commit's address.

    Raises:
        ConfigError: the repository cannot be written with this login.
        SourceUnavailableError: the hub cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # pyright: ignore[reportPrivateImportUsage]
    from huggingface_hub.utils import disable_progress_bars

    from tokenloom.errors import SourceUnavailableError
    from tokenloom.resources.sources.hub import LOG_IN
    from tokenloom.resources.visible import first_line

    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi()
    try:
        api.create_repo(repository, repo_type="dataset", private=private or None, exist_ok=True)
        if branch not in (None, "main"):
            api.create_branch(repository, branch=branch, repo_type="dataset", exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            repo_type="dataset",
            folder_path=folder,
            revision=branch,
            commit_message=message,
            delete_patterns=REPLACED,
        )
    except HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            raise ConfigError.at("ORG/NAME", f"{repository} cannot be written with this login; {LOG_IN}") from error
        raise SourceUnavailableError(f"{repository} cannot be sent to the hub: {first_line(error)}") from error
    except (HTTPError, OSError, RuntimeError) as error:
        raise SourceUnavailableError(f"{repository} cannot be sent to the hub: {first_line(error)}") from error
    return str(commit.commit_url)
