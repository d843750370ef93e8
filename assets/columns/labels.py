"""Flags that say whether an answer is wanted, or a text is trained."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.text_values import as_text
from tokenloom.assets.schema.evidence.flag_words import FALSE_WORDS, TRUE_WORDS
from tokenloom.resources.tables.nested_paths import plain

LABELS = "true, yes, 1, desirable, good, chosen, false, no, 0, -1, undesirable, bad, rejected and similar words"
"""Labels in words, for messages."""


def as_labels(values: pa.Array) -> pa.Array:
    """Return values as booleans; null if a value is not a label."""
    values = plain(values)
    if pa.types.is_boolean(values.type):
        return values
    if pa.types.is_floating(values.type) or pa.types.is_integer(values.type) or pa.types.is_decimal(values.type):
        number = values.cast(pa.float64(), safe=False)
        is_flag = pc.is_in(number, pa.array([-1.0, 0.0, 1.0]))
        return pc.if_else(is_flag, pc.equal(number, 1.0), pa.scalar(None, pa.bool_()))
    text = pc.utf8_lower(pc.utf8_trim_whitespace(as_text(values)[0]))
    known = pa.array([True] * len(TRUE_WORDS) + [False] * len(FALSE_WORDS))
    return known.take(pc.index_in(text, pa.array([*TRUE_WORDS, *FALSE_WORDS])))
