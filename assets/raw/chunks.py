"""The chunks of a dataset's source. Files of records are cut by their bytes before parsing, tables by their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.raw.cut import cut_blocks
from tokenloom.assets.raw.file_groups import FileGroup, GroupedFile, consecutive_files
from tokenloom.assets.raw.filters import Filter
from tokenloom.assets.raw.formats.parsed_chunk import ParsedChunk
from tokenloom.assets.raw.formats.record_boundaries import RecordBlock, Skipped
from tokenloom.assets.raw.formats.record_file import RecordFile, hashed, line_blocks, open_records, text_start
from tokenloom.assets.raw.formats.tables import TableBlock, dataset_tables, parse_table, table_blocks
from tokenloom.assets.raw.images import image_columns, take_images
from tokenloom.assets.raw.sample import Room, sampled
from tokenloom.assets.raw.unchanged import KnownStretch, Rest, UnchangedFiles, known_chunk, unchanged_prefix
from tokenloom.assets.stage.definition import ChunkOutput, ChunkSize, InputChunk
from tokenloom.assets.stage.rejects import ROW, count_rejected
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, SourceError, did_you_mean
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.engines.engine import ComputeEngine, prefetch
from tokenloom.resources.sources.hub import HubDataset, TfdsDataset, open_hub_dataset, open_tfds
from tokenloom.resources.sources.large_file import LargeFile
from tokenloom.resources.sources.resolve import DiskDataset, locate, open_disk_dataset
from tokenloom.resources.sources.source_file import TABLES, TOKEN_FILES, SourceFile, SourceFiles
from tokenloom.resources.store import Run
from tokenloom.resources.store.known_files import KnownChunk
from tokenloom.resources.store.objects import IMAGES, digest_table, media_of
from tokenloom.resources.tables.hashes import Hashes, hash_rows
from tokenloom.resources.tables.ragged import Ints, compact

TRAIN, VALIDATION = "train", "validation"

ONE_READER = ComputeEngine(1)

FILTER_LACKS = "chunks without filtered column "
"""Start of the counters of chunks without a column or field that a filter reads; the path follows."""


@dataclass
class SourceNotes:
    """Properties of the source that were found while reading it, for display.

    Args:
        commit: the hub dataset's commit.
        files: by file name, the properties that were detected, such as its encoding.
        notices: sentences about which files are which split, and which are not read.
    """

    commit: str | None = None
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    def found_in(self, name: str, found: dict[str, str]) -> None:
        """Note how a file of token ids is read."""
        self.files[name] = found
        notice = f"token ids are read as {found['dtype']}, documents {found['documents']}"
        if notice not in self.notices:
            self.notices = (*self.notices, notice)

    def shown(self) -> dict[str, Any]:
        """Return them for a manifest."""
        return {name: value for name, value in asdict(self).items() if value or name != "notices"}


@dataclass(frozen=True)
class _Reading:
    """How files are read: with which settings, into chunks of which sizes, and how many more rows of the split."""

    config: PipelineConfig
    size: ChunkSize
    notes: SourceNotes
    room: Room


ILLUSTRATED_BYTES = 128 << 10
"""Average size of chunks of text whose rows name images, so that an edit of one reads few others again."""


def source_bytes(config: PipelineConfig) -> int | None:
    """Return the bytes of a source's files, which the sizes of its chunks add up to; None if they are not known: remote
    or compressed files, tables, and sources that are read in part."""
    source = locate(config)
    named = config.dataset.splits
    files = source.files if isinstance(source, SourceFiles) and config.dataset.max_rows is None else []
    # no file at all counts as a file of unknown size
    sizes = [file.local_size for file in files if named is None or file.split in named] or [None]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def source_chunks(
    config: PipelineConfig,
    size: ChunkSize | None = None,
    limit: int | None = None,
    notes: SourceNotes | None = None,
    heads: bool = False,
    unchanged: UnchangedFiles | None = None,
    engine: ComputeEngine = ONE_READER,
) -> Iterator[InputChunk]:
    """Yield the chunks of a dataset's source. Loading a chunk parses it and returns its `ChunkOutput`.

    Args:
        size: default: `ChunkSize()`.
        limit: the number of rows to read from the start of each split; default: all.
        notes: filled while the source is read.
        heads: whether to read only the first chunk of each split of each file.
        unchanged: skips files that have not changed; ignored with `limit` or `heads`.
        engine: its workers read large files together; they find the chunks that one reader finds.

    Raises:
        ConfigError: a filter is not valid, or a split does not exist.
        SourceError: a file cannot be read.
    """
    size, notes = size or ChunkSize(), notes or SourceNotes()
    _compiled_filters(config)
    taken = Counter[str]()
    # a part of a file is read: nothing may be recorded of it as a whole, and workers would read too much
    if limit is not None or heads:
        unchanged, engine = None, ONE_READER
    for split, chunks in _sources(config, size, notes, unchanged, heads, engine):
        parts = _target_splits(config, split)
        seen: set[str] = set()
        for chunk in chunks:
            if heads and chunk.split in seen:
                continue
            seen.add(chunk.split)
            if limit is not None:
                room = limit - taken[chunk.split]
                if room > 0:
                    first = _first_rows(chunk, room)
                    taken[chunk.split] += first.load().rows_in
                    yield first
                if all(taken[part] >= limit for part in parts):
                    break
            else:
                yield chunk
            if heads and seen >= set(parts):
                break


def _target_splits(config: PipelineConfig, split: str) -> tuple[str, ...]:
    return (TRAIN, VALIDATION) if split == TRAIN and config.dataset.val_split else (split,)


def _sources(
    config: PipelineConfig,
    size: ChunkSize,
    notes: SourceNotes,
    unchanged: UnchangedFiles | None,
    alone: bool,
    engine: ComputeEngine,
) -> Iterator[tuple[str, Iterator[InputChunk]]]:
    """Yield the split and the chunks of each file, of small files together unless `alone`, or of a dataset's split."""
    source = locate(config)
    if config.dataset.max_rows is not None:
        unchanged = None  # what is recorded of a file is that all of it was read
    if isinstance(source, SourceFiles):
        of_records = size if config.media is None else replace(size, target=min(size.target, ILLUSTRATED_BYTES))
        notes.notices = source.notices
        for split in _chosen_splits(config, source.splits):
            room = Room(config.dataset.max_rows)
            for files in consecutive_files((file for file in source.files if file.split == split), of_records):
                if room.left == 0:
                    break
                if len(files) > 1 and not alone:
                    yield split, _small_files_chunks(_Reading(config, of_records, notes, room), files, unchanged)
                    continue
                for file in files:
                    reading = _Reading(config, size if file.format in TABLES else of_records, notes, room)
                    # runs where a cached chunk is loaded after all, maybe in another task: so without the engine
                    again = partial(_file_chunks, reading, file)
                    read = partial(again, engine=engine)
                    skips = unchanged and file.format not in TOKEN_FILES  # which depend on files beside them too
                    yield split, unchanged.chunks(file, read, again, notes.files) if unchanged and skips else read([])
        return
    splits = _splits(config, source, notes)
    for split in _chosen_splits(config, [*splits]):
        reading = _Reading(config, size, notes, Room(config.dataset.max_rows))
        yield split, _table_chunks(reading, map(TableBlock, splits[split]), split, split)


