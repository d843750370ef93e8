"""`tokenloom versions`: lists the published versions of a dataset."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from tokenloom.cli.options import add_command, add_json, add_store, named, open_store
from tokenloom.errors import StoreError

if TYPE_CHECKING:
    from tokenloom.resources.store import ArtifactStore


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    parser = add_command(commands, "versions", "list the published versions of a dataset", run)
    parser.add_argument("dataset", metavar="NAME|CONFIG", help="name of a dataset, or its YAML file")
    add_store(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print a table of versions, oldest first."""
    from rich.console import Console

    from tokenloom.cli.tables import version_table

    dataset, folder = named(args.dataset)
    versions = _version_facts(open_store(args, folder), dataset)
    if args.json:
        print(json.dumps({"dataset": dataset, "versions": versions}))
    else:
        Console().print(version_table(dataset, versions), highlight=False)
    return 0


def _version_facts(store: ArtifactStore, dataset: str) -> list[dict[str, Any]]:
    """Return, per version, oldest first: published (ISO 8601, UTC), digest, rows, tokens and chunks of its sequences,
    and the runs that pin it.

    The counts are None if the version's manifest no longer exists.

    Raises:
        DatasetNotFoundError: the store does not hold the dataset.
    """
    from tokenloom.resources.store.versions import LOADED

    versions = store.versions.of(dataset)
    if not versions:
        store.manifest_digest(dataset)
    printed, pins = [], store.pins.of(dataset)
    for version in versions:
        facts: dict[str, Any] = {"published": version.published.isoformat(), "digest": version.digest}
        facts |= dict.fromkeys(("rows", "tokens", "chunks"))
        facts["pins"] = [pin.run for pin in pins if pin.digest == version.digest]
        try:
            manifest = store.manifest_at(version.stages[LOADED])
        except StoreError:
            printed.append(facts)
            continue
        counts = {"rows": manifest.total("rows_out"), "tokens": manifest.total("tokens")}
        printed.append(facts | counts | {"chunks": len(manifest.chunks)})
    return printed
