"""The samples of docs/operate/scale.md: those for one machine run, and the Slurm script with stand-ins."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.free_port import free_port
from support.paths import QUICKSTART, ROOT
from support.processes import run
from support.ray_cluster import LOOPBACK
from support.soak import machine
from tokenloom.resources.store import ArtifactStore

pytestmark = machine("cluster")

PAGE = (ROOT / "docs" / "operate" / "scale.md").read_text(encoding="utf-8")
FIRST, SLURM = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
JOB: dict[str, Any] = yaml.safe_load(re.findall(r"```yaml\n(apiVersion.*?)```", PAGE, re.DOTALL)[0])

STANDINS = {
    "scontrol": "echo 127.0.0.1",
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
}


def processes(folder: Path) -> list[int]:
    """The processes whose arguments name a folder."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdecimal() and os.fsencode(folder) in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return [number for number in found if number != os.getpid()]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which Ray listens on loopback and keeps its files in a folder; its processes end afterwards."""
    ray = Path(tempfile.mkdtemp(prefix="ray-"))  # paths of sockets must be short
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    yield {**os.environ, **LOOPBACK, "PATH": path, "RAY_TMPDIR": str(ray), "NO_COLOR": "1"}
    for process in processes(ray):
        os.kill(process, signal.SIGKILL)
    shutil.rmtree(ray, ignore_errors=True)


def adapted(sample: str, store: Path, port: int) -> str:
    """A sample with the quickstart and a store of the test, without what installs, or stops all clusters."""
    lines = [line for line in sample.splitlines() if not line.startswith(("pip ", "ray stop"))]
    text = "\n".join(lines).replace("alpaca.yaml", str(QUICKSTART)).replace("/shared/tokenloom", str(store))
    text = text.replace("ray start --head\n", f"ray start --head --port={port} --include-dashboard=false\n")
    return f"set -e\n{text.replace('port=6379', f'port={port}')}\n"


def run_program(program: str, environment: dict[str, str], folder: Path) -> None:
    run(["bash", "-c", program], env=environment, log=folder / "log", check=True)  # nodes that go on keep the log open


def test_the_sample_for_one_machine_builds(shell: dict[str, str], tmp_path: Path) -> None:
    program = adapted(FIRST, tmp_path / "store", port := free_port())
    run_program(program, {**shell, "RAY_ADDRESS": f"127.0.0.1:{port}"}, tmp_path)  # other tests have clusters too
    assert ArtifactStore(tmp_path / "store").datasets() == ["quickstart"]


def test_the_slurm_script_builds_with_stand_ins(shell: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, body in STANDINS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    assert re.findall(r"^#SBATCH --(\S+?)=", SLURM, re.MULTILINE)[:3] == ["job-name", "nodes", "ntasks-per-node"]
    variables = {"SLURM_JOB_NODELIST": "one", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_PER_TASK": "1"}
    program = adapted(SLURM, tmp_path / "store", free_port())
    done = run(["bash", "-n"], input=SLURM)
    assert (done.returncode, done.stderr) == (0, "")
    run_program(program, {**shell, **variables}, tmp_path)
    assert ArtifactStore(tmp_path / "store").datasets() == ["quickstart"]


def test_the_job_of_kubernetes_runs_the_command_of_the_first_sample() -> None:
    (command,) = (line for line in FIRST.splitlines() if line.startswith("tokenloom"))
    pattern = command.replace("alpaca.yaml", "/data/alpaca.yaml").replace("/shared/", "s3://bucket/")
    assert JOB["spec"]["entrypoint"] == pattern
    cluster = JOB["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    images = {box["image"] for group in groups for box in group["template"]["spec"]["containers"]}
    assert len(images) == 1, "all nodes need the same software"