def _chosen_splits(config: PipelineConfig, splits: Sequence[str]) -> Sequence[str]:
    """Return the splits that `dataset.splits` chooses of some; raise ConfigError if it, or `val_split`, does not fit
    them."""
    chosen = config.dataset.splits or splits
    if config.dataset.val_split and TRAIN in chosen and VALIDATION not in splits:
        chosen = [split for split in chosen if split != VALIDATION]  # val_split makes it
    if missing := [split for split in chosen if split not in splits]:
        listed = ", ".join(splits)
        hint = did_you_mean(missing[0], splits)
        raise config.fault("dataset.splits", f"no split {', '.join(missing)}; the dataset has {listed}{hint}")
    if config.dataset.val_split:
        if TRAIN not in chosen:
            message = f"has no effect: it moves rows of {TRAIN}, but the splits are {', '.join(chosen)}; omit it"
            raise config.fault("dataset.val_split", message)
        if VALIDATION in chosen:
            remedy = f"omit it, or leave {VALIDATION} out of dataset.splits"
            raise config.fault("dataset.val_split", f"the dataset has a split {VALIDATION} of its own; {remedy}")
    return chosen


def _splits(
    config: PipelineConfig, source: HubDataset | DiskDataset | TfdsDataset, notes: SourceNotes
) -> dict[str, Iterator[pa.Table]]:
    if isinstance(source, TfdsDataset):
        return open_tfds(config, source)
    if isinstance(source, HubDataset):
        opened = open_hub_dataset(config, source)
        loaded, notes.commit = opened.splits, opened.commit
    else:
        loaded = open_disk_dataset(source)
    return {split: dataset_tables(rows) for split, rows in loaded.items()}


