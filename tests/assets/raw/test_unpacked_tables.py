"""Parquet that stores a text once for many rows: refused before it is unpacked if that takes far more than the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.raw_rows import read
from support.reading_child import read_in_children
from tokenloom.assets.raw.formats import tables
from tokenloom.errors import SourceError

MIB = 1 << 20


def repeated(text: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def listed(values: pa.Array, bounds: list[int]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), values)


REFUSED: dict[str, Callable[[], pa.Table]] = {
    "a column": lambda: pa.table({"text": repeated("x" * MIB, 20_000)}),
    "a short text in many rows": lambda: pa.table({"text": repeated("x" * 4096, 4_000_000)}),
    "several columns": lambda: pa.table({f"c{n}": repeated("x" * MIB, 600) for n in range(5)}),
    "one list": lambda: pa.table({"text": ["a"], "l": listed(repeated("x" * MIB, 10_000), [0, 10_000])}),
    "a list after empty ones": lambda: pa.table({"l": listed(repeated("x" * 4096, 10**6), [0] * 2000 + [10**6])}),
    "objects in a list": lambda: pa.table(
        {"l": listed(pa.StructArray.from_arrays([repeated("x" * MIB, 9000)], ["c"]), [0, 9000])}
    ),
    "bytes": lambda: pa.table({"text": repeated("x" * MIB, 9000).cast(pa.dictionary(pa.int32(), pa.binary()))}),
}


def test_texts_that_stand_for_gigabytes_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    for name, table in REFUSED.items():
        pq.write_table(table(), tmp_path / f"{name}.parquet")
        assert (tmp_path / f"{name}.parquet").stat().st_size < 2 * MIB, name
    files = sorted(tmp_path.iterdir())
    for file, outcome in zip(files, read_in_children([{"name": str(file)} for file in files]), strict=True):
        assert "too many to unpack; write the file without" in outcome.error, (file.name, outcome)
        assert (outcome.signal, outcome.traceback, outcome.rows) == (0, "", 0), (file.name, outcome)
        assert outcome.peak < 300 * MIB, (file.name, outcome)


def test_what_is_refused_is_what_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_UNPACKED", 100_000)
    monkeypatch.setattr(tables, "_UNPACKED_PER_BYTE", 1)
    texts = ["a" * 5000, *(str(number) for number in range(2000))]  # only one is long
    pq.write_table(pa.table({"text": texts}), tmp_path / "short.parquet")
    assert len(read(tmp_path / "short.parquet")[0]) == 2001
    pq.write_table(pa.table({"text": ["a" * 5000] * 30}), tmp_path / "long.parquet")
    with pytest.raises(SourceError, match=r"row group 0 holds 15\d,\d{3} bytes of text and others in"):
        read(tmp_path / "long.parquet")


@pytest.mark.parametrize("form", ["texts", "lists", "objects"])
def test_rows_are_the_same_in_smaller_batches(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[Any] = [f"{number % 7}" * (number % 50) for number in range(3000)]
    rows = {"texts": values, "lists": [[v, None, v] for v in values], "objects": [[{"c": v, "n": 1}] for v in values]}
    pq.write_table(pa.table({"a": rows[form], "b": values}), tmp_path / "rows.parquet", row_group_size=900)
    whole = read(tmp_path / "rows.parquet")
    asked = list[int]()
    batches = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches", lambda file, rows, *a, **k: asked.append(rows) or batches(file, rows, *a, **k)
    )
    monkeypatch.setattr(tables, "_UNPACKED", 1000)
    monkeypatch.setattr(tables, "_UNPACKED_PER_BYTE", 1 << 20)
    monkeypatch.setattr(tables, "_BATCH_UNPACKED", 1000)
    assert read(tmp_path / "rows.parquet") == whole
    assert set(asked) == {1, 10}, "the longest text has 49 characters, in two columns"
