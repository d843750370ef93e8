"""What assets show in Dagster's UI: marked rows, numbers that plot, pictures, rejects, and where the YAML sets it."""

from __future__ import annotations

import base64
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.report import StageReport, counted_rejects, reject_reasons
from tokenloom.assets.columns.unused import unused_notice
from tokenloom.assets.sequences.lengths import Histogram, histogram_png, length_bounds
from tokenloom.assets.shown_rows.thumbnails import thumbnails
from tokenloom.assets.shown_rows.token_runs import (
    BRACKETS,
    Decoder,
    ShownImage,
    TokenRun,
    bracketed,
    image_ids,
    text_runs,
)
from tokenloom.assets.stage.definition import Picture, Stage
from tokenloom.assets.stage.images import IMAGES_COLUMN
from tokenloom.assets.stage.names import SCHEMA, TOKENIZERS
from tokenloom.assets.stage.rejects import no_rejects
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.errors import redacted_address, visible
from tokenloom.resources.digest import digest_json
from tokenloom.resources.png import DARK, GREEN, GREY, png
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk
from tokenloom.resources.store.objects import MEDIA, ObjectStore
from tokenloom.resources.tables.ragged import list_parts, sides, sum_rows
from tokenloom.resources.tokenizers import TOKENIZER
from tokenloom.resources.visible import as_markdown


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
    points_of = {name: _points(lines, name) for name in ("loss", "eval_loss")}
    points = [point for each in points_of.values() for point in each]
    if not points:
        return png(picture)
    last = max(step for step, _ in points) or 1
    lowest, highest = min(loss for _, loss in points), max(loss for _, loss in points)

    def places(each: Sequence[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
        steps, losses = np.array(each, np.float64).reshape(-1, 2).T
        rows = (highest - losses) / ((highest - lowest) or 1) * (PLOT_HEIGHT - 4)
        return (steps / last * (PLOT_WIDTH - 3)).astype(int), rows.astype(int)

    columns, rows = places(points_of["loss"])
    for column in np.unique(columns):  # a line from the lowest to the highest loss of the column's steps
        here = rows[columns == column]
        picture[here.min() : here.max() + 2, column : column + 2] = GREY
    for column, row in zip(*places(points_of["eval_loss"]), strict=True):
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
_VERSION = 4


def _marked(build: Build, manifest: Manifest, first: pa.Table) -> dict[str, str]:
    """Return the first texts or sequences: `sample`, which the page shows at once, and `more_samples`, if they are
    longer."""
    chunk = manifest.chunks[0]
    if any(name.endswith("text") for name in first.column_names):
        return _samples(_rendered(chunk, first.slice(0, ROWS), text_runs))
    if "spans" in first.column_names:  # pre-tokenized
        spec = build.tokenizer
        return _samples(_rendered(chunk, first.slice(0, ROWS), Decoder(spec.files[TOKENIZER], spec.control).documents))
    facts = build.manifest(TOKENIZERS).facts
    # a result of its own, like that of a stage: decoding needs the tokenizer, which is slow to load
    key = digest_json(["marked sequences", _VERSION, chunk.output, chunk.place(0), facts["digest"]])
    action = build.store.find_action(key)
    if action is not None:
        (stored,) = build.store.objects.get_verified(action.output).to_pylist()
        return stored
    folder = Path(build.store.tokenizer_folder(facts["digest"]))
    decoder = Decoder((folder / TOKENIZER).read_bytes(), facts["control"], image_ids(folder))
    marked = _samples(_decoded(decoder, chunk, first.slice(0, ROWS)))
    counts: dict[str, int] = dict.fromkeys(("rows_in", "rows_out", "rejected", "filtered", "tokens"), 0)
    build.store.put_action(key, pa.Table.from_pylist([marked]), no_rejects(), counts, {}, compressed=True)
    return marked


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


def _rendered(
    chunk: ManifestChunk, table: pa.Table, runs_of: Callable[[pa.Table], Iterator[TokenRun]]
) -> Iterator[Shown]:
    for number in range(table.num_rows):
        for side, columns in sides(table).items():
            runs = [*runs_of(columns.slice(number, 1))]
            side = f", {side}" if side else ""
            yield f"{chunk.split}, {chunk.place(table['_row'][number].as_py())}{side}", runs


def _samples(shown: Iterator[Shown]) -> dict[str, str]:
    texts = [(title, [*runs]) for title, runs in shown]
    every = _markdown(texts, LONGEST_RUNS[0])
    if len(every) < INLINE:
        return {"sample": every}
    # Dagster hides longer texts behind a link, so only as many runs as fit are shown
    short = (_markdown(texts[:1], longest) for longest in LONGEST_RUNS)
    return {"sample": next((text for text in short if len(text) < INLINE), every), "more_samples": every}


def _markdown(shown: Sequence[Shown], longest: int) -> str:
    """Return titles and runs, each of at most some characters, as Markdown."""
    parts = [LEGEND]
    for title, runs in shown:
        text = bracketed(replace(run, text=_shortened(run.text, longest)) for run in runs)
        parts.append(_block([title, "", *[wrapped for line in text.split("\n") for wrapped in _wrapped(line)]]))
    return "\n\n".join(parts)


def _shortened(text: str, longest: int) -> str:
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} … {len(text) - 2 * half:,} characters … {text[-half:]}"


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, replace_whitespace=False, drop_whitespace=False, break_on_hyphens=False) or [line]


