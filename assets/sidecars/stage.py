"""sidecars: the kept columns of the raw rows, uncompressed; loaders memory-map them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tokenloom.assets.stage.contract import Contract, row_column
from tokenloom.assets.stage.definition import ChunkOutput, Context, Stage, Work, settings
from tokenloom.assets.stage.names import RAW, SCHEMA
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.store.manifest import SIDECARS
from tokenloom.resources.tables.nested_paths import Path, evaluate, parse_path

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest


CONTRACT = Contract(
    "One raw row. The other columns are those of `dataset.keep_columns`, with the types found in the chunk.",
    {ROW: row_column()},
    open=True,
)


class SidecarsStage(Stage):
    name = SIDECARS
    version = 1
    upstream = (RAW, SCHEMA)
    libraries = ("pyarrow", "numpy")
    reads = (settings("dataset", "keep_columns"),)
    compressed, loaded = False, True

    def prepare(self, context: Context) -> Work:
        columns = [column["column"] for column in context.facts(SCHEMA)["columns"]]
        names = context.config.dataset.keep_columns
        paths = [parse_path(name, columns) for name in names]
        return Work(
            self.inputs(context),
            lambda table: ChunkOutput(kept_columns(table, names, paths), table.num_rows),
            settings={"paths": list(map(str, paths))},
        )

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """Return the names of the kept columns."""
        return {"columns": list(context.config.dataset.keep_columns)}


STAGE = SidecarsStage()


def kept_columns(table: pa.Table, names: Sequence[str], paths: Sequence[Path]) -> pa.Table:
    """Return the values at some paths of raw rows, one column for each name, null where a row has none."""
    columns = {ROW: table[ROW]}
    for name, path in zip(names, paths, strict=True):
        whole = not path.steps and path.column in table.column_names
        columns[name] = table[path.column] if whole else evaluate(table, path)
    return pa.table(columns)


_PATHS = ("text", "answers.text", "answers[-1].text", "answers[0].start", "missing")


def probe() -> list[pa.Table]:
    """Return the values at paths into lists and structs, with nulls."""
    answers = [[{"text": "é", "start": 1}, {"text": None, "start": 2}], [], None, [{"text": "🌊", "start": None}]]
    rows = pa.table({ROW: pa.array(range(4), pa.int32()), "text": ["a", None, "", "b"], "answers": answers})
    return [kept_columns(rows, _PATHS, list(map(parse_path, _PATHS)))]
