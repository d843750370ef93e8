"""Which store is used where none is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

STORE = ".tokenloom"
"""Name of the folder of a store that no setting names."""

PROJECT_FILES = ("pyproject.toml", "workspace.yaml", ".git")
"""Files and folders of which one marks the root of a project."""


def default_store(beside: str | os.PathLike[str] | None = None) -> str:
    """Return the address of the store to use where none is named.

    It is `$TOKENLOOM_STORE`; else the nearest existing `.tokenloom` in `beside` or a folder above it; else in the
    working directory or above it. If there is none, it is a new `.tokenloom` at the root of the project: in the nearest
    folder above `beside` that has one of `PROJECT_FILES`, else in `beside` itself.

    Args:
        beside: the folder of a dataset's YAML. Default: the working directory; also for the YAMLs of an installed
            package, where no data belongs.
    """
    if named := os.environ.get("TOKENLOOM_STORE"):
        return named
    here = Path.cwd()
    start = Path(beside or here).absolute()
    if "site-packages" in start.parts:
        start = here
    for folder in (*_upwards(start), *_upwards(here)):
        if os.path.isdir(folder / STORE):  # noqa: PTH112  # `Path.is_dir` fails in a folder that cannot be read
            return str(folder / STORE)
    return str(next(filter(_is_project, _upwards(start)), start) / STORE)


def _is_project(folder: Path) -> bool:
    return any(os.path.exists(folder / mark) for mark in PROJECT_FILES)  # noqa: PTH110


def _upwards(folder: Path) -> Iterator[Path]:
    yield folder
    yield from folder.parents
