"""Turns that are not one object per message: pairs of {human, assistant}, and objects of lists of roles and contents.

`datasets` makes the latter, {role: […], content: […]}, of a feature that is a sequence of objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.assets.schema.evidence.speakers import columns_of_turns, pair_of
from tokenloom.resources.tables.nested_paths import is_list, list_values, plain
from tokenloom.resources.tables.ragged import Flags, Ints, any_of, flags_of, list_array, offsets_of

Object = dict[str, Any]


class UnequalTurnsError(ValueError):
    """The lists of an object of lists have different lengths."""


def turns_of(item: Object) -> Iterator[Object]:
    """Yield the messages in an object: a pair has two, an object of lists has several, any other object is one.

    Fields of a pair other than its texts are those of the answer, apart from a system prompt.

    Raises:
        UnequalTurnsError: lists of an object of lists have different lengths.
    """
    filled = {name: value for name, value in item.items() if value is not None}
    if (columns := columns_of_turns(filled)) and all(isinstance(filled[name], list) for name in columns):
        lists = {name: value for name, value in filled.items() if isinstance(value, list)}
        if len({*map(len, lists.values())}) > 1:
            raise UnequalTurnsError(", ".join(f"{name} has {len(value)} items" for name, value in lists.items()))
        yield from (dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True))
    elif pair := pair_of(item):
        asked, answered = pair
        rest = {name: value for name, value in filled.items() if name not in (asked, answered, "system")}
        if filled.get("system"):
            yield {"role": "system", "content": filled["system"]}
        if asked in filled or answered not in filled:
            yield {"role": "user", "content": filled.get(asked)}
        if answered in filled:
            yield {"role": "assistant", "content": filled[answered], **rest}
    else:
        yield item


def spread(lengths: Ints, flat: pa.Array) -> tuple[pa.Array, Flags] | None:
    """Return lists of messages of pairs or objects of lists, or None if the items are neither.

    Args:
        lengths: the number of items of each row.
        flat: the items, structs.

    Returns:
        The messages of the rows that have only texts, and bool [rows], which others must be read one by one.
    """
    fields = dict(zip((part.name for part in flat.type), map(plain, flat.flatten()), strict=True))
    names = [name for name, values in fields.items() if values.null_count < len(values)]
    columns, pair = columns_of_turns(names), pair_of(names)
    if columns and all(is_list(fields[name].type) for name in columns):
        return _columns(lengths, fields, columns)
    return _pairs(lengths, fields, pair) if pair else None


def _pairs(lengths: Ints, fields: Mapping[str, pa.Array], pair: tuple[str, str]) -> tuple[pa.Array, Flags]:
    texts = [fields[name] for name in pair]
    rest = [values for name, values in fields.items() if name not in pair]
    if not all(pa.types.is_string(text.type) for text in texts):
        return list_array(np.zeros(1, np.int64), pa.array([], _message("role", "content"))), lengths >= 0
    one_by_one = any_of(_missing(texts, rest), lengths)
    kept = pa.array(np.repeat(~one_by_one, lengths))
    asked, answered = (text.filter(kept) for text in texts)
    turns = np.arange(2 * len(asked)).reshape(2, -1).T.ravel()
    content = pa.concat_arrays([asked, answered]).take(pa.array(turns))
    roles = pa.array(["user", "assistant"]).take(pa.array(np.arange(len(content)) % 2))
    struct = pa.StructArray.from_arrays([roles, content], fields=list(_message("role", "content")))
    return list_array(offsets_of(2 * lengths[~one_by_one]), struct), one_by_one


def _columns(lengths: Ints, fields: Mapping[str, pa.Array], names: tuple[str, str]) -> tuple[pa.Array, Flags]:
    lists = [fields[name] for name in names]
    sizes, values = zip(*(list_values(array) for array in lists), strict=True)
    values = [plain(flat) for flat in values]
    if not all(pa.types.is_string(flat.type) for flat in values):
        return list_array(np.zeros(1, np.int64), pa.array([], _message(*names))), lengths >= 0
    rest = [array for name, array in fields.items() if name not in names]
    unfit = _missing(lists, rest) | (sizes[0] != sizes[1])
    for size, flat in zip(sizes, values, strict=True):
        unfit |= any_of(flags_of(flat.is_null()), size)
    one_by_one = any_of(unfit, lengths) | (lengths != 1)
    kept = np.repeat(~one_by_one, lengths)
    flat = [texts.filter(pa.array(np.repeat(kept, size))) for size, texts in zip(sizes, values, strict=True)]
    return list_array(
        offsets_of(sizes[0][kept]), pa.StructArray.from_arrays(flat, fields=list(_message(*names)))
    ), one_by_one


def _missing(needed: list[pa.Array], rest: list[pa.Array]) -> Flags:
    """Return which items lack a value, or have others too."""
    unfit = np.zeros(len(needed[0]), bool)
    for values in needed:
        unfit |= flags_of(values.is_null())
    for values in rest:
        unfit |= flags_of(values.is_valid())
    return unfit


def _message(role: str, content: str) -> pa.DataType:
    return pa.struct([(role, pa.string()), (content, pa.string())])
