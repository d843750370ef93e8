"""The Dagster assets of a YAML: source, stages of a dataset, mixture, and model.

Stages know nothing of Dagster: the step runs them as `tokenloom build` does, on the same store. An asset's code version
follows the YAML; its data version is the digest of its content. What is up to date is only looked up.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from tokenloom.assets.building.chain import STAGES, code_versions, stage_named
from tokenloom.assets.building.target import MixtureTarget
from tokenloom.assets.dagster.automation import look_at, observed, out_of_date, requested_with, settings_tag
from tokenloom.assets.dagster.checks import StageCheck, stage_checks
from tokenloom.assets.dagster.embedding import DatasetRun, Embedding, Event, failing_clearly
from tokenloom.assets.dagster.metadata import loss_curve_png, picture, spec_metadata, text_table
from tokenloom.assets.dagster.names import MODEL, SOURCE, op_name
from tokenloom.assets.stage.definition import Picture
from tokenloom.assets.stage.names import DEDUP, FINGERPRINTS, RAW, stages_of
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.config.sections import decisive_settings
from tokenloom.errors import missing_package, redacted_address
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.manifest import MIXTURE
from tokenloom.resources.visible import as_markdown

# Without `from __future__ import annotations`: Dagster needs annotations as classes, not as texts.


def dataset_asset(config: PipelineConfig, source: dg.AssetKey | None, embedding: Embedding) -> dg.AssetsDefinition:
    """Return the assets of a dataset and their checks.

    Args:
        source: the asset that observes what `raw` reads. None: assets of the project write it.
    """
    name = config.dataset_name
    keys = {stage: embedding.key(name, stage) for stage in stages_of(config)}
    checks = stage_checks(config)
    made = settings_tag(op_name(name, "build", embedding.key_prefix), code_versions(config)[STAGES[-1]])

    @dg.multi_asset(
        specs=[*map(embedding.changed, _specs(config, keys, source, made, embedding))],
        check_specs=[_check_spec(check, keys[check.stage]) for check in checks],
        can_subset=True,
        **_step(name, "build", embedding),
    )
    def build(context: dg.AssetExecutionContext) -> Iterator[Event]:
        context.instance.add_run_tags(context.run.run_id, made)
        yield from embedding.execute(DatasetRun(config, keys, checks, context, embedding.store_of(context), source))

    return build


def _step(name: str, made: str, embedding: Embedding) -> dict[str, Any]:
    """Return how a step is named and limited, and what it needs."""
    step = op_name(name, made, embedding.key_prefix)
    return {"name": step, "pool": step, "required_resource_keys": embedding.resource_keys()}


def _specs(
    config: PipelineConfig,
    keys: dict[str, dg.AssetKey],
    source: dg.AssetKey | None,
    made: dict[str, str],
    embedding: Embedding,
) -> Iterator[dg.AssetSpec]:
    versions, shared, freshness = code_versions(config), embedding.spec(config), embedding.freshness(config)
    others = [embedding.key(other, FINGERPRINTS) for other in (config.dedup.against if config.dedup else ())]
    upstream = embedding.upstream(config) if source is None else [source]
    first, joins = out_of_date(made, keys[STAGES[-1]], source, others), requested_with(keys[RAW])
    for name, key in keys.items():
        stage = stage_named(name)
        above = [keys[upper] for upper in stage.above(config)]
        yield dg.AssetSpec(
            key,
            deps=[*(above or upstream), *(others if name == DEDUP else [])],
            description=stage.description,
            metadata=spec_metadata(config, stage.section),
            skippable=True,
            code_version=versions[name],
            automation_condition=embedding.automation_condition or (first if name == RAW else joins),
            freshness_policy=freshness if name == STAGES[-1] else None,
            kinds={"arrow"},
            **shared,
        )


def _check_spec(check: StageCheck, key: dg.AssetKey) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(check.name, asset=key, description=check.description, blocking=check.blocking)


def mixture_asset(config: MixtureConfig, embedding: Embedding) -> dg.AssetsDefinition:
    """Return the asset `<name>/mixture`. It mixes the datasets in their stored versions."""
    name = config.dataset_name
    sources = [source.model_dump(mode="json", exclude={"by"}) for source in config.mixture]
    key, version = embedding.key(name, MIXTURE), digest_json([config.by, sources])[:16]
    made = settings_tag(op_name(name, MIXTURE, embedding.key_prefix), version)

    spec = dg.AssetSpec(
        key,
        deps=[embedding.key(member, STAGES[-1]) for member in config.names],
        description=as_markdown(f"Interleaves {', '.join(config.names)} by exact fractions of {config.by}."),
        code_version=version,
        automation_condition=embedding.automation_condition or out_of_date(made, key, again="*/10 * * * *"),
        kinds={"arrow"},
        metadata=spec_metadata(config, "mixture"),
        freshness_policy=embedding.freshness(config),
        **embedding.spec(config),
    )

    @dg.multi_asset(specs=[embedding.changed(spec)], **_step(name, MIXTURE, embedding))
    def mix(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        context.instance.add_run_tags(context.run.run_id, made)
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


def model_asset(config: PipelineConfig | MixtureConfig, embedding: Embedding) -> dg.AssetsDefinition:
    """Return the asset. It trains where no model of the same data and settings exists, and finishes a run that ended
    early. Nothing starts it but a person or a job of the project: neither the schedule nor automation."""
    name, training = config.dataset_name, config.training
    assert training is not None
    above = MIXTURE if isinstance(config, MixtureConfig) else STAGES[-1]
    spec = dg.AssetSpec(
        embedding.key(name, MODEL),
        deps=[embedding.key(name, above)],
        description="A model trained as `training:` says, with its log and checkpoints.",
        code_version=digest_json(decisive_settings(training, config.dataloader))[:16],
        kinds={"pytorch"},
        metadata=spec_metadata(config, "training"),
        skippable=True,
        **embedding.spec(config),
    )

    @dg.multi_asset(specs=[embedding.changed(spec)], **_step(name, MODEL, embedding))
    def train(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with failing_clearly(context):
            try:
                from tokenloom.trainer.run import train_once
            except ModuleNotFoundError as error:
                raise dg.Failure(str(missing_package(error.name or "", "the asset")), allow_retries=False) from None
            store = embedding.store_of(context).open(config.folder).address
            run = train_once(config, store, context.log.info)
            return dg.MaterializeResult(data_version=dg.DataVersion(run.key), metadata=_metadata(run.folder, run.data))

    return train


def _metadata(folder: Path, data: str) -> dict[str, Any]:
    """Return what a page shows of a run, most telling first."""
    from tokenloom.trainer.log import read_log

    log, samples = read_log(folder / "log.jsonl"), read_log(folder / "samples.jsonl")
    steps = [line for line in log if "loss" in line]
    evaluated = [line for line in log if "eval_loss" in line]
    curve = Picture(loss_curve_png(log), "grey: loss of each step; green: loss on the validation split")
    metadata: dict[str, Any] = {"curve": picture("loss", curve)}
    for line in evaluated[-1:]:
        metadata |= {name.replace("eval_", "validation_"): line[name] for name in line if name.startswith("eval_")}
    if samples:
        first, last = (
            {line["prompt"]: line for line in samples if line["step"] == step}
            for step in (samples[0]["step"], samples[-1]["step"])
        )
        rows = [
            {
                "prompt": prompt,
                "expected": line["expected"],
                f"before, step {samples[0]['step']}": first[prompt]["generated"] if prompt in first else "",
                f"after, step {line['step']}": line["generated"],
            }
            for prompt, line in last.items()
        ]
        metadata["answers"] = text_table(rows)
    spikes = read_log(folder / "spikes.jsonl")
    metadata |= {"training_loss": steps[-1]["loss"], "steps": steps[-1]["step"], "loss_spikes": len(spikes)}
    return {**metadata, "model": dg.MetadataValue.path(str((folder / "model").resolve())), "data": data}


def source_asset(config: PipelineConfig, embedding: Embedding) -> dg.AssetsDefinition:
    """Return the observable source of a dataset. Its data version is a fingerprint of the content."""
    name, address = config.dataset_name, redacted_address(config.dataset.name)
    spec = dg.AssetSpec(
        embedding.key(name, SOURCE),
        description=as_markdown(f"{address}, which {name} reads. An observation tells whether its content changed."),
        metadata={"source": address, **spec_metadata(config, "dataset.name")},
        code_version=digest_json(config.validation.model_dump(mode="json"))[:16],
        automation_condition=observed(config.dagster.observe),
        **embedding.spec(config),
    )

    @dg.multi_observable_source_asset(
        name=op_name(name, SOURCE, embedding.key_prefix),
        specs=[embedding.changed(spec)],
        required_resource_keys=embedding.resource_keys(),
    )
    def observe(context: dg.AssetExecutionContext) -> dg.ObserveResult:
        with failing_clearly(context):
            store, raw = embedding.store_of(context).open(config.folder), embedding.key(name, RAW)
            step = op_name(name, "build", embedding.key_prefix)
            version, facts = look_at(config, store, context.instance, spec.key, raw, step)
        return dg.ObserveResult(asset_key=spec.key, data_version=dg.DataVersion(version), metadata=facts)

    return observe
