"""The metadata of a materialization: counts that plot, columns with descriptions, a sample, and rejected rows."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import dagster as dg
import pyarrow as pa

from tokenloom.assets.building.build import Build, StageReport, reject_reasons
from tokenloom.assets.columns.mapping import unused_notice
from tokenloom.assets.dagster.tables import arrow_table, text_table
from tokenloom.assets.schema.display_cells import column_cells, format_cells
from tokenloom.assets.sequences.answers import unstopped_fraction, unstopped_warning
from tokenloom.assets.sequences.length_histogram import AFTER, BEFORE, Histogram, fill, histogram_png
from tokenloom.assets.stage.definition import Stage
from tokenloom.assets.stage.rejects import ROW

SAMPLE_ROWS = 5


def stage_metadata(build: Build, stage: Stage, report: StageReport) -> dict[str, Any]:
    """Return the metadata of a stage that was just built."""
    manifest, store = build.manifest(stage.name), build.store
    metadata: dict[str, Any] = {
        # A packed sequence has several rows, so the table has fewer rows than the stage passed on.
        "dagster/row_count": report.counters.get("sequences", report.rows_out),
        "rows_in": report.rows_in,
        "rows_out": report.rows_out,
        "rejected": report.rejected,
        "filtered": report.filtered,
        "tokens": report.tokens,
        "chunks": report.chunks,
        "chunks_reused": report.chunks_reused,
        "seconds": report.seconds,
        **{f"counters/{name}": count for name, count in sorted(report.counters.items()) if "/" not in name},
    }
    if report.explanation:
        metadata["explanation"] = "\n".join(report.explanation)
    if report.notices:
        metadata["notices"] = "\n".join(report.notices)
    if manifest.chunks:
        build.restore(manifest, [manifest.chunks[0].output])
        first = store.objects.get_intact(manifest.chunks[0].output)
        metadata["dagster/column_schema"] = column_schema(stage, first.schema)
        metadata["sample"] = arrow_table(first.slice(0, SAMPLE_ROWS))
    if stage.name == "sequences":
        metadata |= _lengths(report, manifest.facts["max_length"])
        metadata["unstopped_fraction"] = unstopped_fraction(report.counters)
        if warning := unstopped_warning(build.config, report.counters):
            metadata["warning"] = warning
    if stage.name == "schema":
        metadata["columns"] = text_table([column_cells(column) for column in manifest.facts["columns"]])
        metadata["formats"] = text_table([format_cells(candidate) for candidate in manifest.facts["formats"]])
    if unused := manifest.notes.get("unused_columns"):
        metadata["unused_columns"] = unused_notice(unused)
    if certificate := manifest.notes.get("certificate"):
        metadata["certificate"] = text_table(certificate)
    if rejects := [store.objects.get_intact(chunk.rejects) for chunk in manifest.chunks if chunk.rejects]:
        metadata["rejects"] = _rejects_by_code(rejects)
        metadata["rejects_summary"] = reject_reasons(store, manifest)
    return metadata


def column_schema(stage: Stage, columns: pa.Schema) -> dg.TableSchema:
    """Return the columns of a stage's output, with descriptions and constraints from its contract."""
    contract = stage.contract(columns)
    described = []
    for row in map(contract.row, columns):
        constraints = dg.TableColumnConstraints(nullable=row.nullable)
        described.append(dg.TableColumn(row.name, row.type, row.description or None, constraints))
    return dg.TableSchema(described, dg.TableConstraints([*contract.checks]))


def _lengths(report: StageReport, max_length: int) -> dict[str, Any]:
    """Return the packing efficiency, and the lengths of rows and sequences as a picture and as numbers."""
    before, after = (Histogram.of(report.counters, name, max_length) for name in (BEFORE, AFTER))
    picture = base64.b64encode(histogram_png(before, after)).decode()
    bounds = [*(f"≤ {bound:,}" for bound in before.bounds), f"> {before.bounds[-1]:,}"]
    buckets = zip(bounds, before.counts, after.counts, strict=True)
    rows = [{"length": bound, "rows": f"{some:,}", "sequences": f"{others:,}"} for bound, some, others in buckets]
    caption = f"grey: rows before truncation and packing; green: sequences; line: max_length, {max_length:,} tokens"
    return {
        "fill": fill(report.counters, report.tokens, max_length),
        "lengths": dg.MetadataValue.md(f"![lengths](data:image/png;base64,{picture})\n\n{caption}"),
        "length_counts": text_table(rows),
    }


def _rejects_by_code(rejects: Sequence[pa.Table]) -> dg.TableMetadataValue:
    """Return the number of rejected rows per code, most frequent first, with one example each."""
    grouped = pa.concat_tables(rejects).group_by(["code", "field"], use_threads=False)
    counted = grouped.aggregate([(ROW, "count"), ("message", "first"), ("excerpt", "first")])
    counted = counted.rename_columns(["code", "field", "rows", "message", "example"])
    return arrow_table(counted.sort_by([("rows", "descending"), ("code", "ascending"), ("field", "ascending")]))
