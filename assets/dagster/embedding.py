"""How the assets of a dataset are embedded in a Dagster project: keys, group, owners, tags, upstream assets and
schedules.

Schedules start the job of all assets that Dagster itself makes, each with its own selection: jobs of tokenloom's own
would cost 500 datasets several seconds whenever Dagster loads them.

What a project passes in Python comes before the section `dagster:` of the YAML; lists and tags of both are joined.

`DatasetRun` is the step of a run that builds a dataset or runs its checks. Dagster does not stop within a step: after a
failed blocking check this one ends, and yields nothing of what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import dagster as dg

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.chain import stage_named
from tokenloom.assets.building.report import ProgressLog, StageReport
from tokenloom.assets.building.target import plain_name
from tokenloom.assets.dagster.automation import UNREADABLE, input_tag, look_at
from tokenloom.assets.dagster.checks import Checked, StageCheck, rejected
from tokenloom.assets.dagster.metadata import rejects_metadata, stage_metadata
from tokenloom.assets.dagster.names import DATASET_TAG, StoreResource, asset_key
from tokenloom.assets.stage.names import RAW
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.config.sections import ScheduleConfig, minutes
from tokenloom.errors import RejectedRowsError, TokenloomError
from tokenloom.resources.visible import as_markdown

WAITS = (5, 15, 45)
"""Seconds before each retry."""


@contextmanager
def failing_clearly(context: dg.AssetExecutionContext) -> Iterator[None]:
    """End the step with the message of a `TokenloomError` alone, without a traceback.

    A store, hub or server that is away is tried again after some seconds; everything else fails at once.
    """
    try:
        yield
    except TokenloomError as error:
        attempt = context.op_execution_context.retry_number
        if error.is_outage and attempt < len(WAITS):
            wait = WAITS[attempt]
            context.log.warning(f"{error}; trying again in {wait} s (retry {attempt + 1} of {len(WAITS)})")
            raise dg.RetryRequested(max_retries=len(WAITS), seconds_to_wait=wait) from None
        raise dg.Failure(description=str(error), allow_retries=False) from None


Event = dg.MaterializeResult | dg.AssetCheckResult | dg.AssetObservation


@dataclass(frozen=True)
class DatasetRun:
    """One run of a dataset's step.

    Args:
        keys: asset keys by stage.
        checks: the dataset's checks.
        context: says which assets and checks are selected, and where messages go.
        source: the asset that observes what `raw` reads, if there is one.
    """

    config: PipelineConfig
    keys: Mapping[str, dg.AssetKey]
    checks: Sequence[StageCheck]
    context: dg.AssetExecutionContext
    store: StoreResource
    source: dg.AssetKey | None = None

    def events(self) -> Iterator[Event]:
        """Build the selected stages, in order, and yield what is known of each; then run the checks that are selected
        without the asset that they belong to."""
        selected = [stage for stage, key in self.keys.items() if key in self.context.selected_asset_keys]
        name, log = self.config.dataset_name, self.context.log
        with failing_clearly(self.context):
            store = self.store.open(self.config.folder)
            build = Build(self.config, store, on_progress=ProgressLog(log.info))
            if selected:
                if DATASET_TAG not in self.context.run.tags:  # the run of a schedule is named after what it builds
                    self.context.instance.add_run_tags(self.context.run.run_id, {DATASET_TAG: name})
                with store.building_alone(name, log.info):
                    for event in self._observing(build, selected):
                        yield event
                        blocking = {(self.keys[check.stage], check.name) for check in self.checks if check.blocking}
                        if (
                            isinstance(event, dg.AssetCheckResult)
                            and not event.passed
                            and event.severity == dg.AssetCheckSeverity.ERROR
                            and (event.asset_key, event.check_name) in blocking
                        ):
                            return
            for check in self.checks:
                if check.stage not in selected and self._is_selected(check):
                    yield self._evaluated(check, build, None)

    def _observing(self, build: Build, selected: Sequence[str]) -> Iterator[Event]:
        """Build the stages, and observe the source as `raw` finds it: it can differ from when it was last observed."""
        if self.source is None or RAW not in selected:
            yield from self._build(build, selected)
            return
        version, observation = self._observed(build, self.source)
        try:
            for event in self._build(build, selected):
                if isinstance(event, dg.MaterializeResult) and event.asset_key == self.keys[RAW]:
                    yield observation
                    event = event._replace(tags={input_tag(self.source): version})
                yield event
        except (TokenloomError, dg.Failure) as error:
            if self.context.instance.fetch_observations(self.source, limit=1).records:  # else the first one is a change
                away = isinstance(error, TokenloomError) and error.is_outage
                changed = self._observed(build, self.source)[0] != version
                yield self._observed(build, self.source, away or changed)[1]
            raise

    def _observed(self, build: Build, source: dg.AssetKey, away: bool = False) -> tuple[str, dg.AssetObservation]:
        """Return the data version of the source and its observation: unreadable if something was away or changed in a
        build."""
        version, facts = UNREADABLE, dict[str, Any]()
        with suppress(TokenloomError):
            if not away:
                version, facts = look_at(
                    self.config, build.store, self.context.instance, source, self.keys[RAW], self.context.op_def.name
                )
        return version, dg.AssetObservation(source, metadata=facts, tags={"dagster/data_version": version})

    def _build(self, build: Build, selected: Sequence[str]) -> Iterator[Event]:
        try:
            for report in build.run_stages(selected):
                metadata = build.healing(lambda report=report: stage_metadata(build, stage_named(report.name), report))
                if "warning" in metadata:
                    self.context.log.warning(metadata["warning"])
                version = dg.DataVersion(report.digest)
                yield dg.MaterializeResult(asset_key=self.keys[report.name], data_version=version, metadata=metadata)
                for check in self.checks:
                    if check.stage == report.name and self._is_selected(check):
                        yield self._evaluated(check, build, report)
        except RejectedRowsError as error:
            metadata = rejects_metadata(build.store, error.manifest)
            yield dg.AssetObservation(self.keys[error.stage], description=as_markdown(str(error)), metadata=metadata)
            for check in self.checks:
                if check.name == "rejects" and self._is_selected(check):
                    yield rejected(self.config, error.manifest, build.store).result(self.keys[check.stage], check.name)
            raise dg.Failure(description=str(error), metadata=metadata, allow_retries=False) from None

    def _is_selected(self, check: StageCheck) -> bool:
        return dg.AssetCheckKey(self.keys[check.stage], check.name) in self.context.selected_asset_check_keys

    def _evaluated(self, check: StageCheck, build: Build, report: StageReport | None) -> dg.AssetCheckResult:
        return check.run(Checked(build, report)).result(self.keys[check.stage], check.name)


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

    def request(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        return dg.RunRequest(asset_selection=[*keys], tags={DATASET_TAG: name})

    return dg.ScheduleDefinition(
        name=f"{plain_name(name)}_schedule",
        job_name=JOB,
        cron_schedule=line.cron,
        execution_timezone=line.timezone,
        execution_fn=request,
        description=f"Materializes {name} on {line.cron}, {line.timezone} time; what is up to date is only looked up.",
    )


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
    get_asset_spec: Callable[[dg.AssetSpec], dg.AssetSpec] = lambda spec: spec
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
