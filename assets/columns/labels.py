"""Flags that say whether an answer is wanted, or a text is trained."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.text_values import as_text
from tokenloom.resources.tables.nested_paths import plain

TRUE_LABELS = ("true", "yes", "1", "desirable", "good", "chosen")
FALSE_LABELS = ("false", "no", "0", "undesirable", "bad", "rejected")


def as_labels(values: pa.Array) -> pa.Array:
    """Return values as booleans; null if a value is not a label."""
    values = plain(values)
    if pa.types.is_boolean(values.type):
        return values
    if pa.types.is_floating(values.type) or pa.types.is_integer(values.type) or pa.types.is_decimal(values.type):
        number = values.cast(pa.float64(), safe=False)
        zero_or_one = pc.is_in(number, pa.array([0.0, 1.0]))
        return pc.if_else(zero_or_one, pc.equal(number, 1.0), pa.scalar(None, pa.bool_()))
    text = pc.utf8_lower(pc.utf8_trim_whitespace(as_text(values)[0]))
    known = pa.array([True] * len(TRUE_LABELS) + [False] * len(FALSE_LABELS))
    return known.take(pc.index_in(text, pa.array([*TRUE_LABELS, *FALSE_LABELS])))
