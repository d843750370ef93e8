"""raw: the rows as found, with the types found in each chunk.

Files of records are cut into chunks by their bytes, and a chunk whose bytes are known is never parsed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.raw import parse, records
from tokenloom.assets.raw.cut import ChunkSize, cut, cut_tables, hash_records, hash_rows
from tokenloom.assets.raw.parse import Parsed
from tokenloom.assets.raw.records import Bytes
from tokenloom.assets.rejects import ROW
from tokenloom.assets.stage import ChunkOutput, Context, InputChunk, Stage, Work
from tokenloom.config import PipelineConfig
from tokenloom.errors import SourceError
from tokenloom.resources import sources
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.ragged import Ints
from tokenloom.resources.sources import SourceFile
from tokenloom.resources.store.objects import encode_table

TRAIN, VALIDATION = "train", "validation"


class RawStage(Stage):
    name = "raw"
    version = 1
    upstream = ()
    libraries = ("pyarrow",)
    output_schema = None

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        dataset = config.dataset
        return {
            "format": dataset.format,
            "encoding": dataset.encoding,
            "reader": dataset.reader.model_dump(),
            "columns": list(dataset.columns) if dataset.columns else None,
            "val_split": dataset.val_split,
        }

    def declared(self, config: PipelineConfig) -> dict[str, Any]:
        dataset = config.dataset.model_dump(mode="json", include={"name", "config", "revision", "splits"})
        return {**self.settings(config), **dataset}

    def prepare(self, context: Context) -> Work:
        return Work(limited(source_chunks(context.config, context.chunk_size), context.limit), lambda output: output)


STAGE = RawStage()


def source_chunks(config: PipelineConfig, size: ChunkSize | None = None) -> Iterator[InputChunk]:
    """The chunks of a dataset's source; loading one reads, parses and returns its `ChunkOutput`."""
    size = size or ChunkSize()
    found = sources.locate(config)
    wanted = config.dataset.splits
    if isinstance(found, list):
        if wanted and TRAIN not in wanted:
            raise config.fault("dataset.splits", f"dataset.splits: files hold only {TRAIN}, not {', '.join(wanted)}")
        for file in found:
            yield from _file_chunks(config, file, size)
        return
    disk = isinstance(found, sources.DiskDataset)
    splits = sources.open_disk_dataset(found) if disk else sources.open_hub_dataset(config, found)
    if missing := [split for split in wanted or () if split not in splits]:
        raise config.fault("dataset.splits", f"dataset.splits: no {', '.join(missing)}; there are {', '.join(splits)}")
    for split in wanted or splits:
        yield from _table_chunks(config, sources.dataset_tables(splits[split]), size, split, source=split)


def _file_chunks(config: PipelineConfig, file: SourceFile, size: ChunkSize) -> Iterator[InputChunk]:
    if file.format in ("parquet", "arrow"):
        yield from _table_chunks(config, _read_tables(file), size, TRAIN, file.name)
        return
    data = np.frombuffer(parse.to_utf8(file.read(), config.dataset.encoding, file.name), np.uint8)
    data, bounds, facts, read = _record_reader(config, file, data)
    hashes = hash_records(data, *records.trimmed(data, bounds))
    cuts = cut(hashes, np.diff(bounds), size)
    for begin, end in pairwise(cuts):
        part = data[bounds[begin] : bounds[end]]
        digest = digest_json([digest_bytes(part.data), facts])
        within = bounds[begin : end + 1] - bounds[begin]

        def parsed(part: Bytes = part, within: Ints = within) -> Parsed:
            return read(part, within)

        yield from _parts(config, digest, TRAIN, file.name, parsed, hashes[begin:end])


Reader = Callable[[Bytes, Ints], Parsed]


def _record_reader(config: PipelineConfig, file: SourceFile, data: Bytes) -> tuple[Bytes, Ints, dict[str, Any], Reader]:
    """For a file of records: its bytes ready to cut, the records' bounds, what besides its bytes a chunk depends
    on, and how a chunk is parsed."""
    options, name = config.dataset.reader, file.name
    if file.format in ("csv", "tsv"):
        delimiter = options.delimiter or ("\t" if file.format == "tsv" else ",")
        bounds = records.quoted_line_bounds(data, delimiter, name)
        first = data[: bounds[1]].tobytes() if len(bounds) > 1 else b""
        names = parse.csv_header(first, delimiter, name)
        if options.header:
            bounds = bounds[1:] if len(bounds) > 1 else bounds
        else:
            names = [f"column_{index}" for index in range(len(names))]
        facts = {"names": names, "delimiter": delimiter}
        return data, bounds, facts, lambda part, within: parse.parse_csv(part, within, names, delimiter, name)
    if file.format == "text":
        find = {"line": records.line_bounds, "paragraph": records.paragraph_bounds}.get(options.lines_per_row)
        bounds = find(data) if find else np.array([0, len(data)] if len(data) else [0], np.int64)
        return data, bounds, {"format": "text"}, lambda part, within: parse.parse_text(part, within, name)
    lines = file.format == "jsonl" or _holds_lines(data, name)
    if not lines:
        bounds, data = records.json_array_bounds(data, name)
    else:
        bounds = records.line_bounds(data)
    facts = {"format": "json", "lines": lines}
    return data, bounds, facts, lambda part, within: parse.parse_json(part, within, name, lines, config.dataset.columns)


