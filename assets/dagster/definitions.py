"""The Dagster definitions of one dataset or mixture, and of all YAMLs of a folder, faulty ones included."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain, count
from pathlib import Path

import dagster as dg
from dagster_shared.check import CheckError

from tokenloom.assets.building.chain import STAGES
from tokenloom.assets.building.target import DeclaredFolder, Member, find_members, plain_name
from tokenloom.assets.dagster.assets import dataset_asset, mixture_asset, model_asset, source_asset
from tokenloom.assets.dagster.embedding import Embedding, check_cron, keys_of, parts_of, schedule
from tokenloom.assets.dagster.names import MODEL, SOURCE, StoreResource
from tokenloom.assets.stage.names import stages_of
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.config.dataset import Config
from tokenloom.errors import ConfigError
from tokenloom.resources.exceptions import first_line
from tokenloom.resources.store.manifest import MIXTURE
from tokenloom.resources.visible import as_markdown


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

    @dg.asset_check(
        asset=key,
        name="yaml",
        description="The YAML is valid.",
        compute_kind="yaml",
    )
    def yaml() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, description=as_markdown(str(error)))

    return dg.Definitions(
        assets=[dg.AssetSpec(key, description=message, group_name=embedding.group or plain_name(name), kinds={"yaml"})],
        asset_checks=[yaml],
    )


def circular(configs: Mapping[Path, Config], embedding: Embedding) -> dict[Path, ConfigError]:
    """Return the faults of datasets whose upstream assets are made of themselves, by file."""
    owners = {key: path for path, config in configs.items() for key in _made(config, embedding)}
    above = {
        path: {owners[key] for key in _read(config, embedding) if key in owners} for path, config in configs.items()
    }
    found = dict[Path, ConfigError]()
    while True:
        try:
            TopologicalSorter(above).prepare()
            return found
        except CycleError as error:
            circle: list[Path] = error.args[1]
            names = " → ".join(configs[path].dataset_name for path in circle)
            for path in circle:
                if not isinstance(config := configs[path], MixtureConfig):
                    found[path] = config.fault("dagster.deps", f"waits for what is made of the dataset itself: {names}")
                    above[path] = set()


def _made(config: Config, embedding: Embedding) -> Iterator[dg.AssetKey]:
    """Yield the keys of the assets of a dataset or mixture."""
    for stage in [MIXTURE] if isinstance(config, MixtureConfig) else [SOURCE, *stages_of(config)]:
        yield embedding.key(config.dataset_name, stage)
    if config.training is not None:
        yield embedding.key(config.dataset_name, MODEL)


def _read(config: Config, embedding: Embedding) -> Iterator[dg.AssetKey]:
    """Yield the keys of the assets that a dataset or mixture is made of."""
    if isinstance(config, MixtureConfig):
        yield from (embedding.key(name, STAGES[-1]) for name in config.names)
    else:
        yield from embedding.upstream(config)


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
    """Return the assets of a dataset or mixture, and its schedule if it has one.

    Args:
        members: the datasets of a mixture.

    Raises:
        ConfigError: Dagster does not accept a setting.
    """
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
