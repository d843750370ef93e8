"""Rejected rows, as entries of metadata."""

from __future__ import annotations

from functools import partial
from typing import Any

import dagster as dg
import pyarrow as pa

from tokenloom.assets.building.build import reject_reasons
from tokenloom.assets.dagster.metadata.tables import arrow_table
from tokenloom.assets.stage.rejects import REJECTS, ROW
from tokenloom.assets.stage.remedies import explained
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk
from tokenloom.resources.tables.untrusted_table import check_schema

LISTED = 50
"""Most reasons that are listed."""


def rejects_metadata(store: ArtifactStore, manifest: Manifest) -> dict[str, Any]:
    """Return the reasons why a stage rejected rows, and a table with number, place, remedy and example of each.

    Args:
        manifest: the stage's output; need not be published.
    """
    table = rejects_table(store, manifest)
    return {} if table is None else {"rejects": table, "rejects_summary": reject_reasons(store, manifest)}


def rejects_table(store: ArtifactStore, manifest: Manifest) -> dg.TableMetadataValue | None:
    """Return the number of rejected rows per code and field, most frequent first, with the first of each."""
    chunks = [chunk for chunk in manifest.chunks if chunk.rejects]
    if not chunks:
        return None
    counted = [_counted(store, number, chunk) for number, chunk in enumerate(chunks)]
    grouped = pa.concat_tables(counted).group_by(["code", "field"], use_threads=False)
    names = ("message", "excerpt", ROW, "chunk")
    merged = grouped.aggregate([("rows", "sum"), *((name, "first") for name in names)])
    merged = merged.rename_columns(["code", "field", "rows", *names])
    order = [("rows", "descending"), ("code", "ascending"), ("field", "ascending")]
    rows = merged.sort_by(order).slice(0, LISTED).to_pylist()
    return arrow_table(
        pa.Table.from_pylist(
            [
                {
                    "rows": row["rows"],
                    "code": row["code"],
                    "field": row["field"],
                    "first": chunks[row["chunk"]].place(row[ROW]),
                    "reason": explained(manifest.stage, row["code"], row["message"]),
                    "example": row["excerpt"],
                }
                for row in rows
            ]
        )
    )


def _counted(store: ArtifactStore, number: int, chunk: ManifestChunk) -> pa.Table:
    """Return the number of rows per code and field in one chunk, with the first of each."""
    table = store.objects.get_verified(chunk.rejects or "", partial(check_schema, REJECTS))
    names = ("message", "excerpt", ROW)
    grouped = table.group_by(["code", "field"], use_threads=False)
    counted = grouped.aggregate([(ROW, "count"), *((name, "first") for name in names)])
    counted = counted.rename_columns(["code", "field", "rows", *names])
    return counted.append_column("chunk", pa.repeat(pa.scalar(number, pa.int64()), len(counted)))
