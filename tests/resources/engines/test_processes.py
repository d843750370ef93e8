"""Work that holds Python's lock, in processes: the same results and errors, and none is left behind."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from support.datasets_on_disk import TOKENIZER, write_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, Fault, SpansError, TemplateError
from tokenloom.resources.engines import processes
from tokenloom.resources.engines.compute import ComputeEngine
from tokenloom.resources.engines.processes import Processes
from tokenloom.resources.store import ArtifactStore

OPAQUE_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] if '</think>' in m.content else m.content }}<|im_end|>\n{% endfor %}"
)
OPAQUE_FIELDS = "{{ instruction }}{% if 'zq' in input %}!{% endif %}{{ input }}\n{{ output }}"
PROMPTS = {
    "chat": {"prompt_template": {"format_type": "chat"}, "tokenizer": TOKENIZER | {"chat_template": OPAQUE_CHAT}},
    "fields": {"prompt_template": {"format_type": "jinja", "template": OPAQUE_FIELDS, "label_column": "output"}},
}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are started with the first call."""
    monkeypatch.setattr(processes, "PATIENCE", 0.0)


@pytest.fixture
def apart(eager: None) -> Iterator[Processes]:
    """Two workers, both ready."""
    made = Processes(os.path.basename, 2)
    assert made("a/b") == "b"
    await_workers(made, 2)
    yield made
    made.close()


def await_workers(made: Processes, count: int) -> None:
    deadline = time.monotonic() + 60
    while made._idle.qsize() < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def pids(made: Processes) -> list[int]:
    return [worker._process.pid for worker in made._workers]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def await_end(found: list[int]) -> None:
    deadline = time.monotonic() + 30
    while any(map(alive, found)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_small_work_starts_no_process() -> None:
    engine = ComputeEngine(2)
    made = list(engine.map(engine.apart(whereabouts_here), range(50)))
    assert made == [(value, os.getpid()) for value in range(50)]
    assert ComputeEngine(1).apart(whereabouts_here) is whereabouts_here


def whereabouts_here(value: int) -> tuple[int, int]:
    return value, os.getpid()


def test_workers_answer_as_soon_as_they_are_ready_and_end_when_closed(apart: Processes) -> None:
    found = pids(apart)
    assert len(set(found)) == 2
    assert [apart(f"x/{number}") for number in range(9)] == [str(number) for number in range(9)]
    apart.close()
    await_end(found)


def test_what_a_worker_raises_is_raised_as_it_is(eager: None) -> None:
    made = Processes(bytes.fromhex, 1)
    made("00")
    await_workers(made, 1)
    with pytest.raises(ValueError, match="non-hexadecimal"):
        made("zz")
    assert made("ff") == b"\xff"
    with pytest.raises(TypeError):
        made(7)
    made.close()


def test_a_worker_that_is_killed_loses_nothing(apart: Processes) -> None:
    for pid in pids(apart):
        os.kill(pid, signal.SIGKILL)
    assert [apart(f"x/{number}") for number in range(5)] == [str(number) for number in range(5)]


@pytest.mark.parametrize(
    "error",
    [
        ConfigError([Fault("a.yaml:3", "x: wrong"), Fault("a.yaml:9", "y: wrong")]),
        TemplateError("template, line 3: no", 3),
        SpansError("cannot be followed"),
    ],
)
def test_errors_are_the_same_behind_a_pipe(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"a": pa.array([], pa.int32()), "b": pa.array([], pa.list_(pa.string()))}),
        pa.table({"a": [1, None, 3], "b": [["x"], None, []]}).slice(1),
        pa.concat_tables([pa.table({"a": [1]}), pa.table({"a": [2, 3]})]),
    ],
)
def test_tables_are_the_same_behind_a_pipe(table: pa.Table) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb") as sink:
        processes._send(sink, {"table": table})
        again = processes._receive(source)["table"]
    assert again.equals(table)
    assert again.schema.equals(table.schema, check_metadata=True)


def build(folder: Path, store: Path, form: str, workers: int) -> dict[str, str]:
    config = PipelineConfig.from_file(write_dataset(folder, 600, **PROMPTS[form]))
    size = ChunkSize(target=4_000, maximum=16_000)
    made = Build(config, ArtifactStore(store), ComputeEngine(workers), chunk_size=size)
    return {report.name: report.digest for report in made.run_all("prompts")}


@pytest.mark.parametrize("form", PROMPTS)
def test_processes_change_no_byte(form: str, tmp_path: Path, eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = build(tmp_path, tmp_path / "one", form, 1)
    asked: list[int] = []
    here, ask = Processes._here, processes._Worker.ask

    def wait(self: Processes, argument: object) -> object:
        result = here(self, argument)
        await_workers(self, 1)
        return result

    def count(self: processes._Worker, message: object) -> tuple[bool, object]:
        asked.append(self._process.pid)
        return ask(self, message)

    monkeypatch.setattr(Processes, "_here", wait)
    monkeypatch.setattr(processes._Worker, "ask", count)
    assert build(tmp_path, tmp_path / "three", form, 3) == alone
    assert len(asked) > len(set(asked)) + 5  # each is asked for the function first
    await_end(list(set(asked)))


PARENT = """
import sys, threading, time
from tokenloom.resources.engines import processes
from tokenloom.resources.engines.compute import ComputeEngine
processes.PATIENCE = 0.0
engine = ComputeEngine(2)
nap = engine.apart(time.sleep)
def naps():
    while True:
        yield 0.05
def tell():
    while len(nap._workers) < 2:
        time.sleep(0.01)
    print(*(worker._process.pid for worker in nap._workers), flush=True)
threading.Thread(target=tell, daemon=True).start()
try:
    for _ in engine.map(nap, naps()):
        pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_its_parent(sent: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert len(workers) == 2
    time.sleep(0.3)
    parent.send_signal(sent)
    out, err = parent.communicate(timeout=30)
    await_end(workers)
    if sent == signal.SIGINT:
        assert (out, err, parent.returncode) == ("interrupted\n", "", 0)


def test_a_script_without_a_main_guard_is_run_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('begun', flush=True)\n"
        "import time\n"
        "from tokenloom.resources.engines import processes\n"
        "processes.PATIENCE = 0.0\n"
        "made = processes.Processes(len, 2)\n"
        "made('a')\n"
        "while made._idle.qsize() < 2:\n"
        "    time.sleep(0.01)\n"
        "print(made('abc'), flush=True)\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("begun\n3\n", "", 0)
