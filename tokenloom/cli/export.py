"""What `tokenloom export` does and prints: a dataset's rows in files of other libraries."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tokenloom.cli.build import build_dataset, build_mixture
from tokenloom.cli.file_formats import LAYOUTS, Source, write_split
from tokenloom.cli.output_folder import MARK, check_target, new_folder
from tokenloom.cli.sizes import size
from tokenloom.cli.visible import say
from tokenloom.config import MixtureConfig
from tokenloom.config.load import load_config
from tokenloom.errors import ConfigError, Fault
from tokenloom.loaders import MixedDataset, TokenDataset, open_dataset, open_mixture
from tokenloom.loaders.datasets.row_tables import row_tables


def run_export(parsed: argparse.Namespace) -> int:
    """Export as the command line says, building what is missing; returns the exit code."""
    folder = check_target(parsed.folder, parsed.overwrite)
    layout, config, console = LAYOUTS[parsed.to](), load_config(parsed.config), Console(stderr=True)
    mixed = isinstance(config, MixtureConfig)
    build = build_mixture(parsed, config, console)[0] if mixed else build_dataset(parsed, config, console)[0]
    told: list[dict[str, Any]] = []
    with new_folder(folder, parsed.overwrite) as writing:
        for split, dataset in _splits(build, parsed.split, mixed).items():
            facts: dict[str, Any] = {"split": split, "rows": len(dataset), "files": [], "bytes": 0}
            if len(dataset):
                version = dataset.version if isinstance(dataset, TokenDataset) else dataset.digest
                source = Source(build.name, version, split, dataset.digest)
                files = write_split(layout, writing / split, source, _shown(console, split, dataset))
                facts["files"] = [str(file.relative_to(writing)) for file in files]
                facts["bytes"] = sum(file.stat().st_size for file in files)
            told.append(facts)
        layout.finish(writing, [facts["split"] for facts in told if facts["files"]])
        report = {"dataset": build.name, "format": parsed.to, "splits": told}
        (writing / MARK).write_text(json.dumps(report, indent=2))
    shown = Console(stderr=parsed.json)
    for facts in told:
        files, written = len(facts["files"]), size(facts["bytes"])
        done = f"{facts['rows']:,} rows in {files} {'file' if files == 1 else 'files'}, {written}"
        say(shown, f"{facts['split']}: {done if files else 'no rows, left out'}")
    say(shown, f"wrote {folder}")
    if parsed.json:
        print(json.dumps({**report, "folder": str(folder)}))
    return 0


def _splits(build: Any, wanted: str | None, mixed: bool) -> dict[str, TokenDataset | MixedDataset]:
    """The datasets to export, by split."""
    store = build.store
    if mixed:
        pinned = store.manifest(build.name, "mixture").pinned.values()
        first, *others = (store.manifest_at(digest).splits for digest in pinned)
        known = [split for split in first if all(split in other for other in others)]
    else:
        known = store.manifest(build.name).splits
    if wanted is not None and wanted not in known:
        close = difflib.get_close_matches(wanted, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError([Fault("--split", f"{wanted!r} is not one of {', '.join(known)}{hint}")])
    kind = open_mixture if mixed else open_dataset
    return {split: kind(build.name, split, store.address) for split in known if wanted in (None, split)}


def _shown(console: Console, split: str, dataset: TokenDataset | MixedDataset) -> Iterator[pa.Table]:
    """The rows, with a bar on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(split, total=len(dataset))
        for table in row_tables(dataset):
            yield table
            bars.advance(task, table.num_rows)
    if not console.is_terminal:
        console.print(f"export: {split}, {len(dataset):,} rows", highlight=False, soft_wrap=True)
