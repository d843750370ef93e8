"""Resolves `dataset.name`: to local files, a `save_to_disk` folder, remote files, or a dataset of the hub or of
tensorflow_datasets."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tokenloom.config import PipelineConfig
from tokenloom.config.address import full_address
from tokenloom.errors import (
    SourceError,
    SourceUnavailableError,
    did_you_mean,
    escaped,
    install_command,
    redacted_address,
)
from tokenloom.resources.exceptions import first_line
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
    ".md": "text",
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w-]*|[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_ESCAPED = re.compile(r"\\x([89a-f][0-9a-f])")
_STARS = re.compile(r"(?:\*\*/)+")
_DISK_MARKS = ("dataset_dict.json", "dataset_info.json", "state.json")


@dataclass(frozen=True)
class DiskDataset:
    """A folder written by `save_to_disk` of `datasets`."""

    path: Path


def open_disk_dataset(source: DiskDataset) -> dict[str, Any]:
    """Open a `save_to_disk` folder: its splits by name, as `datasets.Dataset`.

    Raises:
        SourceError: `datasets` cannot load it.
    """
    import datasets

    try:
        loaded: Any = datasets.load_from_disk(str(source.path))
    except Exception as error:
        raise SourceError(f"{source.path.name}: `datasets` cannot load it: {error}") from error
    return {str(split): rows for split, rows in loaded.items()} if isinstance(loaded, dict) else {"train": loaded}


Source = list[SourceFile] | DiskDataset | HubDataset | TfdsDataset


def locate(config: PipelineConfig) -> Source:
    """Resolve `dataset.name`.

    Raises:
        ConfigError: a file does not exist, or its format is unknown.
    """
    name, declared = config.dataset.name, config.dataset.format
    if declared == "hub":
        if local_path(config, name) is not None:
            message = f"{name} is a local path, which `datasets` would read instead of the hub; omit this setting"
            raise config.fault("dataset.format", message)
        return HubDataset(name)
    if name.startswith(PROTOCOL):
        return TfdsDataset(name.removeprefix(PROTOCOL))
    if "://" in name:
        return _remote(config, full_address(name))
    try:
        found = _local(config, name)
    except OSError as error:
        raise config.fault("dataset.name", f"{name} cannot be read: {error.strerror}") from error
    if found is not None:
        return found
    if _HUB_ID.fullmatch(name) and not _format_of(name):
        return HubDataset(name)
    raise config.fault("dataset.name", f"no such file: {name}{_hint(config, name)}")


def _local(config: PipelineConfig, name: str) -> Source | None:
    """Resolve a local path or glob: to files, a `save_to_disk` folder or a prepared dataset; None if nothing exists
    there."""
    for base, written in product(_bases(config), dict.fromkeys((name, _unescaped(name)))):
        path = base / _expanded(written)
        if path.is_dir():
            if is_tfds_folder(path):
                return TfdsDataset(name, path)
            if any((path / mark).exists() for mark in _DISK_MARKS):
                return DiskDataset(path)
            files = _data_files(path)
            if not files:
                raise config.fault("dataset.name", f"the folder {name} contains no file of a known format")
            return [_file(config, os.path.join(path, file), file) for file in files]  # noqa: PTH118
        if path.is_file():
            return [_file(config, str(path), path.name)]
        if glob.has_magic(name) and (matches := _matches(path)):
            return [_file(config, str(match), match.name) for match in matches]
    return None


def _unescaped(name: str) -> str:
    r"""Return a name with the bytes that `escaped` writes as `\xe9`."""
    return _ESCAPED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), name)


def _expanded(name: str) -> Path:
    """Expand `~`, if there is a home folder."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def _matches(pattern: Path) -> list[Path]:
    """Return the files that match a glob, sorted; `**` matches nested folders."""
    text = _STARS.sub("**/", str(pattern))  # glob walks all folders again for each `**`
    paths = glob.glob(text, recursive=True)  # noqa: PTH207  # pathlib does not support absolute patterns
    return sorted(path for path in map(Path, paths) if path.is_file())


