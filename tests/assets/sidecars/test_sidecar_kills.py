"""A build killed while it writes the kept columns goes on where it was, and gives the same bytes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from support.builds import build, digests
from support.datasets_on_disk import write_dataset
from support.paths import TESTS
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.verify import verify

_KILLED_IN_SIDECARS = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.builds import build
from tokenloom.assets.sidecars import stage
kept_columns, calls, limit = stage.kept_columns, [], 0
def killed(*args):
    calls.append(args)
    if len(calls) > limit:
        os.kill(os.getpid(), signal.SIGKILL)
    return kept_columns(*args)
stage.kept_columns = killed
for limit in map(int, sys.argv[4:]):
    child = os.fork()
    if child == 0:
        build(Path(sys.argv[2]), Path(f"{sys.argv[3]}{limit}"), workers=1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_build_killed_in_sidecars_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    config = write_dataset(tmp_path / "rows", 600, dataset={"name": "small.jsonl", "keep_columns": ["output"]})
    whole = build(config, tmp_path / "whole")
    named = ArtifactStore(tmp_path / "whole").manifest("small").sidecars
    assert named is not None
    assert whole["sequences"].chunks > 2
    command = [sys.executable, "-c", _KILLED_IN_SIDECARS, str(TESTS), str(config), str(tmp_path / "killed"), "0", "2"]
    codes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert codes == [str(-signal.SIGKILL)] * 2
    for chunks in (0, 2):
        store = tmp_path / f"killed{chunks}"
        again = build(config, store)
        assert digests(again) == digests(whole)
        assert all(again[stage].chunks_reused == again[stage].chunks for stage in again)  # only sidecars were missing
        opened = ArtifactStore(store)
        assert opened.manifest("small").sidecars == named
        assert verify(opened).findings == []
