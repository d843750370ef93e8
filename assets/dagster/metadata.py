"""What assets show in Dagster's UI: marked rows, numbers that plot, pictures, rejects, and where the YAML sets it."""

from __future__ import annotations

import base64
import math
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa

from tokenloom.assets.building.build import Build, reject_reasons
from tokenloom.assets.building.stage_report import StageReport
from tokenloom.assets.columns.mapping import unused_notice
from tokenloom.assets.schema.display_cells import NO_ROWS, column_cells, format_cells
from tokenloom.assets.sequences.answers import unstopped_fraction, unstopped_warning
from tokenloom.assets.sequences.lengths import AFTER, BEFORE, Histogram, fill, histogram_png
from tokenloom.assets.shown_rows.token_runs import BRACKETS, Decoder, TokenRun, bracketed
from tokenloom.assets.stage.definition import Stage
from tokenloom.assets.stage.rejects import REJECTS, ROW, explained, no_rejects
from tokenloom.assets.tokens.answer_borders import JOINED, RECUT
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.errors import redacted_address
from tokenloom.resources.digest import digest_json
from tokenloom.resources.png import DARK, GREEN, GREY, png
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk
from tokenloom.resources.store.objects import ObjectStore
from tokenloom.resources.tables.ragged import sides
from tokenloom.resources.tables.sequence_schema import check_schema
from tokenloom.resources.tokenizers import TOKENIZER

DESCRIPTIONS = {
    "raw": "The rows as they are in the source, in chunks whose places depend on their content.",
    "schema": "Types, lengths and examples of each column, and which formats the rows can be read as.",
    "columns": "The rows in one canonical form: fields, prompt and completion, messages, pairs, or text.",
    "prompts": "The rows as text, with a role and a loss weight for each part of it.",
    "tokenizer": "The tokenizer: its files, control tokens and vocabulary.",
    "tokens": "The text as tokens, with the roles and loss weights of the prompts.",
    "sequences": "What a model is trained on: tokens cut or packed to max_length, and which of them are trained.",
}
SECTIONS = {"prompts": "prompt_template", "tokenizer": "tokenizer", "tokens": "tokenizer", "sequences": "length"}
"""The section of the YAML that decides most about a stage; of the others it is `dataset`."""


def stage_description(stage: str) -> str:
    """Return what a stage's asset is."""
    return DESCRIPTIONS[stage]


def spec_metadata(config: PipelineConfig | MixtureConfig, section: str) -> dict[str, Any]:
    """Return the reference to the lines of a YAML that declare an asset; nothing if no file declares it.

    Args:
        section: the section of the YAML.
    """
    if config.file is None:
        return {}
    reference = dg.LocalFileCodeReference(
        file_path=os.path.realpath(config.file), line_number=config.line(section), label=section
    )
    return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}


PLOT_WIDTH, PLOT_HEIGHT = 304, 120


