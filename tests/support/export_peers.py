"""What other tools read of an export, with their own readers: documents as ids, and 1 for each trained token."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from tokenloom.loaders import TokenDataset

Document = tuple[list[int], list[int]]


def documents(dataset: TokenDataset) -> Iterator[Document]:
    """The documents of a dataset, as a loader returns them, without the first token of each being trained."""
    for number in range(len(dataset)):
        row = {name: value.tolist() for name, value in dataset[number].items()}
        starts = [at for at, position in enumerate(row.get("position_ids", [0])) if position == 0]
        for begin, end in pairwise([*starts, len(row["input_ids"])]):
            yield row["input_ids"][begin:end], _flags(row["labels"][begin:end])


def _flags(labels: list[int]) -> list[int]:
    return [0, *(int(label != -100) for label in labels[1:])]


def megatron(folder: Path, vocab_size: int) -> list[Document]:
    """With megatron-core's `IndexedDataset`; its builder writes the same bytes."""
    indexed: Any = import_module("megatron.core.datasets.indexed_dataset")
    torch: Any = import_module("torch")
    found: list[Document] = []
    for path in sorted(folder.glob("*.bin")):
        prefix = str(path.with_suffix(""))
        dtype = np.uint8 if prefix.endswith("_loss_mask") else indexed.DType.optimal_dtype(vocab_size)
        read = indexed.IndexedDataset(prefix)
        assert read.document_indices.tolist() == [*range(len(read) + 1)]
        again = path.parent.parent / "again"
        builder = indexed.IndexedDatasetBuilder(f"{again}.bin", dtype=dtype)
        for item in (items := [read[number] for number in range(len(read))]):
            builder.add_document(torch.from_numpy(np.array(item)), [len(item)])
        builder.finalize(f"{again}.idx")
        for suffix in (".bin", ".idx"):
            assert Path(f"{again}{suffix}").read_bytes() == path.with_suffix(suffix).read_bytes()
            Path(f"{again}{suffix}").unlink()
        if not prefix.endswith("_loss_mask"):
            masks = indexed.IndexedDataset(f"{prefix}_loss_mask")
            assert len(masks) == len(items)
            found += [(ids.tolist(), masks[number].tolist()) for number, ids in enumerate(items)]
    return found


def megatron_sft(folder: Path, vocab_size: int) -> list[Document]:
    """As Megatron-Bridge's `GPTSFTPackedDataset.collate_fn` cuts a row: a document without its last token, its targets
    without its first, and the mask of the targets without its last."""
    found: list[Document] = []
    for row in datasets.load_dataset("parquet", data_files=str(folder / "*.idx.parquet"), split="train"):
        bounds = [*row["seq_start_id"], len(row["input_ids"])]  # pyright: ignore[reportCallIssue, reportArgumentType]
        for begin, end in pairwise(bounds):
            ids, mask = row["input_ids"][begin:end], row["loss_mask"][begin:end]  # pyright: ignore
            assert mask[-1] == 0
            found.append((ids, [0, *mask[:-1]]))
    return found


def olmo(folder: Path, vocab_size: int) -> list[Document]:
    """With OLMo-core's own functions, documents as its metadata files have them."""
    utils: Any = import_module("olmo_core.data.utils")
    dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    found: list[Document] = []
    for path in sorted(folder.glob("token_ids_part_*.npy")):
        mask = path.with_name(path.name.replace("token_ids", "labels_mask"))
        for begin, end in utils.iter_document_indices(str(path), use_array_if_local=False, dtype=dtype):
            ids = utils.load_array_slice_into_tensor(str(path), begin, end, dtype).tolist()
            found.append((ids, utils.load_array_slice_into_tensor(str(mask), begin, end, np.bool_).int().tolist()))
    return found


def without_init(name: str) -> bool:
    """Make a package importable without its `__init__`: that of `streaming` imports torchvision, for datasets of its
    own. Return whether it is installed."""
    if name not in sys.modules:
        if (spec := find_spec(name)) is None:
            return False
        sys.modules[name] = module_from_spec(spec)
    return True


def mds(folder: Path, vocab_size: int) -> list[dict[str, Any]]:
    """With mosaicml-streaming's `StreamingDataset`: rows."""
    assert without_init("streaming")
    import_module("streaming.base.util").clean_stale_shared_memory()
    read = import_module("streaming.base.dataset").StreamingDataset(local=str(folder), shuffle=False, batch_size=1)
    return [{name: np.asarray(value).tolist() for name, value in read[number].items()} for number in range(len(read))]


def skyrl(folder: Path, vocab_size: int) -> list[Document]:
    """As SkyRL's `load_from_pretokenized` loads Parquet."""
    rows: Any = datasets.load_dataset("parquet", data_files=str(folder / "*.parquet"), split="train")
    return [(row["input_ids"], [0, *row["loss_mask"][1:]]) for row in rows]


def axolotl(folder: Path, vocab_size: int) -> list[Document]:
    """As axolotl loads Parquet; rows with exactly these columns are tokenized for it."""
    rows: Any = datasets.load_dataset("parquet", data_files=str(folder / "*.parquet"), split="train")
    assert rows.column_names == ["input_ids", "attention_mask", "labels"]
    assert all(set(row["attention_mask"]) == {1} for row in rows)
    return [(row["input_ids"], _flags(row["labels"])) for row in rows]


def llamafactory(folder: Path, vocab_size: int) -> list[Document]:
    """As LLaMA-Factory loads a `tokenized_path`."""
    rows: Any = datasets.load_from_disk(folder.parent)
    return [(row["input_ids"], _flags(row["labels"])) for row in rows[folder.name]]


def segments(folder: Path) -> list[list[tuple[str, bool]]]:
    """The segments of each line."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return [[(part["text"], part["label"]) for part in json.loads(line)["segments"]] for line in lines]


READERS: dict[str, Callable[[Path, int], list[Document]]] = {
    "megatron": megatron,
    "megatron-sft": megatron_sft,
    "olmo": olmo,
    "skyrl": skyrl,
    "axolotl": axolotl,
    "llamafactory": llamafactory,
}
