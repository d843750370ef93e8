"""Files and folders that commands write. A folder appears at its path only when it is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenloom.cli.output.layouts import FinishedShards
from tokenloom.errors import ConfigError
from tokenloom.resources.file_lock import lock_exclusive

MARK = ".export.json"
"""File that marks a folder as an export."""


def check_file(option: str, target: str, force: bool, as_json: bool) -> None:
    """Check that a YAML can be written to a file, or to stdout as `-`.

    Args:
        option: the option that names the file.
        force: an existing file can be overwritten.
        as_json: stdout is taken by the output of `--json`.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = Path(target)
    if target == "-":
        if as_json:
            raise ConfigError.at(option, "- and --json both write to stdout; name a file")
    elif not target:
        raise ConfigError.at(option, "is empty; name a file, or - for stdout")
    elif path.is_dir():
        raise ConfigError.at(option, f"{target} is a folder; name a file")
    elif not path.parent.is_dir():
        raise ConfigError.at(option, f"no such folder: {path.parent}")
    elif path.exists() and not force:
        raise ConfigError.at(option, f"{target} exists; name another file, or add --force to overwrite it")


def write_file(option: str, target: str, text: str) -> None:
    """Write a text.

    Args:
        option: the option that names the file.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError.at(option, f"cannot write {target}: {error.strerror}") from error


def check_folder(target: str, overwrite: bool, option: str = "DIR", mark: str = MARK) -> Path:
    """Return the folder that an export can write.

    Args:
        overwrite: an earlier export can be replaced.
        option: the option that names the folder.
        mark: a file that an earlier export has.

    Raises:
        ConfigError: the folder is not local, or holds something else.
    """
    if not target or "://" in target:
        raise ConfigError.at(option, f"{target!r} is not a local folder; export to one, and copy it from there")
    path = Path(target).expanduser().resolve()
    if path.exists() and not path.is_dir():
        raise ConfigError.at(option, f"{target} is a file; name a folder")
    if path.is_dir() and any(path.iterdir()):
        if not overwrite:
            raise ConfigError.at(
                option, f"{target} is not empty; name another folder, or add --overwrite to replace an export"
            )
        if not (path / mark).is_file():
            raise ConfigError.at(
                option, f"{target} is not an export, so --overwrite does not replace it; name another folder"
            )
    return path


@contextmanager
def new_folder(path: Path, overwrite: bool, content: str = "") -> Iterator[tuple[Path, FinishedShards]]:
    """Yield a folder to write, which becomes `path` if the block ends without an error, and its finished shards.

    What a killed process left is kept for the next one that writes the same content, and removed by any other.

    Args:
        overwrite: replace an existing folder.
        content: identifies what is written.

    Raises:
        ConfigError: the folder cannot be written, or another process is writing it.
    """
    temporary = path.parent / f".{path.name}.part"
    lock, written, before = temporary / "lock", temporary / "written", temporary / "before"
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        lock.touch()
        with lock_exclusive(lock) as free:
            if not free:
                raise _folder_error(f"another process is exporting to {path}")
            try:
                shards = FinishedShards(temporary / "shards.json", content)
                for leftover in (before,) if shards.any else (written, before):
                    shutil.rmtree(leftover, ignore_errors=True)
                written.mkdir(exist_ok=True)
                yield written, shards
                _sync(written)
                if overwrite and path.exists():
                    path.rename(before)
                try:
                    written.rename(path)
                except OSError:
                    if before.exists():
                        before.rename(path)
                    raise
                _sync(path.parent, below=False)
            except Exception:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise _folder_error(f"cannot write {path}: {error.strerror or error}") from error


def _sync(folder: Path, below: bool = True) -> None:
    """Force a folder, and everything in it if `below`, to disk."""
    for path in [folder, *(folder.rglob("*") if below else ())]:
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _folder_error(message: str) -> ConfigError:
    return ConfigError.at("DIR", message)
