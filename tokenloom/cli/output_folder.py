"""Folders that commands write: beside the place first, and there only when they are whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenloom.errors import ConfigError, Fault
from tokenloom.resources.store.hold import claimed

MARK = ".export.json"
"""The file that tells an export from other folders."""


def check_target(target: str, overwrite: bool) -> Path:
    """The folder that an export may write.

    Args:
        overwrite: an earlier export may be replaced.

    Raises:
        ConfigError: it is not one.
    """
    if not target or "://" in target:
        raise _fault(f"{target!r} is no folder; name one on this machine, and copy it from there")
    path = Path(target).expanduser().resolve()
    if path.exists() and not path.is_dir():
        raise _fault(f"{target} is a file; name a folder")
    if path.is_dir() and any(path.iterdir()):
        if not overwrite:
            raise _fault(f"{target} is not empty; name another folder, or say --overwrite to replace an export")
        if not (path / MARK).is_file():
            raise _fault(f"{target} is no export, and --overwrite replaces nothing else; name another folder")
    return path


@contextmanager
def new_folder(path: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to write, which becomes `path` when the block ends without an error. What a process left that was
    killed is removed by the next one.

    Args:
        overwrite: replace what is there.

    Raises:
        ConfigError: it cannot be written, or another process writes it.
    """
    made = path.parent / f".{path.name}.part"
    lock, written, before = made / "lock", made / "written", made / "before"
    try:
        made.mkdir(parents=True, exist_ok=True)
        lock.touch()
        with claimed(lock) as free:
            if not free:
                raise _fault(f"another process is exporting to {path}")
            try:
                for left in (written, before):
                    shutil.rmtree(left, ignore_errors=True)
                written.mkdir()
                yield written
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
            finally:
                shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise _fault(f"cannot write {path}: {error.strerror or error}") from error


def _sync(folder: Path, below: bool = True) -> None:
    """Force a folder to disk, and what is in it."""
    for path in [folder, *(folder.rglob("*") if below else ())]:
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _fault(message: str) -> ConfigError:
    return ConfigError([Fault("DIR", message)])
