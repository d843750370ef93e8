"""schema: what is in the raw rows, as sketches, one per chunk, that can be merged; and as the cells of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.schema.candidates import role_candidates
from tokenloom.assets.schema.column_statistics import KEPT_HASHES
from tokenloom.assets.schema.formats import format_candidates
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import COLUMNS, MEASURED, SKETCH, UNICODE, sketch
from tokenloom.assets.stage.contract import Contract
from tokenloom.assets.stage.definition import FIXED_TEXTS, ChunkOutput, Context, Reads, Stage, Work
from tokenloom.assets.stage.names import RAW
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.tables.json_text import json_column
from tokenloom.resources.tables.ragged import list_parts, one_array, row_of, sum_rows
from tokenloom.resources.tables.sequence_schema import check_schema

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest
    from tokenloom.resources.store.objects import ObjectStore

EXAMPLE_CHARACTERS, NAME_CHARACTERS, REASON_CHARACTERS = 60, 32, 240
NO_ROWS = "·"
"""The cell of a percentage of no rows."""


def column_cells(column: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a row for the profile of one path."""
    lengths = column["lengths"] or {}
    return {
        "column": _line(column["path"], NAME_CHARACTERS),
        "type": _line(column["type"] if column["kind"] not in ("list", "struct") else column["kind"], NAME_CHARACTERS),
        "null": _percentage(column["nulls"], column["rows"]),
        "empty": _percentage(column["empty"], column["rows"]),
        "distinct": "" if column["distinct"] is None else f"{column['distinct']:,}",
        "p50": f"{lengths['p50']:,}" if lengths else "",
        "p99": f"{lengths['p99']:,}" if lengths else "",
        "scripts": ", ".join(f"{name} {part:.0%}" for name, part in column["scripts"].items() if part >= 0.01),
        "example": _line(column["examples"][0], EXAMPLE_CHARACTERS) if column["examples"] else "",
    }


