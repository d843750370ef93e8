"""The metadata of a materialization, most telling first: marked rows, numbers that plot, pictures, rejects, reasons."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import dagster as dg
import pyarrow as pa

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.stage_report import StageReport
from tokenloom.assets.columns.mapping import unused_notice
from tokenloom.assets.dagster.metadata.marked_sample import marked_prompts, marked_sequences
from tokenloom.assets.dagster.metadata.rejects import rejects_metadata
from tokenloom.assets.dagster.metadata.tables import arrow_table, text_table
from tokenloom.assets.schema.display_cells import NO_ROWS, column_cells, format_cells
from tokenloom.assets.sequences.answers import unstopped_fraction, unstopped_warning
from tokenloom.assets.sequences.length_histogram import AFTER, BEFORE, Histogram, fill, histogram_png
from tokenloom.assets.stage.definition import Stage
from tokenloom.assets.tokens.answer_borders import JOINED, RECUT
from tokenloom.errors import redacted_address
from tokenloom.resources.store import Manifest
from tokenloom.resources.store.objects import ObjectStore

SAMPLE_ROWS = 5
TRAINED = "trained_tokens."
"""Start of the counters of trained tokens by role."""


def stage_metadata(build: Build, stage: Stage, report: StageReport) -> dict[str, Any]:
    """Return the metadata of a stage that was just built."""
    manifest = build.manifest(stage.name)
    first = build.first_chunk(stage.name)
    metadata = {
        **_most_telling(build, manifest, first, report),
        **_counts(report),
        **_texts(build, manifest, report),
        **rejects_metadata(build.store, manifest),
        # A packed sequence has several rows, so the table has fewer rows than the stage passed on.
        "dagster/row_count": report.counters.get("sequences", report.rows_out),
        "dagster/column_schema": column_schema(build, stage, first.schema),
        "dagster/uri": _uri(build, manifest),
    }
    return {name: value for name, value in metadata.items() if value is not None}


def _most_telling(build: Build, manifest: Manifest, first: pa.Table, report: StageReport) -> dict[str, Any]:
    if manifest.stage == "sequences":
        return {
            **_markdown(marked_sequences(build, manifest, first)),
            **_training(report, manifest.facts["max_length"]),
            "warning": unstopped_warning(build.config, report.counters),
        }
    if manifest.stage == "prompts":
        certificate = manifest.notes.get("certificate")
        return {
            **_markdown(marked_prompts(manifest, first)),
            "certificate": text_table(certificate) if certificate else None,
        }
    if manifest.stage == "schema":
        return {
            "columns": text_table([column_cells(column) for column in manifest.facts["columns"]]),
            "formats": text_table([format_cells(candidate) for candidate in manifest.facts["formats"]]),
        }
    if manifest.stage == "tokenizer":
        facts = manifest.facts
        return {"vocab_size": facts["vocab_size"], "control_tokens": ", ".join(facts["control"])[:2000]}
    borders = {name: report.counters[name] for name in (JOINED, RECUT) if report.counters.get(name)}
    return {"sample": arrow_table(first.slice(0, SAMPLE_ROWS)), **borders}


def _markdown(texts: Mapping[str, str]) -> dict[str, Any]:
    return {name: dg.MetadataValue.md(text) for name, text in texts.items()}


def _training(report: StageReport, max_length: int) -> dict[str, Any]:
    """Return how much is trained and by which role, how full sequences are, and how long."""
    counters, tokens = report.counters, report.tokens
    roles = sorted(name for name in counters if name.startswith(TRAINED) and counters[name])
    return {
        "trained_fraction": counters.get("tokens_trained", 0) / tokens if tokens else 0.0,
        "unstopped_fraction": unstopped_fraction(counters),
        **({"fill": fill(counters, tokens, max_length)} if counters.get("sequences", 0) < report.rows_out else {}),
        **_lengths(counters, max_length),
        **{f"trained_tokens/{name.removeprefix(TRAINED)}": counters[name] for name in roles},
        **{name: counters[name] for name in ("tokens_cut", "tokens_dropped", "answers_cut") if counters.get(name)},
    }


def _counts(report: StageReport) -> dict[str, Any]:
    lost = {name: getattr(report, name) for name in ("rejected", "filtered")}
    return {
        "rows_in": report.rows_in,
        "rows_out": report.rows_out,
        **lost,
        "tokens": report.tokens or None,
        "chunks": report.chunks,
        "chunks_reused": report.chunks_reused,
        "seconds": report.seconds,
        "rows_per_second": round(report.rows_in / report.seconds) if report.seconds else None,
    }


def _texts(build: Build, manifest: Manifest, report: StageReport) -> dict[str, Any]:
    unused = manifest.notes.get("unused_columns")
    return {
        "explanation": "\n".join(report.explanation) or None,
        "notices": "\n".join(report.notices) or None,
        "unused_columns": unused_notice(unused) if unused else None,
    }


def column_schema(build: Build, stage: Stage, columns: pa.Schema) -> dg.TableSchema:
    """Return the columns of a stage's output, with descriptions and constraints from its contract; columns of the
    source are described by their statistics."""
    contract = stage.contract(columns)
    rows = [*map(contract.row, columns)]
    profiles = _profiles(build) if any(not row.description for row in rows) else {}
    described = []
    for row in rows:
        constraints = dg.TableColumnConstraints(nullable=row.nullable)
        text = row.description or profiles.get(row.name) or "A column of the source."
        described.append(dg.TableColumn(row.name, row.type, text, constraints))
    return dg.TableSchema(described, dg.TableConstraints([*contract.checks]))


def _profiles(build: Build) -> dict[str, str]:
    """Return what is known of the columns of the source: nulls and an example."""
    schema = build.latest_manifest("schema")
    found: dict[str, str] = {}
    for cells in (column_cells(column) for column in (schema.facts["columns"] if schema else ())):
        parts = [
            f"{cells['null']} null" if cells["null"] != NO_ROWS else "",
            cells["example"] and f"such as {cells['example']}",
        ]
        found[cells["column"]] = "; ".join(["a column of the source", *filter(None, parts)])
    return found


def _uri(build: Build, manifest: Manifest) -> str | None:
    """Return the address of the first chunk, without credentials."""
    address = redacted_address(build.store.address).rstrip("/")
    return f"{address}/{ObjectStore.blob(manifest.chunks[0].output)}"


def _lengths(counters: Mapping[str, int], max_length: int) -> dict[str, Any]:
    """Return the lengths of rows and sequences as a picture and as numbers."""
    before, after = (Histogram.of(counters, name, max_length) for name in (BEFORE, AFTER))
    picture = base64.b64encode(histogram_png(before, after)).decode()
    bounds = [*(f"≤ {bound:,}" for bound in before.bounds), f"> {before.bounds[-1]:,}"]
    buckets = zip(bounds, before.counts, after.counts, strict=True)
    rows = [{"length": bound, "rows": f"{some:,}", "sequences": f"{others:,}"} for bound, some, others in buckets]
    caption = f"grey: rows before truncation and packing; green: sequences; line: max_length, {max_length:,} tokens"
    return {
        "lengths": dg.MetadataValue.md(f"![lengths](data:image/png;base64,{picture})\n\n{caption}"),
        "length_counts": text_table(rows),
    }
