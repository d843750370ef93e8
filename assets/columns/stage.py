"""columns: raw rows in one canonical form, by the mapping that schema and YAML came to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.forms import FORMS, MESSAGES
from tokenloom.assets.columns.mapping import plain_roles, resolve
from tokenloom.assets.stage.definition import Context, Stage, Work, read_settings
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.tables.nested_paths import list_values
from tokenloom.resources.tables.ragged import one_array

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest


ROLES = ("system", "user", "assistant", "tool")


def _is_canonical(table: pa.Table) -> bool:
    """The columns of one form with their exact types, or strings only: the fields of a template."""
    kinds = {field.name: field.type for field in table.schema if field.name != ROW}
    return bool(kinds) and (kinds in map(dict, FORMS.values()) or set(kinds.values()) == {pa.string()})


def _is_filled(table: pa.Table) -> bool:
    return all(not column.null_count for column in table.columns)


def _messages_hold(table: pa.Table) -> bool:
    """Every message has a known role and a text; conversations hold at least one."""
    return all(_hold(one_array(column)) for column in table.columns if column.type == MESSAGES)


def _hold(conversations: pa.Array) -> bool:
    lengths, messages = list_values(conversations)
    role, content = messages.flatten()[:2]
    known = pc.all(pc.is_in(role, pa.array(ROLES)), min_count=0).as_py()
    return bool(known and not content.null_count and not messages.null_count and (lengths > 0).all())


def _rows_ascend(table: pa.Table) -> bool:
    return bool((np.diff(table[ROW].to_numpy()) > 0).all())


class ColumnsStage(Stage):
    name = "columns"
    version = 3
    upstream = ("raw", "schema")
    libraries = ("pyarrow", "numpy")
    droppable = True
    output_schema = None
    checks: ClassVar = {
        "one canonical form": _is_canonical,
        "nothing is null": _is_filled,
        "messages have a known role and a text": _messages_hold,
        "row positions ascend": _rows_ascend,
    }

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        """Nothing directly: keys hold the resolved mapping; a setting that changes no mapping changes nothing."""
        return {}

    def declared(self, config: PipelineConfig) -> dict[str, Any]:
        names = ("template", "format_type", "label_column")
        mapping = {"dataset.column_mapping": plain_roles(config.dataset.column_mapping)}
        return {**read_settings(config, *(f"prompt_template.{name}" for name in names)), **mapping}

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
