"""The schedules of datasets and mixtures, and the one job that all of them start.

A job of each dataset would cost 500 datasets several seconds whenever Dagster loads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dagster as dg

from tokenloom.assets.building.declared_folder import plain_name
from tokenloom.assets.dagster.names import DATASET_TAG
from tokenloom.config import MixtureConfig, PipelineConfig


@dataclass(frozen=True)
class Scheduled:
    """A dataset or mixture with a schedule, and the assets that it materializes."""

    config: PipelineConfig | MixtureConfig
    keys: Sequence[dg.AssetKey]


def check_cron(config: PipelineConfig | MixtureConfig, setting: str, line: str) -> None:
    """Check a cron expression by Dagster's rules.

    Raises:
        ConfigError: Dagster does not accept it.
    """
    try:
        dg.ScheduleDefinition(name="checked", job_name="checked", cron_schedule=line)
    except dg.DagsterInvalidDefinitionError:
        raise config.fault(setting, f"must be a cron expression such as '0 3 * * *', got {line!r}") from None


def schedules(scheduled: Sequence[Scheduled], job: str) -> dg.Definitions:
    """Return the schedules of datasets, stopped by default, and their job; nothing if there are none.

    Args:
        job: name of the job.
    """
    if not scheduled:
        return dg.Definitions()
    keys = {key for each in scheduled for key in each.keys}
    made = dg.define_asset_job(
        job,
        selection=dg.AssetSelection.assets(*keys),
        description="Materializes datasets; what is up to date is only looked up.",
    )
    return dg.Definitions(jobs=[made], schedules=[_schedule(each, made) for each in scheduled])


def _schedule(scheduled: Scheduled, job: dg.UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    name = scheduled.config.dataset_name
    return dg.ScheduleDefinition(
        name=f"{plain_name(name)}_schedule",
        job=job,
        cron_schedule=scheduled.config.schedule,
        execution_fn=_request(name, scheduled.keys),
        description=f"Materializes {name}.",
    )


def _request(dataset: str, keys: Sequence[dg.AssetKey]) -> Callable[[dg.ScheduleEvaluationContext], dg.RunRequest]:
    def request(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        return dg.RunRequest(asset_selection=[*keys], tags={DATASET_TAG: dataset})

    return request
