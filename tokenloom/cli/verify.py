"""`tokenloom verify`: rereads stored data, and reports what is damaged or missing and how to repair it."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tokenloom.cli.options import add_command, add_json, add_store, named, open_store
from tokenloom.cli.terminal import size
from tokenloom.errors import StoreError

if TYPE_CHECKING:
    from tokenloom.resources.store.verify import Verification


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    parser = add_command(commands, "verify", "reread stored data and report what is damaged or missing", run)
    text = "name or YAML file of a dataset or mixture (default: the whole store)"
    parser.add_argument("target", metavar="NAME|CONFIG", nargs="?", help=text)
    add_store(parser)
    text = "only report damaged objects (default: remove them, so that the next build recomputes them)"
    parser.add_argument("--keep-damaged", action="store_true", help=text)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Reread a dataset, a mixture or the whole store, and print what is wrong."""
    from rich.console import Console

    from tokenloom.cli.terminal import ObjectProgress, say
    from tokenloom.resources.engines.engine import ComputeEngine
    from tokenloom.resources.store.verify import verify

    name, folder = (None, None) if args.target is None else named(args.target)
    store = open_store(args, folder, heal_format=not args.keep_damaged)
    with ObjectProgress(Console(stderr=True)) as progress:
        result = verify(store, name, ComputeEngine(), not args.keep_damaged, progress.object_done)
    console = Console(stderr=args.json)
    for line in _report(result, args.keep_damaged):
        say(console, line)
    if args.json:
        print(json.dumps(asdict(result)))
    return StoreError.exit_code if any(finding.problem != "unknown" for finding in result.findings) else 0


def _report(result: Verification, keep_damaged: bool) -> list[str]:
    """Return the findings, their number, and what to do about them."""
    lines = [*map(str, result.findings)]
    count = f"{result.objects:,} objects ({size(result.bytes)}) checked"
    dropped = f"; {result.dropped:,} outputs were dropped, as keep: sequences allows" if result.dropped else ""
    found = Counter(finding.problem for finding in result.findings)
    fate = {
        "damaged": f"damaged and {'kept' if keep_damaged else 'removed'}",
        "unknown": "unknown, which nothing reads",
    }
    counts = [f"{found[problem]:,} {fate.get(problem, problem)}" for problem in sorted(found)]
    if not found["damaged"] + found["missing"]:
        counts.insert(0, "none damaged or missing")
    lines.append(f"{count}: {', '.join(counts)}{dropped}")
    to_build = {
        finding.dataset
        for finding in result.findings
        if finding.dataset and finding.latest and finding.kind != "tokenizer"
    }
    if keep_damaged and found["damaged"]:
        lines.append("run without --keep-damaged to remove them, so that the next build recomputes them")
    elif to_build:
        lines.append(f"build {', '.join(sorted(to_build))} to recompute only these chunks")
    if any(not finding.latest for finding in result.findings):
        lines.append("outputs of an earlier version can only be recomputed from that version's rows and settings")
    return lines
