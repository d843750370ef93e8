"""The Dagster component `tokenloom.TokenloomDatasets`: datasets in a `defs.yaml`, as `dg scaffold defs` writes it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
import yaml
from dagster.components.component_scaffolding import scaffold_component
from pydantic import BaseModel, Field

from tokenloom.assets.building.target import DeclaredFolder, read_files, read_folder
from tokenloom.assets.dagster.definitions import declared_definitions
from tokenloom.assets.dagster.embedding import DatasetRun, Embedding, Event, keys_of, parts_of
from tokenloom.assets.dagster.names import StoreResource
from tokenloom.config.dataset import check_config
from tokenloom.config.yaml_file import Loader, parse_yaml
from tokenloom.errors import ConfigError

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
        from tokenloom.starter.source_facts import dataset_name

        out = os.path.relpath(folder / f"{dataset_name(rows)}.yaml")
        if main(["inspect", rows, "--out", out, *(["--tokenizer", tokenizer] if tokenizer else [])]):
            for made in (folder, folder.parent):
                if not any(made.iterdir()):
                    made.rmdir()  # dg refuses to scaffold into a folder that exists
            raise click.ClickException(f"{rows} cannot be inspected; the message above says why")


FILE = "defs.yaml"


def _described(text: str) -> dg.Resolver:
    return dg.Resolver.default(description=text)  # Dagster takes no descriptions from pydantic's fields


@dg.scaffold_with(DatasetScaffolder)
class TokenloomDatasets(dg.Component, dg.Resolvable, dg.Model):
    """Datasets and mixtures declared in YAML, as assets: the YAMLs of a folder, one YAML, or one written here."""

    path: Annotated[str | None, _described("A folder of YAMLs, or one YAML, relative to this defs.yaml.")] = None
    declaration: Annotated[
        dict[str, Any] | None,
        dg.Resolver.passthrough("The settings of one dataset, as in a YAML of its own. Its name: that of the folder."),
    ] = None
    store: Annotated[
        str | None,
        _described(
            "Folder of the store, or s3://bucket/prefix. "
            "Default: $TOKENLOOM_STORE, else the nearest .tokenloom in or above this folder."
        ),
    ] = None
    deps: Annotated[
        Sequence[str], _described("Keys of the assets that write what the datasets read, such as crawl/pages.")
    ] = ()
    key_prefix: Annotated[str | None, _described("First parts of all asset keys, such as team/text.")] = None
    group: Annotated[str | None, _described("Group of the assets. Default: the name of each dataset.")] = None
    owners: Annotated[Sequence[str], _described("E-mail addresses, or teams as team:name.")] = ()
    tags: Annotated[Mapping[str, str], _described("Tags of the assets.")] = {}

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of all datasets. A faulty YAML becomes an asset that says why it cannot run.

        Raises:
            ConfigError: a YAML is faulty, while definitions are validated; or neither or both of `path` and
                `declaration` are set.
        """
        folder = context.path if context.path.is_dir() else context.path.parent
        embedding = Embedding(
            keys_of(self.deps),
            parts_of(self.key_prefix),
            self.group,
            tuple(self.owners),
            self.tags,
            store=StoreResource(root=self.store),
            get_asset_spec=self.get_asset_spec,
            execute=self.execute,
        )
        return declared_definitions(self._declared(folder), embedding)

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Return the spec of an asset. Override it to change metadata, owners, tags, conditions or upstream assets."""
        return spec

    def execute(self, run: DatasetRun) -> Iterator[Event]:
        """Build a dataset and yield its events. Override it to act before or after, or on each event."""
        yield from run.events()

    def _declared(self, folder: Path) -> DeclaredFolder:
        if self.path is None and self.declaration is not None:
            return self._inline(folder)
        if self.path is None or self.declaration is not None:
            raise ConfigError.at(str(folder / FILE), "set either `path` or `declaration`")
        path = folder / Path(self.path).expanduser()
        if not path.exists():
            raise ConfigError.at(str(folder / FILE), f"path: no such file or folder: {self.path}")
        return read_folder(path) if path.is_dir() else read_files([path])

    def _inline(self, folder: Path) -> DeclaredFolder:
        path = folder / FILE
        try:
            text = _declaration_text(path.read_text(encoding="utf-8"), self.declaration)
            settings, origin = parse_yaml(text, path)
            return DeclaredFolder({path: check_config({"name": folder.name, **settings}, origin)}, {})
        except ConfigError as error:
            return DeclaredFolder({}, {path: error})


def _declaration_text(text: str, settings: Any) -> str:
    """Return the settings of `declaration` in a defs.yaml as a YAML of their own, on the lines where they are."""
    for document in yaml.compose_all(text, Loader=Loader):
        node = _value(_value(document, "attributes"), "declaration")
        if node is None:
            continue
        start, lines = node.start_mark, text[node.start_mark.index : node.end_mark.index].splitlines()
        dedented = (line[start.column :] if line[: start.column].isspace() else line for line in lines[1:])
        found = "\n".join(["\n" * start.line + lines[0], *dedented]) + "\n"
        if yaml.load(found, Loader=Loader) == settings:  # another document can hold another component
            return found
    return yaml.safe_dump(settings, sort_keys=False)


def _value(node: yaml.Node | None, name: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == name), None)
