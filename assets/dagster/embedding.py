"""How the assets of a dataset are embedded in a Dagster project: keys, group, owners, tags, upstream assets and
schedules.

Schedules start the job of all assets that Dagster itself makes, each with its own selection: jobs of tokenloom's own
would cost 500 datasets several seconds whenever Dagster loads them.

What a project passes in Python comes before the section `dagster:` of the YAML; lists and tags of both are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import dagster as dg

from tokenloom.assets.building.target import plain_name
from tokenloom.assets.dagster.dataset_run import DatasetRun, Event
from tokenloom.assets.dagster.names import DATASET_TAG, StoreResource, asset_key
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.config.schema import ScheduleConfig, minutes

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


def schedule(
    config: PipelineConfig | MixtureConfig, line: ScheduleConfig, keys: Sequence[dg.AssetKey]
) -> dg.ScheduleDefinition:
    """Return the schedule of a dataset or mixture, stopped by default.

    Args:
        keys: the assets that it materializes.

    Raises:
        ConfigError: Dagster does not accept the cron line.
    """
    name = config.dataset_name
    check_cron(config, "schedule", line.cron)
    return dg.ScheduleDefinition(
        name=f"{plain_name(name)}_schedule",
        job_name=JOB,
        cron_schedule=line.cron,
        execution_timezone=line.timezone,
        execution_fn=_request(name, keys),
        description=f"Materializes {name} on {line.cron}, {line.timezone} time; what is up to date is only looked up.",
    )


def _request(dataset: str, keys: Sequence[dg.AssetKey]) -> Callable[[dg.ScheduleEvaluationContext], dg.RunRequest]:
    def request(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        return dg.RunRequest(asset_selection=[*keys], tags={DATASET_TAG: dataset})

    return request


def _unchanged(spec: dg.AssetSpec) -> dg.AssetSpec:
    return spec


@dataclass(frozen=True)
class Embedding:
    """What a project sets for the assets of its datasets; see `dataset_definitions`.

    Args:
        get_asset_spec: returns the spec to use in place of one of tokenloom's.
        execute: yields the events of a dataset's step.
    """

    deps: tuple[dg.AssetKey, ...] = ()
    key_prefix: tuple[str, ...] = ()
    group: str | None = None
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    automation_condition: dg.AutomationCondition | None = None
    store: StoreResource | None = None
    get_asset_spec: Callable[[dg.AssetSpec], dg.AssetSpec] = _unchanged
    execute: Callable[[DatasetRun], Iterator[Event]] = DatasetRun.events

    def key(self, dataset: str, stage: str) -> dg.AssetKey:
        """Return the key of an asset of a dataset."""
        return asset_key(dataset, stage, self.key_prefix)

    def changed(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Let the project change an asset's spec, all but its key.

        Raises:
            DagsterInvariantViolationError: it has another key. A mistake of the project, of no YAML.
        """
        changed = self.get_asset_spec(spec)
        if changed.key != spec.key:
            old, new = spec.key.to_user_string(), changed.key.to_user_string()
            raise dg.DagsterInvariantViolationError(
                f"get_asset_spec changes the key {old} to {new}; set key_prefix to change keys"
            )
        return changed

    def upstream(self, config: PipelineConfig) -> list[dg.AssetKey]:
        """Return the assets that write the source of a dataset; none if nothing is known of them."""
        return [*dict.fromkeys((*self.deps, *keys_of(config.dagster.deps)))]

    def spec(self, config: PipelineConfig | MixtureConfig) -> dict[str, Any]:
        """Return the arguments that all asset specs of a dataset share: group, owners and tags."""
        section = config.dagster
        return {
            "group_name": self.group or section.group or plain_name(config.dataset_name),
            "owners": list(dict.fromkeys((*self.owners, *section.owners))),
            "tags": {**section.tags, **self.tags},
        }

    def freshness(self, config: PipelineConfig | MixtureConfig) -> dg.FreshnessPolicy | None:
        """Return the freshness policy of the last asset of a dataset, if the YAML has one."""
        section = config.dagster.freshness
        if section is None:
            return None
        warn = timedelta(minutes=minutes(section.warn)) if section.warn else None
        return dg.FreshnessPolicy.time_window(timedelta(minutes=minutes(section.fail)), warn)

    def resource_keys(self) -> set[str]:
        """Return the resources that the assets take from the project: `store`, unless it passed one.

        One that it passed is no resource of the assets: Dagster refuses two resources of one name in a job.
        """
        return {"store"} if self.store is None else set()

    def store_of(self, context: dg.AssetExecutionContext) -> StoreResource:
        """Return the store that a step uses."""
        return context.resources.store if self.store is None else self.store.process_config_and_initialize()


def parts_of(prefix: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return a prefix of asset keys as its parts."""
    return tuple(prefix.split("/")) if isinstance(prefix, str) else tuple(prefix or ())


def keys_of(deps: Sequence[str | Sequence[str] | dg.AssetKey]) -> tuple[dg.AssetKey, ...]:
    """Return asset keys; in a text, `/` separates the parts of one."""
    return tuple(
        dep if isinstance(dep, dg.AssetKey) else dg.AssetKey(dep.split("/") if isinstance(dep, str) else [*dep])
        for dep in deps
    )
