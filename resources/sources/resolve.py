"""Resolves `dataset.name`: to local files, a `save_to_disk` folder, remote files, or a dataset of the hub or of
tensorflow_datasets."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

from tokenloom.config import DatasetConfig, PipelineConfig
from tokenloom.config.address import addresses_of, full_address
from tokenloom.errors import (
    ConfigError,
    SourceError,
    SourceUnavailableError,
    did_you_mean,
    escaped,
    install_command,
    redacted_address,
)
from tokenloom.resources.sources.data_folder import (
    OFFICE,
    TRAIN,
    card_configs,
    chosen_config,
    files_below,
    left_out,
    listed,
    named_splits,
    of_tokens,
    readable,
    splits_by_name,
    token_format,
    without_documents,
    without_images,
)
from tokenloom.resources.sources.hub import PROTOCOL, HubDataset, TfdsDataset, is_tfds_folder
from tokenloom.resources.sources.shard_index import INDEX, index_format, outer_indices
from tokenloom.resources.sources.source_file import (
    FILE_FORMATS,
    SHARDED,
    TABLES,
    TOKEN_FILES,
    SourceFile,
    SourceFiles,
    format_of,
    refuse_special,
)
from tokenloom.resources.visible import first_line

_HUB_ID = re.compile(r"[A-Za-z0-9][\w-]*|[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_ESCAPED = re.compile(r"\\x([89a-f][0-9a-f])")
_STARS = re.compile(r"(?:\*\*/)+")
_DISK_MARKS = ("dataset_dict.json", "state.json")


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
        for path in source.path.rglob("*.*"):
            if not path.is_dir():
                refuse_special(str(path))
        loaded: Any = datasets.load_from_disk(str(source.path))
    except Exception as error:
        raise SourceError(f"{source.path.name}: `datasets` cannot load it: {error}") from error
    return {str(split): rows for split, rows in loaded.items()} if isinstance(loaded, dict) else {"train": loaded}


DataSource = SourceFiles | DiskDataset | HubDataset | TfdsDataset


def locate(config: PipelineConfig) -> DataSource:
    """Resolve `dataset.name`.

    Raises:
        ConfigError: a file does not exist, its format is unknown, its folder is not clear, or a setting of `dataset`
            has no effect on the source.
    """
    splits = addresses_of(config.dataset.name)
    source = _files_of_splits(config, splits) if splits else _at(config, config.dataset.name)
    for setting, message in without_effect(config.dataset, source):
        raise config.fault(f"dataset.{setting}", message)
    return source


def without_effect(dataset: DatasetConfig, source: DataSource) -> Iterator[tuple[str, str]]:
    """Yield the settings of `dataset` that have no effect on a source, and why."""
    is_hub, files = isinstance(source, HubDataset), source if isinstance(source, SourceFiles) else SourceFiles([])
    if dataset.config is not None and not is_hub and not files.config:
        yield "config", f"has no effect: {dataset.name} declares no configs; omit it"
    if dataset.revision is not None and not is_hub:
        yield "revision", f"has no effect: {dataset.name} is not a hub dataset; omit it"
    if dataset.format not in ("auto", "hub") and not files.files:
        yield "format", f"has no effect: {dataset.name} is not a file or a folder of files; omit it"
    formats = {file.format for file in files.files}
    shown = f"is read as {', '.join(sorted(formats))}" if formats else "is not a file or a folder of files"
    if dataset.encoding != "auto" and formats <= TABLES:
        yield "encoding", f"has no effect: {dataset.name} {shown}, which is not text; omit it"
    for option in ("header", "delimiter", "lines_per_row", "root", "dtype", "eos_id"):
        used = [name for name, each in FILE_FORMATS.items() if option in each.options]
        default = type(dataset.reader).model_fields[option].default
        if getattr(dataset.reader, option) != default and not formats.intersection(used):
            reason = f"has no effect: it is for {' and '.join(used)}, but {dataset.name} {shown}; omit it"
            yield f"reader.{option}", reason


def _files_of_splits(config: PipelineConfig, splits: Mapping[str, str]) -> SourceFiles:
    """Resolve an address for each split: to files, all of which are that split, whatever their names say."""
    files, notices = list[SourceFile](), list[str]()
    for split, address in splits.items():
        source = _at(config, address)
        if not isinstance(source, SourceFiles):
            remedy = "make it a dataset of its own, and open both in training"
            raise config.fault("dataset.name", f"{split}: {address} is not a file or a folder of files; {remedy}")
        if len(source.splits) > 1:
            message = f"{split}: {address} has the splits {', '.join(source.splits)}; name the files of one"
            raise config.fault("dataset.name", message)
        files += [replace(file, split=split) for file in source.files]
        notices += source.notices
    # the first split of each path wins: a path in a second one is named twice
    paths = {file.path: file.split for file in reversed(files)}
    if twice := next((file for file in files if paths[file.path] != file.split), None):
        message = f"{twice.name} is in {paths[twice.path]} and {twice.split}; name it once"
        raise config.fault("dataset.name", message)
    names = Counter(file.name for file in files)
    files = [replace(file, name=f"{file.split}/{file.name}") if names[file.name] > 1 else file for file in files]
    return SourceFiles(files, notices=tuple(notices))


def _at(config: PipelineConfig, name: str) -> DataSource:
    declared = config.dataset.format
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
        source = _local(config, name)
    except OSError as error:
        raise config.fault("dataset.name", f"{name} cannot be read: {error.strerror}") from error
    if source is not None:
        return source
    if _HUB_ID.fullmatch(name) and not format_of(name):
        return HubDataset(name)
    raise config.fault("dataset.name", f"no such file: {name}{_hint(config, name)}")


def _local(config: PipelineConfig, name: str) -> DataSource | None:
    """Resolve a local path or glob: to files, a `save_to_disk` folder or a prepared dataset; None if nothing exists
    there."""
    unescaped = _ESCAPED.sub(lambda byte: chr(0xDC00 + int(byte[1], 16)), name)  # as messages show bytes of names
    for base, written in product(_bases(config), dict.fromkeys((name, unescaped))):
        path = base / _expanded(written)
        if path.is_dir():
            if is_tfds_folder(path):
                return TfdsDataset(name, path)
            if any((path / mark).exists() for mark in _DISK_MARKS):
                return DiskDataset(path)
            return _folder(config, path, name)
        if path.is_file():
            return SourceFiles([_file(config, str(path), path.name)])
        if glob.has_magic(name):
            text = _STARS.sub("**/", str(path))  # glob walks all folders again for each `**`
            paths = map(Path, glob.glob(text, recursive=True))  # noqa: PTH207  # pathlib has no absolute patterns
            if matches := sorted(match for match in paths if match.is_file()):
                files = [_file(config, str(match), match.name) for match in matches]
                return SourceFiles(files, notices=_one_split([str(match) for match in matches]))
    return None


def _folder(config: PipelineConfig, folder: Path, written: str) -> SourceFiles:
    """Resolve a folder as `datasets.load_dataset` does: to the files of each split, by its README.md or their names."""

    def refuse(message: str) -> ConfigError:
        return config.fault("dataset.name", f"the folder {written}: {message}")

    refuse_config = partial(config.fault, "dataset.config")
    chosen = chosen_config(card_configs(folder, refuse), config.dataset.config, refuse_config, refuse)
    below = folder / chosen.folder
    if not below.is_dir():
        raise refuse(f"config {chosen.name}: no folder {chosen.folder}")
    names = files_below(below, chosen.names_hidden)
    declared = config.dataset.format
    if declared == "auto":
        # formats of whole folders, which no ending declares
        declared = token_format(names) or index_format(below, names) or declared
    if declared in SHARDED:
        names = outer_indices(names)
    elif lone := next((name for name in names if name.lower().endswith((".mds", ".mds.zstd"))), None):
        raise refuse(f"{lone} is a shard of MosaicML Streaming, and no {INDEX} lists it")
    elif declared in TOKEN_FILES:
        names = of_tokens(names, declared)
    if config.media is not None and (rest := without_images(names)) != names:
        if not rest:
            example = '{"file_name": "a.jpg", "text": "…"}'
            raise refuse(f"it has only images; add a metadata.jsonl with a line for each: {example}")
        names = rest
    are_sessions = config.dataset.format in FILE_FORMATS and bool(FILE_FORMATS[config.dataset.format].sessions)
    by_name = {TRAIN: names} if are_sessions else splits_by_name(names, refuse)
    splits = chosen.files(names, refuse) if chosen.patterns else by_name
    read = splits if declared in TOKEN_FILES else readable(splits, config.dataset.format, refuse)
    notices = left_out(names, chain(*read.values()), splits)
    if not any(read.values()):
        why = f" in the splits that its names declare: {', '.join(splits)}" if [*splits] != [TRAIN] else ""
        message = f"the folder {written} contains no file of a known format{why}"
        raise config.fault("dataset.name", escaped("; ".join([message, *notices])))
    files = [
        _file(config, f"{below}/{name}", name, split, declared)
        for split, names_of_split in read.items()
        for name in names_of_split
    ]
    chosen.refuse_parameters(config.dataset, FILE_FORMATS[files[0].format].delimiter or None, refuse)
    if chosen.name or [*splits] != [TRAIN]:
        origin = f"config {chosen.name} of README.md" if chosen.name else "splits by name"
        shown = "; ".join(f"{split}: {listed(files)}" for split, files in read.items())
        notices = [f"{origin}: {shown}", *notices]
    return SourceFiles(files, chosen.name or None, tuple(map(escaped, notices)))


def _one_split(paths: Sequence[str]) -> tuple[str, ...]:
    if len(paths) < 2:
        return ()
    # the smallest and the largest name share what all of them do
    root = os.path.commonpath([os.path.dirname(min(paths)), os.path.dirname(max(paths))])  # noqa: PTH120
    said = named_splits([path[len(root) :].lstrip("/") for path in paths])
    if not {*said} - {TRAIN}:
        return ()
    shown = "; ".join(f"{split}: {listed(names)}" for split, names in said.items())
    remedy = "name the local folder instead to read it with its splits, or fewer files"
    return (escaped(f"all files are read as the split {TRAIN}, but names say {shown}; {remedy}"),)


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def _remote(config: PipelineConfig, address: str) -> SourceFiles:
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
        return SourceFiles([_file(config, address, shown)])
    try:
        if "::" in address:
            refuse_special(address)
        system, path = fsspec.url_to_fs(address)
        listing = system.find(path) if folder else system.glob(path)
    except Exception as error:
        reason = first_line(error).replace(address, shown)
        raise SourceUnavailableError(f"{protocol}://…/{shown} cannot be listed: {reason}") from None
    every = sorted(map(str, listing))
    names = without_documents([name for name in every if format_of(name)]) if folder else every
    if folder and config.dataset.format in SHARDED:
        names = outer_indices(every)
    if not names:
        raise config.fault("dataset.name", f"{protocol}://…/{shown} matches no file of a known format")
    root = f"{path.rstrip('/')}/" if folder else ""
    unread = left_out([name.removeprefix(root) for name in every], [name.removeprefix(root) for name in names])
    files = [
        _file(config, system.unstrip_protocol(name), name.removeprefix(root) if folder else name.rpartition("/")[2])
        for name in names
    ]
    return SourceFiles(files, notices=(*_one_split(names), *map(escaped, unread)))


def _bases(config: PipelineConfig) -> list[Path]:
    return [Path(folder) for folder in dict.fromkeys((config.folder or ".", "."))]


def local_path(config: PipelineConfig, name: str) -> Path | None:
    """Return a file or folder that the YAML names, looked up in the YAML's folder, then in the working directory. None
    if it exists in neither."""
    for base in _bases(config):
        if (path := base / _expanded(name)).exists():
            return path
    return None


def _file(config: PipelineConfig, path: str, name: str, split: str = TRAIN, format: str | None = None) -> SourceFile:
    declared = format or config.dataset.format
    kind = declared if declared != "auto" else format_of(name)
    named = SourceFile(path, escaped(name), "megatron", split)
    if kind in (None, "megatron") and name.endswith(".bin") and (index := named.beside(r"\.bin$", ".idx")).exists():
        return index
    if kind is None:
        if unread := OFFICE.get(Path(name).suffix.lower()):
            raise config.fault("dataset.name", f"{escaped(name)} cannot be read, because it is {unread}")
        formats = ", ".join(sorted(FILE_FORMATS))
        raise config.fault("dataset.name", f"{escaped(name)}: unknown format; set dataset.format to one of {formats}")
    return SourceFile(path, escaped(name), kind, split)


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
