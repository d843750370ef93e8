"""Values as text: what a source expression makes of a chunk's rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.source import Choice, Placeholder, Source, Template
from tokenloom.config import Constant
from tokenloom.resources.tables.nested_paths import Path, evaluate, item_at, list_values, plain
from tokenloom.resources.tables.ragged import list_array, offsets_of, row_of

Flags = npt.NDArray[np.bool_]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NOWHERE = np.iinfo(np.int64).max // 2


@dataclass(frozen=True)
class Problem:
    """Rows that cannot be used, for one reason; `flags` is bool [rows]."""

    flags: Flags
    code: str
    field: str
    message: str
    shown: pa.Array
    """What was found, one a row; rejects quote it."""


def flags_of(array: pa.Array) -> Flags:
    """A boolean array as bool [rows], null as False."""
    return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), bool)


def values_of(table: pa.Table, source: Source, role: str) -> tuple[pa.Array, list[Problem]]:
    """The values that a source has in each row, of whatever type they are."""
    if isinstance(source, Constant):
        return pa.repeat(pa.scalar(source.constant), table.num_rows), []
    if isinstance(source, Path):
        return evaluate(table, source), []
    if isinstance(source, Choice):
        return _chosen(table, source, role)
    return _filled(table, source, role)


def texts_of(table: pa.Table, source: Source, role: str) -> tuple[pa.Array, list[Problem]]:
    """The values as strings without nulls, a null being the empty one; rows that hold no text are problems."""
    values, problems = values_of(table, source, role)
    texts, unfit = as_text(values)
    return texts, [*problems, Problem(unfit, "not_text", role, f"{source} is neither text nor a number", values)]


def _plain_text(array: pa.Array) -> pa.Array:
    """Numbers as text: a whole one without a point or an exponent, whatever the numbers beside it made of its type."""
    if not pa.types.is_floating(array.type):
        return array.cast(pa.string())
    wide = array.cast(pa.float64())
    whole = pc.and_(pc.equal(pc.floor(wide), wide), pc.less(pc.abs(wide), float(1 << 53))).fill_null(False)
    integers = pc.if_else(whole, wide, pa.scalar(0.0)).cast(pa.int64()).cast(pa.string())
    return pc.if_else(whole, integers, array.cast(pa.string()))


def as_text(array: pa.Array) -> tuple[pa.Array, Flags]:
    """Strings without nulls, and which values are neither null nor text, a number, a truth value or a time."""
    array = plain(array)
    if not (pa.types.is_nested(array.type) or pa.types.is_null(array.type) or _is_binary(array.type)):
        try:
            return _plain_text(array).fill_null(""), np.zeros(len(array), bool)
        except pa.ArrowNotImplementedError:
            pass
    return empty_texts(len(array)), flags_of(array.is_valid())


def empty_texts(count: int) -> pa.Array:
    return pa.repeat(pa.scalar("", pa.string()), count)


def _is_binary(kind: pa.DataType) -> bool:
    return "binary" in str(kind)


def _filled(table: pa.Table, template: Template, role: str) -> tuple[pa.Array, list[Problem]]:
    parts: list[pa.Array | str] = []
    unfit = np.zeros(table.num_rows, bool)
    for part in template.parts:
        if isinstance(part, Placeholder):
            text, bad = _laid_out(evaluate(table, part.path), part.style)
            parts.append(text)
            unfit |= bad
        else:
            parts.append(pa.repeat(pa.scalar(part), table.num_rows))
    joined = pc.binary_join_element_wise(*parts, "") if parts else empty_texts(table.num_rows)
    message = f"{template} holds what is neither text nor a list of texts"
    return joined, [Problem(unfit, "not_text", role, message, joined)]


def _laid_out(array: pa.Array, style: str) -> tuple[pa.Array, Flags]:
    """A text as it is, a list of texts one a line."""
    if not pa.types.is_list(array.type):
        text, unfit = as_text(array)
        return text, unfit | (flags_of(array.is_valid()) if style == "letters" else False)
    lengths, items = list_values(array)
    text, bad = as_text(items)
    if style == "letters":
        place = row_of(lengths)
        within = np.arange(len(place)) - offsets_of(lengths)[place]
        names = pa.array([f"{_letter(index)}. " for index in range(int(lengths.max(initial=0)))], pa.string())
        text = pc.binary_join_element_wise(names.take(pa.array(within)), text, "")
    unfit = np.zeros(len(array), bool)
    unfit[row_of(lengths)[bad]] = True
    return pc.binary_join(list_array(offsets_of(lengths), text), "\n"), unfit


def _letter(index: int) -> str:
    """A to Z, then AA, AB, … as spreadsheets count."""
    return (_letter(index // 26 - 1) if index >= 26 else "") + LETTERS[index % 26]


def _chosen(table: pa.Table, choice: Choice, role: str) -> tuple[pa.Array, list[Problem]]:
    items, key = evaluate(table, choice.items), evaluate(table, choice.key)
    if not pa.types.is_list(items.type):
        items = pa.nulls(len(items), pa.list_(pa.string()))
    if choice.labels is None:
        index, wanted = _index(key), "an index or letter of"
    else:
        index, wanted = _index_of_label(evaluate(table, choice.labels), key), "a label of"
    lengths, _ = list_values(items)
    outside = index >= lengths
    message = f"{choice.key} is not {wanted} {choice.items}"
    return item_at(items, index), [Problem(outside, "index_out_of_range", role, message, key)]


def _index(key: pa.Array) -> npt.NDArray[np.int64]:
    """The index that each key stands for: a whole number from 0, its digits, or a letter from A; else one nowhere."""
    if pa.types.is_boolean(key.type):
        return np.full(len(key), _NOWHERE)
    text = pc.utf8_upper(pc.utf8_trim_whitespace(as_text(key)[0]))
    if pa.types.is_floating(key.type):
        text = pc.replace_substring_regex(text, r"\.0$", "")
    digits = pc.if_else(pc.match_substring_regex(text, r"^[0-9]{1,9}$"), text, pa.scalar(None, pa.string()))
    letters = pc.index_in(text, pa.array(list(LETTERS)))
    return np.asarray(pc.coalesce(digits.cast(pa.int64()), letters.cast(pa.int64())).fill_null(_NOWHERE), np.int64)


def _index_of_label(labels: pa.Array, key: pa.Array) -> npt.NDArray[np.int64]:
    """Where each row's labels first hold its key."""
    index = np.full(len(key), _NOWHERE)
    if pa.types.is_list(labels.type):
        lengths, flat = list_values(labels)
        rows = row_of(lengths)
        same = flags_of(pc.equal(as_text(flat)[0], as_text(key)[0].take(pa.array(rows))))
        same &= flags_of(plain(flat).is_valid())
        hits = np.flatnonzero(same)[::-1]
        index[rows[hits]] = hits - offsets_of(lengths)[rows[hits]]
    return index
