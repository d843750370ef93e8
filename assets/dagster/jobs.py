"""The jobs that build datasets and mixtures, and their schedules."""

from __future__ import annotations

from typing import Any

import dagster as dg

from tokenloom.assets.dagster.names import job_name
from tokenloom.config import MixtureConfig, PipelineConfig


def build_job(dataset: str, selection: dg.AssetSelection, description: str) -> Any:
    """Return the job that materializes some assets, all in one process."""
    return dg.define_asset_job(
        job_name(dataset), selection=selection, description=description, executor_def=dg.in_process_executor
    )


def build_schedules(config: PipelineConfig | MixtureConfig, job: Any) -> list[dg.ScheduleDefinition]:
    """Return the schedule of a job, stopped by default; none if the YAML has no `schedule`.

    Raises:
        ConfigError: Dagster does not accept the cron expression.
    """
    if config.schedule is None:
        return []
    try:
        schedule = dg.ScheduleDefinition(
            job=job, cron_schedule=config.schedule, default_status=dg.DefaultScheduleStatus.STOPPED
        )
    except dg.DagsterInvalidDefinitionError:
        raise config.fault(
            "schedule", f"must be a cron expression such as '0 3 * * *', got {config.schedule!r}"
        ) from None
    return [schedule]
