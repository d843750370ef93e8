"""Looks at a source before any YAML declares it: builds `raw` and `schema`, and offers a YAML to start from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenloom.assets.building.build import Build, StageReport
from tokenloom.assets.columns.mapping import plain_roles, resolve
from tokenloom.assets.schema.candidates import Ambiguity, FormatCandidate, choose
from tokenloom.cli.progress import BuildProgress
from tokenloom.cli.starter_yaml import starter_yaml
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, Fault
from tokenloom.resources.sources import resolve as sources
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tokenizers import TokenizerSpec, resolve_tokenizer

STAGES = ("raw", "schema")


@dataclass(frozen=True)
class Inspection:
    """What was found of a source.

    Args:
        config: its `dataset` section, and the dataset's name.
        build: the build of its first stages.
        reports: what they did.
        facts: splits, columns, roles and formats, as the schema stage's manifest holds them.
        choice: the sure reading, or the close ones; of a YAML that maps columns itself, its mapping.
        refused: why the YAML's own mapping does not fit the rows; None: it does, or there is none.
        tokenizer: name and files of the tokenizer asked for, or None.
    """

    config: PipelineConfig
    build: Build
    reports: list[StageReport]
    facts: dict[str, Any]
    choice: FormatCandidate | Ambiguity
    refused: str | None
    tokenizer: tuple[str, TokenizerSpec] | None

    def yaml(self, folder: Path) -> str:
        """A YAML to start from, its paths relative to the folder that it will lie in."""
        dataset = self.config.dataset.model_dump(mode="json", exclude_defaults=True)
        dataset["name"] = _as_seen_from(folder, self.config)
        named = self.tokenizer
        if named is not None and (path := sources.local_path(self.config, named[0])) is not None:
            named = (_relative(named[0], path, folder), named[1])
        found = [f"Written by `tokenloom inspect`; it found {self.counts()}.", *self.findings()]
        prompt = self.config.prompt_template.model_dump(mode="json", exclude_defaults=True)
        return starter_yaml(dataset, self.facts["columns"], self.choice, named, found, prompt)

    def counts(self) -> str:
        """The rows of each split, in words."""
        return ", ".join(f"{rows:,} rows of {split}" for split, rows in self.facts["splits"].items())

    def findings(self) -> list[str]:
        """What was found out about the source rather than declared, a line each, with the setting that would say so."""
        notes = self.build.manifest("raw").notes
        lines = [f"The hub's commit is {notes['commit']}."] if notes.get("commit") else []
        of_finding: dict[tuple[str, str], list[str]] = {}
        for file, found in notes.get("files", {}).items():
            for setting, value in found.items():
                of_finding.setdefault((setting, value), []).append(file)
        for (setting, value), files in of_finding.items():
            place = setting if setting == "encoding" else f"reader.{setting}"
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            lines.append(f"{files[0]}{more}: {setting} {value} was found; dataset.{place} would declare it.")
        return lines

    @property
    def is_sure(self) -> bool:
        """Whether the YAML builds as it is."""
        return self.refused is None and isinstance(self.choice, FormatCandidate)

    def verdict(self) -> str:
        """What the data were read as, or what cannot be told."""
        if self.refused is not None:
            return f"The mapping is the YAML's own, and no build takes it: {self.refused}"
        if isinstance(self.choice, Ambiguity):
            return f"Not clear which columns to train on: {self.choice}."
        if self.config.dataset.column_mapping:
            roles = ", ".join(f"{role}: {source}" for role, source in self.choice.roles.items())
            return f"The mapping is the YAML's own: {roles}."
        return f"Read as {self.choice.format}."


def inspect_source(
    source: str,
    store: ArtifactStore,
    progress: BuildProgress,
    dataset: Mapping[str, Any],
    tokenizer: str | None = None,
    limit: int | None = None,
) -> Inspection:
    """Run `raw` and `schema` over a source: anything that `dataset.name` takes, or a YAML that declares a dataset.

    They are published as `<name>@inspect`, beside what a build publishes as `<name>`; a build of the same rows finds
    their chunks made.

    Args:
        dataset: further settings of the `dataset` section.

    Raises:
        ConfigError: there is no such source, or no such tokenizer, or the source has no such setting.
    """
    config = _config(source, dataset, tokenizer)
    _refuse_idle(config, dataset)
    found = (tokenizer, resolve_tokenizer(config)) if tokenizer else None
    build = Build(config, store, limit=limit, on_progress=progress.chunk_done)
    build.name = f"{build.name}@inspect"
    reports = []
    for stage in STAGES:
        reports.append(build.run(stage))
        progress.stage_done(reports[-1])
    facts = build.manifest("schema").facts
    choice, refused = choose([FormatCandidate(**candidate) for candidate in facts["formats"]]), None
    if config.dataset.column_mapping:
        try:
            mapping = resolve(config, facts["columns"])
            choice = FormatCandidate(
                "own", mapping.form, {role: str(text) for role, text in plain_roles(mapping.roles).items()}, 1.0, ()
            )
        except ConfigError as error:
            refused = str(error)
    return Inspection(config, build, reports, facts, choice, refused, found)


def dataset_name(source: str) -> str:
    """A valid dataset's name made of a source's stem."""
    path = Path(source.partition("?")[0] if "://" in source else source)
    while path.suffix in (*sources.COMPRESSIONS, *sources.FORMATS):
        path = path.with_suffix("")
    for part in (path.name, path.parent.name):
        if name := re.sub(r"[^A-Za-z0-9_.-]+", "_", part).strip("._-")[:100]:
            return name
    return "dataset"


def _config(source: str, dataset: Mapping[str, Any], tokenizer: str | None) -> PipelineConfig:
    """The config of a source; every row that parses is looked at, however many do not."""
    settings: dict[str, Any] = {"name": dataset_name(source), "dataset": {"name": source}}
    if _is_yaml(source):
        given = PipelineConfig.from_file(source)
        settings = {"name": given.dataset_name, "dataset": given.dataset.model_dump(mode="json", exclude_defaults=True)}
        settings["keep"] = given.keep
        settings["dataset"]["name"] = _as_seen_from(Path(), given)
        if given.dataset.column_mapping:
            settings["prompt_template"] = given.prompt_template.model_dump(mode="json", exclude_defaults=True)
    settings["dataset"] |= dataset
    settings["validation"] = {"max_reject_fraction": 1.0}
    if tokenizer:
        settings["tokenizer"] = {"name_or_path": tokenizer}
    return PipelineConfig.from_mapping(settings)


def _refuse_idle(config: PipelineConfig, dataset: Mapping[str, Any]) -> None:
    """Refuse settings that mean nothing for this kind of source."""
    located, name = sources.locate(config), config.dataset.name
    for option, things in (("config", "subsets"), ("revision", "revisions")):
        if option in dataset and not isinstance(located, sources.HubDataset):
            raise ConfigError([Fault(f"--{option}", f"{name} is no hub dataset; only those have {things}")])
    if "splits" in dataset and isinstance(located, list):
        raise ConfigError([Fault("--split", f"{name} is files, whose rows are all of one split")])


def _is_yaml(source: str) -> bool:
    return Path(source).suffix in (".yaml", ".yml")


def _as_seen_from(folder: Path, config: PipelineConfig) -> str:
    """`dataset.name`, a relative path led to from a folder instead of the YAML's own and the working directory."""
    name = config.dataset.name
    if "://" in name or isinstance(sources.locate(config), sources.HubDataset) or name.startswith("~"):
        return name
    bases = [Path(config.folder or "."), Path()]
    base = next((base for base in bases if sources.local_path(config, name) == base / name), bases[-1])
    return _relative(name, base / name, folder)


def _relative(name: str, path: Path, folder: Path) -> str:
    return name if Path(name).is_absolute() else os.path.relpath(path, folder)
