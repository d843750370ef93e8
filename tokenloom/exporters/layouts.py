"""What a layout of exported files is, and how a split is written: in shards, which outlive a killed process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from tokenloom.errors import ConfigError
from tokenloom.loaders.reading.batch import IGNORED
from tokenloom.resources.tables.ragged import SIDES, Flags, Ints, list_array, list_views, offsets_of, sum_rows
from tokenloom.resources.tables.sequence_schema import SEQUENCE

if TYPE_CHECKING:
    from tokenloom.loaders import MixedDataset, TokenDataset

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
        kind: what a row is.
        vocab_size: the highest token id plus one.
        tokenizer: folder of the tokenizer.
    """

    dataset: str
    version: str
    split: str
    digest: str
    kind: str = SEQUENCE
    vocab_size: int = 1 << 32
    tokenizer: Path = field(default=Path())

    @cached_property
    def eos(self) -> int | None:
        """Id of the tokenizer's EOS, or None if it has none."""
        from tokenizers import Tokenizer

        declared = json.loads((self.tokenizer / "tokenizer_config.json").read_text(encoding="utf-8")).get("eos_token")
        text = declared["content"] if isinstance(declared, dict) else declared
        return Tokenizer.from_file(str(self.tokenizer / "tokenizer.json")).token_to_id(text) if text else None


@dataclass(frozen=True)
class Shard:
    """A finished shard: the names of its files and their sizes in bytes, and counts of what they hold."""

    files: list[str]
    sizes: list[int]
    counts: dict[str, int]


class ShardWriter(Protocol):
    """Writes the files of a shard."""

    def write_table(self, table: pa.Table) -> None: ...
    def close(self) -> None: ...


class Layout:
    """A format to export to.

    Attributes:
        files: names of the files of a shard, with `{split}`, `{number}` and `{count}` of shards.
        kinds: the kinds of rows that it holds.
        images, weights, packed: whether it holds images, loss weights other than 0 and 1, and rows of several
            documents; documents of packed rows become rows of their own otherwise.
        trees: whether it says which tokens of a tree see which.
        kept: whether it has the columns of `keep_columns`.
        shard_bytes: bytes of Arrow data after which a shard is closed.
        guide: Markdown that says how the other tool is pointed at the folder, with `{split}` for the first split.
    """

    files: tuple[str, ...] = ()
    kinds: tuple[str, ...] = (SEQUENCE,)
    images = weights = packed = kept = trees = False
    shard_bytes = SHARD_BYTES
    guide = ""

    def columns(self, table: pa.Table, source: ExportedSplit) -> pa.Table:
        """Return rows as the writer takes them, given those of `row_tables`.

        Raises:
            ConfigError: the layout cannot hold a row.
        """
        return table

    def open(self, paths: Sequence[Path], schema: pa.Schema, source: ExportedSplit) -> ShardWriter:
        """Return a writer of a shard's files."""
        raise NotImplementedError

    def finish_split(self, folder: Path, schema: pa.Schema, source: ExportedSplit, shards: Sequence[Shard]) -> None:
        """Write the files that describe a split's shards."""

    def finish(self, folder: Path, splits: list[str]) -> None:
        """Write the files that describe the splits."""

    def notices(self, counts: dict[str, int]) -> Iterator[str]:
        """Yield what to know about the rows of a split, given the sums of the counts of its shards."""
        return iter(())


