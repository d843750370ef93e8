"""When Dagster materializes assets by itself, once its automation is switched on.

A source is observed on a cron line. A dataset is built when the data version of what it reads changed, not on every
observation, and all of its stages in one run. A mixture follows when the sequences of a dataset changed.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

Condition = dg.AutomationCondition[Any]


def observed(cron: str) -> Condition:
    """Return the condition of a source: observe it at first, and then on each tick of a cron line."""
    due = dg.AutomationCondition.cron_tick_passed(cron) | dg.AutomationCondition.initial_evaluation()
    return (due & ~dg.AutomationCondition.in_progress()).with_label(f"observed on {cron}")


def changed_upstream() -> Condition:
    """Return the condition of a first stage, and of a mixture: what it reads has another data version, or it is missing
    when automation is switched on.

    A change counts until it is requested, so that one that comes during a run is not lost. While upstream assets are
    missing, requested or in progress, it waits.
    """
    changed = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed())
    first = dg.AutomationCondition.initial_evaluation()
    missing = dg.AutomationCondition.missing() & first
    return (
        (changed | missing).since(dg.AutomationCondition.newly_requested() | (first & ~missing))
        & ~dg.AutomationCondition.any_deps_missing()
        & ~dg.AutomationCondition.any_deps_match(dg.AutomationCondition.will_be_requested())
        & ~dg.AutomationCondition.any_deps_in_progress()
        & ~dg.AutomationCondition.in_progress()
    ).with_label("the data upstream changed")


def requested_upstream() -> Condition:
    """Return the condition of all other stages: in the run that is requested for the stage before."""
    return dg.AutomationCondition.any_deps_match(dg.AutomationCondition.will_be_requested()).with_label("same run")
