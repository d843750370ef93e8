"""The chunks of a dataset's source: files of records cut by their bytes before parsing, tables by their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.raw.cut import cut_blocks
from tokenloom.assets.raw.filters import Filter
from tokenloom.assets.raw.formats.parsed import Parsed
from tokenloom.assets.raw.formats.record_file import RecordFile, open_records
from tokenloom.assets.raw.formats.tables import TableBlock, dataset_tables, parse_table, read_tables
from tokenloom.assets.raw.known_prefix import KnownText, Rest, known_prefix
from tokenloom.assets.stage.definition import ChunkOutput, ChunkSize, InputChunk
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, SourceError
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.engines.prefetch import prefetch
from tokenloom.resources.sources.hub import HubDataset, open_hub_dataset
from tokenloom.resources.sources.resolve import DiskDataset, locate, open_disk_dataset
from tokenloom.resources.sources.source_file import SourceFile
from tokenloom.resources.sources.tfds import TfdsDataset, open_tfds
from tokenloom.resources.store.known_files import KnownChunk, KnownFiles, file_stamp
from tokenloom.resources.store.objects import encode_table
from tokenloom.resources.tables.ragged import Ints
from tokenloom.resources.tables.row_hash import Hashes, hash_rows

TRAIN, VALIDATION = "train", "validation"

FILTER_LACKS = "chunks without filtered column "
"""Counter of the chunks that lack a column or field which a filter reads; its path follows."""


@dataclass
class SourceNotes:
    """What opening the source showed, for people to read: the hub's commit, and by file what was found out about it."""

    commit: str | None = None
    files: dict[str, dict[str, str]] = field(default_factory=dict)


FileReader = Callable[[Sequence[KnownChunk]], Iterator[InputChunk]]
"""Reads a file's chunks, given those that it is known to have begun with."""


@dataclass(frozen=True)
class Known:
    """Spares reading files that have not been touched and whose chunks are all there, and parsing the begin of others.

    Args:
        files: what is known of files.
        holds: whether what becomes of a chunk, named by its digest, is there.
    """

    files: KnownFiles
    holds: Callable[[str], bool]

    def chunks(self, file: SourceFile, read: FileReader, notes: SourceNotes) -> Iterator[InputChunk]:
        """The chunks of a file, which is read where they are not all known."""
        entry = self.files.find(file.path)
        there = list(takewhile(lambda chunk: self.holds(chunk.digest), entry.chunks)) if entry else []
        if entry and entry.untouched and len(there) == len(entry.chunks):
            if entry.found:
                notes.files[file.name] = entry.found
            yield from (_known_chunk(chunk, file, read) for chunk in there)
            return
        seen: list[KnownChunk] = []
        before = file_stamp(file.path)
        for chunk in read(there):
            seen.append(KnownChunk(chunk.digest, chunk.split, chunk.offset, chunk.unit, chunk.size))
            yield chunk
        self.files.note(file.path, before, seen, notes.files.get(file.name, {}))


def _known_chunk(chunk: KnownChunk, file: SourceFile, read: FileReader) -> InputChunk:
    load = partial(_reread, read, chunk.digest, file.name)
    return InputChunk(chunk.digest, chunk.split, file.name, load, chunk.offset, chunk.unit, size=chunk.size)


def _reread(read: FileReader, digest: str, name: str) -> ChunkOutput:
    """What becomes of one chunk of a file."""
    for chunk in read([]):
        if chunk.digest == digest:
            return chunk.load()
    raise SourceError(f"{name} changed while it was read; build again")


def source_chunks(
    config: PipelineConfig,
    size: ChunkSize | None = None,
    limit: int | None = None,
    notes: SourceNotes | None = None,
    heads: bool = False,
    known: Known | None = None,
) -> Iterator[InputChunk]:
    """The chunks of a dataset's source; loading one parses it and returns its `ChunkOutput`.

    Args:
        limit: only the first rows of each split, so many.
        notes: filled while the source is read.
        heads: only the first chunk of each split of each file.
        known: files that need not be read.
    """
    size, notes = size or ChunkSize(), notes or SourceNotes()
    _compiled_filters(config)
    taken: dict[str, int] = {}
    for split, chunks in _sources(config, size, notes, known if limit is None and not heads else None):
        parts = _parts_of(config, split)
        seen: set[str] = set()
        for chunk in chunks:
            if heads and chunk.split in seen:
                continue
            seen.add(chunk.split)
            if limit is not None:
                room = limit - taken.get(chunk.split, 0)
                if room > 0:
                    first = _first_rows(chunk, room)
                    taken[chunk.split] = taken.get(chunk.split, 0) + first.load().rows_in
                    yield first
                if all(taken.get(part, 0) >= limit for part in parts):
                    break
            else:
                yield chunk
            if heads and seen >= set(parts):
                break


