"""What `tokenloom versions` prints: every state in which a dataset was published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tokenloom.cli.visible import visible
from tokenloom.config.load import load_config
from tokenloom.errors import StoreError
from tokenloom.resources.store import ArtifactStore


def run_versions(named: str, store: str | None, as_json: bool) -> int:
    """Print the versions of a dataset; returns the exit code."""
    dataset = dataset_of(named)
    versions = version_facts(ArtifactStore(store), dataset)
    if as_json:
        print(json.dumps({"dataset": dataset, "versions": versions}))
    else:
        Console().print(version_table(visible(dataset), versions), highlight=False)
    return 0


def dataset_of(named: str) -> str:
    """The dataset's name: what is named, or what the YAML that is named declares."""
    return load_config(named).dataset_name if Path(named).suffix in (".yaml", ".yml") else named


def version_facts(store: ArtifactStore, dataset: str) -> list[dict[str, Any]]:
    """Of each version, the oldest first: published (ISO 8601, UTC), digest, rows, tokens and chunks of its sequences.

    The counts are None where the version's manifest is gone.

    Raises:
        DatasetNotFoundError: the store does not hold the dataset.
    """
    versions = store.versions.of(dataset)
    if not versions:
        store.manifest_digest(dataset)
    found = []
    for version in versions:
        facts: dict[str, Any] = {"published": version.published.isoformat(), "digest": version.digest}
        facts |= dict.fromkeys(("rows", "tokens", "chunks"))
        try:
            manifest = store.manifest_at(version.stages["sequences"])
        except StoreError:
            found.append(facts)
            continue
        counts = {"rows": manifest.total("rows_out"), "tokens": manifest.total("tokens")}
        found.append(facts | counts | {"chunks": len(manifest.chunks)})
    return found


def version_table(dataset: str, versions: Sequence[dict[str, Any]]) -> Table:
    """Date, digest, rows, tokens and chunks of each version."""
    table = Table(
        title=dataset,
        box=box.SIMPLE_HEAD,
        title_style="bold",
        title_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("published (UTC)", style="bold", no_wrap=True)
    table.add_column("digest", no_wrap=True)
    for name in ("rows", "tokens", "chunks"):
        table.add_column(name, justify="right", no_wrap=True)
    for version in versions:
        counts = ["gone" if version[name] is None else f"{version[name]:,}" for name in ("rows", "tokens", "chunks")]
        table.add_row(version["published"][:19].replace("T", " "), version["digest"][:12], *counts)
    return table
