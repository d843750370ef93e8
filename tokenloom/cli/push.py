"""`tokenloom push`: sends a dataset's rows to the Hugging Face Hub, with a card that says what they are."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenloom.cli.build import build_target
from tokenloom.cli.options import add_command, add_compute, add_config, add_json, add_limit, add_store
from tokenloom.errors import ConfigError


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

    from tokenloom.cli.terminal import say, size
    from tokenloom.config import PipelineConfig
    from tokenloom.config.dataset import load_config
    from tokenloom.exporters.hub_folder import REPOSITORY, pushed_splits, send, summary_of, write_hub_folder

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
    splits = pushed_splits(target, args.split)
    repository, console = str(args.repository or "ORG/NAME"), Console(stderr=args.json)
    with _folder(args) as folder:
        tokenizer = build.store.objects.mapped(manifest.facts["tokenizer"])
        files, version = write_hub_folder(folder, repository, manifest, splits, tokenizer, summary_of(build))
        total = sum(path.stat().st_size for path in files)
        report: dict[str, Any] = {"dataset": target.name, "version": version, "repository": args.repository}
        report |= {"files": [path.relative_to(folder).as_posix() for path in files], "bytes": total}
        if sends:
            message = args.message or f"{target.name}, version {manifest.digest[:12]}"
            report["commit"] = send(folder, repository, args.revision, args.private, message)
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


@contextmanager
def _folder(args: argparse.Namespace) -> Iterator[Path]:
    """Yield the folder to write: that of `--to`, or one that is deleted afterwards."""
    from tokenloom.exporters.export_folder import check_folder, new_folder
    from tokenloom.loaders.datasets.hub import ABOUT

    if args.to is None:
        with tempfile.TemporaryDirectory(prefix="tokenloom-push-") as folder:
            yield Path(folder)
        return
    with new_folder(check_folder(args.to, args.overwrite, "--to", ABOUT), args.overwrite) as (folder, _):
        yield folder
