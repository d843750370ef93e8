"""Inspects a source before any YAML declares it: runs the `raw` and `schema` stages and drafts a YAML."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.report import Progress, StageReport
from tokenloom.assets.columns.mapping import plain_roles, resolve
from tokenloom.assets.columns.messages import parse
from tokenloom.assets.columns.source_expressions import SourceExpression, parse_source, paths_of
from tokenloom.assets.columns.unused import metadata_beside, unused_by
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.raw.formats.sessions import SESSIONS
from tokenloom.assets.schema.candidates import Ambiguity, FormatCandidate, choose
from tokenloom.assets.schema.conventions import (
    message_questions,
    range_fields,
    rating_questions,
    weight_columns,
    weight_question,
)
from tokenloom.assets.schema.doubts import is_message_text
from tokenloom.assets.schema.formats import format_candidates
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.profiles import Profile, Steps, profiles
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.stage.forms import ANSWERED, allowed_forms, form_named
from tokenloom.assets.stage.images import IMAGE_COLUMNS
from tokenloom.assets.stage.names import RAW, SCHEMA
from tokenloom.config import PipelineConfig
from tokenloom.config.address import addresses_of, full_address
from tokenloom.config.yaml_file import is_yaml
from tokenloom.errors import ConfigError, StoreError, did_you_mean, redacted_address
from tokenloom.resources.sources import resolve as sources
from tokenloom.resources.sources.source_file import COMPRESSIONS, FORMATS, SourceFiles
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.artifact_store import inspected
from tokenloom.resources.tables.json_text import json_column, to_json_text
from tokenloom.resources.tables.ragged import one_array
from tokenloom.resources.tokenizers import TokenizerSpec, resolve_tokenizer
from tokenloom.starter import STYLES
from tokenloom.starter.starter_yaml import image_columns, starter_yaml
from tokenloom.starter.text_rows import TextRows, detect_text_rows, templated_rows, with_text_rows

PROCESSOR = "<folder or hub id>"
"""Placeholder for an image processor that the user must choose."""

PROCESSOR_NEEDED = "set tokenizer.processor to the folder or hub id of the model's image processor to train on them."

PARSED = 1000
"""Number of conversations as JSON text whose fields are looked at."""


@dataclass(frozen=True)
class Inspection:
    """Facts about a source.

    Args:
        config: its `dataset` section and the dataset's name.
        build: the build of its first stages.
        reports: what these stages did.
        facts: splits, columns, roles and formats, as in the schema stage's manifest.
        choice: the format that the data was read as, or close candidates; if the YAML maps columns itself, its mapping.
        refused: why the YAML's own mapping or format type does not fit the rows; None if it does, or if it has neither.
        tokenizer: name and facts of the requested tokenizer, or None.
        style: the requested style of prompts, or None.
        text_rows: what is a row of plain text, if that was detected.
    """

    config: PipelineConfig
    build: Build
    reports: list[StageReport]
    facts: dict[str, Any]
    choice: FormatCandidate | Ambiguity
    refused: str | None
    tokenizer: tuple[str, TokenizerSpec] | None
    style: str | None = None
    text_rows: TextRows | None = None

    def yaml(self, folder: str | os.PathLike[str] = ".") -> str:
        """Return the text of a YAML to start from.

        Args:
            folder: where the YAML will be written; its paths are relative to it.
        """
        folder, tokenizer, images = Path(folder), self.tokenizer, self.config.dataset.media.folder
        dataset = self.config.dataset.model_dump(mode="json", exclude_defaults=True)
        dataset["name"] = _as_seen_from(folder, self.config)
        if tokenizer is not None and (path := sources.local_path(self.config, tokenizer[0])) is not None:
            tokenizer = (_relative(tokenizer[0], path, folder), tokenizer[1])
        if images is not None and (path := sources.local_path(self.config, images)) is not None:
            dataset["media"]["folder"] = _relative(images, path, folder)
        comments = [f"Written by `tokenloom inspect` from {self.counts()}.", *self.findings()]
        if full_address(self.config.dataset.name) != self.config.dataset.name:
            comments.append("dataset.name: put the credentials (…) back before you build.")
        if self.text_rows is not None:
            dataset["reader"] = {**dataset.get("reader", {}), "lines_per_row": self.text_rows.unit}
        prompt = self.config.prompt_template.model_dump(mode="json", exclude_defaults=True)
        return starter_yaml(
            dataset, self.facts["columns"], self.choice, tokenizer, comments, prompt, self.style, self._is_joined,
            self._asked(),
        )  # fmt: skip

    def _is_joined(self, choice: FormatCandidate) -> bool:
        """Return whether in most of the first rows the prompt ends, or the completion starts, with white space."""
        if self.style or {*choice.roles} != {"prompt", "completion"}:
            return False
        rows, shares = next(self.build.input_chunks(RAW)).load(), [0.0]
        for role, pattern in (("prompt", r"\s\z"), ("completion", r"\A\s")):
            name = choice.roles[role]
            if name in rows.column_names and pa.types.is_string(rows[name].type):
                spaced = pc.match_substring_regex(rows[name], pattern)
                shares.append(pc.mean(spaced.cast(pa.int8())).as_py() or 0)
        return max(shares) > 0.5

    def counts(self) -> str:
        """Return the number of rows of each split, in words."""
        return ", ".join(f"{rows:,} rows of {split}" for split, rows in self.facts["splits"].items())

    def findings(self) -> list[str]:
        """Return a line for everything that was detected rather than declared, with the setting that declares it."""
        notes = self.build.manifest(RAW).notes
        lines = [f"Hub commit: {notes['commit']}."] if notes.get("commit") else []
        of_finding: dict[tuple[str, str], list[str]] = {}
        for file, detected in notes.get("files", {}).items():
            for setting, value in detected.items():
                of_finding.setdefault((setting, value), []).append(file)
        for (setting, value), files in of_finding.items():
            place = setting if setting in ("encoding", "format") else f"reader.{setting}"
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            value = f"{value} ({SESSIONS[value]})" if setting == "format" else value
            lines.append(f"{files[0]}{more}: detected {setting} {value}; to declare it, set dataset.{place}.")
        lines += [f"{notice[0].upper()}{notice[1:]}." for notice in notes.get("notices", ())]
        for facts in self.facts["columns"]:
            for kind, count in facts.get("odd", {}).items():
                values = f"{count} {'value is' if count == 1 else 'values are'} {kind} instead of {facts['kind']}"
                lines.append(f"{facts['path']}: {values}, and read or rejected alone.")
        if self.images:
            lines.append(f"The rows have images, in {', '.join(self.images)}: {PROCESSOR_NEEDED}")
        return [*lines, *([self.text_rows.reason] if self.text_rows else []), *self._templated]

    @cached_property
    def images(self) -> list[str]:
        """The columns with images, if the YAML has no processor for them."""
        return image_columns(self._paths) if self.config.media is None else []

    @cached_property
    def _templated(self) -> list[str]:
        tokenizer = self.tokenizer and (self.tokenizer[0], self.tokenizer[1].control)
        try:
            return templated_rows(((chunk, chunk.load()) for chunk in self.build.input_chunks(RAW)), tokenizer)
        except StoreError:  # `gc` dropped raw chunks
            read = ((chunk, chunk.load().table) for chunk in source_chunks(self.build.config))
            return templated_rows(read, tokenizer)

    def unused(self) -> tuple[list[str], list[str]]:
        """Return the columns that the YAML does not use: those with content, and metadata such as ids."""
        if not isinstance(self.choice, FormatCandidate):
            return [], []
        columns, unused = _beside_images(self.config, self.facts["columns"]), list(self.choice.unused)
        metadata, weights = metadata_beside(self._read(), columns, unused), self.weights()
        return unused, [name for name in metadata if name not in weights]

    def _read(self) -> list[SourceExpression]:
        """Return what the YAML reads."""
        columns, choice = self.facts["columns"], self.choice
        if self.refused is None and _declares_form(self.config):
            return resolve(self.config, columns).everything_read()
        names = [profile.name for profile in profiles(columns).values() if profile.is_column]
        roles = choice.roles if isinstance(choice, FormatCandidate) else {}
        return [parse_source(text, names) for text in roles.values()]

    def weights(self) -> list[str]:
        """Return the columns that could be weights of rows, and that the YAML does not use."""
        weighed = "weight" in self.config.dataset.column_mapping
        if weighed or not isinstance(self.choice, FormatCandidate) or self.choice.form in ("", "prompt_only"):
            return []
        return weight_columns(self._paths, self._used())

    def _used(self) -> set[Steps]:
        """Return the columns that the YAML reads, or that batches hold."""
        used: set[Steps] = {(path.column,) for source in self._read() for path in paths_of(source)}
        return used | {(name,) for name in self.config.dataset.keep_columns}

    def questions(self) -> list[str]:
        """Return sentences about columns and fields of messages that could say what is trained."""
        if not isinstance(self.choice, FormatCandidate):
            return []
        ranges = self.config.prompt_template.train_ranges
        rated = self.choice.form in ANSWERED and "weight" not in self.config.dataset.column_mapping
        asked = rating_questions(self._paths, self._used(), self.config.dataset.filters) if rated else []
        return [*map(weight_question, self.weights()), *asked, *message_questions(self._paths, self._spoken(), ranges)]

    def _spoken(self) -> set[Steps]:
        paths = (path for source in self._read() for path in paths_of(source))
        return {(path.column, *(None if isinstance(step, int) else step for step in path.steps)) for path in paths}

    @cached_property
    def _paths(self) -> dict[Steps, Profile]:
        """The profiles of all paths; of conversations as JSON text, those within the first rows too."""
        found = profiles(self.facts["columns"])
        texts = [profile.name for profile in found.values() if profile.is_column and is_message_text(profile)]
        if texts:
            rows = next(self.build.input_chunks(RAW)).load()
            parsed = {name: _parsed(one_array(rows[name]).slice(0, PARSED)) for name in texts}
            found |= profiles(merge([sketch(pa.table(parsed))]))
        return found

    def _asked(self) -> dict[str, str]:
        """Return settings that the YAML has as comments, by section: roles, and settings of `prompt_template`."""
        asked = {"weight": next(iter(self.weights()), None), "processor": PROCESSOR if self.images else None}
        if isinstance(self.choice, FormatCandidate) and not self.config.prompt_template.train_ranges:
            asked["train_ranges"] = next(iter(range_fields(self._paths, self._spoken())), None)
        return {name: value for name, value in asked.items() if value}

    @property
    def is_sure(self) -> bool:
        """Whether the YAML builds without changes."""
        return self.refused is None and isinstance(self.choice, FormatCandidate)

    def report(self) -> dict[str, Any]:
        """Return what `tokenloom inspect --json` prints: the facts, and what they leave open."""
        unused, metadata = self.unused()
        return {
            "dataset": self.config.dataset_name,
            "sure": self.is_sure,
            "unused_columns": unused,
            "unused_metadata": metadata,
            "notices": self.build.manifest(RAW).notes.get("notices", []),
            "questions": self.questions(),
            "images": self.images,
            **self.facts,
        }

    def verdict(self) -> str:
        """Return how the data was read, or why it is not clear."""
        if self.refused is not None:
            declared = "own mapping" if self.config.dataset.column_mapping else "format_type"
            return f"The YAML's {declared} does not fit the data: {self.refused}"
        if isinstance(self.choice, Ambiguity):
            return f"Not clear which columns to train on: {self.choice}."
        if self.config.dataset.column_mapping:
            roles = ", ".join(f"{role}: {source}" for role, source in self.choice.roles.items())
            return f"The YAML maps the columns itself: {roles}."
        return f"Read as {self.choice.format}."


def inspect_source(
    source: str,
    store: ArtifactStore,
    tokenizer: str | None = None,
    style: str | None = None,
    subset: str | None = None,
    revision: str | None = None,
    split: str | None = None,
    root: str | None = None,
    limit: int | None = None,
    on_chunk: Callable[[Progress], None] | None = None,
    on_stage: Callable[[StageReport], None] | None = None,
) -> Inspection:
    """Run the `raw` and `schema` stages over a source.

    They are published as `<name>@inspect`, next to what a build publishes as `<name>`. A build of the same rows reuses
    their chunks.

    Args:
        source: anything that `dataset.name` takes, or the YAML of a dataset.
        tokenizer: hub id or path of the tokenizer to set in the YAML; default: the YAML trains one.
        style: one of `STYLES`, how the YAML renders prompts and answers; default: what suits the tokenizer and the
            rows.
        subset, revision: config and revision of a hub dataset; `subset` also of a folder with a README.md.
        split: use only this split.
        root: path to the rows of nested JSON, such as `data[].qas[]`.
        limit: use only the first `limit` rows of each split.
        on_chunk, on_stage: called when a chunk or a stage is done.

    Raises:
        ConfigError: no such source or tokenizer, or a setting does not apply to the source.
    """
    if style not in (None, *STYLES):
        raise ConfigError.at("--style", f"{style!r} is not one of {', '.join(STYLES)}{did_you_mean(style, STYLES)}")
    dataset: dict[str, Any] = {"config": subset, "revision": revision}
    dataset = {name: value for name, value in dataset.items() if value is not None}
    dataset |= ({"splits": [split]} if split else {}) | ({"reader": {"root": root}} if root else {})
    config = _config(source, dataset, tokenizer)
    _refuse_unused(config, dataset)
    text_rows = None if is_yaml(source) else detect_text_rows(config)
    if text_rows is not None:
        config = with_text_rows(config, text_rows)
    named = tokenizer or config.tokenizer.processor
    resolved = (named, resolve_tokenizer(config)) if named else None
    build = Build(config, store, limit=limit, on_progress=on_chunk)
    build.name = inspected(build.name)
    reports = []
    for report in build.run_all(SCHEMA):
        reports.append(report)
        if on_stage is not None:
            on_stage(report)
    facts = build.manifest(SCHEMA).facts
    if config.media is not None:
        candidates = format_candidates(_beside_images(config, facts["columns"]))
        facts = {**facts, "formats": [*map(asdict, candidates)]}
    # A mapping that the YAML declares comes before what was detected, and is named as a known format if it is one.
    candidates, refused = [FormatCandidate(**candidate) for candidate in facts["formats"]], None
    choice = choose(candidates)
    if _declares_form(config):
        try:
            mapping = resolve(config, facts["columns"])
            roles = {role: str(text) for role, text in plain_roles(mapping.roles).items()}
            unused = tuple(unused_by(mapping, facts["columns"], config.dataset.keep_columns))
            own = FormatCandidate("own", mapping.form, roles, 1.0, (), unused=unused)
            detected = () if config.dataset.column_mapping else candidates
            choice = next((found for found in detected if found.roles == roles), own)
        except ConfigError as error:
            refused = str(error)
    if style and isinstance(choice, FormatCandidate) and form_named(choice.form).promptless:
        raise ConfigError.at("--style", f"the rows are read as {choice.format}, which has no prompts; omit it")
    if style and config.prompt_template.template is not None:
        raise ConfigError.at("--style", "the YAML has a template of its own, prompt_template.template; omit it")
    return Inspection(config, build, reports, facts, choice, refused, resolved, style, text_rows)


def _parsed(texts: pa.Array) -> pa.Array:
    """Return JSON texts as a JSON column, with null for what is not valid."""
    values = parse([text or "null" for text in texts.to_pylist()])
    return json_column([None if isinstance(value, Exception) else to_json_text(value) for value in values])


def _beside_images(config: PipelineConfig, columns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the columns without those that the processor of the YAML reads images from."""
    return [facts for facts in columns if config.media is None or facts["column"] not in IMAGE_COLUMNS]


