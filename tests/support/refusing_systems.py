"""Builds where the file system refuses to write, in a mount namespace of its own.

`unshare -m python -m support.refusing_systems FOLDER` prints a line per case: its name, the exit codes, the message.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import sys
from pathlib import Path

from support.datasets_on_disk import write_dataset
from support.processes import run
from tokenloom.cli.main import main
from tokenloom.resources.store import known_files


def tokenloom(*arguments: object) -> tuple[int, str]:
    """Run a command; returns its exit code and what it prints on stderr."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(printed):
        code = main([*map(str, arguments)])
    return code, printed.getvalue()


def report(case: str, folder: Path, *commands: tuple[object, ...]) -> None:
    """Print the outcome of commands on a store in a folder."""
    ended = [tokenloom(*command, "--store", folder) for command in commands]
    print(json.dumps([case, [code for code, _ in ended], ended[0][1]]), flush=True)


def mount(folder: Path, options: str) -> None:
    run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True)


def cases(folder: Path) -> None:
    config, other = write_dataset(folder / "a", 200), write_dataset(folder / "b", 200, seed=1)
    full, small, file = folder / "full", folder / "small", folder / "file"
    full.mkdir()
    file.write_text("mine")
    mount(full, "size=200k")
    report("full disk", full, ("build", config))
    mount(full, "remount,size=100m")
    report("room again", full, ("build", config), ("verify",))
    known_files.SETTLED_SECONDS = 0.0  # a build would now add an entry for the file
    mount(full, "remount,ro")
    report("read-only", full, ("build", other), ("build", config), ("verify",), ("gc",), ("versions", "small"))
    report("a file", file, ("build", config), ("verify",), ("versions", "small"), ("gc",), ("explain", config))
    report("below a file", file / "store", ("build", config), ("verify",))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    report("limit", small, ("build", config))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    report("no limit", small, ("build", config), ("verify",))


if __name__ == "__main__":
    cases(Path(sys.argv[1]))
