"""What a build reports of each stage, and of the rows that it rejected."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from tokenloom.assets.stage.definition import explained
from tokenloom.assets.stage.rejects import REJECTS, ROW, fate
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk
from tokenloom.resources.tables.sequence_schema import check_schema


@dataclass(frozen=True)
class StageReport:
    """The result of one stage.

    Args:
        rows_in, rows_out, rejected, filtered: rows; the first is the sum of the others.
        tokens: tokens in the output.
        chunks: all chunks of the output.
        chunks_reused: chunks whose output the store already had.
        seconds: wall time.
        digest: digest of the output's content.
        counters: the stage's own counts, summed over chunks.
        explanation: sentences about what changed since the previous build.
        notices: sentences about what the data or the template can make a model learn wrong.
    """

    name: str
    rows_in: int
    rows_out: int
    rejected: int
    filtered: int
    tokens: int
    chunks: int
    chunks_reused: int
    seconds: float
    digest: str
    counters: dict[str, int]
    explanation: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


_REASON, _FIRST = ["stage", "code", "field"], ["message", "excerpt", ROW]


def counted_rejects(store: ArtifactStore, manifest: Manifest) -> list[dict[str, Any]]:
    """Return the number of a stage's rejects by code and field, most frequent first, each with place, reason, remedy
    and excerpt of the first.

    Args:
        manifest: the stage's output; need not be published.
    """
    chunks = [chunk for chunk in manifest.chunks if chunk.rejects]
    counted = [_counted(store, number, chunk) for number, chunk in enumerate(chunks)]
    if not counted:
        return []
    grouped = pa.concat_tables(counted).group_by(_REASON, use_threads=False)
    merged = grouped.aggregate([("rows", "sum"), *((name, "first") for name in (*_FIRST, "chunk"))])
    rows = merged.rename_columns([*_REASON, "rows", *_FIRST, "chunk"]).sort_by([("rows", "descending")]).to_pylist()
    return [
        {
            "rows": row["rows"],
            "code": row["code"],
            "field": row["field"],
            "first": chunks[row["chunk"]].place(row[ROW]),
            "reason": explained(row["stage"], row["code"], row["message"]),
            "example": row["excerpt"],
        }
        for row in rows
    ]


def _counted(store: ArtifactStore, number: int, chunk: ManifestChunk) -> pa.Table:
    """Return the number of rows per reason in one chunk, with the first of each."""
    table = store.objects.get_verified(chunk.rejects or "", partial(check_schema, REJECTS))
    grouped = table.group_by(_REASON, use_threads=False)
    counted = grouped.aggregate([(ROW, "count"), *((name, "first") for name in _FIRST)])
    counted = counted.rename_columns([*_REASON, "rows", *_FIRST])
    return counted.append_column("chunk", pa.repeat(pa.scalar(number, pa.int64()), len(counted)))


def reject_reasons(store: ArtifactStore, manifest: Manifest) -> str:
    """Return the most frequent reasons of a stage's rejects in one line."""
    lines = []
    rejected = [found for found in counted_rejects(store, manifest) if fate(found["code"]) == "rejected"]
    for found in rejected[:3]:
        where = f" in {found['field']}" if found["field"] else ""
        example = f"e.g. {found['first']}: {found['example'][:60]!r}"
        lines.append(f"{found['rows']} × {found['code']}{where} ({found['reason']}; {example})")
    return ", ".join(lines)
