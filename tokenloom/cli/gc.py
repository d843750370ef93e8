"""`tokenloom gc`: lists the stored data that no dataset needs any more, and deletes it on request."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from tokenloom.cli.options import add_command, add_json, add_store, duration, open_store, positive_integer
from tokenloom.cli.terminal import size

if TYPE_CHECKING:
    from tokenloom.resources.store.gc import Garbage

KINDS = ("versions", "actions", "objects", "media", "tokenizers")


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    parser = add_command(commands, "gc", "list or delete stored data that no dataset needs any more", run)
    add_store(parser)
    text = "number of versions of each dataset to keep (default: 3)"
    parser.add_argument("--keep", metavar="N", type=positive_integer, default=3, help=text)
    text = "only data older than this, such as 12h (default: 1d)"
    parser.add_argument("--older-than", metavar="AGE", default="1d", help=text)
    parser.add_argument("--delete", action="store_true", help="delete the data (default: only list it)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Collect a store's garbage, and print how much space it takes."""
    from rich.console import Console

    from tokenloom.cli.terminal import say
    from tokenloom.resources.store.gc import collect

    age, progress = duration("--older-than", args.older_than), Console(stderr=True)
    store = open_store(args)
    with progress.status("gc") as status:

        def on_step(step: str) -> None:
            if progress.is_terminal:
                status.update(f"gc: {step}")
            else:
                progress.print(f"gc: {step}", highlight=False, soft_wrap=True)

        garbage = collect(store, args.keep, age, args.delete, on_step)
    counts, console = _counts(garbage), Console(stderr=args.json)
    for line in _report(counts, args.delete):
        say(console, line)
    if args.json:
        print(json.dumps({"deleted": args.delete, **counts}))
    return 0


def _counts(garbage: Garbage) -> dict[str, Any]:
    """Return count and bytes by kind, and for objects also by the dataset they belonged to ("" if unknown)."""
    from tokenloom.resources.store.blobs.blobs import object_digest
    from tokenloom.resources.store.gc import total

    counts: dict[str, Any] = {
        kind: {"count": len(getattr(garbage, kind)), "bytes": total(getattr(garbage, kind))} for kind in KINDS
    }
    objects, sizes = Counter[str](), Counter[str]()
    for blob in garbage.objects:
        name = garbage.owners.get(object_digest(blob.name) or "", "")
        objects[name] += 1
        sizes[name] += blob.size
    counts["datasets"] = {name: {"objects": objects[name], "bytes": sizes[name]} for name in sorted(objects)}
    return counts


def _report(counts: dict[str, Any], deleted: bool) -> list[str]:
    filled = [kind for kind in KINDS if counts[kind]["count"]]
    if not filled:
        return ["nothing to free"]
    kinds = [f"{counts[kind]['count']:,} {kind} ({size(counts[kind]['bytes'])})" for kind in filled]
    named = ((name or "no dataset", of_name) for name, of_name in counts["datasets"].items())
    lines = [f"{name}: {of_name['objects']:,} objects, {size(of_name['bytes'])}" for name, of_name in named]
    lines.append(f"{'freed' if deleted else 'would free'} {', '.join(kinds)}")
    return lines if deleted else [*lines, "nothing was deleted; run with --delete to delete it"]
