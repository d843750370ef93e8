"""The Dagster assets of a YAML (source, stages of a dataset, mixture, model), and the definitions of a folder of YAMLs.

Stages know nothing of Dagster: the step runs them as `tokenloom build` does, on the same store. An asset's code version
follows the YAML; its data version is the digest of its content. What is up to date is only looked up. A faulty YAML is
an asset that says so. Dagster reads the annotations of assets, so this file does not postpone them.
"""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain, count
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_shared.check import CheckError

from tokenloom.assets.building.chain import STAGES, code_versions, stage_named
from tokenloom.assets.building.target import DeclaredFolder, Member, MixtureTarget, find_members, plain_name
from tokenloom.assets.dagster.automation import look_at, observed, out_of_date, requested_with, settings_tag
from tokenloom.assets.dagster.checks import stage_checks
from tokenloom.assets.dagster.embedding import (
    DatasetRun,
    Embedding,
    Event,
    check_cron,
    failing_clearly,
    keys_of,
    parts_of,
    schedule,
)
from tokenloom.assets.dagster.metadata import loss_curve_png, picture, spec_metadata, text_table
from tokenloom.assets.dagster.names import MODEL, SOURCE, StoreResource, op_name
from tokenloom.assets.stage.definition import Picture
from tokenloom.assets.stage.names import DEDUP, FINGERPRINTS, RAW, stages_of
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.config.dataset import Config
from tokenloom.config.sections import decisive_settings
from tokenloom.errors import ConfigError, missing_package, redacted_address
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.manifest import MIXTURE
from tokenloom.resources.visible import as_markdown, first_line


def dataset_asset(config: PipelineConfig, source: dg.AssetKey | None, embedding: Embedding) -> dg.AssetsDefinition:
    """Return the assets of a dataset and their checks.

    Args:
        source: the asset that observes what `raw` reads. None: assets of the project write it.
    """
    name = config.dataset_name
    keys = {stage: embedding.key(name, stage) for stage in stages_of(config)}
    checks = stage_checks(config)
    versions, freshness = code_versions(config), embedding.freshness(config)
    made = settings_tag(op_name(name, "build", embedding.key_prefix), versions[STAGES[-1]])
    others = [embedding.key(other, FINGERPRINTS) for other in (config.dedup.against if config.dedup else ())]
    upstream = embedding.upstream(config) if source is None else [source]
    # only the first stage has a condition of its own: the others join its run, so that one run builds all of them
    first, joins = out_of_date(made, keys[STAGES[-1]], source, others), requested_with(keys[RAW])
    specs: list[dg.AssetSpec] = []
    for stage_name, key in keys.items():
        stage = stage_named(stage_name)
        above = [keys[upper] for upper in stage.above(config)]
        spec = dg.AssetSpec(
            key,
            deps=[*(above or upstream), *(others if stage_name == DEDUP else [])],
            description=stage.description,
            metadata=spec_metadata(config, stage.section),
            skippable=True,
            code_version=versions[stage_name],
            automation_condition=embedding.automation_condition or (first if stage_name == RAW else joins),
            freshness_policy=freshness if stage_name == STAGES[-1] else None,
            kinds={"arrow"},
            **embedding.spec(config),
        )
        specs.append(embedding.changed(spec))

    @dg.multi_asset(
        specs=specs,
        check_specs=[
            dg.AssetCheckSpec(
                check.name, asset=keys[check.stage], description=check.description, blocking=check.blocking
            )
            for check in checks
        ],
        can_subset=True,
        **_step(name, "build", embedding),
    )
    def build(context: dg.AssetExecutionContext) -> Iterator[Event]:
        context.instance.add_run_tags(context.run.run_id, made)
        yield from embedding.execute(DatasetRun(config, keys, checks, context, embedding.store_of(context), source))

    return build


def _step(name: str, made: str, embedding: Embedding) -> dict[str, Any]:
    step = op_name(name, made, embedding.key_prefix)
    return {"name": step, "pool": step, "required_resource_keys": embedding.resource_keys()}


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
            run = train_once(config, embedding.store_of(context).open(config.folder).address, context.log.info)
            return dg.MaterializeResult(data_version=dg.DataVersion(run.key), metadata=_metadata(run.folder, run.data))

    return train


def _metadata(folder: Path, data: str) -> dict[str, Any]:
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


def faulty_asset(path: Path, error: ConfigError, taken: set[str], embedding: Embedding) -> dg.Definitions:
    """Return an asset named after a faulty YAML, and its check `yaml`.

    Args:
        taken: names of other datasets and faulty YAMLs, as Dagster has them. The name of this one is added.
    """
    stem, file = plain_name(path.stem), plain_name(path.name)
    name = next(each for each in chain((stem, file), (f"{file}_{number}" for number in count(2))) if each not in taken)
    taken.add(name)
    key = embedding.key(name, STAGES[-1])
    message = as_markdown(f"{path.name} is faulty, so this asset cannot run:\n\n{error}")

    @dg.asset_check(asset=key, name="yaml", description="The YAML is valid.", compute_kind="yaml")
    def yaml() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, description=as_markdown(str(error)))

    return dg.Definitions(
        assets=[dg.AssetSpec(key, description=message, group_name=embedding.group or plain_name(name), kinds={"yaml"})],
        asset_checks=[yaml],
    )


