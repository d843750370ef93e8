"""Finds what `dataset.name` means: local files, a `save_to_disk` folder, a URL, or a hub dataset."""

from __future__ import annotations

import difflib
import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenloom.config import PipelineConfig
from tokenloom.errors import SourceError, SourceUnavailableError
from tokenloom.resources.sources.hub import HubDataset
from tokenloom.resources.sources.source_file import COMPRESSIONS, SourceFile
from tokenloom.resources.sources.tfds import PROTOCOL, TfdsDataset, is_tfds_folder

FORMATS = {
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".txt": "text",
    ".text": "text",
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w-]*|[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_DISK_MARKS = ("dataset_dict.json", "dataset_info.json", "state.json")


@dataclass(frozen=True)
class DiskDataset:
    """A folder that `datasets.save_to_disk` wrote."""

    path: Path


def open_disk_dataset(source: DiskDataset) -> dict[str, Any]:
    """Splits of a `save_to_disk` folder, as `datasets.Dataset` by name.

    Raises:
        SourceError: `datasets` cannot load it.
    """
    import datasets

    try:
        loaded: Any = datasets.load_from_disk(str(source.path))
    except Exception as error:
        raise SourceError(f"{source.path.name}: datasets cannot load it: {error}") from error
    return {str(split): rows for split, rows in loaded.items()} if isinstance(loaded, dict) else {"train": loaded}


Source = list[SourceFile] | DiskDataset | HubDataset | TfdsDataset


def locate(config: PipelineConfig) -> Source:
    """What `dataset.name` means here.

    Raises:
        ConfigError: a file that does not exist, or one whose format is unknown.
    """
    name, declared = config.dataset.name, config.dataset.format
    if declared == "hub":
        return HubDataset(name)
    if name.startswith(PROTOCOL):
        return TfdsDataset(name.removeprefix(PROTOCOL))
    if "://" in name:
        return _remote(config, name)
    try:
        found = _local(config, name)
    except OSError as error:
        message = f"dataset.name: {name} cannot be read: {error.strerror}"
        raise config.fault("dataset.name", message) from error
    if found is not None:
        return found
    if _HUB_ID.fullmatch(name) and not _format_of(name):
        return HubDataset(name)
    raise config.fault("dataset.name", f"dataset.name: no such file: {name}{_nearest(config, name)}")


def _local(config: PipelineConfig, name: str) -> Source | None:
    """The files or the `save_to_disk` folder that a path or glob names, or None where there are none."""
    for base in _bases(config):
        path = base / _expanded(name)
        if path.is_dir():
            if is_tfds_folder(path):
                return TfdsDataset(name, path)
            if any((path / mark).exists() for mark in _DISK_MARKS):
                return DiskDataset(path)
            found = _data_files(path)
            if not found:
                raise config.fault("dataset.name", f"dataset.name: the folder {name} holds no file of a known format")
            return [_file(config, str(entry), str(entry.relative_to(path))) for entry in found]
        if path.is_file():
            return [_file(config, str(path), path.name)]
        if glob.has_magic(name) and (matches := _matches(path)):
            return [_file(config, str(match), match.name) for match in matches]
    return None


def _expanded(name: str) -> Path:
    """`~` as the home folder, where there is one."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def _matches(pattern: Path) -> list[Path]:
    """The files that a glob names, in order; `**` goes through folders."""
    found = glob.glob(str(pattern), recursive=True)  # noqa: PTH207  # pathlib has no globs from the root
    return sorted(path for path in map(Path, found) if path.is_file())


def _data_files(folder: Path) -> list[Path]:
    """The files below a folder whose format is known, hidden ones apart, in order."""
    found: list[Path] = []

    def refuse(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=False):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent) / name for name in names if _format_of(name) and not name.startswith(".")]
    return sorted(path for path in found if path.is_file())


def _remote(config: PipelineConfig, address: str) -> list[SourceFile]:
    """The files that a URL names: one, those below a folder (a final slash), or those that match a glob."""
    import fsspec

    protocol, _, rest = address.partition("://")
    try:
        fsspec.get_filesystem_class(protocol.rpartition("::")[2])
    except ImportError as error:
        raise config.fault("dataset.name", f"dataset.name: {protocol}:// needs a package: {error}") from error
    except ValueError:
        raise config.fault("dataset.name", f"dataset.name: {protocol}:// is no protocol that fsspec knows") from None
    shown = rest.partition("?")[0].rstrip("/").rpartition("/")[2]
    folder = rest.endswith("/") and protocol not in ("http", "https")
    if not folder and not glob.has_magic(rest.partition("?")[0]):
        return [_file(config, address, shown)]
    try:
        system, path = fsspec.url_to_fs(address)
        found = system.find(path) if folder else system.glob(path)
    except Exception as error:
        told = str(error).replace(address, shown).splitlines() or [type(error).__name__]
        raise SourceUnavailableError(f"{protocol}://…/{shown} cannot be listed: {told[0]}") from error
    names = sorted(str(name) for name in found if not folder or _format_of(str(name)))
    if not names:
        raise config.fault("dataset.name", f"dataset.name: {protocol}://…/{shown} names no file of a known format")
    root = f"{path.rstrip('/')}/" if folder else ""
    return [
        _file(config, system.unstrip_protocol(name), name.removeprefix(root) if folder else name.rpartition("/")[2])
        for name in names
    ]


def _bases(config: PipelineConfig) -> list[Path]:
    return [Path(folder) for folder in dict.fromkeys((config.folder or ".", "."))]


def local_path(config: PipelineConfig, name: str) -> Path | None:
    """A file or folder that the YAML names, sought from the YAML's folder and the working directory."""
    for base in _bases(config):
        if (path := base / _expanded(name)).exists():
            return path
    return None


def _format_of(name: str) -> str | None:
    path = Path(name)
    while path.suffix.lower() in COMPRESSIONS:
        path = path.with_suffix("")
    return FORMATS.get(path.suffix.lower())


def _file(config: PipelineConfig, path: str, name: str) -> SourceFile:
    declared = config.dataset.format
    kind = declared if declared != "auto" else _format_of(name)
    if kind is None:
        known = ", ".join(sorted(set(FORMATS.values())))
        raise config.fault(
            "dataset.name", f"dataset.name: {name}: unknown format; set dataset.format to one of {known}"
        )
    return SourceFile(path, name, kind)


def _nearest(config: PipelineConfig, name: str) -> str:
    for base in _bases(config):
        folder = (base / _expanded(name)).parent
        if folder.is_dir():
            close = difflib.get_close_matches(
                Path(name).name, [entry.name for entry in folder.iterdir() if entry.is_file()], n=1
            )
            if close:
                return f"; did you mean {Path(name).parent / close[0]}?"
        elif folder.parent.is_dir():
            return f"; there is no folder {Path(name).parent}"
    return ""
