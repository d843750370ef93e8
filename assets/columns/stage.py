"""columns: raw rows in one canonical form, by the mapping that schema and YAML came to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from tokenloom.assets.columns.canonical import MESSAGES, to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.rejects import ROW
from tokenloom.assets.stage import Context, Stage, Work
from tokenloom.config import PipelineConfig

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest


def _is_canonical(table: pa.Table) -> bool:
    kinds = {field.type for field in table.schema if field.name != ROW}
    return bool(kinds) and kinds <= {pa.string(), MESSAGES} and all(not column.null_count for column in table.columns)


def _rows_ascend(table: pa.Table) -> bool:
    return bool((np.diff(table[ROW].to_numpy()) > 0).all())


class ColumnsStage(Stage):
    name = "columns"
    version = 1
    upstream = ("raw", "schema")
    libraries = ("pyarrow",)
    output_schema = None
    checks: ClassVar = {"strings or messages, without nulls": _is_canonical, "row positions ascend": _rows_ascend}

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        """Nothing directly: keys hold the resolved mapping; a setting that changes no mapping changes nothing."""
        return {}

    def declared(self, config: PipelineConfig) -> dict[str, Any]:
        prompt, mapping = config.prompt_template, config.dataset.column_mapping
        return {
            "template": prompt.template,
            "format": prompt.format_type,
            "label": prompt.label_column,
            "mapping": mapping,
        }

    def prepare(self, context: Context) -> Work:
        mapping = resolve(context.config, context.manifest("schema").facts["columns"])
        return Work(
            context.input_chunks("raw"),
            lambda table: to_canonical(table, mapping),
            settings={"mapping": mapping.to_json()},
        )

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        return {"mapping": resolve(context.config, context.manifest("schema").facts["columns"]).to_json()}


STAGE = ColumnsStage()
