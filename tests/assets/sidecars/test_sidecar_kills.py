"""A build killed while it writes the kept columns goes on where it was, and gives the same bytes."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from support.builds import build, digests
from support.datasets_on_disk import write_dataset
from support.paths import TESTS
from support.processes import run
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.verify import verify

_KILLED_IN_SIDECARS = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.builds import build
from tokenloom.assets.sidecars import stage
kept_columns, calls = stage.kept_columns, []
def killed(*args):
    calls.append(args)
    if len(calls) > int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
    return kept_columns(*args)
stage.kept_columns = killed
build(Path(sys.argv[2]), Path(sys.argv[3]), workers=1)
"""


def test_a_build_killed_in_sidecars_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    config = write_dataset(tmp_path / "rows", 600, dataset={"name": "small.jsonl", "keep_columns": ["output"]})
    whole = build(config, tmp_path / "whole")
    named = ArtifactStore(tmp_path / "whole").manifest("small").sidecars
    assert named is not None
    assert whole["sequences"].chunks > 2
    for chunks in (0, 2):
        store = tmp_path / f"killed{chunks}"
        command = [sys.executable, "-c", _KILLED_IN_SIDECARS, TESTS, config, store, chunks]
        assert run(command).returncode == -signal.SIGKILL
        again = build(config, store)
        assert digests(again) == digests(whole)
        assert all(again[stage].chunks_reused == again[stage].chunks for stage in again)  # only sidecars were missing
        opened = ArtifactStore(store)
        assert opened.manifest("small").sidecars == named
        assert verify(opened).findings == []
