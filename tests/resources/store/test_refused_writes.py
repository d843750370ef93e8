"""A file system that refuses writes is not damage: exit code 1, one line with folder and remedy, and a sound store."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from support.processes import run

COMMAND = ["unshare", "--mount", "--map-root-user"]
HAS_MOUNTS = shutil.which("unshare") and run([*COMMAND, "true"]).returncode == 0


@pytest.mark.skipif(not HAS_MOUNTS, reason="mounting a full and a read-only file system needs user namespaces")
def test_refused_writes_are_no_damage(tmp_path: Path) -> None:
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    command = [*COMMAND, sys.executable, "-m", "support.refusing_systems", tmp_path]
    done = run(command, env={**os.environ, "PYTHONPATH": paths}, check=True)
    found = {case: (codes, text) for case, codes, text in map(json.loads, done.stdout.splitlines())}
    assert {case: codes for case, (codes, _) in found.items()} == {
        "full disk": [1],
        "room again": [0, 0],
        "read-only": [1, 0, 0, 0, 0],
        "a file": [1] * 5,
        "below a file": [1, 1],
        "limit": [1],
        "no limit": [0, 0],
    }
    remedies = {
        "full disk": ("full", "No space left on device; free space there, or use another store"),
        "read-only": ("full", "Read-only file system; make the folder readable and writable"),
        "a file": ("file", "is a file, not a folder; choose another (--store or $TOKENLOOM_STORE)"),
        "below a file": ("file/store", "Not a directory; remove the file that is in its place"),
        "limit": ("small", "File too large; raise the limit on file sizes"),
    }
    for case, (folder, remedy) in remedies.items():
        (error,) = (line for line in found[case][1].splitlines() if line.startswith("error: "))
        assert f"the store {tmp_path / folder}" in error
        assert remedy in error