def _parts_of(config: PipelineConfig, split: str) -> tuple[str, ...]:
    """The splits that a source's split becomes."""
    return (TRAIN, VALIDATION) if split == TRAIN and config.dataset.val_split else (split,)


def _sources(
    config: PipelineConfig, size: ChunkSize, notes: SourceNotes, known: Known | None
) -> Iterator[tuple[str, Iterator[InputChunk]]]:
    """Each file, or split of a dataset, with its chunks."""
    found, wanted = locate(config), config.dataset.splits
    if isinstance(found, list):
        if wanted and TRAIN not in wanted:
            raise config.fault("dataset.splits", f"dataset.splits: files hold only {TRAIN}, not {', '.join(wanted)}")
        for file in found:
            read = partial(_file_chunks, config, file, size, notes)
            yield TRAIN, known.chunks(file, read, notes) if known else read([])
        return
    splits = _splits(config, found, notes)
    if missing := [split for split in wanted or () if split not in splits]:
        raise config.fault("dataset.splits", f"dataset.splits: no {', '.join(missing)}; there are {', '.join(splits)}")
    for split in wanted or splits:
        yield split, _table_chunks(config, splits[split], size, split, source=split)


def _splits(
    config: PipelineConfig, found: HubDataset | DiskDataset | TfdsDataset, notes: SourceNotes
) -> dict[str, Iterator[pa.Table]]:
    """The tables of each split of a dataset."""
    if isinstance(found, TfdsDataset):
        return open_tfds(config, found)
    if isinstance(found, HubDataset):
        opened = open_hub_dataset(config, found)
        loaded, notes.commit = opened.splits, opened.commit
    else:
        loaded = open_disk_dataset(found)
    return {split: dataset_tables(rows) for split, rows in loaded.items()}


def _file_chunks(
    config: PipelineConfig, file: SourceFile, size: ChunkSize, notes: SourceNotes, known: Sequence[KnownChunk]
) -> Iterator[InputChunk]:
    if file.format in ("parquet", "arrow"):
        return _table_chunks(config, read_tables(file), size, TRAIN, file.name)
    return _record_chunks(config, file, size, notes, known)


def _record_chunks(
    config: PipelineConfig, file: SourceFile, size: ChunkSize, notes: SourceNotes, known: Sequence[KnownChunk]
) -> Iterator[InputChunk]:
    records = open_records(config.dataset, file)
    place, rest = records.first_line, Rest(records.text)
    if records.restarts and known:
        read, parts = partial(_file_chunks, config, file, size, notes), len(_parts_of(config, TRAIN))
        cut = [known[at : at + parts] for at in range(0, len(known), parts)]
        texts = [KnownText(of[0].digest, of[0].size, [_known_chunk(one, file, read) for one in of]) for of in cut]
        first = partial(_first_digest, config, records)
        rest = yield from known_prefix(records.text, texts, first, lambda: records.finder(0), size)
        if rest.known:
            place = known[rest.known * parts].offset
    behind = rest.size
    for block in cut_blocks(prefetch(records.blocks(rest.text, place), attrgetter("hashes")), size, rest.before):
        digest = _chunk_digest(records, digest_bytes(block.data.data))
        lines = records.line_ends(block.data) if records.line_ends else None

        def parsed(
            data: Any = block.data, bounds: Ints = block.bounds, behind: int = behind, lines: Any = lines
        ) -> Parsed:
            places = np.searchsorted(lines, bounds[:-1], side="right") if lines is not None else None
            return records.parse(data, bounds, behind).positioned(places, file.name)

        where = _place(records, place)
        chunk = InputChunk(digest, TRAIN, file.name, lambda: None, *where, size=len(block.data))
        yield from _parts(config, chunk, parsed, None if records.facts.get("inner") else block.hashes)
        place += len(lines) if lines is not None else len(block.bounds) - 1
        behind += len(block.data)
        if records.found:
            notes.files[file.name] = records.found


