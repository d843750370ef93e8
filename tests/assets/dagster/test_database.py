"""Runs that Dagster records in PostgreSQL, as deployments do."""

from __future__ import annotations

import tempfile
from pathlib import Path

import dagster as dg
import pytest

from support.dagster_project import new_project
from support.datasets_on_disk import STAGES
from support.postgres_server import postgres_programs, postgres_server
from support.soak import machine, smoke
from tokenloom.assets.dagster.names import asset_key

pytestmark = [
    machine("database"),
    pytest.mark.skipif(postgres_programs() is None, reason="needs PostgreSQL's programs"),
]


@smoke
def test_a_database_has_what_a_run_recorded_for_a_later_process(tmp_path: Path) -> None:
    project = new_project(tmp_path)
    project.write("toy")
    with postgres_server() as url, tempfile.TemporaryDirectory() as folder:
        settings = {"storage": {"postgres": {"postgres_url": url}}}
        with dg.instance_for_test(settings, temp_dir=folder) as instance:
            assert project.run(instance=instance).success
        with dg.instance_for_test(settings, temp_dir=folder) as instance:  # with connections of its own
            versions = {stage: instance.get_latest_materialization_event(asset_key("toy", stage)) for stage in STAGES}
            assert None not in versions.values()
            assert len(instance.get_run_records()) == 1
