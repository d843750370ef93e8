"""Makes Dagster's definitions of one dataset: an asset and a blocking check for each stage, a job, a schedule.

The stages know nothing of Dagster; this file runs them as `tokenloom build` does, on the same store, and tells
Dagster what came of it. An asset's code version follows the YAML, its data version is the digest of its content.
"""

# No `from __future__ import annotations` here: Dagster reads the annotation of `context` as a class, not as text.

import base64
import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pyarrow as pa
from pydantic import Field

from tokenloom.assets.building.build import (
    STAGES,
    Build,
    Progress,
    StageReport,
    code_versions,
    reject_reasons,
    stage_named,
)
from tokenloom.assets.schema.cells import column_cells, format_cells
from tokenloom.assets.sequences.length_histogram import AFTER, BEFORE, Histogram, fill, histogram_png
from tokenloom.assets.stage.definition import Stage
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import Declaration, PipelineConfig
from tokenloom.errors import DataValidationError, TokenloomError
from tokenloom.resources.engines.compute import ComputeEngine, keep_memory_low
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk

SAMPLE_ROWS = 5
CELL_CHARACTERS = 160
SHOWN_FAILURES = 5
PROGRESS_SECONDS = 10.0
EXACT_IN_JSON = 1 << 53
"""Beyond this size a whole number loses digits in the browser."""


class StoreResource(dg.ConfigurableResource):
    """The artifact store that assets write to and checks read."""

    root: str | None = Field(
        default=None,
        description="The store's folder, or s3://bucket/prefix; "
        "default: $TOKENLOOM_STORE, else .tokenloom in the working directory.",
    )

    def open(self) -> ArtifactStore:
        """
        Raises:
            StoreError: it is no store of this version.
        """
        return ArtifactStore(self.root)


def dagster_name(dataset: str) -> str:
    """A dataset's name with the characters that Dagster allows in names of groups, jobs and steps."""
    return re.sub(r"[^A-Za-z0-9_]", "_", dataset)


def job_name(dataset: str) -> str:
    """The dataset's name as a job may have it: words that Dagster keeps for itself, such as `config`, end in `_`."""
    name = dagster_name(dataset)
    try:
        dg.GraphDefinition(name=name)
    except dg.DagsterInvalidDefinitionError:
        return f"{name}_"
    return name


def asset_key(dataset: str, stage: str) -> dg.AssetKey:
    """`<dataset>/<stage>`."""
    return dg.AssetKey([dataset, stage])


def dataset_definitions(config: PipelineConfig) -> dg.Definitions:
    """The assets, checks, job and schedule of one dataset; reads no data.

    Its assets need a resource `store`, a `StoreResource`.

    Raises:
        ConfigError: the schedule is none that Dagster takes.
    """
    versions = code_versions(config)
    stages = [stage_named(name) for name in STAGES]
    job = _job(config)
    return dg.Definitions(
        assets=[_asset(config, stage, versions[stage.name]) for stage in stages],
        asset_checks=[*(_check(config, stage) for stage in stages), _template_check(config)],
        jobs=[job],
        schedules=[dataset_schedule(config, config.schedule, job)] if config.schedule else [],
    )


def _asset(config: PipelineConfig, stage: Stage, code_version: str) -> dg.AssetsDefinition:
    @dg.asset(
        key=asset_key(config.dataset_name, stage.name),
        deps=[asset_key(config.dataset_name, above) for above in stage.upstream],
        group_name=dagster_name(config.dataset_name),
        kinds={"arrow"},
        description=_description(stage),
        code_version=code_version,
    )
    def materialize(context: dg.AssetExecutionContext, store: StoreResource) -> dg.MaterializeResult:
        with clear_failures():
            build = Build(config, store.open(), on_progress=_log_progress(context.log.info))
            report = build.run(stage.name)
            metadata = _metadata(build, build.manifest(stage.name), report)
        return dg.MaterializeResult(data_version=dg.DataVersion(report.digest), metadata=metadata)

    return materialize


def _check(config: PipelineConfig, stage: Stage) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset_key(config.dataset_name, stage.name),
        name="contract",
        description="Every stored chunk is intact, keeps its stage's contract, and accounts for each row that came in.",
        blocking=True,
    )
    def contract(store: StoreResource) -> dg.AssetCheckResult:
        return check_contract(config, stage, store)

    return contract


def _template_check(config: PipelineConfig) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset_key(config.dataset_name, "prompts"),
        name="template",
        description="The chat template ends answers with a trained stop and writes BOS at most once: the evidence.",
    )
    def template(store: StoreResource) -> dg.AssetCheckResult:
        return check_template(config, store)

    return template


def _job(config: PipelineConfig) -> Any:
    return dg.define_asset_job(
        job_name(config.dataset_name),
        selection=dg.AssetSelection.assets(*(asset_key(config.dataset_name, stage) for stage in STAGES)),
        description=f"Builds {config.dataset_name}, computing only what no earlier build did.",
        executor_def=dg.in_process_executor,
    )


