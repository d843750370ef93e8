"""A project whose automation is evaluated tick by tick, as the daemon does, on real observations and builds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from support.dagster_project import Project
from tokenloom.dagster import StoreResource
from tokenloom.definitions import load_definitions


@dataclass
class Automated:
    """A project, a Dagster instance and the state of its automation.

    Args:
        now: the time of the last tick. It begins right after sources were due.
        requested, evaluated: what the last tick requested, and the definitions that it evaluated.
        more: definitions next to those of the YAMLs.
    """

    project: Project
    instance: dg.DagsterInstance = field(default_factory=dg.DagsterInstance.ephemeral)
    more: dg.Definitions = field(default_factory=dg.Definitions)
    cursor: Any = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(minute=0, second=1))
    requested: set[dg.AssetKey] = field(default_factory=set)
    evaluated: dg.Definitions = field(default_factory=dg.Definitions)

    def definitions(self) -> dg.Definitions:
        """The definitions of the YAMLs as they are now."""
        made = load_definitions(self.project.pipelines)
        loaded = dg.Definitions(made.assets, asset_checks=made.asset_checks, executor=dg.in_process_executor)
        store = dg.Definitions(resources={"store": StoreResource(root=str(self.project.root))})
        return dg.Definitions.merge(loaded, store, self.more)

    def tick(self, minutes: int = 0) -> set[dg.AssetKey]:
        """Evaluate all conditions once, a second and some minutes after the last tick; returns what is requested.

        Sources are due every ten minutes.
        """
        self.now += timedelta(minutes=minutes, seconds=1)
        definitions = self.definitions()
        result = dg.evaluate_automation_conditions(
            definitions, self.instance, cursor=self.cursor, evaluation_time=self.now
        )
        self.cursor, self.evaluated = result.cursor, definitions
        self.requested = {each.key for each in result.results if result.get_num_requested(each.key)}
        return self.requested

    def run(self, keys: Iterable[dg.AssetKey], definitions: dg.Definitions | None = None) -> bool:
        """Observe and materialize assets, and return whether all of it succeeded.

        The daemon requests all of a tick in one run. It fails before it begins if it does not find one of the assets.

        Args:
            keys: what a tick requested, or what somebody chooses, of which those that no longer exist are left out.
            definitions: default: those of the YAMLs as they are now.
        """
        definitions, succeeded = definitions or self.definitions(), True
        job = definitions.resolve_implicit_global_asset_job_def()
        known = set(job.asset_layer.executable_asset_keys)
        for observed in (True, False):
            wanted = [key for key in keys if (key.path[-1] == "source") == observed]
            if keys is self.requested and not known.issuperset(wanted):
                evaluated = self.evaluated.resolve_implicit_global_asset_job_def()
                run = self.instance.create_run_for_job(evaluated, asset_selection=frozenset(wanted))
                self.instance.report_run_failed(run)
                succeeded = False
            elif wanted := [key for key in wanted if key in known]:
                ended = job.execute_in_process(instance=self.instance, asset_selection=wanted, raise_on_error=False)
                succeeded &= ended.success
        return succeeded

    def settle(self, most: int = 12) -> list[set[dg.AssetKey]]:
        """Run what each tick requests until one requests nothing; returns what was requested."""
        found = []
        while requested := self.tick():
            found.append(requested)
            self.run(requested)
            assert len(found) < most, found
        return found

    def quiet(self) -> None:
        """Let the sources be observed a few times and run what is requested, without further changes."""
        for _ in range(2):
            self.run(self.tick(minutes=10))
            self.settle()