class FinishedShards:
    """The finished shards of an export, by split, in a file that survives a kill.

    Args:
        path: the file; None: keep nothing.
        content: identifies what is written; shards of anything else are forgotten.
    """

    def __init__(self, path: Path | None = None, content: str = ""):
        self._path, self._content = path, content
        self._shards: dict[str, list[Shard]] = {}
        try:
            known = json.loads(path.read_bytes()) if path is not None else {}
            if known.get("content") == content:
                self._shards = {split: [Shard(**each) for each in shards] for split, shards in known["shards"].items()}
        except (OSError, ValueError, TypeError, KeyError):
            pass

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._shards)

    def of(self, split: str, folder: Path) -> list[Shard]:
        """Return the first shards of a split, as far as their files exist, under either name, and have their size."""
        found = list[Shard]()
        for shard in self._shards.get(split, []):
            paths = [_existing(folder, len(found), index, name) for index, name in enumerate(shard.files)]
            # A shard starts where the one before it ended, so those after a missing one are written again.
            if [path.stat().st_size if path.is_file() else -1 for path in paths] != shard.sizes:
                break
            found.append(shard)
        return found

    def record(self, split: str, shards: Sequence[Shard]) -> None:
        """Remember the shards of a split, whose files are on disk."""
        self._shards[split] = list(shards)
        if self._path is None:
            return
        every = {split: [asdict(each) for each in shards] for split, shards in self._shards.items()}
        # On disk before it gets its name: a kill leaves the list before or the list after.
        with (temporary := self._path.with_suffix(".new")).open("w") as file:
            json.dump({"content": self._content, "shards": every}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)


def _unfinished(folder: Path, number: int, index: int) -> Path:
    return folder / f"{number}.{index}.part"


def _existing(folder: Path, number: int, index: int, name: str) -> Path:
    """Return the path of a shard's file: a kill can leave some with their last name and others without."""
    path = _unfinished(folder, number, index)
    return path if path.exists() else folder / name


def write_split(
    layout: Layout,
    folder: Path,
    source: ExportedSplit,
    tables: Callable[[int], Iterable[pa.Table]],
    shard_bytes: int | None = None,
    finished: FinishedShards | None = None,
) -> list[Shard]:
    """Write the rows of a split into a folder, as shards.

    Args:
        tables: returns the rows from a row on; there is at least one.
        shard_bytes: Arrow bytes after which a shard is closed; default: the layout's.
        finished: shards that are kept, and where new ones are recorded.

    Returns:
        The shards, with the last names of their files.
    """
    folder.mkdir(exist_ok=True)
    finished, limit = FinishedShards() if finished is None else finished, shard_bytes or layout.shard_bytes
    shards = finished.of(source.split, folder)
    writer, schema, size, counts, paths = None, pa.schema([]), 0, dict[str, int](), list[Path]()

    def close() -> None:
        assert writer is not None
        writer.close()
        for path in paths:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sizes = [path.stat().st_size for path in paths]
        shards.append(Shard(_names(layout, source.split, len(shards), 0), sizes, counts))
        finished.record(source.split, shards)

    begin = sum(shard.counts["rows"] for shard in shards)
    for table in _grouped(tables(begin)):
        written = layout.columns(table, source)
        if writer is None:
            schema, size, counts = written.schema, 0, {}
            paths = [_unfinished(folder, len(shards), index) for index in range(len(layout.files))]
            writer = layout.open(paths, schema, source)
        writer.write_table(written)
        size += table.nbytes
        for name, count in {"rows": table.num_rows, **_counts(table), **getattr(writer, "counts", {})}.items():
            counts[name] = counts.get(name, 0) + count
        if size >= limit:
            close()
            writer = None
    if writer is not None:
        close()
    # The number of shards is part of their names: until it is known, files are called by their places.
    names = [_names(layout, source.split, number, len(shards)) for number in range(len(shards))]
    named = [replace(shard, files=files) for shard, files in zip(shards, names, strict=True)]
    finished.record(source.split, named)
    for number, shard in enumerate(named):
        for index, name in enumerate(shard.files):
            if (path := _unfinished(folder, number, index)).exists():
                path.rename(folder / name)
    # Nothing was left to write, so that no table has shown the schema.
    if not len(schema):
        schema = layout.columns(next(iter(tables(0))), source).schema
    layout.finish_split(folder, schema, source, named)
    return named


def _names(layout: Layout, split: str, number: int, count: int) -> list[str]:
    return [name.format(split=split, number=number, count=count) for name in layout.files]


