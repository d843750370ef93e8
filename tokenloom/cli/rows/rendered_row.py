"""One row of a source as the model will see it, rendered without a build."""

from __future__ import annotations

from dataclasses import replace

from tokenloom.assets.building.build import Build
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.shown_rows.token_runs import Run, ShownRow
from tokenloom.assets.stage.rejects import ROW
from tokenloom.cli.rows.source_rows import runs_of
from tokenloom.config import PipelineConfig
from tokenloom.resources.tables.preference_pairs import sides
from tokenloom.resources.tokenizers import resolve_tokenizer

TRIED = (4, 32, 256)
"""Numbers of rows that are rendered in turn, until one of them is not rejected."""

LONGEST = 1200
"""Characters shown of consecutive text of one kind."""


def rendered_row(config: PipelineConfig, build: Build) -> ShownRow | None:
    """Return the first row as `config` renders it, or None if the first rows are all rejected.

    Args:
        config: the dataset's declaration.
        build: a build whose stages `raw` and `schema` have run.

    Raises:
        ConfigError: the declaration does not fit the rows.
    """
    mapping = resolve(config, build.manifest("schema").facts["columns"])
    chunk = next(build.input_chunks("raw"))
    rows, render = chunk.load(), renderer(config, mapping.to_json(), resolve_tokenizer(config))
    tried = (render(to_canonical(rows.slice(0, count), mapping).table).table.slice(0, 1) for count in TRIED)
    rendered = next((table for table in tried if table.num_rows), None)
    if rendered is None:
        return None
    (position,) = rendered[ROW].to_pylist()
    runs = {side: tuple(map(_shortened, runs_of(table))) for side, table in sides(rendered).items()}
    return ShownRow(position, chunk.split, build.manifest("raw").chunks[0].place(position), runs)


def _shortened(run: Run) -> Run:
    return run if len(run.text) <= LONGEST else replace(run, text=f"{run.text[:LONGEST]} …")