def dataset_schedule(config: Declaration, cron: str, job: Any) -> dg.ScheduleDefinition:
    """A schedule that is switched off at first.

    Raises:
        ConfigError: the cron line is none that Dagster takes.
    """
    try:
        return dg.ScheduleDefinition(job=job, cron_schedule=cron, default_status=dg.DefaultScheduleStatus.STOPPED)
    except dg.DagsterInvalidDefinitionError:
        raise config.fault("schedule", f"schedule: {cron!r} is not a cron line, such as 0 3 * * *") from None


def _description(stage: Stage) -> str:
    module = inspect.getmodule(type(stage))
    first, _, _ = (inspect.getdoc(module) or stage.name).partition("\n\n")
    return " ".join(first.split())


@contextmanager
def clear_failures() -> Iterator[None]:
    """A user's mistake ends the step with its message alone: no traceback, no retry."""
    try:
        yield
    except TokenloomError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from None


def _log_progress(log: Callable[[str], None]) -> Callable[[Progress], None]:
    """Tells of finished chunks, at most once in `PROGRESS_SECONDS`."""
    told = time.monotonic()

    def on_progress(progress: Progress) -> None:
        nonlocal told
        if time.monotonic() - told >= PROGRESS_SECONDS:
            told = time.monotonic()
            log(f"{progress.stage}: {progress.chunks:,} chunks, {progress.reused:,} reused, {progress.rows:,} rows")

    return on_progress


# What the UI shows of a materialization.


def _metadata(build: Build, manifest: Manifest, report: StageReport) -> dict[str, Any]:
    store = build.store
    metadata: dict[str, Any] = {
        # A packed sequence holds several rows, so that the table has fewer than went on.
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
    if manifest.chunks:
        build.restore(manifest, [manifest.chunks[0].output])
        first = store.objects.get_intact(manifest.chunks[0].output)
        metadata["dagster/column_schema"] = _column_schema(first.schema)
        metadata["sample"] = _sample(first)
    if manifest.stage == "sequences":
        metadata |= _lengths(report, manifest.facts["max_length"])
    if manifest.stage == "schema":
        metadata["columns"] = cells([column_cells(column) for column in manifest.facts["columns"]])
        metadata["formats"] = cells([format_cells(found) for found in manifest.facts["formats"]])
    if found := manifest.notes.get("certificate"):
        metadata["certificate"] = cells(found)
    if rejects := [store.objects.get(chunk.rejects) for chunk in manifest.chunks if chunk.rejects]:
        metadata["rejects"] = _reject_codes(rejects)
        metadata["rejects_summary"] = reject_reasons(store, manifest)
    return metadata


def _lengths(report: StageReport, max_length: int) -> dict[str, Any]:
    """Packing efficiency, and the lengths of rows and of sequences as a picture and in numbers."""
    before, after = (Histogram.of(report.counters, name, max_length) for name in (BEFORE, AFTER))
    picture = base64.b64encode(histogram_png(before, after)).decode()
    bounds = [*(f"≤ {bound:,}" for bound in before.bounds), f"> {before.bounds[-1]:,}"]
    counted = zip(bounds, before.counts, after.counts, strict=True)
    rows = [{"length": bound, "rows": f"{some:,}", "sequences": f"{others:,}"} for bound, some, others in counted]
    caption = f"grey: rows as they came; green: sequences; the line: max_length, {max_length:,} tokens"
    return {
        "fill": fill(report.counters, report.tokens, max_length),
        "lengths": dg.MetadataValue.md(f"![lengths](data:image/png;base64,{picture})\n\n{caption}"),
        "length_counts": cells(rows),
    }


def _column_schema(schema: pa.Schema) -> dg.TableSchema:
    return dg.TableSchema(columns=[dg.TableColumn(field.name, str(field.type)) for field in schema])


def _sample(table: pa.Table) -> dg.TableMetadataValue:
    rows = table.slice(0, SAMPLE_ROWS).to_pylist()
    records = [dg.TableRecord({name: _cell(value) for name, value in row.items()}) for row in rows]
    columns = [dg.TableColumn(field.name, _cell_type(field.type)) for field in table.schema]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns=columns))


def _reject_codes(rejects: Sequence[pa.Table]) -> dg.TableMetadataValue:
    """How many rows each code set aside, with one example, the most frequent first."""
    grouped = pa.concat_tables(rejects).group_by(["code", "field"], use_threads=False)
    counted = grouped.aggregate([(ROW, "count"), ("message", "first"), ("excerpt", "first")])
    counted = counted.rename_columns(["code", "field", "rows", "message", "example"])
    shown = counted.sort_by([("rows", "descending"), ("code", "ascending"), ("field", "ascending")]).to_pylist()
    return dg.MetadataValue.table([dg.TableRecord({name: _cell(row[name]) for name in row}) for row in shown])