def _file_chunks(
    reading: _Reading, file: SourceFile, known: Sequence[KnownChunk], engine: ComputeEngine = ONE_READER
) -> Iterator[InputChunk]:
    if file.format in TABLES:
        if file.format in TOKEN_FILES:
            from tokenloom.assets.raw.formats.tokens import token_tables

            blocks = map(TableBlock, token_tables(reading.config, file, partial(reading.notes.found_in, file.name)))
        else:
            blocks = table_blocks(file, engine)
        yield from _table_chunks(reading, blocks, file.split, file.name)
        return
    with closing(LargeFile(file, engine)) as source:
        yield from _record_chunks(reading, source, known)


def _small_files_chunks(
    reading: _Reading, files: Sequence[SourceFile], unchanged: UnchangedFiles | None
) -> Iterator[InputChunk]:
    start = 0
    while start < len(files) and reading.room.left != 0:
        group = partial(FileGroup, reading.config.dataset, files, start, reading.size)
        read = partial(_group_chunks, reading)
        if unchanged:
            start = yield from unchanged.group_chunks(files, start, group, read, reading.notes.files)
        else:
            opened = group()
            yield from read(opened)
            start = opened.end


def _group_chunks(reading: _Reading, group: FileGroup) -> Iterator[InputChunk]:
    config = reading.config
    records = group.records
    if records is None:
        return
    if group.alone:
        yield from _record_chunks(reading, LargeFile(group.members[0].file, ONE_READER), [])
        return
    first = line = 0
    for block in reading.room.take(cut_blocks(_read_ahead(group.blocks()), reading.size)):
        positions, count = records.positions(block)
        if positions is None:
            raise AssertionError("records of small files start on their own lines")
        within, runs = group.runs(first, line, positions)
        members = group.members[within]
        # equal bytes can hold other records where a file's end, not a line break, ends a record
        bounds = [] if records.bounds_follow else [digest_bytes(block.bounds.tobytes())]
        digest = _chunk_digest(records, digest_bytes(block.data.data), block.skipped, *bounds)

        def parse(
            block: RecordBlock = block,
            positions: Ints = positions,
            first: int = first,
            members: Sequence[GroupedFile] = members,
        ) -> ParsedChunk:
            try:
                return records.parse_block(block, 0).positioned(positions, members[0].file.name)
            except SourceError:
                if any(member.file.local_size is None for member in members):  # on another machine, without the files
                    raise
                # refused as a whole: parsed file by file, so that the message names the one that is wrong
                ends = [*(member.start - first for member in members[1:]), len(positions)]
                for member, end in zip(members, ends, strict=True):
                    part = block.slice(max(member.start - first, 0), end)
                    open_records(config.dataset, member.file).parse_block(part, 0).positioned(None, member.file.name)
                raise

        chunk = InputChunk(digest, members[0].file.split, runs, lambda: None, records.unit, size=len(block.data))
        yield from _split_parts(config, chunk, parse, block.hashes)
        first += len(positions)
        line += count
        reading.notes.files |= {member.file.name: member.found for member in members if member.found}


