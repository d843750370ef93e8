"""The Dagster asset `<dataset>/source`: observing it tells whether the data that the dataset reads changed."""

# Without `from __future__ import annotations`: Dagster needs the annotation of `context` as a class, not as text.

from collections.abc import Mapping
from typing import Any

import dagster as dg

from tokenloom.assets.dagster.automation import observed
from tokenloom.assets.dagster.embedding import Embedding
from tokenloom.assets.dagster.failures import failing_clearly
from tokenloom.assets.dagster.metadata.asset_spec import spec_metadata
from tokenloom.assets.dagster.names import SOURCE, op_name
from tokenloom.config import PipelineConfig
from tokenloom.errors import redacted_address


def source_asset(config: PipelineConfig, embedding: Embedding) -> dg.AssetsDefinition:
    """Return the observable source of a dataset. Its data version is a fingerprint of the content."""
    name, address = config.dataset_name, redacted_address(config.dataset.name)
    spec = dg.AssetSpec(
        embedding.key(name, SOURCE),
        description=f"{address}, which {name} reads. An observation tells whether its content changed.",
        metadata={"source": address, **spec_metadata(config, "dataset.name")},
        automation_condition=observed(config.dagster.observe),
        **embedding.spec(config),
    )

    @dg.multi_observable_source_asset(
        name=op_name(name, SOURCE, embedding.key_prefix),
        specs=[embedding.changed(spec)],
        required_resource_keys=embedding.resource_keys(),
    )
    def observe(context: dg.AssetExecutionContext) -> dg.ObserveResult:
        from tokenloom.resources.sources.fingerprint import source_state

        with failing_clearly(context):
            state = source_state(config, embedding.store_of(context).open(config.folder))
        facts = {
            "files": state.files,
            "bytes": state.bytes,
            "modified": state.modified and dg.MetadataValue.timestamp(state.modified),
            "commit": state.commit,
        }
        return dg.ObserveResult(
            asset_key=spec.key, data_version=dg.DataVersion(state.fingerprint), metadata=_known(facts)
        )

    return observe


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if fact is not None}
