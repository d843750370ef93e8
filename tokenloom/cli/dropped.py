"""`tokenloom dropped`: lists the rows of a built dataset that were dropped, or reported, for what they contain."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tokenloom.cli.options import add_command, add_config, add_json, add_store, open_store, positive_integer

if TYPE_CHECKING:
    from tokenloom.resources.store import ArtifactStore, Manifest

_SHOWN = 20


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    text = "list the rows that contain items of evaluations, each with the item and the passage"
    parser = add_command(commands, "dropped", text, run)
    add_config(parser, "a dataset")
    add_store(parser)
    text = f"rows to list of each evaluation (default: {_SHOWN}); those that contain most of an item come first"
    parser.add_argument("--rows", metavar="N", type=positive_integer, default=_SHOWN, help=text)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print how many rows of the last build contain items of each evaluation, and which."""
    from tokenloom.assets.stage.names import DECONTAMINATE
    from tokenloom.cli.terminal.console import open_console, say
    from tokenloom.config import PipelineConfig

    config = PipelineConfig.from_file(args.config)
    store = open_store(args, config.folder, read_only=True)
    if config.decontaminate is None:
        message = "this YAML drops no rows for what they contain; list evaluations in decontaminate.against"
        raise config.fault(DECONTAMINATE, message)
    manifest = store.manifest(config.dataset_name, DECONTAMINATE)
    found: dict[str, list[dict[str, Any]]] = {}
    for record in _records(store, manifest):
        found.setdefault(record["evaluation"], []).append(record)
    if args.json:
        listed = [record for records in found.values() for record in records]
        print(json.dumps({"dataset": config.dataset_name, "rows": listed}, ensure_ascii=False))
        return 0
    console = open_console(width=160)
    for described in manifest.notes["evaluations"]:
        name = described["evaluation"]
        records = sorted(found.get(name, ()), key=lambda record: -record["share"])
        rows, items = manifest.total("rows_in"), described["items"]
        say(console, f"{name}: {len(records):,} of {rows:,} rows contain one of its {items:,} items")
        for record in records[: args.rows]:
            say(console, f"  {record['place']} {record['message']}: {record['passage']}")
        if (more := len(records) - args.rows) > 0:
            say(console, f"  and {more:,} more (--rows)")
    return 0


def _records(store: ArtifactStore, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the records of a stage, in order."""
    from tokenloom.assets.decontaminate.stage import share_of
    from tokenloom.assets.stage.rejects import ROW

    for chunk in manifest.chunks:
        for record in store.objects.get_intact(chunk.rejects).to_pylist() if chunk.rejects else ():
            yield {
                "place": chunk.place(record[ROW]),
                "split": chunk.split,
                "code": record["code"],
                "evaluation": record["field"],
                "message": record["message"],
                "share": share_of(record["message"]),
                "passage": record["excerpt"],
            }
