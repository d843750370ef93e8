"""The files of an export, in the layouts of `datasets.load_from_disk` and of Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from tokenloom.resources.digest import digest_json

SHARD_BYTES = 500_000_000
"""Bytes of Arrow data after which a shard is closed, as in `datasets`."""

GROUP_BYTES = 32 << 20
"""Bytes of Arrow data in a Parquet row group or a batch of an Arrow stream."""


@dataclass(frozen=True)
class ExportedSplit:
    """The split that files are written from.

    Args:
        dataset: its name.
        version: hex digest of the content of all splits.
        split: its name.
        digest: hex digest of the split's content.
    """

    dataset: str
    version: str
    split: str
    digest: str


class FileLayout(Protocol):
    """A format to export to."""

    def shard_name(self, split: str, number: int, count: int) -> str:
        """Return the name of shard `number` of `count` in a split's folder."""
        ...

    def open(self, path: Path, schema: pa.Schema, source: ExportedSplit) -> Any:
        """Return a writer of a shard, with `write_table` and `close`."""
        ...

    def finish_split(self, folder: Path, schema: pa.Schema, source: ExportedSplit, shards: list[str]) -> None:
        """Write the files that describe a split's shards."""
        ...

    def finish(self, folder: Path, splits: list[str]) -> None:
        """Write the files that describe the splits."""
        ...


class ParquetFiles:
    """`<split>/<split>-00000-of-00002.parquet`, …"""

    def shard_name(self, split: str, number: int, count: int) -> str:
        return f"{split}-{number:05d}-of-{count:05d}.parquet"

    def open(self, path: Path, schema: pa.Schema, source: ExportedSplit) -> Any:
        from pyarrow import parquet

        origin = json.dumps({"dataset": source.dataset, "version": source.version, "split": source.split})
        return parquet.ParquetWriter(path, schema.with_metadata({"tokenloom": origin}), compression="zstd")

    def finish_split(self, folder: Path, schema: pa.Schema, source: ExportedSplit, shards: list[str]) -> None:
        """Write nothing: Parquet files describe themselves."""

    def finish(self, folder: Path, splits: list[str]) -> None:
        """Write nothing: Parquet files describe themselves."""


class SavedToDisk:
    """The layout of `datasets.DatasetDict.save_to_disk`: per split a folder of Arrow streams and two
    files that describe them."""

    def __init__(self) -> None:
        import datasets

        self._datasets = datasets

    def shard_name(self, split: str, number: int, count: int) -> str:
        return f"data-{number:05d}-of-{count:05d}.arrow"

    def open(self, path: Path, schema: pa.Schema, source: ExportedSplit) -> Any:
        return pa.ipc.new_stream(str(path), self._datasets.Features.from_arrow_schema(schema).arrow_schema)

    def finish_split(self, folder: Path, schema: pa.Schema, source: ExportedSplit, shards: list[str]) -> None:
        features = self._datasets.Features.from_arrow_schema(schema)
        described = f"{source.dataset}, version {source.version}"
        info = self._datasets.DatasetInfo(description=described, features=features, dataset_name=source.dataset)
        info.write_to_directory(str(folder))
        state = {
            "_data_files": [{"filename": name} for name in shards],
            "_fingerprint": digest_json([source.digest, str(schema)])[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": source.split,
        }
        (folder / "state.json").write_text(json.dumps(state, indent=2))

    def finish(self, folder: Path, splits: list[str]) -> None:
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": splits}))


FILE_LAYOUTS = {"hf": SavedToDisk, "parquet": ParquetFiles}


def write_split(
    layout: FileLayout, folder: Path, source: ExportedSplit, tables: Iterable[pa.Table], shard_bytes: int = SHARD_BYTES
) -> list[Path]:
    """Write the rows of a split into a new folder, as shards.

    Args:
        folder: must not exist.
        tables: rows, at least one.
        shard_bytes: Arrow bytes after which a shard is closed.

    Returns:
        The shards' paths.
    """
    folder.mkdir()
    writer, schema, size, count = None, pa.schema([]), 0, 0
    for table in _grouped(tables):
        if writer is None:
            schema, size = table.schema, 0
            writer = layout.open(folder / f"{count}.part", schema, source)
            count += 1
        writer.write_table(table)
        size += table.nbytes
        if size >= shard_bytes:
            writer.close()
            writer = None
    if writer is not None:
        writer.close()
    names = [layout.shard_name(source.split, number, count) for number in range(count)]
    for number, name in enumerate(names):
        (folder / f"{number}.part").rename(folder / name)
    layout.finish_split(folder, schema, source, names)
    return [folder / name for name in names]


def _grouped(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in tables of at least `GROUP_BYTES`, except for the last."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        if sum(each.nbytes for each in held) >= GROUP_BYTES:
            yield pa.concat_tables(held).combine_chunks()
            held = []
    if held:
        yield pa.concat_tables(held).combine_chunks()
