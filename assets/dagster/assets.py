"""The Dagster assets of one dataset: one per stage, with a blocking check each, and a job that builds them all.

Stages know nothing of Dagster: an asset runs its stage as `tokenloom build` does, on the same store. An asset's code
version follows the YAML; its data version is the digest of its content.
"""

# Without `from __future__ import annotations`: Dagster needs the annotation of `context` as a class, not as text.

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import dagster as dg

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.progress import OnProgress, Progress
from tokenloom.assets.building.stages import STAGES, code_versions, stage_named
from tokenloom.assets.dagster.checks import contract_check, template_check
from tokenloom.assets.dagster.jobs import build_job, build_schedules
from tokenloom.assets.dagster.metadata import stage_metadata
from tokenloom.assets.dagster.names import asset_key, dagster_name
from tokenloom.assets.dagster.store_resource import StoreResource
from tokenloom.assets.stage.definition import Stage
from tokenloom.config import PipelineConfig
from tokenloom.errors import TokenloomError

PROGRESS_SECONDS = 10.0
"""Minimum time between two log lines about progress."""


def dataset_definitions(config: PipelineConfig) -> dg.Definitions:
    """Return the assets, checks, job and schedule of one dataset. Reads no data.

    The assets need a resource `store`, a `StoreResource`.

    Raises:
        ConfigError: Dagster does not accept the schedule.
    """
    versions, name = code_versions(config), config.dataset_name
    stages = [stage_named(stage) for stage in STAGES]
    selection = dg.AssetSelection.assets(*(asset_key(name, stage) for stage in STAGES))
    job = build_job(name, selection, f"Builds {name}; computes only what no earlier build computed.")
    return dg.Definitions(
        assets=[stage_asset(config, stage, versions[stage.name]) for stage in stages],
        asset_checks=[*(contract_check(config, stage) for stage in stages), template_check(config)],
        jobs=[job],
        schedules=build_schedules(config, job),
    )


def stage_asset(config: PipelineConfig, stage: Stage, code_version: str) -> dg.AssetsDefinition:
    """Return the asset `<dataset>/<stage>`."""

    @dg.asset(
        key=asset_key(config.dataset_name, stage.name),
        deps=[asset_key(config.dataset_name, above) for above in stage.upstream],
        group_name=dagster_name(config.dataset_name),
        kinds={"arrow"},
        description=_description(stage),
        code_version=code_version,
    )
    def materialize(context: dg.AssetExecutionContext, store: StoreResource) -> dg.MaterializeResult:
        with failing_clearly():
            build = Build(config, store.open(config.folder), on_progress=_log_progress(context.log.info))
            report = build.run(stage.name)
            metadata = stage_metadata(build, stage, report)
        if "warning" in metadata:
            context.log.warning(metadata["warning"])
        return dg.MaterializeResult(data_version=dg.DataVersion(report.digest), metadata=metadata)

    return materialize


@contextmanager
def failing_clearly() -> Iterator[None]:
    """End the step with the message of a `TokenloomError` alone: without a traceback, and without retries."""
    try:
        yield
    except TokenloomError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from None


def _description(stage: Stage) -> str:
    """Return the first paragraph of the docstring of the stage's module."""
    module = inspect.getmodule(type(stage))
    first, _, _ = (inspect.getdoc(module) or stage.name).partition("\n\n")
    return " ".join(first.split())


def _log_progress(log: Callable[[str], None]) -> OnProgress:
    """Return a callback that logs progress at most every `PROGRESS_SECONDS`."""
    last = time.monotonic()

    def on_progress(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_SECONDS:
            last = time.monotonic()
            log(f"{progress.stage}: {progress.chunks:,} chunks, {progress.reused:,} reused, {progress.rows:,} rows")

    return on_progress