def _block(lines: Sequence[str]) -> str:
    """Return lines as a code block of Markdown, fenced by more backticks than any of them has in a row."""
    text = visible("\n".join(lines))
    longest = max((len(found) for found in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


THUMBNAIL_ROWS, THUMBNAIL_SIDE = 8, 120


def _thumbnails(build: Build, manifest: Manifest, first: pa.Table) -> dg.MarkdownMetadataValue | None:
    chunk, rows = manifest.chunks[0], first.slice(0, THUMBNAIL_ROWS).select(["_row", IMAGES_COLUMN]).to_pylist()
    digests = (image[MEDIA] for row in rows for image in row[IMAGES_COLUMN])
    shown = thumbnails(digests, build.store.media.read, THUMBNAIL_SIDE)
    lines = []
    for row in rows:
        images = [(ShownImage.of(image).mark().strip("[]"), shown.get(image[MEDIA])) for image in row[IMAGES_COLUMN]]
        parts = [f"![{mark}]({url}) {mark}" if url else mark for mark, url in images]
        if parts:
            lines.append(f"{_block([chunk.place(row['_row'])])}\n\n{' '.join(parts)}")
    return dg.MetadataValue.md("\n\n".join(lines)) if lines else None


def _image_lengths(first: pa.Table) -> dict[str, Any]:
    """Return the numbers of tokens of the images of a chunk of sequences as a picture; nothing if it has no image."""
    if MEDIA not in first.column_names or not len(list_parts(first[MEDIA])[1]):
        return {}
    offsets, images = list_parts(first[MEDIA])
    tokens = images.field("tokens").to_numpy()
    of_sequences = sum_rows(tokens, offsets)
    bounds = length_bounds(max(int(of_sequences.max()), 1))
    counts = (np.bincount(np.searchsorted(bounds, some), minlength=len(bounds) + 1) for some in (tokens, of_sequences))
    each, together = (Histogram(bounds, tuple(found.tolist())) for found in counts)
    caption = (
        f"grey: images by their number of tokens; green: sequences by the tokens of their images; line: "
        f"{of_sequences.max():,} tokens; the {len(images):,} images of the first chunk"
    )
    return {"image_tokens": Picture(histogram_png(each, together), caption)}


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
    return "int" if pa.types.is_integer(kind) else "float" if pa.types.is_floating(kind) else "string"


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
    reasons = counted_rejects(store, manifest)
    ordered = sorted(reasons, key=lambda reason: (-reason["rows"], reason["code"], reason["field"]))
    return arrow_table(pa.Table.from_pylist(ordered[:LISTED])) if reasons else None


def stage_metadata(build: Build, stage: Stage, report: StageReport) -> dict[str, Any]:
    """Return the metadata of a stage that was just built."""
    manifest = build.manifest(stage.name)
    first = build.first_chunk(stage.name)
    shown = stage.shown(build.config, manifest, first)
    marked = _marked(build, manifest, shown.pop("sample")) if stage.marked else {}
    if stage.name == MEDIA:
        shown = {"thumbnails": _thumbnails(build, manifest, first), **shown}
    elif stage.loaded:
        shown |= _image_lengths(first)
    unused, address = manifest.notes.get("unused_columns"), redacted_address(build.store.address)
    names = ("rows_in", "rows_out", "rejected", "filtered", "tokens", "chunks", "chunks_reused", "seconds")
    counts = {name: getattr(report, name) for name in names}
    metadata = {
        **{name: dg.MetadataValue.md(text) for name, text in marked.items()},
        **{name: _presented(name, value) for name, value in shown.items()},
        **counts,
        "tokens": report.tokens or None,
        "rows_per_second": round(report.rows_in / report.seconds) if report.seconds else None,
        "explanation": "\n".join(report.explanation) or None,
        "notices": "\n".join(report.notices) or None,
        "unused_columns": unused_notice(unused) if unused else None,
        **rejects_metadata(build.store, manifest),
        # A packed sequence has several rows, so the table has fewer rows than the stage passed on.
        "dagster/row_count": report.counters.get("sequences", report.rows_out),
        "dagster/column_schema": column_schema(build, stage, first.schema),
        "dagster/uri": f"{address.rstrip('/')}/{ObjectStore.blob(manifest.chunks[0].output)}",
    }
    return {name: value for name, value in metadata.items() if value is not None}


def _presented(name: str, value: Any) -> Any:
    if isinstance(value, Picture):
        return picture(name, value)
    if isinstance(value, pa.Table):
        return arrow_table(value)
    return text_table(value) if isinstance(value, list) else value


def picture(name: str, shown: Picture) -> dg.MarkdownMetadataValue:
    """Return a picture with its caption."""
    content = base64.b64encode(shown.png).decode()
    return dg.MetadataValue.md(f"![{name}](data:image/png;base64,{content})\n\n{as_markdown(shown.caption)}")


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
    from tokenloom.assets.schema.stage import NO_ROWS, column_cells

    schema = build.latest_manifest(SCHEMA)
    texts: dict[str, str] = {}
    for cells in (column_cells(column) for column in (schema.facts["columns"] if schema else ())):
        parts = [
            f"{cells['null']} null" if cells["null"] != NO_ROWS else "",
            cells["example"] and f"such as {cells['example']}",
        ]
        texts[cells["column"]] = as_markdown("; ".join(["a column of the source", *filter(None, parts)]))
    return texts
