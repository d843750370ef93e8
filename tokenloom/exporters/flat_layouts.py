"""Layouts of flat arrays of tokens with their own indices: Megatron's, OLMo-core's and MosaicML's."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.exporters.layouts import ExportedSplit, FlatDocuments, Layout, Shard, ShardWriter, refuse_weights
from tokenloom.resources.tables.ragged import flat_numbers, list_views, one_array
from tokenloom.resources.tables.sequence_schema import KINDS

FLAT_BYTES = 4_000_000_000
"""Bytes of Arrow data after which a shard of tokens without columns is closed: about 440 million tokens."""


class MegatronIndexed(Layout):
    """`.bin` and `.idx` of Megatron (`megatron/core/datasets/indexed_dataset.py`, the same bytes as its
    `IndexedDatasetBuilder`), one document each, and a second pair with the loss mask, 0 or 1 for each token."""

    files = (
        "{split}-{number:05d}-of-{count:05d}.bin",
        "{split}-{number:05d}-of-{count:05d}.idx",
        "{split}-{number:05d}-of-{count:05d}_loss_mask.bin",
        "{split}-{number:05d}-of-{count:05d}_loss_mask.idx",
    )
    shard_bytes = FLAT_BYTES
    guide = """\
```bash
--train-data-path FOLDER/{split}/{split}-00000-of-… --tokenizer-type HuggingFaceTokenizer --tokenizer-model TOKENIZER
```

Name each shard without `.bin`. `IndexedDataset(prefix)` has the documents, `IndexedDataset(prefix + "_loss_mask")` a
mask of the same lengths, aligned with the tokens (not shifted). Megatron's own `GPTDataset` trains all tokens and reads
no mask.
"""

    def open(self, paths: Sequence[Path], schema: pa.Schema, source: ExportedSplit) -> ShardWriter:
        return _MegatronWriter(paths, source)


class _MegatronWriter:
    """Writes a shard, and holds the lengths of its documents."""

    def __init__(self, paths: Sequence[Path], source: ExportedSplit):
        ids, self._ids_index, mask, self._mask_index = paths
        self._dtype = np.uint16 if source.vocab_size < 65500 else np.int32  # as `DType.optimal_dtype` chooses
        self._ids, self._mask = ids.open("wb"), mask.open("wb")
        self._lengths = list[np.ndarray]()

    def write_table(self, table: pa.Table) -> None:
        """Write the documents of rows."""
        refuse_weights("megatron", table)
        documents = FlatDocuments.of(table)
        self._ids.write(documents.ids.astype(self._dtype).data)
        self._mask.write(_targets(documents).astype(np.uint8).data)
        self._lengths.append(np.diff(documents.offsets).astype(np.int32))

    def close(self) -> None:
        """Write the indices."""
        lengths = np.concatenate(self._lengths)
        for file, path, dtype, code in (
            (self._ids, self._ids_index, self._dtype, 8 if self._dtype is np.uint16 else 4),
            (self._mask, self._mask_index, np.uint8, 1),
        ):
            file.close()
            # Lengths, byte offsets, and documents of one sequence each: the order that Megatron reads.
            head = b"MMIDIDX\0\0" + np.uint64(1).tobytes() + np.uint8(code).tobytes()
            pointers = np.zeros(len(lengths), np.int64)
            np.cumsum(lengths[:-1], out=pointers[1:])
            counts = np.array([len(lengths), len(lengths) + 1], np.uint64)
            with path.open("wb") as index:
                index.write(head + counts.tobytes())
                for values in (lengths, pointers * np.dtype(dtype).itemsize, np.arange(len(lengths) + 1)):
                    index.write(values.data)


def _targets(documents: FlatDocuments) -> np.ndarray:
    """Return bool [tokens], whether a token is trained: the first one of a document has no context here, because what
    precedes it in the file is another document."""
    trained = documents.trained.copy()
    trained[documents.offsets[:-1]] = False
    return trained


class OlmoArrays(Layout):
    """Arrays of OLMo-core, as `scripts/data/convert_sft_data_for_olmocore.py` of open-instruct writes them: raw token
    ids, a raw bool mask of trained tokens, and `start,end` of each document."""

    files = (
        "token_ids_part_{number:05d}.npy",
        "labels_mask_part_{number:05d}.npy",
        "token_ids_part_{number:05d}.csv.gz",
    )
    shard_bytes = FLAT_BYTES
    guide = """\
