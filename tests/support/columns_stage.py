"""Raw rows through the columns stage, with checks that always apply: rows in canonical form, mappings and rejects."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping, resolve
from tokenloom.assets.columns.stage import STAGE
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.stage.definition import ChunkOutput, validate
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.tables.json_text import json_column

Row = dict[str, Any]

TEXT = st.one_of(st.text(max_size=8), st.sampled_from(["", " ", "\n\t", "\u00a0", "x", "0"]))
MAYBE = st.one_of(st.none(), TEXT)


def as_json(*rows: Row) -> pa.Table:
    """Return rows in which each column is a JSON column, as `raw` reads nested values."""
    texts = {
        name: [None if row.get(name) is None else json.dumps(row[name], ensure_ascii=False) for row in rows]
        for name in dict.fromkeys(name for row in rows for name in row)
    }
    return pa.table({name: json_column(column) for name, column in texts.items()})


def table_of(rows: list[Row] | pa.Table, columns: dict[str, pa.DataType] | None = None) -> pa.Table:
    """Return a raw chunk; row positions have gaps, as they do after rejects."""
    schema = pa.schema(list(columns.items())) if columns else None
    table = pa.Table.from_pylist(rows, schema) if isinstance(rows, list) else rows
    return table.append_column(ROW, pa.array([2 * index + 1 for index in range(table.num_rows)], pa.int32()))


def config_of(**sections: Any) -> PipelineConfig:
    return PipelineConfig.from_mapping({"dataset": {"name": "x", **sections.pop("dataset", {})}, **sections})


def described(*tables: pa.Table) -> list[Row]:
    return merge([sketch(table) for table in tables])


def columns_named(*names: str, kind: pa.DataType | None = None) -> list[Row]:
    """Return profiles of columns of a type, by default text, of whose values nothing is known."""
    structure, uncounted = (
        ("column", "path", "steps", "type", "kind"),
        {"rows": 0, "nulls": 0, "values": [], "counts": []},
    )
    facts = described(pa.table({name: pa.array([], kind or pa.string()) for name in names}))
    return [{name: one[name] for name in structure} | (uncounted if len(one["steps"]) > 1 else {}) for one in facts]


def canonical(
    rows: list[Row] | pa.Table, columns: dict[str, pa.DataType] | None = None, form: str = "messages", **sections: Any
) -> ChunkOutput:
    """Return the stage's output for rows; check that no row is lost or doubled, and that the contract holds.

    The mapping of a table, instead of rows, is that of the form with the roles in `sections`, else the columns' names.
    """
    table = table_of(rows, columns)
    if isinstance(rows, list):
        mapping = resolve(config_of(**sections), described(table))
    else:
        roles = sections.get("dataset", {}).get("column_mapping") or {name: name for name in rows.column_names}
        mapping = ColumnMapping(form, roles)
    out = to_canonical(table, mapping)
    validate(STAGE, out.table)
    assert out.rows_in == table.num_rows == out.table.num_rows + out.rejects.num_rows + out.filtered
    positions = sorted(out.table[ROW].to_pylist() + out.rejects[ROW].to_pylist())
    assert positions == table[ROW].to_pylist()
    assert out.table[ROW].to_pylist() == sorted(out.table[ROW].to_pylist())
    return out


def kept(out: ChunkOutput) -> list[Row]:
    return out.table.drop_columns([ROW]).to_pylist()


def codes(out: ChunkOutput) -> dict[int, str]:
    return dict(zip(out.rejects[ROW].to_pylist(), out.rejects["code"].to_pylist(), strict=True))


def mapped(roles: Row, **sections: Any) -> Row:
    """The sections of a config with this column_mapping."""
    return {"dataset": {"column_mapping": roles}, **sections}
