"""decontaminate: the canonical rows that contain no item of an evaluation.

Items are of each row of an evaluation's source the columns that the YAML names, or the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.columns.row_texts import PROMPT, Texts, has_sides, joined_texts, row_texts
from tokenloom.assets.columns.source_expressions import (
    Placeholder,
    RowReader,
    SourceExpression,
    Template,
    parse_source,
    paths_of,
)
from tokenloom.assets.decontaminate.overlap import Evaluation, Index, matches
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.stage.definition import FIXED_TEXTS, ChunkOutput, Context, Stage, Work, settings
from tokenloom.assets.stage.names import COLUMNS, DECONTAMINATE
from tokenloom.assets.stage.rejects import CONTAMINATED, EXCERPT_CHARACTERS, OVERLAP, REJECTS, ROW
from tokenloom.config import PipelineConfig, PromptTemplateConfig
from tokenloom.config.sections import SHORTEST_ITEM, EvaluationConfig
from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.objects import digest_table
from tokenloom.resources.tables.hashes import VERSION, Words
from tokenloom.resources.tables.nested_paths import Path
from tokenloom.resources.tables.ragged import one_array

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest

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
        # a fault of reading names settings of a dataset, but the user wrote them in the evaluation's address
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
        columns = [RowReader(table, {}).texts("columns", source) for source in sources]
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
        name = config.dataset.name
        named = f"{{name: {name}, columns: [{columns[0]['column']}]}}"
        raise fault(f"it is not clear which columns of {name} are the items' text; name them, as in {named}")
    for table in tables:
        rows = to_canonical(table, mapping, unanswered=True).table
        texts = joined_texts(rows, mapping.form, PROMPT if has_sides(mapping.form, ()) else "all")
        yield texts.take(pc.index_in(one_array(table[ROW]), one_array(rows[ROW]))).fill_null("")


def _without(config: PipelineConfig, evaluation: Evaluation, ignored: Sequence[tuple[int, str]]) -> Evaluation:
    """Return an evaluation without some items, each with the setting that lists it, and without those of the same
    words."""
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
    # an item with the same words would drop the same rows, so it is ignored too
    stay = ~np.isin(whole, whole[listed])
    return Evaluation(evaluation.name, evaluation.texts.filter(pa.array(stay)), evaluation.numbers[stay])


CONTAINED = f"{CONTAMINATED}:"
"""Start of the counters of rows that contain an item of an evaluation; its name follows."""

_IGNORE = "if the item is harmless, list it in decontaminate.ignore"


class DecontaminateStage(Stage):
    name = DECONTAMINATE
    description = "The rows that contain no item of an evaluation."
    version = 2
    upstream = (COLUMNS,)
    replaces = COLUMNS
    libraries = ("pyarrow", "numpy")
    reads = (
        settings(DECONTAMINATE, "ngram_size", "threshold", "search", "action"),
        settings(DECONTAMINATE, "against", "ignore", where="later"),
    )
    droppable = True
    facts_ahead = True
    section = DECONTAMINATE
    remedies: ClassVar = {CONTAMINATED: _IGNORE, OVERLAP: _IGNORE}

    def prepare(self, context: Context) -> Work:
        config = context.config
        declared = config.decontaminate
        assert declared is not None
        mapping, answers = context.facts(COLUMNS)["mapping"], config.prompt_template.trained_columns
        if declared.search != "all" and not has_sides(mapping["form"], answers):
            message = "these rows have no prompt and completion to tell apart; set search: all"
            raise config.fault("decontaminate.search", message)
        evaluations = read_evaluations(config)
        index = Index.of(evaluations, declared.ngram_size)
        notes: list[dict[str, Any]] = []
        for number, name in enumerate(index.names):
            findable = index.findable[index.bounds[number] : index.bounds[number + 1]]
            unfound = len(findable) - int(np.count_nonzero(findable))
            notes.append({"evaluation": name, "items": len(findable), "not checkable": unfound})
            if unfound == len(findable):
                remedy = f"they have fewer than {SHORTEST_ITEM} words, or share all their words; name other columns"
                message = f"none of the {unfound:,} items of {name} can be found: {remedy}"
                raise config.fault(f"decontaminate.against.{number}", message)
        items = [(each.name, pa.table({"text": each.texts, "number": each.numbers})) for each in evaluations]
        sides = {f"decontaminate.{name}": digest_json([name, digest_table(table)]) for name, table in items}
        search = partial(row_texts, form=mapping["form"], search=declared.search, answers=answers)
        compute = partial(
            without_items, index=index, texts_of=search, threshold=declared.threshold, drop=declared.action == "drop"
        )
        read = {"form": mapping["form"], "answers": list(answers), "words": VERSION}
        return Work(self.inputs(context), compute, sides, read, lambda: {"evaluations": notes})

    def notices(self, context: Context, manifest: Manifest) -> list[str]:
        declared, counted = context.config.decontaminate, contained(manifest.counters)
        assert declared is not None
        unfound = [
            f"{few:,} of {noted['items']:,} items of {noted['evaluation']} cannot be found: they have fewer than "
            f"{SHORTEST_ITEM} words, or share all their words with other items"
            for noted in manifest.notes["evaluations"]
            if (few := noted["not checkable"])
        ]
        if not counted:
            return unfound
        share = f"{sum(counted.values()):,} of {manifest.total('rows_in'):,} rows contain an item of an evaluation"
        each = ", ".join(f"{name} {rows:,}" for name, rows in counted.items())
        fate = "they are dropped" if declared.action == "drop" else "they stay, with action: report"
        return [f"{share} ({each}); {fate}; `tokenloom dropped` lists them", *unfound]

    def shown(self, config: PipelineConfig, manifest: Manifest, first: pa.Table) -> dict[str, Any]:
        return {"evaluations": self._table(manifest), **super().shown(config, manifest, first)}

    def summary(self, config: PipelineConfig, manifest: Manifest) -> dict[str, Any]:
        return {"evaluations": self._table(manifest)}

    def _table(self, manifest: Manifest) -> list[dict[str, Any]]:
        counted = contained(manifest.counters)
        return [{**noted, "rows": counted.get(noted["evaluation"], 0)} for noted in manifest.notes["evaluations"]]


STAGE = DecontaminateStage()


def contained(counters: Mapping[str, int]) -> dict[str, int]:
    """Return the number of rows that contain an item, by evaluation."""
    return {name.removeprefix(CONTAINED): rows for name, rows in counters.items() if name.startswith(CONTAINED)}


_SHARE = re.compile(r"contains (\d+)% of item")


def share_of(message: str) -> int:
    """Return the share of an item's words that a record gives, in percent."""
    match = _SHARE.match(message)
    return int(match[1]) if match else 0


