"""The contract of `schema`: the sketch of one raw chunk, one row for each path in its columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.schema.column_statistics import KEPT_HASHES
from tokenloom.assets.schema.sketch import MEASURED, SKETCH
from tokenloom.assets.stage.contract import Contract, column
from tokenloom.resources.tables.ragged import list_parts, one_array, row_of, sum_rows


def _counts_fit(table: pa.Table) -> bool:
    counted = pc.add(pc.add(table["nulls"], table["empty"]), table["sampled"])
    return bool(pc.all(pc.less_equal(counted, table["rows"])).as_py())


def _buckets_add_up(table: pa.Table) -> bool:
    offsets, counts = list_parts(table["lengths"])
    measured = pc.is_in(table["kind"], pa.array(MEASURED))
    values = pc.if_else(measured, pc.subtract(table["rows"], table["nulls"]), 0)
    return bool((sum_rows(counts.to_numpy(), offsets) == values.to_numpy()).all())


def traits_fit(table: pa.Table) -> bool:
    """Return whether no trait is counted in more texts than were sampled."""
    offsets, counts = list_parts(table["traits"])
    sampled = table["sampled"].to_numpy()[row_of(np.diff(offsets))]
    return bool((counts.to_numpy() <= sampled).all())


def _hashes_fit(table: pa.Table) -> bool:
    kept = pc.divide(pc.binary_length(table["hashes"]), 8).to_numpy()
    values = pc.subtract(table["rows"], table["nulls"]).to_numpy()
    return bool((kept <= np.minimum(values, KEPT_HASHES)).all())


def values_are_counted(table: pa.Table) -> bool:
    """Return whether each value has a count."""
    return np.array_equal(list_parts(table["counts"])[0], list_parts(table["values"])[0])


def _value_counts_add_up(table: pa.Table) -> bool:
    """Whether the counts of a path's values add up to its places, if all its values are listed."""
    offsets, counts = list_parts(table["counts"])
    total = sum_rows(counts.to_numpy(), offsets)
    return values_are_counted(table) and bool(
        ((total == 0) | (total == pc.subtract(table["rows"], table["nulls"]).to_numpy())).all()
    )


def _starts_with_the_chunk(table: pa.Table) -> bool:
    """Whether the first row is the chunk itself, and every column has as many places as the chunk has rows."""
    depth = pc.list_value_length(one_array(table["steps"])).to_numpy()
    if not len(depth) or depth[0]:
        return False
    columns = table.filter(pa.array(depth == 1))
    names = pc.list_element(one_array(columns["steps"]), 0).dictionary_encode()
    totals = np.bincount(names.indices.to_numpy(), columns["rows"].to_numpy())
    return bool((totals == table["rows"][0].as_py()).all())


_DESCRIPTIONS = {
    "steps": "The path: a column, then fields; null for the items of a list. Empty for the chunk itself.",
    "type": "Arrow type of the values, as text; list, struct or json for lists and objects of JSON.",
    "kind": "Kind of the values: text, number, boolean, list, struct, null, binary or other.",
    "rows": "Number of places: rows for a column, items for a list, non-null structs for a field.",
    "nulls": "Number of null places.",
    "empty": "Number of empty texts or lists.",
    "longest": "Maximum length, in characters or items.",
    "lengths": "Histogram of lengths.",
    "letters": "Number of letters in each script.",
    "hashes": "The smallest 64-bit hashes of the values, which estimate the number of distinct values.",
    "few": "Whether `values` lists all values.",
    "values": "All values, if they are few and short.",
    "counts": "How often each of `values` occurs.",
    "sampled": "Number of texts sampled for traits.",
    "traits": "Number of sampled texts that have each trait.",
    "examples": "The first values, as text.",
    "repeats": "For prompts as text: columns whose conversations start with them in every row.",
}

CONTRACT = Contract(
    "One path in the columns of a raw chunk, from a column to what is nested in it. If its values are JSON of several "
    "kinds, it has one row for each kind. The first row is the chunk itself.",
    {field.name: column(_DESCRIPTIONS[field.name], field.type) for field in SKETCH},
    {
        "nulls, empty and sampled values do not exceed the rows": _counts_fit,
        "length buckets add up to the values": _buckets_add_up,
        "traits count at most the sampled texts": traits_fit,
        "hashes do not exceed the values or the limit": _hashes_fit,
        "value counts add up": _value_counts_add_up,
        "every column has the chunk's rows": _starts_with_the_chunk,
    },
)