def circular(configs: Mapping[Path, Config], embedding: Embedding) -> dict[Path, ConfigError]:
    """Return the faults of datasets whose upstream assets are made of themselves, by file."""
    owners, reads = dict[dg.AssetKey, Path](), dict[Path, list[dg.AssetKey]]()
    for path, config in configs.items():
        if isinstance(config, MixtureConfig):
            made, reads[path] = [MIXTURE], [embedding.key(name, STAGES[-1]) for name in config.names]
        else:
            made, reads[path] = [SOURCE, *stages_of(config)], embedding.upstream(config)
        made += [MODEL] if config.training is not None else []
        owners |= {embedding.key(config.dataset_name, stage): path for stage in made}
    above = {path: {owners[key] for key in keys if key in owners} for path, keys in reads.items()}
    faults = dict[Path, ConfigError]()
    while True:
        try:
            TopologicalSorter(above).prepare()
            return faults
        except CycleError as error:
            # the datasets of the circle no longer wait for anything; the next round finds the circles that are left
            circle: list[Path] = error.args[1]
            loop = " → ".join(configs[path].dataset_name for path in circle)
            for path in circle:
                if not isinstance(config := configs[path], MixtureConfig):
                    faults[path] = config.fault("dagster.deps", f"waits for what is made of the dataset itself: {loop}")
                    above[path] = set()


VALIDATION = "DAGSTER_IS_DEFS_VALIDATION_CLI"
"""The environment variable that Dagster sets while it validates definitions."""


def dataset_definitions(
    config: PipelineConfig | MixtureConfig,
    *,
    deps: Sequence[str | Sequence[str] | dg.AssetKey] = (),
    key_prefix: str | Sequence[str] | None = None,
    group: str | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    automation_condition: dg.AutomationCondition | None = None,
    executor: dg.ExecutorDefinition | None = None,
    store: StoreResource | None = None,
) -> dg.Definitions:
    """Return the assets, checks and schedule of one dataset or mixture, for a project to merge. Reads no data.

    Args:
        deps: keys of the assets that write what the dataset reads; a run builds the dataset after them. Without any,
            the asset `<dataset>/source` observes it. A mixture has none: it depends on its datasets.
        key_prefix: first parts of all asset keys.
        group: default: `dagster.group` of the YAML, else the dataset's name.
        owners, tags: in addition to those of the YAML.
        automation_condition: when Dagster materializes the assets by itself. Default: when the data changed that they
            are made of.
        executor: runs the steps. Default: the project's.
        store: where the assets are stored. Default: the project's resource `store`, a `StoreResource`.

    Raises:
        ConfigError: the datasets of a mixture do not fit together, or Dagster does not accept a setting.
    """
    embedding = Embedding(
        keys_of(deps), parts_of(key_prefix), group, tuple(owners), dict(tags or {}), automation_condition, store
    )
    members = find_members(config) if isinstance(config, MixtureConfig) else []
    for error in circular({Path(config.dataset_name): config}, embedding).values():
        raise error
    return dg.Definitions.merge(_definitions(config, members, embedding), dg.Definitions(executor=executor))


def declared_definitions(
    declared: DeclaredFolder, embedding: Embedding | None = None, strict: bool | None = None
) -> dg.Definitions:
    """Return the definitions of all datasets and mixtures that some YAMLs declare.

    A faulty YAML becomes an asset that cannot run, with a check that fails; the others are not affected.

    Args:
        strict: raise the faults instead. Default: only while `dagster definitions validate` or `dg check defs` runs.

    Raises:
        ConfigError: lists every fault of every file, if `strict`.
    """
    embedding = embedding or Embedding()
    strict = bool(os.environ.get(VALIDATION)) if strict is None else strict
    parts = list[dg.Definitions]()
    faults = {**declared.faults, **circular(declared.configs, embedding)}
    for path in [path for path in declared.configs if path not in faults]:
        try:
            parts.append(_definitions(declared.configs[path], declared.members.get(path, ()), embedding))
        except ConfigError as error:
            faults[path] = error
    faults = dict(sorted(faults.items()))
    if strict and faults:
        raise ConfigError([*dict.fromkeys(fault for error in faults.values() for fault in error.faults)])
    taken = {plain_name(config.dataset_name) for path, config in declared.configs.items() if path not in faults}
    parts += [faulty_asset(path, error, taken, embedding) for path, error in faults.items()]
    return dg.Definitions.merge(*parts)


def _definitions(config: Config, members: Sequence[Member], embedding: Embedding) -> dg.Definitions:
    """Return the assets of a dataset, or of a mixture of some, and its schedule; raise ConfigError if Dagster refuses
    them."""
    name = config.dataset_name
    if isinstance(config, MixtureConfig):
        named = [(member.name, member.config) for member in members if member.config is not None]
        keys = [embedding.key(member, stage) for member, declared in named for stage in stages_of(declared)]
        keys.append(embedding.key(name, MIXTURE))
    else:
        keys = [embedding.key(name, stage) for stage in stages_of(config)]
    scheduled = [schedule(config, config.schedule, keys)] if config.schedule else []
    check_cron(config, "dagster.observe", config.dagster.observe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # observable sources
        try:
            return dg.Definitions(assets=[*_assets(config, embedding)], schedules=scheduled)
        except (dg.DagsterInvalidDefinitionError, CheckError) as error:
            raise config.fault("dagster", f"Dagster does not accept it: {first_line(error)}") from error


def _assets(config: Config, embedding: Embedding) -> Iterator[dg.AssetsDefinition]:
    if config.training is not None:
        yield model_asset(config, embedding)
    if isinstance(config, MixtureConfig):
        yield mixture_asset(config, embedding)
    elif embedding.upstream(config):
        yield dataset_asset(config, None, embedding)
    else:
        yield dataset_asset(config, embedding.key(config.dataset_name, SOURCE), embedding)
        yield source_asset(config, embedding)
