"""Runs tests as on a platform without `os.sched_getaffinity` (macOS, Windows) and `fcntl` (Windows)."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest

MASKED = os.environ.get("TOKENLOOM_TEST_MASKED") == "1"
FOLDER = Path(__file__).parent / "without_posix"

needs_file_locks = pytest.mark.skipif(MASKED, reason="TOKENLOOM_TEST_MASKED=1 masks file locks")


def python_path() -> str:
    """Return a PYTHONPATH that masks new Python processes."""
    return os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])


def mask() -> None:
    """Mask this process, before it imports tokenloom, and all processes that it starts."""
    os.environ["PYTHONPATH"] = python_path()
    runpy.run_path(str(FOLDER / "sitecustomize.py"))