def _data_files(folder: Path) -> list[str]:
    """Return the files of known formats below a folder, except hidden ones and those of stores, relative to it, sorted.

    They are plain strings, for there can be many thousands.
    """
    files: list[str] = []

    def refuse(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=False):
        if "FORMAT" in names and Path(parent, "FORMAT").read_bytes().startswith(b"tokenloom store "):
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        start = os.path.join(os.path.relpath(parent, folder), "").removeprefix("./")  # noqa: PTH118
        files += [
            start + name
            for name in names
            if not name.startswith(".") and _format_of(name) and os.path.isfile(f"{parent}/{name}")  # noqa: PTH113
        ]
    return sorted(_without_notes(files), key=lambda file: file.split("/"))


def _without_notes(files: list[str]) -> list[str]:
    """Return the files of a folder without Markdown, such as a README, unless it holds nothing else."""
    return [file for file in files if not file.lower().endswith(".md")] or files


def _remote(config: PipelineConfig, address: str) -> list[SourceFile]:
    """Resolve a URL: to one file, the files below a folder (if it ends with a slash), or those that match a glob."""
    import fsspec

    protocol, _, rest = address.partition("://")
    try:
        fsspec.get_filesystem_class(protocol.rpartition("::")[2])
    except ImportError as error:
        command = f"; run: {install_command('s3fs')}" if protocol.rpartition("::")[2] in ("s3", "s3a") else ""
        raise config.fault("dataset.name", f"{protocol}:// needs a package: {error}{command}") from error
    except ValueError:
        raise config.fault("dataset.name", f"{protocol}:// is not a protocol that fsspec supports") from None
    shown = redacted_address(address).partition("?")[0].rstrip("/").rpartition("/")[2]
    folder = rest.endswith("/") and protocol not in ("http", "https")
    if not folder and not glob.has_magic(rest.partition("?")[0]):
        return [_file(config, address, shown)]
    try:
        system, path = fsspec.url_to_fs(address)
        found = system.find(path) if folder else system.glob(path)
    except Exception as error:
        reason = first_line(error).replace(address, shown)
        raise SourceUnavailableError(f"{protocol}://…/{shown} cannot be listed: {reason}") from None
    names = [str(name) for name in found if not folder or _format_of(str(name))]
    names = sorted(_without_notes(names) if folder else names)
    if not names:
        raise config.fault("dataset.name", f"{protocol}://…/{shown} matches no file of a known format")
    root = f"{path.rstrip('/')}/" if folder else ""
    return [
        _file(config, system.unstrip_protocol(name), name.removeprefix(root) if folder else name.rpartition("/")[2])
        for name in names
    ]


def _bases(config: PipelineConfig) -> list[Path]:
    """Return the folders that relative paths are looked up in: the YAML's folder, then the working directory."""
    return [Path(folder) for folder in dict.fromkeys((config.folder or ".", "."))]


def local_path(config: PipelineConfig, name: str) -> Path | None:
    """Return a file or folder that the YAML names, looked up in the YAML's folder, then in the working directory. None
    if it exists in neither."""
    for base in _bases(config):
        if (path := base / _expanded(name)).exists():
            return path
    return None


def _format_of(name: str) -> str | None:
    stem, ending = os.path.splitext(name.rstrip("/"))  # noqa: PTH122
    while ending.lower() in COMPRESSIONS:
        stem, ending = os.path.splitext(stem)  # noqa: PTH122
    return FORMATS.get(ending.lower())


def _file(config: PipelineConfig, path: str, name: str) -> SourceFile:
    declared = config.dataset.format
    kind = declared if declared != "auto" else _format_of(name)
    if kind is None:
        known = ", ".join(sorted(set(FORMATS.values())))
        raise config.fault("dataset.name", f"{escaped(name)}: unknown format; set dataset.format to one of {known}")
    return SourceFile(path, escaped(name), kind)


def _hint(config: PipelineConfig, name: str) -> str:
    for base in _bases(config):
        folder = (base / _expanded(name)).parent
        if folder.is_dir():
            if hint := did_you_mean(
                Path(name).name, (escaped(entry.name) for entry in folder.iterdir() if entry.is_file())
            ):
                return hint
        elif folder.parent.is_dir():
            return f"; the folder {Path(name).parent} does not exist"
    return ""
