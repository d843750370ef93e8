"""`tokenloom export`: writes a dataset's rows to files that other libraries read."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenloom.cli.build import build_target
from tokenloom.cli.options import add_command, add_compute, add_config, add_json, add_limit, add_store
from tokenloom.exporters import LAYOUTS

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

    from tokenloom.assets.building.target import BuildTarget
    from tokenloom.loaders import MixedDataset, TokenDataset


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    summary = "write a dataset's rows to files for other libraries, building what is missing"
    parser = add_command(commands, "export", summary, run)
    add_config(parser)
    parser.add_argument("folder", metavar="DIR", help="folder to write; it appears only when the export is complete")
    text = "; ".join(f"{name}: {what}" for name, (_, what) in LAYOUTS.items())
    parser.add_argument("--to", choices=tuple(LAYOUTS), required=True, help=text)
    parser.add_argument("--split", metavar="SPLIT", help="only this split (default: all splits)")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export in DIR")
    text = (
        "start a new file after this much Arrow data, such as 200MB (default: 500MB; megatron and olmo 4GB, mds 64MiB)"
    )
    parser.add_argument("--shard-size", metavar="SIZE", help=text)
    add_store(parser)
    add_limit(parser)
    add_compute(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Build what is missing, and write the splits in one step: the folder is complete or absent."""
    from rich.console import Console

    from tokenloom.cli.terminal import say, size
    from tokenloom.config.dataset import load_config
    from tokenloom.exporters.export_folder import export

    progress = Console(stderr=True)

    def built() -> BuildTarget:
        return build_target(args, load_config(args.config), progress).target

    shown = partial(with_progress, progress)
    exported = export(args.folder, args.to, built, args.split, args.overwrite, args.shard_size, shown)
    console = Console(stderr=args.json)
    for facts in exported.splits:
        files, written = len(facts["files"]), size(facts["bytes"])
        done = f"{facts['rows']:,} rows in {files} {'file' if files == 1 else 'files'}, {written}"
        say(console, f"{facts['split']}: {done if files else 'no rows, skipped'}")
    for notice in exported.notices:
        say(console, notice)
    say(console, f"wrote {exported.folder}; its README.md says how to read it")
    if args.json:
        print(json.dumps({**asdict(exported), "folder": str(exported.folder)}))
    return 0


def with_progress(
    console: Console, split: str, dataset: TokenDataset | MixedDataset, tables: Iterable[pa.Table]
) -> Iterator[pa.Table]:
    """Yield the last rows of a split, with a progress bar on a terminal."""
    from tokenloom.cli.terminal import count_bar

    with count_bar(console) as bar:
        task = None
        for table in tables:
            yield table
            task = bar.add_task(split, total=len(dataset)) if task is None else task
            bar.advance(task, table.num_rows)
    if not console.is_terminal:
        console.print(f"export: {split}, {len(dataset):,} rows", highlight=False, soft_wrap=True)
