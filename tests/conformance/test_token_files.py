"""Files that Megatron, MosaicML Streaming and litdata write, and that OLMo-core reads, have the documents that
tokenloom reads."""

from __future__ import annotations

import random
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.export_peers import without_init
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


@pytest.mark.parametrize("compression", [None, "zstd", "gz:5", "bz2"])
@pytest.mark.parametrize("encoding", ["ndarray:int32", "ndarray", "json", "bytes"])
def test_shards_of_mosaicml(encoding: str, compression: str | None, tmp_path: Path) -> None:
    if not without_init("streaming"):
        pytest.skip("streaming is not installed")
    writer: Any = import_module("streaming.base.format.mds.writer").MDSWriter
    rows = documents()
    columns = {"input_ids": encoding, "number": "int", "weight": "float32", "text": "str"}
    with writer(out=str(tmp_path / "val"), columns=columns, compression=compression, size_limit=4000) as out:
        for number, row in enumerate(rows):
            kinds = [np.int32] if encoding == "ndarray:int32" else [np.uint16, np.int64, np.int32]
            ids = np.array(row, np.int64 if encoding == "bytes" else kinds[number % len(kinds)])
            value = ids.tobytes() if encoding == "bytes" else row if encoding == "json" else ids
            out.write({"input_ids": value, "number": number, "weight": number / 2, "text": f"é{number}"})
    assert len([*(tmp_path / "val").iterdir()]) > 2
    assert read(tmp_path, **({"reader": {"dtype": "int64"}} if encoding == "bytes" else {})) == {
        "input_ids": rows,
        "number": [*range(len(rows))],
        "weight": [number / 2 for number in range(len(rows))],
        "text": [f"é{number}" for number in range(len(rows))],
    }


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint16"])
def test_chunks_of_litdata(dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("litdata")
    torch: Any = pytest.importorskip("torch")
    loader: Any = import_module("litdata.streaming.item_loader").TokensLoader()
    writer: Any = import_module("litdata.streaming.writer").BinaryWriter
    out, rows = writer(str(tmp_path), chunk_bytes=4000, item_loader=loader), documents()
    for number, row in enumerate(rows):
        out[number] = torch.tensor(row, dtype=getattr(torch, dtype))
    out.done()
    out.merge()
    assert len([*tmp_path.glob("*.bin")]) > 2
    assert read(tmp_path) == {"input_ids": rows}