```python
NumpyPackedFSLDatasetConfig(
    tokenizer=tokenizer_config,
    paths=["FOLDER/{split}/token_ids_part_*.npy"],
    label_mask_paths=["FOLDER/{split}/labels_mask_part_*.npy"],
    expand_glob=True,
    dtype=NumpyDatasetDType.uint16,  # uint32 if the vocabulary has more than 65,536 ids
    use_array_if_local=False,        # documents as the .csv.gz files have them
    sequence_length=MAX_LENGTH,
)
```

Without `use_array_if_local=False`, OLMo-core ends a document at each EOS.
"""

    def open(self, paths: Sequence[Path], schema: pa.Schema, source: ExportedSplit) -> ShardWriter:
        return _OlmoWriter(paths, source)

    def notices(self, counts: dict[str, int]) -> Iterator[str]:
        if unended := counts.get("without_eos", 0):
            yield f"{unended:,} documents do not end with EOS, so OLMo-core needs use_array_if_local=False"
        if several := counts.get("inner_eos", 0):
            yield f"{several:,} documents have EOS before their end, so OLMo-core needs use_array_if_local=False"


class _OlmoWriter:
    """Writes a shard."""

    def __init__(self, paths: Sequence[Path], source: ExportedSplit):
        ids, mask, places = paths
        self._dtype, self._eos, self._end = np.uint16 if source.vocab_size <= 1 << 16 else np.uint32, source.eos, 0
        self._ids, self._mask, self._raw = ids.open("wb"), mask.open("wb"), places.open("wb")
        # Neither a name nor a time in the header: the same rows give the same bytes.
        self._places = gzip.GzipFile(filename="", mode="wb", fileobj=self._raw, mtime=0)
        self.counts: dict[str, int] = {}

    def write_table(self, table: pa.Table) -> None:
        """Write the documents of rows."""
        refuse_weights("olmo", table)
        documents = FlatDocuments.of(table)
        self._ids.write(documents.ids.astype(self._dtype).data)
        self._mask.write(_targets(documents).data)
        bounds = pa.array(documents.offsets + self._end).cast(pa.string())
        lines = pc.binary_join_element_wise(bounds[:-1], bounds[1:], ",")  # pyright: ignore[reportAttributeAccessIssue]
        self._places.write(("\n".join(lines.to_pylist()) + "\n").encode())
        self._end += len(documents.ids)
        ends = documents.offsets[1:] - 1
        last = documents.ids[ends] == (-1 if self._eos is None else self._eos)
        within = documents.ids == (-1 if self._eos is None else self._eos)
        within[ends] = False
        inner = np.unique(np.searchsorted(documents.offsets, np.flatnonzero(within), side="right"))
        self.counts = {"without_eos": int((~last).sum()), "inner_eos": len(inner)}

    def close(self) -> None:
        """Close the files."""
        for file in (self._places, self._raw, self._ids, self._mask):
            file.close()


class MosaicShards(Layout):
    """MDS of MosaicML Streaming (version 2, `streaming/base/format/mds`), one sample per row, each column as an
    `ndarray` of its type."""

    files = ("shard.{number:05d}.mds",)
    kinds = KINDS
    weights = packed = True
    shard_bytes = 64 << 20
    guide = """\