def _counts(table: pa.Table) -> dict[str, int]:
    """Return the numbers of tokens, trained tokens and documents of rows."""
    sides = [f"{side}_" for side in SIDES] if f"{SIDES[0]}_input_ids" in table.column_names else [""]
    tokens = sum(len(list_views(table[f"{side}input_ids"])[1]) for side in sides)
    names = [f"{side}labels" for side in sides if f"{side}labels" in table.column_names]
    trained = sum(int(np.count_nonzero(list_views(table[name])[1] != IGNORED)) for name in names)
    packed = "seq_lengths" in table.column_names
    documents = len(list_views(table["seq_lengths"])[1]) if packed else table.num_rows * len(sides)
    return {"documents": documents, "tokens": tokens, "trained": trained}


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


def kind_of(dataset: TokenDataset | MixedDataset) -> str:
    """Return what a row of a dataset or mixture is."""
    from tokenloom.loaders import TokenDataset

    return (dataset if isinstance(dataset, TokenDataset) else next(iter(dataset.datasets.values()))).kind


def check_layout(name: str, layout: Layout, dataset: TokenDataset | MixedDataset, shown: str) -> Iterator[str]:
    """Check that a layout holds the rows of a dataset, and yield what it does not write.

    Raises:
        ConfigError: it does not hold them.
    """
    whole = f"export {shown} with --to hf or --to parquet"
    if (kind := kind_of(dataset)) not in layout.kinds:
        raise ConfigError.at("--to", f"{name} cannot hold rows of kind {kind!r}; {whole}")
    if dataset.images is not None and not layout.images:
        raise ConfigError.at("--to", f"{name} cannot hold images, which rows of {shown} can have; {whole}")
    if dataset.trees and not layout.trees:
        text = f"{name} cannot hold the trees of {shown}; set length.packing: best_fit, or {whole}"
        raise ConfigError.at("--to", text)
    if dataset.reader.kept and not layout.kept:
        yield f"columns that {name} cannot hold, not written: {', '.join(dataset.reader.kept.names)}"


def refuse_weights(name: str, table: pa.Table) -> None:
    """Check that loss weights are 0 or 1.

    Raises:
        ConfigError: they are not.
    """
    for column in table.column_names:
        if column.endswith("loss_weights"):
            weights = list_views(table[column])[1]
            if len(other := weights[(weights != 0) & (weights != 1)]):
                remedy = "use --to hf or mds, or weights of 0 and 1 in prompt_template.train_on"
                text = f"{name} cannot hold loss weights other than 0 and 1, such as {other[0]:g}; {remedy}"
                raise ConfigError.at("--to", text)


@dataclass(frozen=True)
class FlatDocuments:
    """Documents, flat.

    Args:
        ids: int32 [tokens].
        trained: bool [tokens]. The first token of a document of a packed row is not.
        offsets: int64 [documents + 1].
        rows: the row of each document, int64 [documents].
    """

    ids: np.ndarray
    trained: Flags
    offsets: Ints
    rows: Ints

    @classmethod
    def of(cls, table: pa.Table, side: str = "") -> FlatDocuments:
        """Return the documents of rows as `row_tables` returns them."""
        offsets, ids = list_views(table[f"{side}input_ids"])
        labels = list_views(table[f"{side}labels"])[1] if f"{side}labels" in table.column_names else None
        trained = np.zeros(len(ids), bool) if labels is None else labels != IGNORED
        rows, bounds = np.arange(table.num_rows), offsets.astype(np.int64)
        if f"{side}seq_lengths" in table.column_names:
            counts, lengths = list_views(table[f"{side}seq_lengths"])
            rows, bounds = np.repeat(rows, np.diff(counts)), offsets_of(lengths)
        return cls(ids, trained, bounds, rows)

    @property
    def labels(self) -> np.ndarray:
        """int32 [tokens], -100 where not trained."""
        return np.where(self.trained, self.ids, np.int32(IGNORED))

    @property
    def has_trained(self) -> Flags:
        """bool [documents]."""
        return sum_rows(self.trained, self.offsets) > 0

    def lists(self, values: np.ndarray) -> pa.ListArray:
        """Return values of the tokens as one list per document."""
        return list_array(self.offsets, values)
