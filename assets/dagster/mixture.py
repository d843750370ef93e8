"""The Dagster asset of a mixture, downstream of the sequences of its datasets, with a job and a schedule."""

# Without `from __future__ import annotations`: Dagster needs the annotation of `store` as a class, not as text.

from typing import Any

import dagster as dg

from tokenloom.assets.building.members import find_members
from tokenloom.assets.building.stages import STAGES
from tokenloom.assets.building.target import MixtureTarget
from tokenloom.assets.dagster.assets import failing_clearly
from tokenloom.assets.dagster.jobs import build_job, build_schedules
from tokenloom.assets.dagster.names import asset_key, dagster_name
from tokenloom.assets.dagster.store_resource import StoreResource
from tokenloom.assets.dagster.tables import text_table
from tokenloom.config import MixtureConfig
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.manifest import MIXTURE


def mixture_definitions(config: MixtureConfig) -> dg.Definitions:
    """Return the asset `<name>/mixture`, a job that builds it and everything upstream, and a schedule. Reads no data.

    The asset needs a resource `store`, a `StoreResource`. It mixes the datasets in their stored versions.

    Raises:
        ConfigError: the YAMLs show that the datasets do not fit together, or Dagster does not accept the schedule.
    """
    find_members(config)
    name, key = config.dataset_name, asset_key(config.dataset_name, MIXTURE)
    sources = [source.model_dump(mode="json", exclude={"by"}) for source in config.mixture]

    @dg.asset(
        key=key,
        deps=[asset_key(member, STAGES[-1]) for member in config.names],
        group_name=dagster_name(name),
        description=f"mixture: interleaves {', '.join(config.names)} by exact fractions of {config.by}",
        code_version=digest_json([config.by, sources])[:16],
    )
    def materialize(store: StoreResource) -> dg.MaterializeResult:
        with failing_clearly():
            return _publish(MixtureTarget(config, store.open(config.folder)))

    job = build_job(
        name,
        dg.AssetSelection.assets(key).upstream(),
        f"Builds the datasets of {name}, computes only what no earlier build computed, and mixes them.",
    )
    return dg.Definitions(assets=[materialize], jobs=[job], schedules=build_schedules(config, job))


def _publish(target: MixtureTarget) -> dg.MaterializeResult:
    manifest, mixed = target.publish()
    shares = mixed.shares()
    rows = [
        {
            "dataset": share.dataset,
            "rows": f"{share.rows:,}",
            "tokens": f"{share.tokens:,}",
            "rows taken": f"{share.taken:,}",
            "epochs": f"{share.epochs:.2f}",
            "fraction of rows": f"{share.row_share:.1%}",
            "fraction of tokens": f"{share.token_share:.1%}",
        }
        for share in shares
    ]
    metadata: dict[str, Any] = {"dagster/row_count": len(mixed), "digest": manifest.digest, "shares": text_table(rows)}
    for share in shares:
        metadata |= {
            f"row_share/{share.dataset}": share.row_share,
            f"token_share/{share.dataset}": share.token_share,
            f"epochs/{share.dataset}": share.epochs,
        }
    return dg.MaterializeResult(data_version=dg.DataVersion(manifest.digest), metadata=metadata)