def without_items(
    table: pa.Table, index: Index, texts_of: Callable[[pa.Table], Texts], threshold: float, drop: bool
) -> ChunkOutput:
    """Return the rows that contain no item, or all rows, and a record of each that does.

    Args:
        table: canonical rows.
        texts_of: returns the texts to search, and the row of each, as `row_texts`.
        threshold: the least share of an item's words.
        drop: whether rows that contain an item are dropped.
    """
    texts, row_of_text = texts_of(table)
    overlaps = matches(index, texts, row_of_text, threshold)
    if not len(overlaps.rows):
        return ChunkOutput(table, table.num_rows)
    code = CONTAMINATED if drop else OVERLAP
    evaluation = index.evaluation_of(overlaps.items)
    names = pa.array(index.names).take(pa.array(evaluation))
    numbers = pa.array(index.numbers[overlaps.items]).cast(pa.string())
    share = pa.array(np.floor(overlaps.shares * 100).astype(np.int64)).cast(pa.string())
    message = pc.binary_join_element_wise("contains ", share, "% of item ", numbers, " of ", names, "")
    records = pa.Table.from_arrays(
        [
            table[ROW].combine_chunks().take(pa.array(overlaps.rows)),
            *(pa.repeat(pa.scalar(value), len(overlaps.rows)) for value in (DECONTAMINATE, code)),
            names,
            message,
            pc.utf8_slice_codeunits(overlaps.passages, 0, EXCERPT_CHARACTERS),
        ],
        schema=REJECTS,
    )
    counts = np.bincount(evaluation, minlength=len(index.names))
    counters = {f"{CONTAINED}{name}": int(rows) for name, rows in zip(index.names, counts, strict=True) if rows}
    if not drop:
        return ChunkOutput(table, table.num_rows, records, counters=counters)
    stay = np.ones(table.num_rows, bool)
    stay[overlaps.rows] = False
    rows = table.filter(pa.array(stay)).combine_chunks()
    return ChunkOutput(rows, table.num_rows, records, len(overlaps.rows), counters=counters)


def probe() -> list[pa.Table]:
    """Return what is found of some fixed texts in themselves, changed and inside others."""
    texts = pa.array(FIXED_TEXTS)
    items = Evaluation("probe", texts, np.arange(1, len(texts) + 1))
    rows = pa.concat_arrays([texts, pc.utf8_upper(texts), pc.binary_join_element_wise("1 2 3", texts, texts, "\n")])
    table = pa.table({ROW: pa.array(range(len(rows)), pa.int32()), "text": rows})
    search: Any = partial(row_texts, form="text")
    output = without_items(table, Index.of([items], 4), search, 0.5, drop=True)
    return [output.table, output.rejects]
