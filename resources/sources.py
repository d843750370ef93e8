"""Finds what `dataset.name` means: local files, a `save_to_disk` folder, a URL, or a hub dataset."""

from __future__ import annotations

import difflib
import glob
import lzma
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa

from tokenloom.config import PipelineConfig
from tokenloom.errors import SourceError, SourceUnavailableError, TokenloomError

COMPRESSIONS = {".gz", ".zst", ".bz2", ".xz"}
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
class SourceFile:
    """One file: `path` as fsspec opens it, `name` as messages and manifests show it, `format` a key of readers."""

    path: str
    name: str
    format: str

    def read(self) -> bytes:
        """The whole file, decompressed.

        Raises:
            SourceError: it cannot be read, for example a truncated archive.
        """
        try:
            with self.open() as file:
                return file.read()
        except FileNotFoundError as error:
            raise SourceError(f"{self.name}: there is no such file at its address") from error
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            reason = str(error).replace(self.path, self.name).splitlines() or [type(error).__name__]
            raise SourceError(f"{self.name}: cannot be read: {reason[0]}") from error

    def open(self) -> IO[bytes]:
        """The file, decompressed, opened for reading."""
        import fsspec

        if self.name.endswith(".zst"):  # Arrow's decompressor, unlike fsspec's, refuses a truncated file
            return pa.CompressedInputStream(cast(Any, fsspec.open(self.path, "rb", expand=False)).open(), "zstd")  # pyright: ignore[reportReturnType]
        return cast(Any, fsspec.open(self.path, "rb", compression="infer", expand=False)).open()


@dataclass(frozen=True)
class DiskDataset:
    """A folder that `datasets.save_to_disk` wrote."""

    path: Path


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the hub."""

    name: str


def locate(config: PipelineConfig) -> list[SourceFile] | DiskDataset | HubDataset:
    """What `dataset.name` means here.

    Raises:
        ConfigError: a file that does not exist, or one whose format is unknown.
    """
    name, declared = config.dataset.name, config.dataset.format
    if declared == "hub":
        return HubDataset(name)
    if "://" in name:
        _require_protocol(config, name)
        return [_file(config, name, name.rpartition("/")[2].partition("?")[0])]
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


def _local(config: PipelineConfig, name: str) -> list[SourceFile] | DiskDataset | None:
    """The files or the `save_to_disk` folder that a path or glob names, or None where there are none."""
    for base in _bases(config):
        path = base / _expanded(name)
        if path.is_dir():
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


def _require_protocol(config: PipelineConfig, name: str) -> None:
    import fsspec

    protocol = name.partition("://")[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise config.fault("dataset.name", f"dataset.name: {protocol}:// needs a package: {error}") from error
    except ValueError:
        raise config.fault("dataset.name", f"dataset.name: {protocol}:// is no protocol that fsspec knows") from None


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
    while path.suffix in COMPRESSIONS:
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


def open_disk_dataset(source: DiskDataset) -> dict[str, Any]:
    """Splits of a `save_to_disk` folder, as `datasets.Dataset` by name."""
    import datasets

    try:
        loaded: Any = datasets.load_from_disk(str(source.path))
    except Exception as error:
        raise SourceError(f"{source.path.name}: datasets cannot load it: {error}") from error
    return {str(split): rows for split, rows in loaded.items()} if isinstance(loaded, dict) else {"train": loaded}


def open_hub_dataset(config: PipelineConfig, source: HubDataset) -> dict[str, Any]:
    """Splits of a hub dataset, as `datasets.Dataset` by name.

    Raises:
        ConfigError: no such dataset, revision or subset exists, or it has several subsets and the YAML names none.
        SourceUnavailableError: the hub does not answer.
        SourceError: its files cannot be read.
    """
    import datasets

    name, wanted, revision = source.name, config.dataset.config, config.dataset.revision
    try:
        if wanted is None:
            names = datasets.get_dataset_config_names(name, revision=revision)
            if len(names) > 1 and "default" not in names:
                raise config.fault(
                    "dataset.config", f"dataset.config: {name} has several: {', '.join(names)}; name one"
                )
        loaded: Any = datasets.load_dataset(name, wanted, revision=revision)
    except TokenloomError:
        raise
    except Exception as error:
        raise _hub_error(config, name, error) from error
    return dict(loaded)


def _hub_error(config: PipelineConfig, name: str, error: Exception) -> TokenloomError:
    """What `datasets` met on the hub, as the error that names the YAML's line, the hub, or the data."""
    import datasets
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import HFValidationError, RevisionNotFoundError

    wanted, revision = config.dataset.config, config.dataset.revision
    told = _first_line(error).rstrip(".")
    if isinstance(error.__cause__, RevisionNotFoundError):
        return config.fault("dataset.revision", f"dataset.revision: {name} has no revision {revision} on the hub")
    if _is_hub_failure(error):
        return hub_unavailable(name, error)
    if isinstance(error, FileNotFoundError | HFValidationError):
        if isinstance(error, DatasetNotFoundError):
            told += "; check its spelling, or HF_TOKEN where it is private"
        return config.fault("dataset.name", f"dataset.name: {name} is no local file, and on the hub: {told}")
    if isinstance(error, OSError):
        return hub_unavailable(name, error)
    if wanted is not None and isinstance(error, ValueError):
        names = datasets.get_dataset_config_names(name, revision=revision)
        if wanted not in names:
            there = ", ".join(names)
            return config.fault("dataset.config", f"dataset.config: {name} has no {wanted}; there are {there}")
    told = _first_line(error.__cause__ or error).rstrip(".")
    return SourceError(
        f"{name}: datasets cannot load it: {told}; download its files and name them, then only bad rows are rejected"
    )


def hub_unavailable(name: str, error: BaseException) -> SourceUnavailableError:
    """The error for a name that is not here, and that for no fault of the YAML's cannot be had from the hub."""
    from huggingface_hub import constants
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    if not _is_hub_failure(error):
        return SourceUnavailableError(f"{name} cannot be fetched from the hub: {_first_line(error)}")
    refusals = [cause for cause in _causes(error) if isinstance(cause, HfHubHTTPError)]
    statuses = [cause.response.status_code for cause in refusals if not isinstance(cause, EntryNotFoundError)]
    if constants.HF_HUB_OFFLINE:
        told, remedy = "is not asked", "unset HF_HUB_OFFLINE"
    elif not statuses:
        told, remedy = "cannot be reached", "try again"
    else:
        told, remedy = f"answers {statuses[0]}", "check HF_TOKEN" if statuses[0] in (401, 403) else "try again"
    return SourceUnavailableError(
        f"{name} is not here, and the hub at {constants.ENDPOINT} {told}; {remedy}, or name a local copy"
    )


def _is_hub_failure(error: BaseException) -> bool:
    """Whether the hub gave no answer, or one that says nothing of what was asked for."""
    from huggingface_hub.errors import (
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # of whichever HTTP client the hub's own uses
        LocalEntryNotFoundError,
    )

    if isinstance(error, HTTPError | ConnectionError | TimeoutError):
        return True
    return any(isinstance(cause, LocalEntryNotFoundError) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    """What an exception says first, or its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def dataset_tables(dataset: Any, batch_rows: int = 10_000) -> Iterator[pa.Table]:
    """A `datasets.Dataset` as Arrow tables of blocks of rows."""
    yield from dataset.with_format("arrow").iter(batch_rows)