def cells(rows: Sequence[Mapping[str, str]]) -> dg.TableMetadataValue:
    """A table of texts."""
    columns = [dg.TableColumn(name) for name in (rows[0] if rows else ())]
    return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in rows], schema=dg.TableSchema(columns=columns))


def _cell_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "int"
    return "float" if pa.types.is_floating(kind) else "string"


def _cell(value: Any) -> str | int | float | bool | None:
    """A value as a table cell: what JSON holds exactly as it is, anything else as text, shortened."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= EXACT_IN_JSON:
        return value
    if isinstance(value, float) and value - value == 0.0:  # neither infinite nor NaN
        return value
    if isinstance(value, bytes):
        text = value[: 4 * (CELL_CHARACTERS + 1)].decode("utf-8", "replace")
    elif isinstance(value, list):
        shown = ", ".join(str(_cell(item)) for item in value[:CELL_CHARACTERS])
        text = f"[{shown}]"
    else:
        text = str(value)
    return text if len(text) <= CELL_CHARACTERS else f"{text[: CELL_CHARACTERS - 1]}…"


# What the check reads.


@dataclass(frozen=True)
class CheckedChunk:
    """One chunk held against its contract: rows read, and what does not hold, or None; or its output was dropped."""

    rows: int
    failure: str | None
    dropped: bool = False


def check_contract(config: PipelineConfig, stage: Stage, store: StoreResource) -> dg.AssetCheckResult:
    """Read every chunk of the stage's latest output and hold it against the stage's contract. What `keep: sequences`
    dropped was held against it when it was made."""
    try:
        opened = store.open()
        chunks = opened.manifest(config.dataset_name, stage.name).chunks
    except TokenloomError as error:
        return dg.AssetCheckResult(passed=False, description=str(error))
    keep_memory_low()
    engine = ComputeEngine(config.compute.workers)
    droppable = stage.droppable and config.keep == "sequences"
    checked = list(engine.map(lambda chunk: _check_chunk(stage, opened, chunk, droppable), chunks))
    failures = [f"chunk {number}: {chunk.failure}" for number, chunk in enumerate(checked) if chunk.failure]
    rows = sum(chunk.rows for chunk in checked)
    metadata: dict[str, Any] = {"chunks": len(checked), "rows": rows, "failed_chunks": len(failures)}
    dropped = sum(chunk.dropped for chunk in checked)
    told = f"gc dropped {dropped:,} of {len(checked):,} chunks, as keep: sequences lets it" if dropped else None
    if not failures:
        return dg.AssetCheckResult(passed=True, metadata=metadata, description=told)
    more = f"\n… and {len(failures) - SHOWN_FAILURES} more chunks" if len(failures) > SHOWN_FAILURES else ""
    text = "\n".join(failures[:SHOWN_FAILURES]) + more + (f"\n{told}" if told else "")
    return dg.AssetCheckResult(passed=False, description=text, metadata={**metadata, "failures": text})


def _check_chunk(stage: Stage, store: ArtifactStore, chunk: ManifestChunk, droppable: bool) -> CheckedChunk:
    from tokenloom.assets.stage.contract import validate, validate_rejects

    rows, dropped = 0, droppable and store.objects.size(chunk.output) is None
    try:
        if not dropped:
            table = store.objects.get_intact(chunk.output)
            rows = table.num_rows
            validate(stage, table)
        if chunk.rejects:
            rejects = store.objects.get_intact(chunk.rejects)
            validate_rejects(rejects)
            _require_count("rejects", rejects.num_rows, chunk.rejected)
        _require_count("rows that came in", chunk.rows_out + chunk.rejected + chunk.filtered, chunk.rows_in)
    except TokenloomError as error:
        return CheckedChunk(rows, str(error), dropped)
    return CheckedChunk(rows, None, dropped)


def check_template(config: PipelineConfig, store: StoreResource) -> dg.AssetCheckResult:
    """Hold the certificate of the dataset's chat template against what training needs."""
    try:
        found = store.open().manifest(config.dataset_name, "prompts").notes.get("certificate")
    except TokenloomError as error:
        return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description=str(error))
    if not found:
        return dg.AssetCheckResult(passed=True, description="the rows go through no chat template")
    by_name = {finding["name"]: finding["found"] for finding in found}
    wrong = [f"the stop behind an answer is {by_name['stop']}"] if by_name["stop"] != "trained" else []
    wrong += [f"BOS stands {by_name['BOS']}"] if by_name["BOS"].endswith("times") else []
    return dg.AssetCheckResult(
        passed=not wrong,
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(wrong) or "the stop is trained, BOS stands at most once",
        metadata={"certificate": cells(found)},
    )


def _require_count(what: str, found: int, recorded: int) -> None:
    if found != recorded:
        raise DataValidationError(f"{what}: {recorded} are recorded, {found} are accounted for")
