"""Runs the `tokenloom` command as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TOKENLOOM = Path(sys.executable).parent / "tokenloom"


def run(*arguments: object, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TOKENLOOM_STORE": str(folder / "store"), "COLUMNS": "100", **environment}
    command = [str(TOKENLOOM), *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)