def dataset_name(source: str) -> str:
    """Return a valid dataset name, made from the stem of a source."""
    path = Path(redacted_address(source).partition("?")[0] if "://" in source else source)
    while path.suffix in (*COMPRESSIONS, *FORMATS):
        path = path.with_suffix("")
    for part in (path.name, path.parent.name):
        if name := re.sub(r"[^A-Za-z0-9_.-]+", "_", part).strip("._-")[:100]:
            return name
    return "dataset"


def _config(source: str, dataset: Mapping[str, Any], tokenizer: str | None) -> PipelineConfig:
    """Return the config of a source. Rejected rows never fail the inspection."""
    settings: dict[str, Any] = {"name": dataset_name(source), "dataset": {"name": source}}
    if is_yaml(source):
        declared = PipelineConfig.from_file(source)
        settings = {"name": declared.dataset_name, "keep": declared.keep}
        settings["dataset"] = declared.dataset.model_dump(mode="json", exclude_defaults=True)
        settings["dataset"]["name"] = _as_seen_from(Path(), declared)
        if (processor := declared.tokenizer.processor) is not None:
            settings["tokenizer"] = {"processor": str(sources.local_path(declared, processor) or processor)}
            if (folder := declared.dataset.media.folder) is not None:
                settings["dataset"]["media"]["folder"] = str(sources.local_path(declared, folder) or folder)
        if _declares_form(declared):
            settings["prompt_template"] = declared.prompt_template.model_dump(mode="json", exclude_defaults=True)
    settings["dataset"] |= dataset
    settings["validation"] = {"max_reject_fraction": 1.0}
    if tokenizer:
        settings["tokenizer"] = {**settings.get("tokenizer", {}), "name_or_path": tokenizer}
    return PipelineConfig.from_mapping(settings)


