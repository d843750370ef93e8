"""`tokenloom export`: writes a dataset's rows to files that other libraries read."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tokenloom.cli.build import build_target
from tokenloom.cli.options import (
    add_command,
    add_compute,
    add_config,
    add_json,
    add_limit,
    add_store,
)
from tokenloom.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

    from tokenloom.loaders import MixedDataset, TokenDataset


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    summary = "write a dataset's rows to files for other libraries, building what is missing"
    parser = add_command(commands, "export", summary, run)
    add_config(parser)
    parser.add_argument("folder", metavar="DIR", help="folder to write; it appears only when the export is complete")
    text = "hf: a folder for datasets.load_from_disk; parquet: Parquet files"
    parser.add_argument("--to", choices=("hf", "parquet"), required=True, help=text)
    parser.add_argument("--split", metavar="SPLIT", help="only this split (default: all splits)")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export in DIR")
    add_store(parser)
    add_limit(parser)
    add_compute(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Build what is missing, and write the splits in one step: the folder is complete or absent."""
    from rich.console import Console

    from tokenloom.cli.output.layouts import FILE_LAYOUTS, ExportedSplit, write_split
    from tokenloom.cli.output.targets import MARK, check_folder, new_folder
    from tokenloom.cli.terminal.console import say
    from tokenloom.cli.terminal.sizes import size
    from tokenloom.config.dataset import load_config

    folder = check_folder(args.folder, args.overwrite)
    layout, config, progress = FILE_LAYOUTS[args.to](), load_config(args.config), Console(stderr=True)
    target = build_target(args, config, progress).target
    known = target.splits()
    if args.split is not None and args.split not in known:
        message = f"{args.split!r} is not one of {', '.join(known)}{did_you_mean(args.split, known)}"
        raise ConfigError.at("--split", message)
    splits: list[dict[str, Any]] = []
    with new_folder(folder, args.overwrite) as writing:
        for split in [args.split] if args.split is not None else known:
            dataset = target.open_split(split)
            facts: dict[str, Any] = {"split": split, "rows": len(dataset), "files": [], "bytes": 0}
            if len(dataset):
                source = ExportedSplit(target.name, getattr(dataset, "version", dataset.digest), split, dataset.digest)
                files = write_split(layout, writing / split, source, _with_progress(progress, split, dataset))
                facts["files"] = [str(file.relative_to(writing)) for file in files]
                facts["bytes"] = sum(file.stat().st_size for file in files)
            splits.append(facts)
        layout.finish(writing, [facts["split"] for facts in splits if facts["files"]])
        report = {"dataset": target.name, "format": args.to, "splits": splits}
        (writing / MARK).write_text(json.dumps(report, indent=2))
    console = Console(stderr=args.json)
    for facts in splits:
        files, written = len(facts["files"]), size(facts["bytes"])
        done = f"{facts['rows']:,} rows in {files} {'file' if files == 1 else 'files'}, {written}"
        say(console, f"{facts['split']}: {done if files else 'no rows, skipped'}")
    say(console, f"wrote {folder}")
    if args.json:
        print(json.dumps({**report, "folder": str(folder)}))
    return 0


def _with_progress(console: Console, split: str, dataset: TokenDataset | MixedDataset) -> Iterator[pa.Table]:
    """Yield the rows of a split, with a progress bar on a terminal."""
    from tokenloom.cli.terminal.progress import count_bar
    from tokenloom.loaders.datasets.row_tables import row_tables

    with count_bar(console) as bar:
        task = bar.add_task(split, total=len(dataset))
        for table in row_tables(dataset):
            yield table
            bar.advance(task, table.num_rows)
    if not console.is_terminal:
        console.print(f"export: {split}, {len(dataset):,} rows", highlight=False, soft_wrap=True)
