"""The Dagster definitions of one dataset or mixture, and of all YAMLs of a folder."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import dagster as dg
from dagster_shared.check import CheckError

from tokenloom.assets.building.declared_folder import DeclaredFolder, plain_name
from tokenloom.assets.building.members import Member, find_members
from tokenloom.assets.building.stages import STAGES
from tokenloom.assets.dagster.circles import circular
from tokenloom.assets.dagster.dataset_asset import dataset_asset
from tokenloom.assets.dagster.embedding import Embedding, keys_of, parts_of
from tokenloom.assets.dagster.faulty_asset import faulty_asset
from tokenloom.assets.dagster.mixture_asset import mixture_asset
from tokenloom.assets.dagster.model_asset import model_asset
from tokenloom.assets.dagster.names import SOURCE
from tokenloom.assets.dagster.schedules import check_cron, schedule
from tokenloom.assets.dagster.source import source_asset
from tokenloom.assets.dagster.store_resource import StoreResource
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.config.load import Config
from tokenloom.errors import ConfigError
from tokenloom.resources.exceptions import first_line
from tokenloom.resources.store.manifest import MIXTURE

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
        named = [member.name for member in members if member.config is not None]
        keys = [embedding.key(member, stage) for member in named for stage in STAGES]
        keys.append(embedding.key(name, MIXTURE))
    else:
        keys = [embedding.key(name, stage) for stage in STAGES]
    for setting, line in (("schedule", config.schedule), ("dagster.observe", config.dagster.observe)):
        if line is not None:
            check_cron(config, setting, line)
    scheduled = [schedule(config, keys)] if config.schedule else []
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
    elif upstream := embedding.upstream(config):
        yield dataset_asset(config, upstream, embedding)
    else:
        yield dataset_asset(config, [embedding.key(config.dataset_name, SOURCE)], embedding)
        yield source_asset(config, embedding)
