"""The loss weight of each row: the role `weight` of every form with answers."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from tokenloom.assets.columns.rejected_rows import Problem
from tokenloom.assets.columns.source_expressions import Source
from tokenloom.assets.columns.text_values import as_text, values_of
from tokenloom.assets.schema.evidence.training_flags import LARGEST
from tokenloom.resources.tables.flags import Flags
from tokenloom.resources.tables.nested_paths import plain

_WORDS = {"true": 1.0, "false": 0.0}


def row_weights(table: pa.Table, source: Source) -> tuple[pa.Array, list[Problem]]:
    """Return the weight of each row, float32, and the rows whose value is not a number from 0 on.

    Numbers can also be text, as in CSV files; true is 1, false is 0.
    """
    values, problems = values_of(table, source, "weight")
    numbers = _numbers(plain(values))
    wrong: Flags = ~((numbers >= 0) & (numbers <= LARGEST))
    message = f"{source} is not a number from 0 on, the weight of the row's loss"
    problems = [*problems, Problem(wrong, "invalid_weight", "weight", message, values)]
    return pa.array(np.where(wrong, 0.0, numbers).astype(np.float32)), problems


def _numbers(values: pa.Array) -> np.ndarray:
    """Return values as float64 [rows]; NaN for what is not a number."""
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    texts = as_text(values)[0].dictionary_encode()
    numbers = np.array([*map(number_of, texts.dictionary.to_pylist())], np.float64)
    return numbers[texts.indices.to_numpy()]


def number_of(text: str) -> float:
    """Return the number that a text is, 1 for true, 0 for false, else NaN."""
    word = text.strip().lower()
    try:
        return _WORDS[word] if word in _WORDS else float(word)
    except ValueError:
        return math.nan
