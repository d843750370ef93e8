"""The Dagster checks of one dataset: the contract of each stage, and the chat template."""

# Without `from __future__ import annotations`: Dagster needs the annotation of `store` as a class, not as text.

from dataclasses import dataclass
from typing import Any

import dagster as dg

from tokenloom.assets.dagster.names import asset_key
from tokenloom.assets.dagster.store_resource import StoreResource
from tokenloom.assets.dagster.tables import text_table
from tokenloom.assets.stage.definition import Stage
from tokenloom.assets.stage.validation import validate, validate_rejects
from tokenloom.config import PipelineConfig
from tokenloom.errors import DataValidationError, TokenloomError
from tokenloom.resources.engines.compute import ComputeEngine, keep_memory_low
from tokenloom.resources.store import ArtifactStore, ManifestChunk

MAX_FAILURES = 5
"""Maximum number of failed chunks listed."""


def contract_check(config: PipelineConfig, stage: Stage) -> dg.AssetChecksDefinition:
    """Return the blocking check `contract` of a stage's asset."""

    @dg.asset_check(
        asset=asset_key(config.dataset_name, stage.name),
        name="contract",
        description="Every stored chunk is undamaged, satisfies its stage's contract, and accounts for all input rows.",
        blocking=True,
    )
    def contract(store: StoreResource) -> dg.AssetCheckResult:
        return check_contract(config, stage, store)

    return contract


def template_check(config: PipelineConfig) -> dg.AssetChecksDefinition:
    """Return the check `template` of the prompts asset."""

    @dg.asset_check(
        asset=asset_key(config.dataset_name, "prompts"),
        name="template",
        description="The chat template ends each answer with a trained stop token and renders BOS at most once.",
    )
    def template(store: StoreResource) -> dg.AssetCheckResult:
        return check_template(config, store)

    return template


@dataclass(frozen=True)
class CheckedChunk:
    """The result of checking one chunk.

    Args:
        rows: number of rows read.
        failure: what is wrong, or None.
        dropped: whether `gc` dropped the output, so that only its rejects and counts were checked.
    """

    rows: int
    failure: str | None
    dropped: bool = False


def check_contract(config: PipelineConfig, stage: Stage, store: StoreResource) -> dg.AssetCheckResult:
    """Read every chunk of the stage's latest output and check it against the stage's contract.

    Outputs that `keep: sequences` dropped were checked when they were computed.
    """
    try:
        opened = store.open(config.folder)
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
    note = f"gc dropped {dropped:,} of {len(checked):,} chunks, as keep: sequences allows" if dropped else None
    if not failures:
        return dg.AssetCheckResult(passed=True, metadata=metadata, description=note)
    more = f"\n… and {len(failures) - MAX_FAILURES} more chunks" if len(failures) > MAX_FAILURES else ""
    text = "\n".join(failures[:MAX_FAILURES]) + more + (f"\n{note}" if note else "")
    return dg.AssetCheckResult(passed=False, description=text, metadata={**metadata, "failures": text})


def check_template(config: PipelineConfig, store: StoreResource) -> dg.AssetCheckResult:
    """Check that the chat template trains the stop token and renders BOS at most once, by its certificate."""
    try:
        certificate = store.open(config.folder).manifest(config.dataset_name, "prompts").notes.get("certificate")
    except TokenloomError as error:
        return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description=str(error))
    if not certificate:
        return dg.AssetCheckResult(passed=True, description="no chat template renders the rows")
    found = {finding["name"]: finding["found"] for finding in certificate}
    stop = found["stop"]
    problems = [] if stop.startswith("trained") else [f"the stop token after an answer is {stop}"]
    problems += [f"BOS occurs {found['BOS']}"] if found["BOS"].endswith("times") else []
    return dg.AssetCheckResult(
        passed=not problems,
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(problems) or f"the stop token is {stop}; BOS occurs at most once",
        metadata={"certificate": text_table(certificate)},
    )


def _check_chunk(stage: Stage, store: ArtifactStore, chunk: ManifestChunk, droppable: bool) -> CheckedChunk:
    rows, dropped = 0, droppable and store.objects.size(chunk.output) is None
    try:
        if not dropped:
            table = store.objects.get_intact(chunk.output)
            rows = table.num_rows
            validate(stage, table, by_pandera=True)
        if chunk.rejects:
            rejects = store.objects.get_intact(chunk.rejects)
            validate_rejects(rejects)
            _require_count("rejected rows", chunk.rejected, rejects.num_rows)
        _require_count("input rows", chunk.rows_in, chunk.rows_out + chunk.rejected + chunk.filtered)
    except TokenloomError as error:
        return CheckedChunk(rows, str(error), dropped)
    return CheckedChunk(rows, None, dropped)


def _require_count(what: str, recorded: int, found: int) -> None:
    if found != recorded:
        raise DataValidationError(f"{what}: {recorded} are recorded, {found} are accounted for")
