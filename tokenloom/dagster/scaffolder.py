"""What `dg scaffold defs tokenloom.TokenloomDatasets` writes: a `defs.yaml` and a folder with the YAML of a dataset."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg
from dagster.components.component_scaffolding import scaffold_component
from pydantic import BaseModel, Field

FOLDER = "pipelines"


class ScaffoldParams(BaseModel):
    """Options of `dg scaffold defs tokenloom.TokenloomDatasets`."""

    rows: str | None = Field(
        default=None,
        description="A file, folder, glob, URL or hub id; `tokenloom inspect` writes the YAML of a dataset for it.",
    )
    tokenizer: str | None = Field(default=None, description="Tokenizer to set in that YAML. Default: train one.")


class DatasetScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes a component that reads a folder of YAMLs, with a first YAML if there are rows to inspect."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        """Write the files.

        Raises:
            ClickException: the rows cannot be inspected, and a message on stderr says why; or the format is not YAML.
        """
        import click

        if request.scaffold_format != "yaml":
            raise click.ClickException("tokenloom.TokenloomDatasets is scaffolded with --format yaml only")
        folder = request.target_path / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        shown = os.path.relpath(folder)
        rows, tokenizer = request.params.rows, request.params.tokenizer
        if rows is None:
            (folder / ".gitkeep").touch()
            step = f"declare a dataset in {shown}, for example with: tokenloom inspect DATA --out {shown}/NAME.yaml"
        else:
            self._inspect(rows, tokenizer, folder)
            step = f"check the YAML in {shown}, run `dg check defs`, and materialize the dataset in `dg dev`"
        scaffold_component(request, {"path": FOLDER})
        click.echo(f"Next: {step}")

    def _inspect(self, rows: str, tokenizer: str | None, folder: Path) -> None:
        import click

        from tokenloom.cli.main import main
        from tokenloom.cli.starter.source_facts import dataset_name

        out = os.path.relpath(folder / f"{dataset_name(rows)}.yaml")
        if main(["inspect", rows, "--out", out, *(["--tokenizer", tokenizer] if tokenizer else [])]):
            for made in (folder, folder.parent):
                if not any(made.iterdir()):
                    made.rmdir()  # dg refuses to scaffold into a folder that exists
            raise click.ClickException(f"{rows} cannot be inspected; the message above says why")
