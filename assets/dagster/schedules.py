"""The schedules of datasets and mixtures.

They start the job of all assets that Dagster itself makes, each with its own selection: jobs of tokenloom's own would
cost 500 datasets several seconds whenever Dagster loads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import dagster as dg

from tokenloom.assets.building.declared_folder import plain_name
from tokenloom.assets.dagster.names import DATASET_TAG
from tokenloom.config import MixtureConfig, PipelineConfig

JOB = "__ASSET_JOB"
"""Dagster's name for the job of all assets of a code location."""


def check_cron(config: PipelineConfig | MixtureConfig, setting: str, line: str) -> None:
    """Check a cron expression by Dagster's rules.

    Raises:
        ConfigError: Dagster does not accept it.
    """
    try:
        dg.ScheduleDefinition(name="checked", job_name="checked", cron_schedule=line)
    except dg.DagsterInvalidDefinitionError:
        raise config.fault(setting, f"must be a cron expression such as '0 3 * * *', got {line!r}") from None


def schedule(config: PipelineConfig | MixtureConfig, keys: Sequence[dg.AssetKey]) -> dg.ScheduleDefinition:
    """Return the schedule of a dataset or mixture, stopped by default.

    Args:
        keys: the assets that it materializes.
    """
    name = config.dataset_name
    return dg.ScheduleDefinition(
        name=f"{plain_name(name)}_schedule",
        job_name=JOB,
        cron_schedule=config.schedule,
        execution_fn=_request(name, keys),
        description=f"Materializes {name}; what is up to date is only looked up.",
    )


def _request(dataset: str, keys: Sequence[dg.AssetKey]) -> Callable[[dg.ScheduleEvaluationContext], dg.RunRequest]:
    def request(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        return dg.RunRequest(asset_selection=[*keys], tags={DATASET_TAG: dataset})

    return request
