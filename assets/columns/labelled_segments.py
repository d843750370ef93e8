"""Texts in segments, each with a label that says whether it is trained (axolotl's `input_output`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.labels import as_labels
from tokenloom.assets.columns.rejected_rows import EMPTY_ANSWER, Problem
from tokenloom.assets.columns.source_expressions import Source
from tokenloom.assets.columns.text_values import as_text
from tokenloom.assets.stage.forms import SEGMENT, SEGMENTS
from tokenloom.resources.tables.flags import Flags, any_of, flags_of
from tokenloom.resources.tables.json_text import is_json
from tokenloom.resources.tables.json_values import as_lists
from tokenloom.resources.tables.nested_paths import Path, evaluate, list_values, plain
from tokenloom.resources.tables.ragged import Ints, list_array, offsets_of


def segments_form(table: pa.Table, sources: Mapping[str, Source]) -> tuple[dict[str, pa.Array], list[Problem]]:
    """Return the form `segments`, and the rows that do not fit."""
    source = sources["segments"]
    if not isinstance(source, Path):
        raise TypeError(f"segments are a column or a path, not {source}")
    shown = evaluate(table, source)
    lengths, text, not_text = _texts(_members(table, source, "text"))
    others, labels = list_values(_members(table, source, "label"))
    label = as_labels(labels) if len(labels) else pa.array([], pa.bool_())
    unlike, no_flag = lengths != others, any_of(flags_of(label.is_null()), others)
    wrong = unlike | any_of(not_text, lengths) | no_flag
    lengths_kept = np.where(wrong, 0, lengths)
    text = text.filter(pa.array(np.repeat(~wrong, lengths)))
    is_trained = flags_of(label)[np.repeat(~wrong, others)]
    answers = any_of(is_trained & flags_of(pc.not_equal(text, "")), lengths_kept)
    problems = [
        Problem(no_flag, "not_a_label", "segments", "the label of a segment is not a flag", shown),
        Problem(wrong, "not_text", "segments", "a segment has no text", shown),
        Problem(~answers, EMPTY_ANSWER, "segments", "no segment with a text is labelled", shown),
    ]
    flat = pa.StructArray.from_arrays([text, pa.array(is_trained.astype(np.float32))], fields=list(SEGMENT))
    return {"segments": list_array(offsets_of(lengths_kept), flat).cast(SEGMENTS)}, problems


def _members(table: pa.Table, source: Path, name: str) -> pa.Array:
    """Return the lists of one field of the segments; null for other values than lists."""
    lists = evaluate(table, Path(source.column, (*source.steps, name)))
    lists = as_lists(lists) if is_json(lists.type) else plain(lists)
    return lists if pa.types.is_list(lists.type) else pa.nulls(len(lists), pa.list_(pa.string()))


def _texts(lists: pa.Array) -> tuple[Ints, pa.Array, Flags]:
    """Return the number of items of each list, their flat texts, and which of them are not text."""
    lengths, values = list_values(lists)
    text, not_text = as_text(values)
    return lengths, text, not_text | flags_of(values.is_null())
