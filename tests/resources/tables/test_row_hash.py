"""Hashes of rows: the same for equal values, however they are computed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tokenloom.assets.schema.column_statistics import KEPT_HASHES, smallest_hashes
from tokenloom.resources.tables.hashes import hash_array


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint16(), pa.uint64()])
def test_many_equal_integers_hash_as_their_texts(kind: pa.DataType) -> None:
    numbers = np.random.default_rng(0).integers(0 if "u" in str(kind) else -90, 90, 20_000)
    array = pa.array(numbers).cast(kind)
    for found, expected in zip(hash_array(array), hash_array(array.cast(pa.string())), strict=True):
        assert (found == expected).all()
    assert (smallest_hashes(array) == np.unique(hash_array(array)[0])[:KEPT_HASHES]).all()
