"""What tests start ends with the suite, however that ends."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from support.paths import TESTS
from support.processes import finish, next_line, started
from support.stray_processes import MARK, processes_with
from support.waiting import until

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")

SUITE = """
import subprocess, sys, time
from pathlib import Path
from support.stray_processes import tie_to_this_process

tie_to_this_process(Path(sys.argv[1]))
start = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)"
subprocess.run([sys.executable, "-c", start])  # as a daemon starts runs: the one that started it has ended
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("started", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_killed_suite_started_ends_and_its_folder_is_removed(end: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with started([sys.executable, "-c", SUITE, tmp_path / "home"], env=environment, stdout=PIPE) as suite:
        assert next_line(suite) == "started\n"
        mark = f"{MARK}={suite.pid}"
        until(lambda: len(processes_with(mark)) == 2)  # a started process has no environment for an instant
        suite.send_signal(end)
        finish(suite)
    until(lambda: not processes_with(mark) and not (tmp_path / "home").exists())
