"""The Dagster assets of one dataset, `<dataset>/raw` to `<dataset>/sequences`: one step that builds any of them.

Stages know nothing of Dagster: the step runs them as `tokenloom build` does, on the same store. An asset's code version
follows the YAML; its data version is the digest of its content. What is up to date is only looked up.
"""

# Without `from __future__ import annotations`: Dagster needs the annotation of `context` as a class, not as text.

from collections.abc import Iterator

import dagster as dg

from tokenloom.assets.building.stages import STAGES, code_versions, stage_named
from tokenloom.assets.dagster.automation import changed_upstream, requested_upstream
from tokenloom.assets.dagster.checks import StageCheck, stage_checks
from tokenloom.assets.dagster.dataset_run import DatasetRun, Event
from tokenloom.assets.dagster.embedding import Embedding
from tokenloom.assets.dagster.metadata.asset_spec import SECTIONS, spec_metadata, stage_description
from tokenloom.assets.dagster.names import op_name
from tokenloom.config import PipelineConfig


def dataset_asset(config: PipelineConfig, upstream: list[dg.AssetKey], embedding: Embedding) -> dg.AssetsDefinition:
    """Return the assets of a dataset and their checks.

    Args:
        upstream: keys of the assets that `raw` reads.
    """
    name = config.dataset_name
    keys = {stage: embedding.key(name, stage) for stage in STAGES}
    checks = stage_checks(config)

    @dg.multi_asset(
        name=op_name(name, "build", embedding.key_prefix),
        specs=[*map(embedding.changed, _specs(config, keys, upstream, embedding))],
        check_specs=[_check_spec(check, keys[check.stage]) for check in checks],
        can_subset=True,
        pool=op_name(name, "build", embedding.key_prefix),
        required_resource_keys=embedding.resource_keys(),
    )
    def build(context: dg.AssetExecutionContext) -> Iterator[Event]:
        yield from embedding.execute(DatasetRun(config, keys, checks, context, embedding.store_of(context)))

    return build


def _specs(
    config: PipelineConfig, keys: dict[str, dg.AssetKey], upstream: list[dg.AssetKey], embedding: Embedding
) -> Iterator[dg.AssetSpec]:
    versions, shared, freshness = code_versions(config), embedding.spec(config), embedding.freshness(config)
    declared = {section: spec_metadata(config, section) for section in {"dataset", *SECTIONS.values()}}
    first, after = changed_upstream(), requested_upstream()
    for stage, key in keys.items():
        above = [keys[name] for name in stage_named(stage).upstream]
        yield dg.AssetSpec(
            key,
            deps=above or upstream,
            description=stage_description(stage),
            metadata=declared[SECTIONS.get(stage, "dataset")],
            skippable=True,
            code_version=versions[stage],
            automation_condition=embedding.automation_condition or (after if above else first),
            freshness_policy=freshness if stage == STAGES[-1] else None,
            kinds={"arrow"},
            **shared,
        )


def _check_spec(check: StageCheck, key: dg.AssetKey) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(check.name, asset=key, description=check.description, blocking=check.blocking)