def _record_chunks(reading: _Reading, source: LargeFile, known: Sequence[KnownChunk]) -> Iterator[InputChunk]:
    config, size, room = reading.config, reading.size, reading.room
    file, name = source.file, source.file.name  # tasks that parse know no path: it can hold credentials
    records = open_records(config.dataset, file, source.blocks())
    lines_at, text = text_start(records, source, config.dataset.encoding)
    inner = bool(records.facts.get("inner"))
    position, rest = records.first_line, Rest(text)
    if records.restarts and known:
        read = partial(_file_chunks, reading, file)
        parts = len(_target_splits(config, file.split))
        # a validation split makes two chunks from the same bytes; they are consecutive
        groups = [known[at : at + parts] for at in range(0, len(known), parts)]
        stretches = [
            KnownStretch(group[0].digest, group[0].size, [known_chunk(chunk, file, read) for chunk in group])
            for group in groups
        ]
        digest_of = partial(_first_digest, config, file.split, records)
        rest = yield from unchanged_prefix(text, stretches, digest_of, lambda: records.finder(0), size)
        if rest.known:
            position = known[rest.known * parts].offset
    start = rest.size
    # one reader finds records whose ends depend on what comes before: quotes, brackets, a detected encoding
    by_one = lines_at is None
    uncut = records.blocks(rest.text, position) if by_one else line_blocks(source, records, lines_at + start)
    blocks = cut_blocks(_read_ahead(uncut, source.threads if by_one else ONE_READER), size, rest.before)
    for block in blocks if inner else room.take(blocks):
        digest = _chunk_digest(records, digest_bytes(block.data.data), block.skipped)
        positions, count = records.positions(block)

        def parse(block: RecordBlock = block, start: int = start, positions: Ints | None = positions) -> ParsedChunk:
            return records.parse_block(block, start).positioned(positions, name)

        load: Callable[[], ParsedChunk] = parse
        if inner and room.left is not None:  # only parsing shows how many rows records hold
            if not (left := room.left):
                return
            first, whole = room.first(parse())
            load, digest = lambda first=first: first, digest if whole else digest_json([digest, "first", left])
        # a record with several rows has no line or row number of its own
        offset, unit = (-1, "row") if inner else (position, records.unit)
        runs = (Run(file.name, offset=offset),)
        chunk = InputChunk(digest, file.split, runs, lambda: None, unit, size=len(block.data))
        yield from _split_parts(config, chunk, load, None if inner else block.hashes)
        position += count
        start += len(block.data) + sum(skipped.missing for skipped in block.skipped)
        if records.found:
            reading.notes.files[file.name] = records.found


def _read_ahead(blocks: Iterator[RecordBlock], engine: ComputeEngine = ONE_READER) -> Iterator[RecordBlock]:
    """Yield the blocks of a file, read and hashed in advance; the only block of a small file needs no thread."""
    first = list(islice(blocks, 2))
    yield from first if len(first) < 2 else prefetch(engine.map(hashed, chain(first, blocks)), attrgetter("hashes"))


def _chunk_digest(records: RecordFile, content: str, skipped: Sequence[Skipped] = (), *bounds: str) -> str:
    """Return a chunk's digest, given those of its bytes and of bounds that do not follow from them. It contains the
    size limit only if that had an effect."""
    effect = [records.limit, [astuple(record) for record in skipped]] if skipped else []
    return digest_json([content, records.facts, *effect, *bounds])


def _first_digest(config: PipelineConfig, split: str, records: RecordFile, content: str) -> str:
    """Return the digest of the first chunk made from some bytes, given the digest of the bytes."""
    digest, (first, *others) = _chunk_digest(records, content), _target_splits(config, split)
    return _part_digest(digest, first) if others else digest


def _part_digest(digest: str, part: str) -> str:
    return digest_json([digest, part])


def _table_chunks(reading: _Reading, blocks: Iterator[TableBlock], split: str, source: str) -> Iterator[InputChunk]:
    config = reading.config
    row, limit = 0, config.dataset.reader.max_record_bytes
    for block in reading.room.take(cut_blocks(blocks, reading.size)):
        digest = digest_table(block.table)
        large = np.flatnonzero(block.sizes > limit)
        # the limit is part of the digest only where it rejects rows: raising it keeps all other chunks
        if len(large):
            digest = digest_json([digest, limit])
        chunk = InputChunk(digest, split, (Run(source, offset=row),), lambda: None)

        def parse(table: pa.Table = block.table, large: Ints = large) -> ParsedChunk:
            return parse_table(table, source, large, limit).positioned(None, source)

        yield from _split_parts(config, chunk, parse, block.hashes)
        row += block.table.num_rows


