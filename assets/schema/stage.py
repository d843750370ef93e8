"""schema: what is in the raw rows, as deterministic sketches, one per chunk, that can be merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.schema.candidates import role_candidates
from tokenloom.assets.schema.contract import traits_fit, values_are_counted
from tokenloom.assets.schema.formats import format_candidates
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import SKETCH, sketch
from tokenloom.assets.schema.unicode_scripts import UNICODE
from tokenloom.assets.stage.definition import ChunkOutput, Context, Stage, Work
from tokenloom.config import PipelineConfig
from tokenloom.resources.tables.untrusted_table import check_schema

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest
    from tokenloom.resources.store.objects import ObjectStore


LARGEST_COUNT = 1 << 48
"""No count of a sketch is as large; sums of such counts are int64."""


class SchemaStage(Stage):
    name = "schema"
    version = 6
    upstream = ("raw",)
    libraries = ("pyarrow", "numpy", "msgspec")

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        """Return no setting of the YAML, but the version of Unicode, which defines what a letter is."""
        return {"unicode": UNICODE}

    def prepare(self, context: Context) -> Work:
        return Work(context.input_chunks("raw"), _describe)

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """Return the rows of each split, the columns of the whole dataset, and the formats and roles they suggest."""
        columns = merge(_sketches(context.store.objects, [chunk.output for chunk in manifest.chunks]))
        splits: Counter[str] = Counter()
        for chunk in manifest.chunks:
            splits[chunk.split] += chunk.rows_in
        return {
            "splits": dict(splits),
            "columns": columns,
            "roles": [asdict(role) for role in role_candidates(columns)],
            "formats": [asdict(found) for found in format_candidates(columns)],
        }


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
