"""The names of a dataset's assets, groups and jobs in Dagster."""

from __future__ import annotations

import re

import dagster as dg


def asset_key(dataset: str, stage: str) -> dg.AssetKey:
    """Return the asset key `<dataset>/<stage>`."""
    return dg.AssetKey([dataset, stage])


def dagster_name(dataset: str) -> str:
    """Return a dataset's name with only the characters that Dagster allows in names of groups, jobs and steps."""
    return re.sub(r"[^A-Za-z0-9_]", "_", dataset)


def job_name(dataset: str) -> str:
    """Return the name of a dataset's job; words that Dagster reserves, such as `config`, get a trailing `_`."""
    name = dagster_name(dataset)
    try:
        dg.GraphDefinition(name=name)
    except dg.DagsterInvalidDefinitionError:
        return f"{name}_"
    return name
