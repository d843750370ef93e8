"""Dagster's front door to a mixture: an asset below the sequences of its datasets, a job and a schedule."""

# No `from __future__ import annotations` here: Dagster reads the annotation of `store` as a class, not as text.

from typing import Any

import dagster as dg

from tokenloom.assets.building.build import STAGES
from tokenloom.assets.building.members import find_members
from tokenloom.assets.building.target import MixtureTarget
from tokenloom.assets.dagster.dataset_assets import (
    StoreResource,
    asset_key,
    cells,
    clear_failures,
    dagster_name,
    dataset_schedule,
    job_name,
)
from tokenloom.config import MixtureConfig
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.manifest import MIXTURE


def mixture_definitions(config: MixtureConfig) -> dg.Definitions:
    """The asset `<name>/mixture`, a job that builds it with all above it, and a schedule; reads no data.

    The asset needs a resource `store`, a `StoreResource`; it takes the datasets as the store holds them.

    Raises:
        ConfigError: the datasets do not fit together, as far as their YAMLs tell, or the schedule is wrong.
    """
    find_members(config)
    name, key = config.dataset_name, asset_key(config.dataset_name, MIXTURE)
    settings = [source.model_dump(mode="json", exclude={"by"}) for source in config.mixture]

    @dg.asset(
        key=key,
        deps=[asset_key(member, STAGES[-1]) for member in config.names],
        group_name=dagster_name(name),
        description=f"mixture: {', '.join(config.names)} take turns by exact shares of {config.by}",
        code_version=digest_json([config.by, settings])[:16],
    )
    def materialize(store: StoreResource) -> dg.MaterializeResult:
        with clear_failures():
            return _published(MixtureTarget(config, store.open()))

    job = dg.define_asset_job(
        job_name(name),
        selection=dg.AssetSelection.assets(key).upstream(),
        description=f"Builds the datasets of {name}, computing only what no earlier build did, and mixes them.",
        executor_def=dg.in_process_executor,
    )
    schedules = [dataset_schedule(config, config.schedule, job)] if config.schedule else []
    return dg.Definitions(assets=[materialize], jobs=[job], schedules=schedules)


def _published(build: MixtureTarget) -> dg.MaterializeResult:
    manifest, mixed = build.publish()
    shares = mixed.shares()
    rows = [
        {
            "dataset": share.dataset,
            "rows": f"{share.rows:,}",
            "tokens": f"{share.tokens:,}",
            "rows taken": f"{share.taken:,}",
            "epochs": f"{share.epochs:.2f}",
            "of rows": f"{share.row_share:.1%}",
            "of tokens": f"{share.token_share:.1%}",
        }
        for share in shares
    ]
    metadata: dict[str, Any] = {"dagster/row_count": len(mixed), "digest": manifest.digest, "shares": cells(rows)}
    for share in shares:
        metadata |= {
            f"row_share/{share.dataset}": share.row_share,
            f"token_share/{share.dataset}": share.token_share,
            f"epochs/{share.dataset}": share.epochs,
        }
    return dg.MaterializeResult(data_version=dg.DataVersion(manifest.digest), metadata=metadata)
