"""Files of rows written, and read back as the raw stage reads them: for tests of raw rows and of their chunks."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from tokenloom.assets.building.build import Build
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.stage.definition import ChunkOutput, ChunkSize, InputChunk
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore

Row = dict[str, Any]

WORDS = '2020-01-01 2020-01-01T00:00:00Z 12:30:00 007 1e5 null NaN NA true "" \\" [{ 👩‍👩‍👧 مرحبا =1+1'
AWKWARD = st.sampled_from(["", *"\"\r,\t\\\u2028\ufeff\x00#' ", *WORDS.split(), "a\nb", "a\r\nb"])
TEXT = st.one_of(st.text(max_size=12), AWKWARD, st.lists(AWKWARD, max_size=3).map("".join))
GOOD = [{"q": f"question {index}", "tags": [str(index)], "n": index} for index in range(50)]
SUFFIXES = [".json", ".jsonl", ".csv", ".tsv", ".parquet", ".arrow"]


def write_table(path: Path, rows: list[Row]) -> None:
    """The rows, by Python's or Arrow's own writers."""
    match path.suffix:
        case ".json":
            path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
        case ".jsonl":
            path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
        case ".csv" | ".tsv":
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, rows[0], delimiter="," if path.suffix == ".csv" else "\t")
                writer.writeheader()
                writer.writerows(rows)
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        case ".arrow":
            table = pa.Table.from_pylist(rows)
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)


def chunks_of(path: str | Path, size: ChunkSize | None = None, **dataset: Any) -> list[InputChunk]:
    config = PipelineConfig.from_mapping({"dataset": {"name": str(path), **dataset}})
    return list(source_chunks(config, size))


def read(path: str | Path, size: ChunkSize | None = None, **dataset: Any) -> tuple[list[Row], list[Row], int]:
    """All rows without positions, all rejects, and how many records were filtered; checks that counts add up."""
    outputs: list[ChunkOutput] = [chunk.load() for chunk in chunks_of(path, size, **dataset)]
    for output in outputs:
        assert output.rows_in == output.table.num_rows + output.rejects.num_rows + output.filtered
        positions = output.table[ROW].to_pylist()
        assert positions == sorted(set(positions) - {*output.rejects[ROW].to_pylist()})
    rows = [row for output in outputs for row in rows_of(output.table)]
    rejects = [row for output in outputs for row in output.rejects.to_pylist()]
    return rows, rejects, sum(output.filtered for output in outputs)


def rows_of(table: pa.Table) -> list[Row]:
    """Rows without positions, as Python objects: `json.loads` of JSON columns, else what Arrow gives."""
    rows: list[Row] = [{} for _ in range(table.num_rows)]
    for name in [name for name in table.column_names if name != ROW]:
        is_json = table.schema.field(name).type == pa.json_()
        for row, value in zip(rows, table[name].to_pylist(), strict=True):
            row[name] = json.loads(value) if is_json and value is not None else value
    return rows


def read_split(path: Path, split: str, **dataset: Any) -> list[Row]:
    outputs = [chunk.load() for chunk in chunks_of(path, ChunkSize(4096, 16384), **dataset) if chunk.split == split]
    return [row for output in outputs for row in rows_of(output.table)]


def as_array(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8)


def places(path: Path, store: Path, **dataset: Any) -> dict[str, str]:
    """Return the place of each row, and of each reject's excerpt, of a built file: text to place."""
    config = PipelineConfig.from_mapping(
        {"dataset": {"name": str(path), **dataset}, "validation": {"max_reject_fraction": 1.0}}
    )
    build = Build(config, ArtifactStore(store), chunk_size=ChunkSize(256, 1024))
    build.run("raw")
    found = {}
    for chunk in build.manifest("raw").chunks:
        table = build.store.objects.get(chunk.output)
        found |= {row["a"]: chunk.place(row[ROW]) for row in table.to_pylist()}
        rejects = build.store.objects.get(chunk.rejects).to_pylist() if chunk.rejects else []
        found |= {row["excerpt"]: chunk.place(row[ROW]) for row in rejects}
    return found
