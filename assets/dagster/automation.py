"""When Dagster's automation observes a source and builds a dataset or mixture, and the data versions that it compares.

A source is observed on a cron line. A dataset is built when its data or its settings differ from those that it was
built from, all of its stages in one run, and then the mixtures of it.

Dagster evaluates conditions in ticks and shows them what differs from the last tick: versions that change and change
back between two ticks differ in nothing. Three rules see to it that no change is lost, however the ticks fall:

- a change in the tick after a request counts, and the request does not settle it;
- a run says by a tag with which settings it builds, and a build with other settings than those of now counts;
- the data version of a source says whether the dataset was built from other content since, see `look_at`.

A failed build waits for such a change. If it could not read the source or the store, or failed before it began, the
next observation is one. A mixture that failed is mixed again every ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any

import dagster as dg

from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore

Condition = dg.AutomationCondition[Any]
Automation = dg.AutomationCondition

UNREADABLE = "unreadable"
"""The data version of a source that a run could not read, so that the next observation differs."""


def observed(cron: str) -> Condition:
    """Return the condition of a source: observe it at first, and then on each tick of a cron line, in UTC."""
    due = Automation.cron_tick_passed(cron) | Automation.initial_evaluation()
    return (due & ~Automation.in_progress()).with_label(f"observed on {cron} UTC")


def any_of(conditions: Iterable[Condition]) -> Condition:
    """Return the condition that one of some is true."""
    return reduce(or_, conditions)


def out_of_date(
    made: dict[str, str],
    last: dg.AssetKey,
    source: dg.AssetKey | None = None,
    others: Sequence[dg.AssetKey] = (),
    again: str | None = None,
) -> Condition:
    """Return the condition of the first stage of a dataset, and of a mixture: the data or settings changed, or
    automation was switched on. While upstream assets are missing, requested or in progress, it waits.

    Args:
        made: the `settings_tag` of runs that build it with its settings of now.
        last: the last stage, or the mixture. Its code version is that of the settings.
        source: the asset that observes the source. Its code version is that of the settings which let a build fail.
        others: assets besides those upstream of the first stage that are read.
        again: when to request again what failed.
    """

    def upstream(condition: Condition) -> list[Condition]:
        return [Automation.any_deps_match(condition), *(Automation.asset_matches(key, condition) for key in others)]

    def of_last(condition: Condition) -> Condition:
        return Automation.asset_matches(last, condition)

    updated = Automation.newly_updated()
    # Both were materialized since the last tick, and the one upstream later: `since` compares their times.
    overtaken = any_of(each.since(updated) for each in upstream(updated)) & updated
    by_others = of_last(updated & ~Automation.executed_with_tags(tag_values=made))
    edited = (Automation.asset_matches(key, Automation.code_version_changed()) for key in (last, source) if key)
    changed = any_of(upstream(Automation.data_version_changed())) | any_of(edited) | overtaken | by_others
    if again is not None:
        changed |= Automation.execution_failed() & Automation.cron_tick_passed(again)
    # `since` lets its reset win: what is requested and changed in one tick is out of date.
    up_to_date = Automation.newly_requested().since(changed)
    return (
        ~up_to_date
        & ~Automation.any_deps_missing()
        & ~Automation.any_deps_match(Automation.will_be_requested())
        & ~any_of(upstream(Automation.in_progress()))
        & ~(Automation.in_progress() | of_last(Automation.in_progress()))
    ).with_label("the data or the settings changed")


def requested_with(first: dg.AssetKey) -> Condition:
    """Return the condition of all other stages: join the run that is requested for the first one."""
    return Automation.asset_matches(first, Automation.will_be_requested()).with_label("same run")


def settings_tag(step: str, code_version: str) -> dict[str, str]:
    """Return the tag of runs that build a dataset or mixture, with the code version of its last stage."""
    return {f"tokenloom/settings/{step}": code_version}


def look_at(
    config: PipelineConfig,
    store: ArtifactStore,
    instance: dg.DagsterInstance,
    source: dg.AssetKey,
    raw: dg.AssetKey,
    step: str,
) -> tuple[str, dict[str, Any]]:
    """Return the data version of a dataset's source, and what is known of it as metadata.

    The version is the fingerprint of the content. If `raw` has the rows of other content, the event that stored them
    follows, so that content that returns has another version than before. If the last run of `raw` failed before it
    began, because its process did not start or found a faulty YAML, the start of the run's id follows.

    Args:
        step: what builds `raw`, for `settings_tag`.

    Raises:
        TokenloomError: the source cannot be read, or the store.
    """
    from tokenloom.resources.sources.fingerprint import source_state

    state = source_state(config, store)
    facts = {
        "files": state.files,
        "bytes": state.bytes,
        "modified": state.modified and dg.MetadataValue.timestamp(state.modified),
        "commit": state.commit,
    }
    version, records = state.fingerprint, instance.fetch_materializations(raw, limit=1).records
    if records and (made := records[0].asset_materialization) is not None:
        built = (made.tags or {}).get(input_tag(source), "")
        version = built if built.partition(".")[0] == version else f"{version}.{records[0].storage_id}"
    assets = instance.get_asset_records([raw])
    run = instance.get_run_by_id(assets[0].asset_entry.last_run_id or "") if assets else None
    begun = run is not None and settings_tag(step, "").keys() <= run.tags.keys()
    if run is not None and run.status == dg.DagsterRunStatus.FAILURE and not begun:
        version += f".{run.run_id[:8]}"
    return version, {name: fact for name, fact in facts.items() if fact is not None}


def input_tag(source: dg.AssetKey) -> str:
    """Return Dagster's tag of a materialization that names the data version of what it read."""
    return f"dagster/input_data_version/{source.to_user_string()}"