def format_cells(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a row for one format candidate."""
    against = (f"but {role}: {reason}" for role, reason in found.get("doubts", {}).items())
    evidence = "\n".join(_line(reason, REASON_CHARACTERS) for reason in (*found["evidence"], *against))
    return {"format": found["format"], "confidence": f"{found['confidence']:.2f}", "evidence": evidence}


def _percentage(count: int, rows: int) -> str:
    """Return a percentage; less than one percent is not shown as 0."""
    if not count:
        return NO_ROWS
    return f"{count / rows:.0%}" if count >= 0.01 * rows else "<1%"


def _line(text: str, characters: int) -> str:
    """Return text of the data on one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= characters else f"{line[: characters - 1]}…"


def _counts_fit(table: pa.Table) -> bool:
    counted = pc.add(pc.add(table["nulls"], table["empty"]), table["sampled"])
    return bool(pc.all(pc.less_equal(counted, table["rows"])).as_py())


def _buckets_add_up(table: pa.Table) -> bool:
    offsets, counts = list_parts(table["lengths"])
    measured = pc.is_in(table["kind"], pa.array(MEASURED))
    values = pc.if_else(measured, pc.subtract(table["rows"], table["nulls"]), 0)
    return bool((sum_rows(counts.to_numpy(), offsets) == values.to_numpy()).all())


def traits_fit(table: pa.Table) -> bool:
    """Return whether no trait is counted in more texts than were sampled."""
    offsets, counts = list_parts(table["traits"])
    sampled = table["sampled"].to_numpy()[row_of(np.diff(offsets))]
    return bool((counts.to_numpy() <= sampled).all())


def _hashes_fit(table: pa.Table) -> bool:
    kept = pc.divide(pc.binary_length(table["hashes"]), 8).to_numpy()
    values = pc.subtract(table["rows"], table["nulls"]).to_numpy()
    return bool((kept <= np.minimum(values, KEPT_HASHES)).all())


def values_are_counted(table: pa.Table) -> bool:
    """Return whether each value has a count."""
    return np.array_equal(list_parts(table["counts"])[0], list_parts(table["values"])[0])


def _value_counts_add_up(table: pa.Table) -> bool:
    """Whether the counts of a path's values add up to its places, if all its values are listed."""
    offsets, counts = list_parts(table["counts"])
    total = sum_rows(counts.to_numpy(), offsets)
    return values_are_counted(table) and bool(
        ((total == 0) | (total == pc.subtract(table["rows"], table["nulls"]).to_numpy())).all()
    )


def _starts_with_the_chunk(table: pa.Table) -> bool:
    """Whether the first row is the chunk itself, and every column has as many places as the chunk has rows."""
    depth = pc.list_value_length(one_array(table["steps"])).to_numpy()
    if not len(depth) or depth[0]:
        return False
    columns = table.filter(pa.array(depth == 1))
    # A JSON column has a row for each kind of its values: their places are summed.
    names = pc.list_element(one_array(columns["steps"]), 0).dictionary_encode()
    totals = np.bincount(names.indices.to_numpy(), columns["rows"].to_numpy())
    return bool((totals == table["rows"][0].as_py()).all())


CONTRACT = Contract(
    "One path in the columns of a raw chunk, from a column to what is nested in it. If its values are JSON of several "
    "kinds, it has one row for each kind. The first row is the chunk itself.",
    COLUMNS,
    {
        "nulls, empty and sampled values do not exceed the rows": _counts_fit,
        "length buckets add up to the values": _buckets_add_up,
        "traits count at most the sampled texts": traits_fit,
        "hashes do not exceed the values or the limit": _hashes_fit,
        "value counts add up": _value_counts_add_up,
        "every column has the chunk's rows": _starts_with_the_chunk,
    },
)


def probe() -> list[pa.Table]:
    """Return tables that change if the behaviour of a library changes."""
    rows = [
        {
            ROW: number,
            "text": text,
            "n": number,
            "share": number / 7,
            "whole": float(number),
            "yes": number % 2 == 0,
            "tags": [text, text[:2]],
            "said": [{"role": "user", "content": text}] * (number % 3),
            "maybe": None if number % 2 else {"a": text or None},
        }
        for number, text in enumerate(FIXED_TEXTS)
    ]
    mixed = [
        [text, number, number / 7, {"a": text}, [None], True, None][number % 7]
        for number, text in enumerate(FIXED_TEXTS)
    ]
    messages = [row["said"] for row in rows]
    json_columns = {
        name: json_column(list(map(json.dumps, values))) for name, values in (("m", mixed), ("s", messages))
    }
    return [sketch(pa.Table.from_pylist(rows)), sketch(pa.table(json_columns))]


LARGEST_COUNT = 1 << 48
"""No count of a sketch is as large; sums of such counts are int64."""


class SchemaStage(Stage):
    name = "schema"
    version = 8
    upstream = (RAW,)
    libraries = ("pyarrow", "numpy", "msgspec")
    reads = (Reads(lambda config: {"unicode": UNICODE}),)  # the version that defines what a letter is
    description = "Types, lengths and examples of each column, and which formats the rows can be read as."

    def prepare(self, context: Context) -> Work:
        return Work(self.inputs(context), _describe)

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """Return the rows of each split, the columns of the whole dataset, and the formats and roles they suggest."""
        latest, sketches = context.latest, manifest.chunks.table["output"]
        # Merging is slow for tables of many chunks, and the same sketches give the same columns.
        if latest and latest.parts.get("version") == self.version and latest.chunks.table["output"].equals(sketches):
            columns = latest.facts["columns"]
        else:
            columns = merge(_sketches(context.store.objects, manifest.chunks.digests("output")))
        splits = {name: manifest.chunks.of_split(name).total("rows_in") for name in manifest.chunks.splits}
        return {
            "splits": splits,
            "columns": columns,
            "roles": [asdict(role) for role in role_candidates(columns)],
            "formats": [asdict(found) for found in format_candidates(columns)],
        }

    def shown(self, config: PipelineConfig, manifest: Manifest, first: pa.Table) -> dict[str, Any]:
        facts = manifest.facts
        return {"columns": [*map(column_cells, facts["columns"])], "formats": [*map(format_cells, facts["formats"])]}


STAGE = SchemaStage()


def _describe(table: pa.Table) -> ChunkOutput:
    return ChunkOutput(sketch(table), rows_in=table.num_rows, rows_out=table.num_rows)


def _sketches(objects: ObjectStore, digests: Sequence[str]) -> list[pa.Table]:
    """Return stored sketches. All are checked at once, and one by one only if that fails."""
    objects.fetch(digests)
    sketches = [objects.get_verified(digest, partial(check_schema, SKETCH)) for digest in digests]
    try:
        _check_sketch(pa.concat_tables(sketches))
    except ValueError:
        return [objects.get_verified(digest, _check_sketch) for digest in digests]
    return sketches


def _check_sketch(table: pa.Table) -> None:
    """Check what `merge` relies on in a stored sketch, for objects can be crafted."""
    check_schema(SKETCH, table)
    if pc.any(pc.not_equal(pc.bit_wise_and(pc.binary_length(table["hashes"]), 7), 0)).as_py():
        raise ValueError("has hashes that are not of 64 bits")
    for field, values in zip(SKETCH, table.columns, strict=True):
        if pa.types.is_list(field.type):
            values = pc.list_flatten(values)
            if values.null_count and field.name != "steps":
                raise ValueError(f"has nulls in {field.name}")
        if pa.types.is_integer(values.type) and _is_wild(values):
            raise ValueError(f"has numbers in {field.name} that count nothing")
    if pc.list_flatten(pc.list_slice(table["steps"], 0, 1)).null_count:
        raise ValueError("has a path that starts without a column")
    if not values_are_counted(table):
        raise ValueError("has values without counts, or counts without values")
    if not traits_fit(table):
        raise ValueError("has traits of more texts than were sampled")


def _is_wild(numbers: pa.ChunkedArray) -> bool:
    least, most = pc.min_max(numbers).as_py().values()
    return least is not None and not 0 <= least <= most < LARGEST_COUNT
