"""Files that Megatron's own builder writes, and that OLMo-core reads, have the documents that tokenloom reads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.config import PipelineConfig

EOS = 3


def documents(count: int = 200) -> list[list[int]]:
    draw = random.Random(0)
    return [[*(draw.randrange(4, 400) for _ in range(draw.randrange(1, 40))), EOS] for _ in range(count)]


def read(name: Path, **dataset: Any) -> dict[str, list[Any]]:
    config = PipelineConfig.from_mapping({"name": "made", "dataset": {"name": str(name), **dataset}})
    found: dict[str, list[Any]] = {}
    for chunk in source_chunks(config):
        table = chunk.load().table
        for column in table.column_names[:-1]:
            found.setdefault(column, []).extend(table[column].to_pylist())
    return found


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_pairs_of_megatron(dtype: type[np.integer[Any]], tmp_path: Path) -> None:
    indexed: Any = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    torch = pytest.importorskip("torch")
    rows, groups = documents(), [1, 3, 2, 4] * 20
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "data.bin"), dtype=dtype)
    expected, start = [], 0
    for size in groups:
        for row in rows[start : start + size]:
            builder.add_item(torch.tensor(row))
        builder.end_document()
        expected.append([token for row in rows[start : start + size] for token in row])
        start += size
    builder.finalize(str(tmp_path / "data.idx"))
    assert read(tmp_path) == {"input_ids": expected}


def test_arrays_of_olmo_core(tmp_path: Path) -> None:
    data: Any = pytest.importorskip("olmo_core.data")
    rows = documents()
    flat = np.concatenate(rows)
    flat.astype("<u2").tofile(tmp_path / "token_ids_part_0000.npy")
    (flat % 2 == 1).tofile(tmp_path / "labels_mask_part_0000.npy")
    theirs = data.NumpyPaddedFSLDataset(
        tmp_path / "token_ids_part_0000.npy",
        sequence_length=64,
        pad_token_id=0,
        eos_token_id=EOS,
        vocab_size=400,
        dtype=np.uint16,
        label_mask_paths=[tmp_path / "labels_mask_part_0000.npy"],
    )
    theirs.work_dir = tmp_path / "work"
    theirs.prepare()
    ours = read(tmp_path / "token_ids_part_0000.npy", reader={"eos_id": EOS})
    assert len(theirs) == len(ours["input_ids"]) == len(rows)
    for item, ids, mask in zip(theirs, ours["input_ids"], ours["loss_mask"], strict=True):
        assert item["input_ids"][: len(ids)].tolist() == ids
        assert item["label_mask"][: len(ids)].tolist() == [value == 1 for value in mask]
