"""Reads the file of few-shot examples, and converts its rows to canonical form with the dataset's column mapping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping, resolve
from tokenloom.assets.columns.source_expressions import paths_of
from tokenloom.assets.prompts.few_shot.draw import SETTING
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import DatasetConfig, PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.sources.resolve import locate
from tokenloom.resources.sources.source_file import SourceFiles
from tokenloom.resources.tables.json_values import as_json

FaultOf = Callable[[str], ConfigError]


def fixed_examples(config: PipelineConfig, mapping: Mapping[str, Any]) -> pa.Table | None:
    """Return the examples of `few_shot.source` in the dataset's form, or None if examples come from the rows.

    Args:
        mapping: the dataset's resolved column mapping, as JSON.

    Raises:
        ConfigError: the file does not exist, lacks a column, contains an unusable row or has too few examples.
        SourceError: the file cannot be read.
    """
    few_shot = config.prompt_template.few_shot
    if not few_shot.count or few_shot.source is None:
        return None
    name = few_shot.source

    def fault(message: str) -> ConfigError:
        return config.fault(f"{SETTING}.source", message)

    tables = _read(config, name, fault)
    resolved = replace(_mapping(config, mapping, tables, fault), weight=None)
    columns = list(dict.fromkeys(column for table in tables for column in table.column_names if column != ROW))
    for role in resolved.required:
        for path in paths_of(resolved.sources()[role]):
            if path.column not in columns:
                listed = ", ".join(columns)
                raise fault(f"{name} has no column {path.column}, which the dataset's {role} uses; it has {listed}")
    canonical = []
    for table in tables:
        output = to_canonical(table, resolved)
        if output.rejects.num_rows:
            first = _first(output.rejects)
            raise fault(f"{name}, {first}; examples must have the dataset's form, {resolved.form}")
        canonical.append(output.table)
    examples = pa.concat_tables(_alike(canonical)).combine_chunks()
    if examples.num_rows < few_shot.count:
        raise fault(f"{name} has {examples.num_rows} examples, count: {few_shot.count} needs more; add some")
    return examples


def _read(config: PipelineConfig, name: str, fault: FaultOf) -> list[pa.Table]:
    """Return the rows of the file, unfiltered, in chunks, numbered across the file.

    Raises:
        ConfigError: the file does not exist, is empty, or contains a row that cannot be parsed.
    """
    source = config.model_copy(update={"dataset": DatasetConfig(name=name)})
    try:
        found = locate(source)
        chunks = list(source_chunks(source)) if isinstance(found, SourceFiles) else []
    except ConfigError as error:
        raise fault(error.faults[0].message.removeprefix("dataset.name: ")) from error
    if not isinstance(found, SourceFiles):
        raise fault(f"no such file: {name}")
    if len(found.splits) > 1:
        raise fault(f"{name} has the splits {', '.join(found.splits)}; name the files of one of them")
    outputs = [chunk.load() for chunk in chunks]
    for output in outputs:
        if output.rejects.num_rows:
            raise fault(f"{name}, {_first(output.rejects)}")
    if not any(output.table.num_rows for output in outputs):
        raise fault(f"{name} has no examples")
    tables, before = [], 0
    for table in (output.table for output in outputs):
        numbered = pa.array(range(before, before + table.num_rows), pa.int32())
        tables.append(table.drop_columns([ROW]).append_column(ROW, numbered))
        before += table.num_rows
    return tables


def _alike(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Give the columns of several tables the same types: a column whose type differs between tables becomes JSON."""
    alike = []
    for table in tables:
        for number, name in enumerate(table.column_names):
            if len({other.schema.field(name).type for other in tables}) > 1:
                table = table.set_column(number, name, as_json(table[name]))
        alike.append(table)
    return alike


def _mapping(
    config: PipelineConfig, mapping: Mapping[str, Any], tables: Sequence[pa.Table], fault: FaultOf
) -> ColumnMapping:
    """Return the dataset's column mapping; if only its form is known, resolve the mapping from the file's columns.

    Raises:
        ConfigError: the file's columns fit no form, or another one than the dataset's.
    """
    if "roles" in mapping:
        return ColumnMapping.from_json(mapping)
    try:
        found = resolve(config, merge([sketch(table) for table in tables]))
    except ConfigError as error:
        raise fault(error.faults[0].message) from error
    if found.form != mapping["form"] and not {found.form, mapping["form"]} <= {"messages", "completion"}:
        raise fault(f"its rows have the form {found.form}, the dataset has {mapping['form']}")
    return found


def _first(rejects: pa.Table) -> str:
    """Return the number of the first rejected row, counted from 1, and the reason."""
    reject = rejects.slice(0, 1).to_pylist()[0]
    return f"example {reject[ROW] + 1}: {reject['message']}"