def _split_parts(
    config: PipelineConfig, chunk: InputChunk, parse: Callable[[], ParsedChunk], hashes: Hashes | None
) -> Iterator[InputChunk]:
    """Yield the chunk, or with `val_split` two chunks of the same bytes; with `fraction`, that part of either. `hashes`
    are uint64 [records]; None if a record can hold several rows, which are then hashed instead."""

    def used() -> tuple[ParsedChunk, Hashes]:
        parsed, fraction = parse(), config.dataset.fraction
        by_row = hash_rows(parsed.table.drop_columns([ROW]))[0] if hashes is None else hashes[parsed.records]
        if fraction == 1:
            return parsed, by_row
        parsed, members = sampled(parsed, by_row, hashes, fraction)
        return parsed, by_row[members]

    moved = config.dataset.val_split if chunk.split == TRAIN else 0.0
    if not moved:
        whole = config.dataset.fraction == 1
        yield chunk.loading(lambda: _output(parse() if whole else used()[0], config))
        return
    # only the row's own hash decides, so a row keeps its split whatever is added or removed around it
    threshold = np.uint64(moved * 2.0**64)
    for part in (TRAIN, VALIDATION):

        def load(part: str = part) -> ChunkOutput:
            parsed, by_row = used()
            members = (by_row < threshold) == (part == VALIDATION)
            return _output(parsed.select(members, keep_losses=part == TRAIN), config)

        yield chunk.loading(load, _part_digest(chunk.digest, part), part)


def _output(parsed: ParsedChunk, config: PipelineConfig) -> ChunkOutput:
    """Apply `dataset.filters` and `dataset.columns` to a parsed chunk."""
    table, columns = parsed.table, config.dataset.columns
    rows_in = table.num_rows + count_rejected(parsed.rejects) + parsed.filtered
    filtered, counters = parsed.filtered, {**parsed.counters}
    for condition in _compiled_filters(config):
        counters |= {f"{FILTER_LACKS}{path}": 1 for path in condition.lacking(table)}
        with _line_of_filters(config):
            keep = condition.keep(table)
        filtered += int((~keep).sum())
        table = table.filter(pa.array(keep))
    if columns:
        table = table.select([name for name in columns if name in table.column_names] + [ROW])
    if "dictionary" in str(table.schema.types):  # whose values are not only those of the rows that are left
        table = compact(table)
    images: dict[str, bytes] = {}
    if config.media is not None:
        table, images = take_images(table, image_columns(config))
        counters |= {IMAGES: len(images)} if images else {}
    return ChunkOutput(table.combine_chunks(), rows_in, parsed.rejects, filtered, counters=counters, media=images)


def _compiled_filters(config: PipelineConfig) -> list[Filter]:
    with _line_of_filters(config):
        return [Filter.parse(text) for text in config.dataset.filters]


@contextmanager
def _line_of_filters(config: PipelineConfig) -> Iterator[None]:
    """Add the setting's line in the YAML to errors of a condition."""
    try:
        yield
    except ConfigError as error:
        raise config.fault("dataset.filters", error.faults[0].message) from error


def _first_rows(chunk: InputChunk, rows: int) -> InputChunk:
    """Return the first rows of a chunk, and the rejects before the last of them."""
    output = chunk.load()
    if output.rows_in > rows:
        table = output.table.slice(0, rows)
        # a reject counts only if it comes before the last row that is read
        last = table[ROW][-1].as_py() if table.num_rows else -1
        rejects = output.rejects.filter(pc.less(output.rejects[ROW], last))
        table = compact(table)
        media = {digest: output.media[digest] for digest in media_of(table) if digest in output.media}
        counters = {IMAGES: len(media)} if media else {}
        output = ChunkOutput(table, table.num_rows + rejects.num_rows, rejects, counters=counters, media=media)
    return chunk.loading(lambda: output, digest_json([chunk.digest, "first", rows]))