def loss_curve_png(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the curve of a log's lines: grey, the training loss of each step; green, that of the evaluations."""
    picture = np.zeros((PLOT_HEIGHT, PLOT_WIDTH), np.uint8)
    found = {name: _points(lines, name) for name in ("loss", "eval_loss")}
    points = [point for each in found.values() for point in each]
    if not points:
        return png(picture)
    last = max(step for step, _ in points) or 1
    lowest, highest = min(loss for _, loss in points), max(loss for _, loss in points)

    def places(each: Sequence[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
        steps, losses = np.array(each, np.float64).reshape(-1, 2).T
        rows = (highest - losses) / ((highest - lowest) or 1) * (PLOT_HEIGHT - 4)
        return (steps / last * (PLOT_WIDTH - 3)).astype(int), rows.astype(int)

    columns, rows = places(found["loss"])
    for column in np.unique(columns):  # a line from the lowest to the highest loss of the column's steps
        here = rows[columns == column]
        picture[here.min() : here.max() + 2, column : column + 2] = GREY
    for column, row in zip(*places(found["eval_loss"]), strict=True):
        picture[max(row - 1, 0) : row + 3, max(column - 1, 0) : column + 3] = GREEN
    picture[-1] = DARK
    return png(picture)


def _points(lines: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(line["step"], line[name]) for line in lines if math.isfinite(line.get(name, math.nan))]


ROWS = 4
LONGEST_RUNS = (900, 300, 120, 60, 24)
"""Most characters of a run that are shown: the first, or where the text must be short, the first one that fits."""

INLINE = 1000
"""Dagster's page shows a Markdown text at once if it is shorter than this, and else a link to it."""

WIDTH = 84
"""Longest line in characters; the viewer does not wrap code blocks."""

LEGEND = f"{'trained'.join(BRACKETS)}; the rest is masked. Long lines are wrapped."
_VERSION = 3


def marked_sequences(build: Build, manifest: Manifest, first: pa.Table) -> dict[str, str]:
    """Return the first sequences, decoded. They are kept in the store, so that a tokenizer is loaded only once.

    Args:
        manifest: of the sequences.
        first: the output of its first chunk.

    Returns:
        `sample`: one that the page shows at once; `more_samples`: several, if they are longer.
    """
    chunk, facts = manifest.chunks[0], build.manifest("tokenizer").facts
    key = digest_json(["marked sequences", _VERSION, chunk.output, chunk.place(0), facts["digest"]])
    action = build.store.find_action(key)
    if action is not None:
        (stored,) = build.store.objects.get_verified(action.output).to_pylist()
        return stored
    tokenizer = Path(build.store.tokenizer_folder(facts["digest"]), TOKENIZER).read_bytes()
    marked = _samples(_decoded(Decoder(tokenizer, facts["control"]), chunk, first.slice(0, ROWS)))
    counts: dict[str, int] = dict.fromkeys(("rows_in", "rows_out", "rejected", "filtered", "tokens"), 0)
    build.store.put_action(key, pa.Table.from_pylist([marked]), no_rejects(), counts, {}, compressed=True)
    return marked


def marked_prompts(manifest: Manifest, first: pa.Table) -> dict[str, str]:
    """Return the first rendered texts, as `marked_sequences` does.

    Args:
        manifest: of the prompts.
        first: the output of its first chunk.
    """
    return _samples(_rendered(manifest.chunks[0], first.slice(0, ROWS)))


Shown = tuple[str, Sequence[TokenRun]]
"""The title of a text, and its runs."""


def _decoded(decoder: Decoder, chunk: ManifestChunk, table: pa.Table) -> Iterator[Shown]:
    for number in range(table.num_rows):
        label = f", label {table['label'][number].as_py()}" if "label" in table.column_names else ""
        for side, columns in sides(table).items():
            runs = [*decoder.runs_of(columns, number, (), chunk.place)]
            place = chunk.place(columns["rows"][number][0].as_py())
            tokens, trained = sum(run.tokens for run in runs), sum(run.tokens for run in runs if run.trained)
            side = f", {side}" if side else ""
            yield f"{chunk.split}, {place}{side}{label}: {tokens:,} tokens, {trained:,} trained", runs


def _rendered(chunk: ManifestChunk, table: pa.Table) -> Iterator[Shown]:
    for number in range(table.num_rows):
        for side, columns in sides(table).items():
            text = columns["text"][number].as_py().encode()
            spans = columns["spans"][number].as_py()
            runs = [
                TokenRun(
                    text[span["start"] : span["end"]].decode(errors="replace"), span["weight"] > 0, span["control"], 0
                )
                for span in spans
            ]
            side = f", {side}" if side else ""
            yield f"{chunk.split}, {chunk.place(table['_row'][number].as_py())}{side}", runs


def _samples(shown: Iterator[Shown]) -> dict[str, str]:
    texts = [(title, [*runs]) for title, runs in shown]
    every = _markdown(texts, LONGEST_RUNS[0])
    if len(every) < INLINE:
        return {"sample": every}
    short = (_markdown(texts[:1], longest) for longest in LONGEST_RUNS)
    return {"sample": next((text for text in short if len(text) < INLINE), every), "more_samples": every}


def _markdown(shown: Sequence[Shown], longest: int) -> str:
    """Return titles and runs as Markdown.

    Args:
        longest: most characters of a run.
    """
    parts = [LEGEND]
    for title, runs in shown:
        text = bracketed(replace(run, text=_shortened(run.text, longest)) for run in runs)
        lines = [wrapped for line in text.split("\n") for wrapped in _wrapped(line)]
        parts.append(_block([title, "", *lines]))
    return "\n\n".join(parts)


def _shortened(text: str, longest: int) -> str:
    """Return a text without its middle, if it is long."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} … {len(text) - 2 * half:,} characters … {text[-half:]}"


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, replace_whitespace=False, drop_whitespace=False, break_on_hyphens=False) or [line]


def _block(lines: Sequence[str]) -> str:
    """Return lines as a code block of Markdown, fenced by more backticks than any of them has in a row."""
    text = "\n".join(lines)
    longest = max((len(found) for found in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


MAX_CELL_CHARACTERS = 160
MAX_EXACT_INTEGER = 1 << 53
"""Larger integers lose digits in the browser."""


def text_table(rows: Sequence[Mapping[str, str]]) -> dg.TableMetadataValue:
    """Return a table of texts."""
    columns = [dg.TableColumn(name) for name in (rows[0] if rows else ())]
    return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in rows], schema=dg.TableSchema(columns=columns))


def arrow_table(table: pa.Table) -> dg.TableMetadataValue:
    """Return the rows of an Arrow table, with long values shortened."""
    records = [dg.TableRecord({name: _cell(value) for name, value in row.items()}) for row in table.to_pylist()]
    columns = [dg.TableColumn(field.name, _cell_type(field.type)) for field in table.schema]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns=columns))


def _cell_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "int"
    return "float" if pa.types.is_floating(kind) else "string"


def _cell(value: Any) -> str | int | float | bool | None:
    """Return a value as a table cell: unchanged if JSON holds it exactly, else as shortened text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= MAX_EXACT_INTEGER:
        return value
    if isinstance(value, float) and value - value == 0.0:  # neither infinite nor NaN
        return value
    if isinstance(value, bytes):
        text = value[: 4 * (MAX_CELL_CHARACTERS + 1)].decode("utf-8", "replace")
    elif isinstance(value, list):
        shown = ", ".join(str(_cell(item)) for item in value[:MAX_CELL_CHARACTERS])
        text = f"[{shown}]"
    else:
        text = str(value)
    return text if len(text) <= MAX_CELL_CHARACTERS else f"{text[: MAX_CELL_CHARACTERS - 1]}…"


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
            **_markdown_entries(marked_sequences(build, manifest, first)),
            **_training(report, manifest.facts["max_length"]),
            "warning": unstopped_warning(build.config, report.counters),
        }
    if manifest.stage == "prompts":
        certificate = manifest.notes.get("certificate")
        return {
            **_markdown_entries(marked_prompts(manifest, first)),
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


def _markdown_entries(texts: Mapping[str, str]) -> dict[str, Any]:
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
