"""The Dagster asset of a mixture, downstream of the sequences of its datasets."""

# Without `from __future__ import annotations`: Dagster needs the annotation of `store` as a class, not as text.

from typing import Any

import dagster as dg

from tokenloom.assets.building.stages import STAGES
from tokenloom.assets.building.target import MixtureTarget
from tokenloom.assets.dagster.automation import changed_upstream
from tokenloom.assets.dagster.embedding import Embedding
from tokenloom.assets.dagster.failures import failing_clearly
from tokenloom.assets.dagster.metadata.asset_spec import spec_metadata
from tokenloom.assets.dagster.metadata.tables import text_table
from tokenloom.assets.dagster.names import op_name
from tokenloom.config import MixtureConfig
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.manifest import MIXTURE


def mixture_asset(config: MixtureConfig, embedding: Embedding) -> dg.AssetsDefinition:
    """Return the asset `<name>/mixture`. It mixes the datasets in their stored versions."""
    name = config.dataset_name
    sources = [source.model_dump(mode="json", exclude={"by"}) for source in config.mixture]

    spec = dg.AssetSpec(
        embedding.key(name, MIXTURE),
        deps=[embedding.key(member, STAGES[-1]) for member in config.names],
        description=f"Interleaves {', '.join(config.names)} by exact fractions of {config.by}.",
        code_version=digest_json([config.by, sources])[:16],
        automation_condition=embedding.automation_condition or changed_upstream(),
        kinds={"arrow"},
        metadata=spec_metadata(config, "mixture"),
        freshness_policy=embedding.freshness(config),
        **embedding.spec(config),
    )

    @dg.multi_asset(
        name=op_name(name, MIXTURE, embedding.key_prefix),
        specs=[embedding.changed(spec)],
        pool=op_name(name, MIXTURE, embedding.key_prefix),
        required_resource_keys=embedding.resource_keys(),
    )
    def mix(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with failing_clearly(context):
            return _published(MixtureTarget(config, embedding.store_of(context).open(config.folder)))

    return mix


def _published(target: MixtureTarget) -> dg.MaterializeResult:
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
