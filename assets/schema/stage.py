"""schema: what is in the raw rows. Deterministic sketches, one a chunk, that merge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from tokenloom.assets.schema import candidates
from tokenloom.assets.schema.sketch import SKETCH, merge, sketch
from tokenloom.assets.stage import ChunkOutput, Context, Stage, Work
from tokenloom.config import PipelineConfig

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest


def _counts_fit(table: pa.Table) -> bool:
    return all(
        row["nulls"] + row["empty"] <= row["rows"] for row in table.select(["rows", "nulls", "empty"]).to_pylist()
    )


class SchemaStage(Stage):
    name = "schema"
    version = 1
    upstream = ("raw",)
    libraries = ("pyarrow",)
    output_schema: ClassVar = {field.name: (field.type,) for field in SKETCH}
    checks: ClassVar = {"nulls and empties fit into the rows": _counts_fit}

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        return {}

    def prepare(self, context: Context) -> Work:
        return Work(context.input_chunks("raw"), _describe)

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """The columns of the whole dataset, and the form and roles that they suggest."""
        columns = merge([context.store.objects.get(chunk.output) for chunk in manifest.chunks])
        roles = candidates.roles(columns, {})
        return {"columns": columns, "form": candidates.form(roles), "roles": roles}


STAGE = SchemaStage()


def _describe(table: pa.Table) -> ChunkOutput:
    return ChunkOutput(sketch(table), rows_in=table.num_rows, rows_out=table.num_rows)