def _chunk_digest(records: RecordFile, content: str) -> str:
    """A chunk's digest, from that of its bytes."""
    return digest_json([content, records.facts])


def _first_digest(config: PipelineConfig, records: RecordFile, content: str) -> str:
    """The digest of the first chunk made of some bytes, from theirs."""
    digest, (first, *others) = _chunk_digest(records, content), _parts_of(config, TRAIN)
    return _part_digest(digest, first) if others else digest


def _part_digest(digest: str, part: str) -> str:
    return digest_json([digest, part])


def _place(records: RecordFile, place: int) -> tuple[int, str]:
    """Where a chunk begins: its line, or its row; unknown where records hold several rows."""
    return (-1, "row") if records.facts.get("inner") else (place, "line" if records.line_ends else "row")


def _table_chunks(
    config: PipelineConfig, tables: Iterator[pa.Table], size: ChunkSize, split: str, source: str
) -> Iterator[InputChunk]:
    row = 0
    for block in cut_blocks(map(TableBlock, tables), size):
        digest = digest_bytes(memoryview(encode_table(block.table, compressed=False)))
        chunk = InputChunk(digest, split, source, lambda: None, row, "row")

        def parsed(table: pa.Table = block.table) -> Parsed:
            return parse_table(table, source).positioned(None, source)

        yield from _parts(config, chunk, parsed, block.hashes)
        row += block.table.num_rows


def _parts(
    config: PipelineConfig, chunk: InputChunk, parsed: Callable[[], Parsed], hashes: Hashes | None
) -> Iterator[InputChunk]:
    """The chunk, or with `val_split` two of the same bytes: the rows that stay and those that validate.

    Args:
        hashes: uint64 [records] of the chunk's records; None where a record may hold several rows: then of the rows.
    """
    share = config.dataset.val_split if chunk.split == TRAIN else 0.0
    if not share:
        yield chunk.loading(lambda: _output(parsed(), config))
        return
    threshold = np.uint64(share * 2.0**64)
    for part in (TRAIN, VALIDATION):

        def load(part: str = part) -> ChunkOutput:
            rows = parsed()
            found = hash_rows(rows.table.drop_columns([ROW]))[0] if hashes is None else hashes[rows.records]
            members = (found < threshold) == (part == VALIDATION)
            return _output(rows.select(members, keep_losses=part == TRAIN), config)

        yield chunk.loading(load, _part_digest(chunk.digest, part), part)


def _output(parsed: Parsed, config: PipelineConfig) -> ChunkOutput:
    """The rows that the YAML's filters keep, with the columns that it names."""
    table, columns = parsed.table, config.dataset.columns
    rows_in = table.num_rows + parsed.rejects.num_rows + parsed.filtered
    filtered, counters = parsed.filtered, {}
    for condition in _compiled_filters(config):
        counters |= {f"{FILTER_LACKS}{path}": 1 for path in condition.lacking(table.schema)}
        with _line_of_filters(config):
            keep = condition.keep(table)
        filtered += int((~keep).sum())
        table = table.filter(pa.array(keep))
    if columns:
        table = table.select([name for name in columns if name in table.column_names] + [ROW])
    return ChunkOutput(table.combine_chunks(), rows_in, parsed.rejects, filtered, counters=counters)


def _compiled_filters(config: PipelineConfig) -> list[Filter]:
    with _line_of_filters(config):
        return [Filter.parse(text) for text in config.dataset.filters]


@contextmanager
def _line_of_filters(config: PipelineConfig) -> Iterator[None]:
    """Names the YAML's line in what a condition complains of."""
    try:
        yield
    except ConfigError as error:
        raise config.fault("dataset.filters", error.faults[0].message) from error


def _first_rows(chunk: InputChunk, rows: int) -> InputChunk:
    """The first rows of a chunk; what was lost behind the last one kept is left out with it."""
    output = chunk.load()
    if output.rows_in > rows:
        table = output.table.slice(0, rows)
        last = table[ROW][-1].as_py() if table.num_rows else -1
        rejects = output.rejects.filter(pc.less(output.rejects[ROW], last))
        output = ChunkOutput(table.combine_chunks(), table.num_rows + rejects.num_rows, rejects)
    return chunk.loading(lambda: output, digest_json([chunk.digest, "first", rows]))
