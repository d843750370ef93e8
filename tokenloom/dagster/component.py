"""The Dagster component `tokenloom.TokenloomDatasets`: datasets in a `defs.yaml`."""

# Without `from __future__ import annotations`: Dagster reads the fields of the component as types, not as text.

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
import yaml

from tokenloom.assets.building.target import DeclaredFolder, read_files, read_folder
from tokenloom.assets.dagster.definitions import declared_definitions
from tokenloom.assets.dagster.embedding import DatasetRun, Embedding, Event, keys_of, parts_of
from tokenloom.assets.dagster.names import StoreResource
from tokenloom.config.dataset import check_config
from tokenloom.config.yaml_file import Loader, parse_yaml
from tokenloom.dagster.scaffolder import DatasetScaffolder
from tokenloom.errors import ConfigError

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
