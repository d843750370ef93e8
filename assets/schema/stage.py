"""schema: what is in the raw rows. Deterministic sketches, one a chunk, that merge."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.schema.formats import format_candidates
from tokenloom.assets.schema.measures import KEPT_HASHES
from tokenloom.assets.schema.roles import role_candidates
from tokenloom.assets.schema.scripts import UNICODE
from tokenloom.assets.schema.sketch import MEASURED, SKETCH, merge, sketch
from tokenloom.assets.stage.definition import ChunkOutput, Context, Stage, Work
from tokenloom.config import PipelineConfig
from tokenloom.resources.tables.ragged import list_parts, one_array, row_of, sum_rows

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest


def _counts_fit(table: pa.Table) -> bool:
    gone = pc.add(pc.add(table["nulls"], table["empty"]), table["sampled"])
    return bool(pc.all(pc.less_equal(gone, table["rows"])).as_py())


def _buckets_add_up(table: pa.Table) -> bool:
    offsets, counts = list_parts(table["lengths"])
    measured = pc.is_in(table["kind"], pa.array(MEASURED))
    values = pc.if_else(measured, pc.subtract(table["rows"], table["nulls"]), 0)
    return bool((sum_rows(counts.to_numpy(), offsets) == values.to_numpy()).all())


def _traits_fit(table: pa.Table) -> bool:
    offsets, counts = list_parts(table["traits"])
    sampled = table["sampled"].to_numpy()[row_of(np.diff(offsets))]
    return bool((counts.to_numpy() <= sampled).all())


def _hashes_fit(table: pa.Table) -> bool:
    kept = pc.divide(pc.binary_length(table["hashes"]), 8).to_numpy()
    values = pc.subtract(table["rows"], table["nulls"]).to_numpy()
    return bool((kept <= np.minimum(values, KEPT_HASHES)).all())


def _values_are_counted(table: pa.Table) -> bool:
    """Where a path has all its values, their counts add up to its places."""
    offsets, counts = list_parts(table["counts"])
    same = np.array_equal(offsets, list_parts(table["values"])[0])
    total = sum_rows(counts.to_numpy(), offsets)
    return same and bool(((total == 0) | (total == pc.subtract(table["rows"], table["nulls"]).to_numpy())).all())


def _begins_with_the_chunk(table: pa.Table) -> bool:
    depth = pc.list_value_length(one_array(table["steps"])).to_numpy()
    rows = table["rows"].to_numpy()
    return bool(len(depth) and (depth[0], *rows[depth == 1]) == (0, *np.repeat(rows[0], (depth == 1).sum())))


class SchemaStage(Stage):
    name = "schema"
    version = 3
    upstream = ("raw",)
    libraries = ("pyarrow", "numpy")
    output_schema: ClassVar = {field.name: (field.type,) for field in SKETCH}
    checks: ClassVar = {
        "nulls, empties and sampled texts fit into the rows": _counts_fit,
        "length buckets add up to the values": _buckets_add_up,
        "traits hold of sampled texts": _traits_fit,
        "hashes are of values, and at most the smallest": _hashes_fit,
        "few values are counted": _values_are_counted,
        "every column has the chunk's rows": _begins_with_the_chunk,
    }

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        """No setting; what a letter is depends on the version of Unicode."""
        return {"unicode": UNICODE}

    def prepare(self, context: Context) -> Work:
        return Work(context.input_chunks("raw"), _describe)

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """Rows of each split, the columns of the whole dataset, and the formats and roles that they suggest."""
        columns = merge([context.store.objects.get(chunk.output) for chunk in manifest.chunks])
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
