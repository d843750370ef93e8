"""What `tokenloom inspect` prints and writes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from tokenloom.cli.output_file import why_no_target, write_file
from tokenloom.cli.progress import BuildProgress
from tokenloom.cli.schema_table import column_table, format_table
from tokenloom.cli.source_facts import dataset_name, inspect_source
from tokenloom.cli.visible import say
from tokenloom.errors import ConfigError, Fault
from tokenloom.resources.store import ArtifactStore


def run_inspect(parsed: argparse.Namespace) -> int:
    """Inspect a source as the command line says; returns the exit code.

    Raises:
        TokenloomError: the source cannot be read, or the YAML not be written.
    """
    declared = Path(parsed.source).suffix in (".yaml", ".yml")
    target = None if declared or parsed.json else f"{dataset_name(parsed.source)}.yaml"
    target = parsed.out if parsed.out is not None else target
    if target is not None and (fault := why_no_target(target, parsed.force, parsed.json)):
        raise ConfigError([Fault("--out", fault)])
    reader = {"reader": {"root": parsed.root}} if parsed.root else {}
    given = {"config": parsed.config, "revision": parsed.revision, "splits": [parsed.split] if parsed.split else None}
    dataset = {name: value for name, value in given.items() if value is not None} | reader
    with BuildProgress(Console(stderr=True, quiet=not sys.stderr.isatty())) as progress:
        store = ArtifactStore(parsed.store)
        found = inspect_source(parsed.source, store, progress, dataset, parsed.tokenizer, parsed.limit)
    quiet = parsed.json or target == "-"
    console = Console(stderr=quiet)
    if not console.is_terminal:
        console = Console(stderr=quiet, width=160)
    console.print(column_table(f"{found.config.dataset_name}: {found.counts()}", found.facts["columns"]))
    for line in found.findings():
        say(console, line)
    for report in found.reports:
        if report.rejected:
            reasons = found.build.reject_reasons(report.name)
            say(console, f"{report.name} rejected {reasons}")
    console.print(format_table(found.facts["formats"]))
    say(console, found.verdict())
    if parsed.json:
        print(
            json.dumps({"dataset": found.config.dataset_name, "sure": found.is_sure, **found.facts}, ensure_ascii=False)
        )
    if target == "-":
        print(found.yaml(Path()), end="")
    elif target is not None:
        write_file("--out", target, found.yaml(Path(target).parent))
        then = (
            f"build it with: tokenloom build {target}" if found.is_sure else "fill in its column_mapping, then build it"
        )
        say(console, f"Wrote {target}; {then}")
    return 0