```python
StreamingDataset(local="FOLDER", split="{split}", shuffle=True)  # samples of NumPy arrays
```
"""

    def open(self, paths: Sequence[Path], schema: pa.Schema, source: ExportedSplit) -> ShardWriter:
        return _MosaicWriter(paths[0], schema)

    def finish_split(self, folder: Path, schema: pa.Schema, source: ExportedSplit, shards: Sequence[Shard]) -> None:
        described = []
        for shard in shards:
            data = {"basename": shard.files[0], "bytes": shard.sizes[0], "hashes": {}}
            rows = {"samples": shard.counts["rows"], "raw_data": data, "zip_data": None}
            described.append(_mosaic_config(schema) | rows)
        (folder / "index.json").write_text(json.dumps({"version": 2, "shards": described}, sort_keys=True))


def _mosaic_config(schema: pa.Schema) -> dict[str, Any]:
    """Return what a shard says of its columns."""
    names = sorted(schema.names)
    kinds = [schema.field(name).type for name in names]
    encodings = [
        f"ndarray:{kind.value_type.to_pandas_dtype().__name__}" if pa.types.is_list(kind) else "uint8" for kind in kinds
    ]
    config = {"column_names": names, "column_encodings": encodings}
    config["column_sizes"] = [None if encoding.startswith("ndarray") else 1 for encoding in encodings]
    return {**config, "compression": None, "format": "mds", "hashes": [], "size_limit": None, "version": 2}


class _MosaicWriter:
    """Writes a shard, whose samples it holds until their offsets are known."""

    def __init__(self, path: Path, schema: pa.Schema):
        self._path, self._schema, self._samples = path, schema, list[pa.Array]()

    def write_table(self, table: pa.Table) -> None:
        """Encode rows: sizes of the columns of variable size, then their values in the order of their names."""
        heads, bodies = list[pa.Array](), list[pa.Array]()
        for name in sorted(table.column_names):
            column = one_array(table[name])
            if not pa.types.is_list(column.type):
                bodies.append(_bytes_of(np.arange(table.num_rows + 1), column.cast(pa.uint8()).to_numpy()))
                continue
            offsets, values = list_views(column)
            count = np.diff(offsets).astype(np.uint32)
            # An array starts with its shape: the byte 6 for one axis whose size is a uint32, then that size.
            heads.append(_fixed(count * values.itemsize + 5))
            bodies += [_fixed(count, b"\x06"), _bytes_of(offsets.astype(np.int64), values)]
        empty = pa.scalar(b"", pa.large_binary())
        self._samples.append(pc.binary_join_element_wise(*heads, *bodies, empty))  # pyright: ignore[reportAttributeAccessIssue]

    def close(self) -> None:
        """Write the shard."""
        sizes = np.concatenate([flat_numbers(pc.binary_length(part)) for part in self._samples])  # pyright: ignore[reportAttributeAccessIssue]
        config = json.dumps(_mosaic_config(self._schema), sort_keys=True).encode()
        offsets = np.zeros(len(sizes) + 1, np.uint32)
        np.cumsum(sizes, out=offsets[1:])
        # Offsets count from the start of the file: after the number of samples, themselves, and the config.
        offsets += np.uint32(4 + offsets.nbytes + len(config))
        with self._path.open("wb") as file:
            file.write(np.uint32(len(sizes)).tobytes() + offsets.tobytes() + config)
            for part in self._samples:
                bounds, data = np.frombuffer(part.buffers()[1], np.int64), part.buffers()[2]
                file.write(memoryview(data)[bounds[part.offset] : bounds[part.offset + len(part)]])


def _bytes_of(offsets: np.ndarray, values: np.ndarray) -> pa.Array:
    """Return the bytes of the values of each row."""
    bounds = pa.py_buffer(np.ascontiguousarray(offsets * values.itemsize, np.int64))
    return pa.Array.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, bounds, pa.py_buffer(np.ascontiguousarray(values))]
    )


def _fixed(numbers: np.ndarray, before: bytes = b"") -> pa.Array:
    """Return each number as its bytes, after those that all have."""
    size = len(before)
    content = np.empty((len(numbers), size + numbers.itemsize), np.uint8)
    content[:, :size] = np.frombuffer(before, np.uint8)
    content[:, size:] = numbers.reshape(-1, 1).view(np.uint8)
    return _bytes_of(np.arange(len(numbers) + 1) * content.shape[1], content.reshape(-1))
