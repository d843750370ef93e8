"""Two builds on one store, killed at random moments: no half-written files, and the same digests in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from blake3 import blake3

from support.builds import build, digests
from support.datasets_on_disk import write_dataset
from support.paths import TESTS
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.verify import verify

KILLS = 200 if os.environ.get("TOKENLOOM_SOAK") == "1" else 16

_BUILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.builds import build
build(Path(sys.argv[2]), Path(sys.argv[3]))
"""


def started(config: Path, store: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _BUILD, str(TESTS), str(config), str(store)])


def test_killed_builds_of_two_datasets_end_with_the_same_digests(tmp_path: Path) -> None:
    """The datasets share rows, so both builds write some of the same objects."""
    configs = [write_dataset(tmp_path / name, count, name=name) for name, count in (("one", 1500), ("other", 1100))]
    right = [digests(build(config, tmp_path / "right")) for config in configs]
    begun = time.monotonic()
    for process in [started(config, tmp_path / "whole") for config in configs]:
        assert process.wait() == 0
    whole, draw = time.monotonic() - begun, random.Random(11)
    kills = stores = 0
    while kills < KILLS:
        store = tmp_path / f"killed{stores}"
        running = [started(config, store) for config in configs]
        until = time.monotonic() + draw.uniform(0.3, 1.0) * whole
        for process in draw.sample(running, 2):
            try:
                process.wait(timeout=max(until - time.monotonic(), 0.0))
                stores += 1
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
            until += draw.uniform(0.0, 0.2) * whole
        nothing_is_half_written(store)
        stores += kills % 6 == 0
    for store in tmp_path.glob("killed*"):
        assert [digests(build(config, store)) for config in configs] == right
        nothing_is_half_written(store)
        assert verify(ArtifactStore(store)).findings == []


def nothing_is_half_written(store: Path) -> None:
    """Check that every object matches its digest, and that every action and pointer is complete."""
    for path in store.glob("objects/*/*"):
        assert blake3(path.read_bytes()).hexdigest() == path.stem
    for path in [*store.glob("actions/*/*"), *store.glob("datasets/*/*"), *store.glob("versions/*/*")]:
        json.loads(path.read_bytes())
