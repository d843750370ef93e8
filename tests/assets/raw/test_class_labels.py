"""Columns of `ClassLabel` are read by their names, as `ClassLabel.int2str` gives them, from every source of tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, List, Sequence, Value

from support.columns_stage import config_of, described
from support.raw_rows import chunks_of, rows_of
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.raw.formats.tables import dataset_tables

Row = dict[str, Any]
SIDES, LETTERS = ClassLabel(names=["neg", "pos"]), ClassLabel(names=["A", "B", "C", "D"])
TAGS = ClassLabel(names=["O", "B-PER", "I-PER"])
CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "imdb": (SIDES, [0, 1, 1], ["neg", "pos", "pos"]),
    "a test split without labels": (SIDES, [-1, 0, -1], [None, "neg", None]),
    "a null": (SIDES, [None, 1, 0], [None, "pos", "neg"]),
    "mmlu": (LETTERS, [3, 0, 2], ["D", "A", "C"]),
    "conll2003": (List(TAGS), [[0, 1], [], [2]], [["O", "B-PER"], [], ["I-PER"]]),
    "lists of three": (List(TAGS, length=2), [[0, 1], [2, 2], [1, 0]], [["O", "B-PER"], ["I-PER"] * 2, ["B-PER", "O"]]),
    "an object": ({"side": SIDES, "n": Value("int64")}, [{"side": 1, "n": 1}] * 3, [{"side": "pos", "n": 1}] * 3),
    "objects": (List({"tag": TAGS}), [[{"tag": 1}], [], [{"tag": 0}]], [[{"tag": "B-PER"}], [], [{"tag": "O"}]]),
    "columns of objects": (Sequence({"tag": TAGS}), [{"tag": [1]}] * 3, [{"tag": ["B-PER"]}] * 3),
    "numbers": (Value("int64"), [0, 1, 2], [0, 1, 2]),
}


def of_parquet(dataset: Dataset, folder: Path) -> Iterator[pa.Table]:
    dataset.to_parquet(folder / "rows.parquet")
    yield from (chunk.load().table for chunk in chunks_of(folder / "rows.parquet"))


def of_folder(dataset: Dataset, folder: Path) -> Iterator[pa.Table]:
    dataset.save_to_disk(folder / "saved")
    yield from (chunk.load().table for chunk in chunks_of(folder / "saved"))


def of_arrow(dataset: Dataset, folder: Path) -> Iterator[pa.Table]:
    dataset.save_to_disk(folder / "saved")
    (file,) = (folder / "saved").glob("*.arrow")
    yield from (chunk.load().table for chunk in chunks_of(file))


def of_hub(dataset: Dataset, folder: Path) -> Iterator[pa.Table]:
    return dataset_tables(dataset)


def of_stream(dataset: Dataset, folder: Path) -> Iterator[pa.Table]:
    return dataset_tables(dataset.to_iterable_dataset())


@pytest.mark.parametrize("read", [of_parquet, of_folder, of_arrow, of_hub, of_stream])
@pytest.mark.parametrize("case", CASES)
def test_classes_have_their_names(
    case: str, read: Callable[[Dataset, Path], Iterator[pa.Table]], tmp_path: Path
) -> None:
    feature, numbers, names = CASES[case]
    features = Features({"text": Value("string"), "label": feature})
    dataset = Dataset.from_dict({"text": ["a", "b", "c"], "label": numbers}, features=features)
    assert [row["label"] for table in read(dataset, tmp_path) for row in rows_of(table)] == names
    if isinstance(feature, ClassLabel):
        known = [number for number in numbers if number not in (None, -1)]
        assert feature.int2str(known) == [name for name in names if name is not None]


def test_labels_of_answers_and_choices_are_read_by_their_names(tmp_path: Path) -> None:
    wanted = ClassLabel(names=["accepted", "rejected"])  # 0 is the wanted one
    features = Features({"prompt": Value("string"), "completion": Value("string"), "label": wanted})
    rows = {"prompt": ["q", "r"], "completion": ["a", "b"], "label": [0, 1]}
    (table,) = of_parquet(Dataset.from_dict(rows, features=features), tmp_path)
    out = to_canonical(table, resolve(config_of(), described(table)))
    assert out.table["label"].to_pylist() == [True, False]
    features = Features({"question": Value("string"), "choices": List(Value("string")), "answer": LETTERS})
    rows = {"question": ["q?"] * 4, "choices": [["w", "x", "y", "z"]] * 4, "answer": [0, 1, 2, 3]}
    (table,) = of_parquet(Dataset.from_dict(rows, features=features), tmp_path)
    out = to_canonical(table, resolve(config_of(), described(table)))
    assert out.table["completion"].to_pylist() == ["w", "x", "y", "z"]


@pytest.mark.parametrize(
    "metadata",
    [
        b"ClassLabel", b'{"info": "ClassLabel"}', b'{"info": {"features": {"label": "ClassLabel"}}}',
        b'{"info": {"features": {"label": {"_type": "ClassLabel"}}}}',
        b'{"info": {"features": {"label": {"_type": "ClassLabel", "names": [1]}}}}', b"[" * 100_000 + b"ClassLabel",
    ],
)  # fmt: skip
def test_metadata_that_is_not_understood_changes_nothing(metadata: bytes, tmp_path: Path) -> None:
    table = pa.table({"label": [0, 7]}).replace_schema_metadata({b"huggingface": metadata})
    pq.write_table(table, tmp_path / "rows.parquet")
    (found,) = chunks_of(tmp_path / "rows.parquet")
    assert found.load().table["label"].to_pylist() == [0, 7]


def test_a_number_beyond_the_names_stays_a_number(tmp_path: Path) -> None:
    info = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["no"]}}}}
    table = pa.table({"label": [0, 7]}).replace_schema_metadata({b"huggingface": json.dumps(info).encode()})
    pq.write_table(table, tmp_path / "rows.parquet")
    (found,) = chunks_of(tmp_path / "rows.parquet")
    assert found.load().table["label"].to_pylist() == ["no", "7"]
