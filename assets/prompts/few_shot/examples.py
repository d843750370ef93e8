"""Few-shot examples: read from a file, converted with the dataset's column mapping, and drawn for each row.

The draw is a pure function of the seed, of the prompts of rows and examples, and of the rows' positions. A row never
gets an example with the row's own prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping, resolve
from tokenloom.assets.columns.source_expressions import paths_of
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.stage.rejects import ROW, reject_rows
from tokenloom.config import DatasetConfig, FewShotConfig, PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.digest import digest_json
from tokenloom.resources.sources.resolve import locate
from tokenloom.resources.sources.source_file import SourceFiles
from tokenloom.resources.tables.hashes import Hashes, mix
from tokenloom.resources.tables.json_values import as_json
from tokenloom.resources.tables.ragged import Ints, one_array

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
            raise fault(f"{name}, {_first(output.rejects)}; examples must have the dataset's form, {resolved.form}")
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


SETTING = "prompt_template.few_shot"
LARGEST = 1 << 30
"""Largest size of a chunk's examples in bytes: Arrow's strings end at twice that."""

_STEP = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


@dataclass(frozen=True)
class Drawn:
    """Examples drawn for a chunk's rows.

    Args:
        table: the rows for which there are enough examples.
        picks: int64 [rows, count], the index of each example, in the order in which they are placed.
        rejects: the other rows.
    """

    table: pa.Table
    picks: Ints
    rejects: pa.Table


def draw_for(
    settings: FewShotConfig, table: pa.Table, asked: Hashes, offered: Hashes, example_bytes: Ints, shown: pa.Array
) -> Drawn:
    """Draw examples for each row of a chunk; reject rows for which there are too few.

    Examples from a file keep the file's order, others the order of the draw.

    Args:
        asked: uint64 [rows], a hash of each row's prompt.
        offered: uint64 [examples], a hash of each example's prompt.
        example_bytes: int [examples], the size of each example.
        shown: string [rows], the text that rejects quote.

    Raises:
        ConfigError: a chunk's examples are larger than `LARGEST`.
    """
    rows = one_array(table[ROW])
    picks, enough = draw_examples(settings.count, settings.seed, asked, rows.to_numpy(), offered)
    if settings.source is not None:
        picks.sort(axis=1)
    keep, lack = pa.array(enough), pa.array(~enough)
    picks = picks[enough]
    if (total := int(example_bytes[picks].sum())) > LARGEST:
        message = f"{SETTING}.count: {settings.count} examples per row add {total:,} bytes to a chunk; lower it"
        raise ConfigError.at(f"{SETTING}.count", message)
    prompts = len(np.unique(offered))
    origin, remedy = ("the row's chunk", "name a file in") if settings.source is None else ("the file", "add some to")
    message = f"the row needs {settings.count} examples with other prompts, but {origin} has only {prompts} prompts; "
    message += f"lower {SETTING}.count, or {remedy} {SETTING}.source"
    rejects = reject_rows(rows.filter(lack), "prompts", "too_few_examples", "", message, shown.filter(lack))
    return Drawn(table.filter(keep).combine_chunks(), picks, rejects)


def draw_examples(
    count: int, seed: int, asked: Hashes, positions: npt.NDArray[np.integer], offered: Hashes
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Draw `count` examples for each row, without replacement, uniformly over the examples' distinct prompts.

    Of several examples with one prompt, a row gets at most one. It never gets one with the row's own prompt.

    Args:
        asked: uint64 [rows], a hash of each row's prompt.
        positions: int [rows], the row's position in its chunk, so that rows with the same prompt draw differently.
        offered: uint64 [examples], a hash of each example's prompt.

    Returns:
        int64 [rows, count], the index of each example; and bool [rows], whether there are enough examples for the
        row. If not, its indices are meaningless.
    """
    prompts, member_of, sizes = np.unique(offered, return_inverse=True, return_counts=True)
    groups, rows = len(prompts), len(asked)
    # the draw is over groups of one prompt, of which the row's own is barred, and so is each that was drawn before
    place = np.minimum(np.searchsorted(prompts, asked), max(groups - 1, 0))
    own = prompts[place] == asked if groups else np.zeros(rows, bool)
    available = groups - own.astype(np.int64)
    enough = available >= count
    if not enough.any():
        return np.zeros((rows, count), np.int64), enough
    words = mix(asked ^ np.uint64(int(digest_json(["few_shot", seed])[:16], 16)))
    words = mix(words + positions.astype(np.uint64) * _STEP)
    barred = np.where(own, place, groups)[:, None]
    chosen = np.empty((rows, count), np.int64)
    for turn in range(count):
        words = mix(words + _STEP)
        drawn = _below(words, np.maximum(available - turn, 1))
        for column in barred.T:  # ascending: the number counts over the groups that are not barred
            drawn += drawn >= column
        chosen[:, turn] = drawn = np.minimum(drawn, groups - 1)
        barred = np.sort(np.column_stack([barred, drawn]), axis=1)
    first = np.cumsum(sizes) - sizes
    within = _below(mix(words[:, None] + np.arange(1, count + 1).astype(np.uint64) * _STEP), sizes[chosen])
    return np.argsort(member_of, kind="stable")[first[chosen] + within], enough


def _below(words: Hashes, limits: Ints) -> Ints:
    """Map each word to a number in [0, limit), by the upper half of the word."""
    return (((words >> _HALF) * limits.astype(np.uint64)) >> _HALF).astype(np.int64)