def _holds_lines(data: Bytes, name: str) -> bool:
    """Whether a .json file holds one object a line, rather than an array."""
    head = data[: 1 << 20].tobytes().lstrip()
    if head.startswith(b"[") or not head:
        return False
    first, _, rest = head.partition(b"\n")
    try:
        value = json.loads(first)
    except ValueError:
        value = None
    if not isinstance(value, dict) or (
        not rest.strip() and all(isinstance(item, dict | list) for item in value.values())
    ):
        raise SourceError(f"{name}: expected a JSON array of objects, or one object a line")
    return True


def _read_tables(file: SourceFile) -> Iterator[pa.Table]:
    import pyarrow.parquet as pq

    try:
        with file.open() as opened:
            if file.format == "parquet":
                for batch in pq.ParquetFile(opened).iter_batches(10_000):
                    yield pa.Table.from_batches([batch])
                return
            data = opened.read()
        try:
            batches: Any = pa.ipc.open_file(data)
            yield from (
                pa.Table.from_batches([batches.get_batch(index)]) for index in range(batches.num_record_batches)
            )
        except pa.ArrowInvalid:
            yield pa.ipc.open_stream(data).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceError(f"{file.name}: not readable as {file.format}: {str(error).splitlines()[0]}") from error


def _table_chunks(
    config: PipelineConfig, tables: Iterator[pa.Table], size: ChunkSize, split: str, source: str
) -> Iterator[InputChunk]:
    for table in cut_tables(tables, size):
        digest = digest_bytes(memoryview(encode_table(table, compressed=False)))

        hashes = hash_rows(table)[0] if config.dataset.val_split else None
        yield from _parts(config, digest, split, source, lambda table=table: Parsed(table), hashes)


def _parts(
    config: PipelineConfig,
    digest: str,
    split: str,
    source: str,
    parsed: Callable[[], Parsed],
    hashes: np.ndarray | None,
) -> Iterator[InputChunk]:
    """One input chunk, or with `val_split` two of the same bytes: the rows that stay and those that validate.

    Args:
        hashes: uint64 [records] of the chunk's records; only `val_split` needs them.
    """
    share = config.dataset.val_split if split == TRAIN else 0.0
    if not share or hashes is None:
        yield InputChunk(digest, split, source, lambda: _output(parsed(), config))
        return
    validates = hashes < np.uint64(share * 2.0**64)
    for part, members in ((TRAIN, ~validates), (VALIDATION, validates)):

        def load(part: str = part, members: np.ndarray = members) -> ChunkOutput:
            return _output(_members(parsed(), members, keep_losses=part == TRAIN), config)

        yield InputChunk(digest_json([digest, part]), part, source, load)


def _members(parsed: Parsed, members: np.ndarray, keep_losses: bool) -> Parsed:
    """The rows whose records are members; rejects and filtered rows are counted in one part alone."""
    kept = members[parsed.table[ROW].to_numpy()]
    parsed.table = parsed.table.filter(pa.array(kept))
    if not keep_losses:
        parsed.rejects, parsed.filtered = parsed.rejects.slice(0, 0), 0
    return parsed


def _output(parsed: Parsed, config: PipelineConfig) -> ChunkOutput:
    table, columns = parsed.table, config.dataset.columns
    if columns:
        table = table.select([name for name in columns if name in table.column_names] + [ROW])
    rows_in = table.num_rows + parsed.rejects.num_rows + parsed.filtered
    return ChunkOutput(table.combine_chunks(), rows_in, parsed.rejects, parsed.filtered)


def limited(chunks: Iterator[InputChunk], limit: int | None) -> Iterator[InputChunk]:
    """The chunks up to the first `limit` rows of each split."""
    if limit is None:
        yield from chunks
        return
    taken: dict[str, int] = {}
    for chunk in chunks:
        room = limit - taken.get(chunk.split, 0)
        if room <= 0:
            continue
        output = _head(chunk.load(), room)
        taken[chunk.split] = taken.get(chunk.split, 0) + output.rows_in

        digest = digest_json([chunk.digest, "first", room])
        yield InputChunk(digest, chunk.split, chunk.source, lambda output=output: output)


def _head(output: ChunkOutput, rows: int) -> ChunkOutput:
    """The first rows of a chunk; rejects and filtered rows beyond the last one kept are left out with it."""
    if output.rows_in <= rows:
        return output
    table = output.table.slice(0, rows)
    last = table[ROW][-1].as_py() if table.num_rows else -1
    rejects = output.rejects.filter(pc.less(output.rejects[ROW], last))
    return ChunkOutput(table.combine_chunks(), table.num_rows + rejects.num_rows, rejects)