def _declares_form(config: PipelineConfig) -> bool:
    """Return whether a YAML decides how rows are read: by a mapping, or by a format type that allows few forms."""
    return bool(config.dataset.column_mapping or allowed_forms(config.prompt_template.format_type))


def _refuse_unused(config: PipelineConfig, dataset: Mapping[str, Any]) -> None:
    """Refuse options that do not apply to this source, by their names on the command line."""
    options = {"config": "--config", "revision": "--revision", "reader": "--root"}
    try:
        located = sources.locate(config)
    except ConfigError as error:
        # The fault names a setting of a config that nobody wrote: the user knows the option that it came from.
        path, _, message = error.faults[0].message.removeprefix("dataset.").partition(": ")
        if (setting := path.partition(".")[0]) not in options.keys() & dataset.keys():
            raise
        raise ConfigError.at(options[setting], message) from None
    if "splits" in dataset and isinstance(located, SourceFiles):
        split, name = dataset["splits"][0], config.dataset.name
        if split not in located.splits:
            raise ConfigError.at("--split", f"{name} has no split {split}; it has {', '.join(located.splits)}")


def _as_seen_from(folder: Path, config: PipelineConfig) -> str | dict[str, str]:
    """Return `dataset.name`, with relative paths rewritten to start from `folder`."""
    if splits := addresses_of(config.dataset.name):
        return {split: _moved(folder, config, address) for split, address in splits.items()}
    if isinstance(sources.locate(config), sources.HubDataset):
        return str(config.dataset.name)
    return _moved(folder, config, config.dataset.name)


def _moved(folder: Path, config: PipelineConfig, address: str) -> str:
    name = str(address)  # without its credentials
    if "://" in name or name.startswith("~"):
        return name
    declared = Path(config.folder or ".") / name
    return _relative(name, declared if sources.local_path(config, name) == declared else Path(name), folder)


def _relative(name: str, path: Path, folder: Path) -> str:
    return name if Path(name).is_absolute() else os.path.relpath(path, folder)
