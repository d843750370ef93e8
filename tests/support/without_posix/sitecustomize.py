"""Hides what macOS or Windows lack: `os.sched_getaffinity` and the module `fcntl`.

Python imports this module when it starts, if its folder is on PYTHONPATH.
"""

import os
import sys

if hasattr(os, "sched_getaffinity"):
    del os.sched_getaffinity
sys.modules["fcntl"] = None  # type: ignore[assignment]
