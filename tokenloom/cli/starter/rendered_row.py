"""One row of a source as the model will see it, rendered without a build."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from tokenloom.assets.building.build import Build
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.stage.rejects import ROW
from tokenloom.cli.terminal.token_runs import Run, ShownRow
from tokenloom.config import PipelineConfig
from tokenloom.resources.tables.preference_pairs import sides
from tokenloom.resources.tokenizers import resolve_tokenizer

TRIED = 100
"""Rows of which the first one that is not rejected is shown."""

LONGEST = 1200
"""Characters shown of consecutive text of one kind."""


def rendered_row(config: PipelineConfig, build: Build) -> ShownRow | None:
    """Return the first row as `config` renders it, or None if the first `TRIED` rows are rejected.

    Args:
        config: the dataset's declaration.
        build: a build whose stages `raw` and `schema` have run.

    Raises:
        ConfigError: the declaration does not fit the rows.
    """
    mapping = resolve(config, build.manifest("schema").facts["columns"])
    chunk = next(build.input_chunks("raw"))
    rows = to_canonical(chunk.load().slice(0, TRIED), mapping).table
    rendered = renderer(config, mapping.to_json(), resolve_tokenizer(config))(rows).table.slice(0, 1)
    if not rendered.num_rows:
        return None
    (position,) = rendered[ROW].to_pylist()
    runs = {side: tuple(_runs(*table.select(["text", "spans"]).to_pylist())) for side, table in sides(rendered).items()}
    return ShownRow(position, chunk.split, build.manifest("raw").chunks[0].place(position), runs)


def _runs(row: dict[str, Any]) -> list[Run]:
    text = row["text"].encode()
    runs = []
    for (trained, control), spans in groupby(row["spans"], key=lambda span: (span["weight"] > 0, span["control"])):
        shown = b"".join(text[span["start"] : span["end"]] for span in spans).decode()
        runs.append(Run(shown if len(shown) <= LONGEST else f"{shown[:LONGEST]} …", trained, control, 0))
    return runs
