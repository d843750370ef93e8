"""Reads the items of evaluations: of each row of a source, the columns that the YAML names, or the prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping, resolve
from tokenloom.assets.columns.row_texts import PROMPT, has_sides, joined_texts
from tokenloom.assets.columns.source_expressions import Placeholder, SourceExpression, Template, parse_source, paths_of
from tokenloom.assets.columns.text_values import texts_of
from tokenloom.assets.decontaminate.overlap import Evaluation
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig, PromptTemplateConfig
from tokenloom.config.sections import EvaluationConfig
from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.resources.tables.hashes import Words
from tokenloom.resources.tables.nested_paths import Path
from tokenloom.resources.tables.ragged import one_array

FaultOf = Callable[[str], ConfigError]
MOST_BYTES = 1 << 30
"""Most bytes of text that the items of an evaluation can have."""


def read_evaluations(config: PipelineConfig) -> list[Evaluation]:
    """Return the items of the evaluations in `decontaminate.against`, without those to ignore.

    Raises:
        ConfigError: a source does not exist, lacks a column, has no rows or rows that cannot be read, or an item to
            ignore does not exist.
        SourceError: a source cannot be read.
    """
    assert config.decontaminate is not None
    ignored: dict[str, list[tuple[int, str]]] = {}
    for position, item in enumerate(config.decontaminate.ignore):
        label, _, number = item.rpartition(":")
        ignored.setdefault(label, []).append((int(number), f"decontaminate.ignore.{position}"))
    read = []
    for position, declared in enumerate(config.decontaminate.evaluations):
        at = f"decontaminate.against.{position}"
        evaluation = _read(config, declared, lambda message, at=at: config.fault(at, message))
        read.append(_without(config, evaluation, ignored.get(evaluation.name, [])))
    return read


def _read(config: PipelineConfig, declared: EvaluationConfig, fault: FaultOf) -> Evaluation:
    reading = config.model_copy(update={"dataset": declared.dataset})
    numbers, tables, before = [], list[pa.Table](), 0
    try:
        for chunk in source_chunks(reading):
            output = chunk.load()
            if output.rejects.num_rows:
                row, message = (output.rejects[name][0].as_py() for name in (ROW, "message"))
                raise fault(f"{declared.name}, row {before + row + 1}: {message}")
            tables.append(output.table)
            numbers.append(output.table[ROW].to_numpy().astype(np.int64) + before + 1)
            before += output.rows_in
    except ConfigError as error:
        first = error.faults[0].message
        setting = next((name for name in ("name", "splits", "config", "revision") if f"dataset.{name}: " in first), "")
        if not setting:
            raise
        raise fault(first.replace(f"dataset.{setting}: ", "")) from error
    if not before:
        raise fault(f"{declared.name} has no rows")
    texts = list(_of_columns(tables, declared, fault) if declared.columns else _prompts(reading, tables, fault))
    if sum(text.nbytes for text in texts) > MOST_BYTES:
        raise fault(f"the items of {declared.name} have more than {MOST_BYTES >> 30} GiB of text; name fewer columns")
    return Evaluation(declared.label, pa.concat_arrays(texts), np.concatenate(numbers))


def _of_columns(tables: Sequence[pa.Table], declared: EvaluationConfig, fault: FaultOf) -> Iterator[pa.Array]:
    """Yield the texts of the columns that the YAML names, joined by line breaks, chunk by chunk."""
    names = list(dict.fromkeys(name for table in tables for name in table.column_names if name != ROW))
    sources: list[SourceExpression] = []
    for text in declared.columns or ():
        try:
            source = parse_source(text, names)
        except ValueError as error:
            raise fault(str(error)) from error
        for path in paths_of(source):
            if path.column not in names:
                hint = did_you_mean(path.column, names)
                raise fault(f"{declared.name} has no column {path.column}; it has {', '.join(names)}{hint}")
        # A list of texts, such as choices, is written one per line.
        sources.append(Template((Placeholder(source),)) if isinstance(source, Path) else source)
    for table in tables:
        columns = [texts_of(table, source, "columns")[0] for source in sources]
        yield one_array(pc.binary_join_element_wise(*columns, "\n"))


def _prompts(config: PipelineConfig, tables: Sequence[pa.Table], fault: FaultOf) -> Iterator[pa.Array]:
    """Yield the prompts of rows, or their whole texts if they have no prompts, chunk by chunk."""
    columns = merge([sketch(table) for table in tables])
    mapping = None
    for format_type in ("custom", "prompt_only"):
        prompt = PromptTemplateConfig(format_type=format_type)
        with suppress(ConfigError):
            mapping = mapping or resolve(config.model_copy(update={"prompt_template": prompt}), columns)
    if mapping is None:
        named = f"{{name: {config.dataset.name}, columns: [{columns[0]['column']}]}}"
        message = (
            f"it is not clear which columns of {config.dataset.name} are the items' text; name them, as in {named}"
        )
        raise fault(message)
    for table in tables:
        yield _items(table, mapping)


def _items(table: pa.Table, mapping: ColumnMapping) -> pa.Array:
    """Return the text of each row of a raw table; rows that do not fit the mapping have none."""
    rows = to_canonical(table, mapping, unanswered=True).table
    texts = joined_texts(rows, mapping.form, PROMPT if has_sides(mapping.form, ()) else "all")
    place = pc.index_in(one_array(table[ROW]), one_array(rows[ROW]))
    return texts.take(place).fill_null("")


def _without(config: PipelineConfig, evaluation: Evaluation, ignored: Sequence[tuple[int, str]]) -> Evaluation:
    """Return an evaluation without some items, and without those with the same words.

    Args:
        ignored: the number of each, and the setting that lists it.
    """
    if not ignored:
        return evaluation
    for number, setting in ignored:
        if number not in evaluation.numbers:
            raise config.fault(
                setting, f"{evaluation.name} has no item {number}; it has items 1 to {evaluation.numbers.max()}"
            )
    listed = np.isin(evaluation.numbers, [number for number, _ in ignored])
    words = Words.of(evaluation.texts)
    whole = words.hashes(words.offsets[:-1], words.offsets[1:])
    kept = ~np.isin(whole, whole[listed])
    return Evaluation(evaluation.name, evaluation.texts.filter(pa.array(kept)), evaluation.numbers[kept])
