"""Ends what tests started once their process is gone, also if a signal ended it before it could clean up, and removes
their folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

MARK = "TOKENLOOM_STARTED_BY"
"""Environment variable of all processes that a test starts, directly or through others: the id of the test's."""

_WATCHERS: list[subprocess.Popen[bytes]] = []


def processes_with(marker: str) -> set[int]:
    """Return the other processes whose environment contains `marker`; none where there is no `/proc`."""
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found - {os.getpid()}


def tie_to_this_process(*folders: Path) -> None:
    """Start a process that waits for the end of this one, then kills what it started, and removes folders.

    A process that a daemon starts has neither the parent nor the group of the test, but inherits its environment.
    """
    os.environ[MARK] = str(os.getpid())
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    command = [sys.executable, "-S", __file__, str(os.getpid()), *map(str, folders)]
    none = subprocess.DEVNULL
    _WATCHERS.append(
        subprocess.Popen(command, env=environment, stdin=none, stdout=none, stderr=none, start_new_session=True)
    )


def _wait_and_kill(owner: int, folders: Sequence[str]) -> None:
    while os.getppid() == owner:
        time.sleep(0.5)
    while strays := processes_with(f"{MARK}={owner}"):  # again: one may have started another meanwhile
        for stray in strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stray, signal.SIGKILL)
        time.sleep(0.1)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _wait_and_kill(int(sys.argv[1]), sys.argv[2:])
