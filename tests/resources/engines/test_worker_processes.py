"""Worker processes: same results and errors as in the calling thread, and no process is left running."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pyarrow as pa
import pytest

from support.datasets_on_disk import TOKENIZER, write_dataset
from support.processes import finish, next_line, run, started
from support.soak import some
from support.waiting import until
from tokenloom.assets.building.build import Build
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, DeadlineError, Fault, TemplateError
from tokenloom.resources.engines import worker_processes
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.engines.worker_processes import WorkerProcesses
from tokenloom.resources.store import ArtifactStore

OPAQUE_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content[:1] ~ m.content[1:] }}<|im_end|>\n{% endfor %}"
)
OPAQUE_FIELDS = "{{ instruction }}{% if 'zq' in input %}!{% endif %}{{ input }}\n{{ output }}"
PROMPTS = {
    "chat": {"prompt_template": {"format_type": "chat"}, "tokenizer": TOKENIZER | {"chat_template": OPAQUE_CHAT}},
    "fields": {"prompt_template": {"format_type": "jinja", "template": OPAQUE_FIELDS, "label_column": "output"}},
}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start workers at the first call."""
    monkeypatch.setattr(worker_processes, "START_AFTER_SECONDS", 0.0)


@pytest.fixture
def basename(eager: None) -> Iterator[WorkerProcesses]:
    """`os.path.basename` in two workers, both ready."""
    function = WorkerProcesses(os.path.basename, 2)
    assert function("a/b") == "b"
    await_workers(function, 2)
    yield function
    function.close()


def await_workers(function: WorkerProcesses, count: int) -> None:
    until(lambda: function._idle.qsize() >= count)


def pids(function: WorkerProcesses) -> list[int]:
    return [worker._process.pid for worker in function._workers]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def await_end(processes: list[int]) -> None:
    until(lambda: not any(map(alive, processes)))


def test_small_work_starts_no_process() -> None:
    engine = ComputeEngine(2)
    results = list(engine.map(engine.apart(with_pid), range(50)))
    assert results == [(value, os.getpid()) for value in range(50)]
    assert ComputeEngine(1).apart(with_pid) is with_pid


def with_pid(value: int) -> tuple[int, int]:
    return value, os.getpid()


def test_ready_workers_answer_and_exit_when_closed(basename: WorkerProcesses) -> None:
    workers = pids(basename)
    assert len(set(workers)) == 2
    assert [basename(f"x/{number}") for number in range(9)] == [str(number) for number in range(9)]
    basename.close()
    await_end(workers)


def test_exceptions_of_workers_are_raised_unchanged(eager: None) -> None:
    from_hex = WorkerProcesses(bytes.fromhex, 1)
    from_hex("00")
    await_workers(from_hex, 1)
    with pytest.raises(ValueError, match="non-hexadecimal"):
        from_hex("zz")
    assert from_hex("ff") == b"\xff"
    with pytest.raises(TypeError):
        from_hex(7)
    from_hex.close()


def test_no_result_is_lost_when_workers_are_killed(basename: WorkerProcesses) -> None:
    for pid in pids(basename):
        os.kill(pid, signal.SIGKILL)
    assert [basename(f"x/{number}") for number in range(5)] == [str(number) for number in range(5)]


HOLD_LOCK = """
import re, time
from tokenloom.resources.engines import worker_processes
worker_processes.HANG_SECONDS = 0.5
time.sleep(1.5)
re.match("(a+)+$", "a" * 50 + "b")
"""


def test_a_call_that_holds_the_lock_for_ever_ends_its_worker_and_is_not_computed_again(eager: None) -> None:
    run = WorkerProcesses(exec, 1)
    run("pass")
    await_workers(run, 1)
    with pytest.raises(DeadlineError, match="a worker process"):
        run(HOLD_LOCK)
    await_end(pids(run))
    run.close()


@pytest.mark.parametrize(
    "error",
    [
        ConfigError([Fault("a.yaml:3", "x: wrong"), Fault("a.yaml:9", "y: wrong")]),
        TemplateError("template, line 3: no", 3),
    ],
)
def test_errors_survive_pickling(error: Exception) -> None:
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
def test_tables_survive_a_pipe(table: pa.Table) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb") as sink:
        worker_processes._send(sink, {"table": table})
        again = worker_processes._receive(source)["table"]
    assert again.equals(table)
    assert again.schema.equals(table.schema, check_metadata=True)


def build(folder: Path, store: Path, form: str, workers: int) -> dict[str, str]:
    config = PipelineConfig.from_file(write_dataset(folder, 600, **PROMPTS[form]))
    size = ChunkSize(target=4_000, maximum=16_000)
    run = Build(config, ArtifactStore(store), ComputeEngine(workers), chunk_size=size)
    return {report.name: report.digest for report in run.run_all("prompts")}


@pytest.mark.parametrize("form", some(PROMPTS, 2))
def test_worker_processes_do_not_change_digests(
    form: str, tmp_path: Path, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = build(tmp_path, tmp_path / "one", form, 1)
    requests: list[int] = []
    compute_here, request = WorkerProcesses._compute_here, worker_processes._Worker.request

    def wait(self: WorkerProcesses, argument: object) -> object:
        result = compute_here(self, argument)
        await_workers(self, 1)
        return result

    def count(self: worker_processes._Worker, message: object) -> tuple[bool, object]:
        requests.append(self._process.pid)
        return request(self, message)

    monkeypatch.setattr(WorkerProcesses, "_compute_here", wait)
    monkeypatch.setattr(worker_processes._Worker, "request", count)
    assert build(tmp_path, tmp_path / "three", form, 3) == expected
    assert len(requests) > len(set(requests)) + 5  # the first request to each worker sends the function
    await_end(list(set(requests)))


PARENT = """
import sys, threading, time
from tokenloom.resources.engines import worker_processes
from tokenloom.resources.engines.engine import ComputeEngine
worker_processes.START_AFTER_SECONDS = 0.0
engine = ComputeEngine(2)
nap = engine.apart(time.sleep)
def naps():
    while True:
        yield 0.05
def print_pids():
    while len(nap._workers) < 2:
        time.sleep(0.01)
    for thread in nap._starting:  # ends when its worker is ready
        thread.join()
    print(*(worker._process.pid for worker in nap._workers), flush=True)
threading.Thread(target=print_pids, daemon=True).start()
try:
    for _ in engine.map(nap, naps()):
        pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_its_parent(sent: signal.Signals) -> None:
    with started([sys.executable, "-c", PARENT], stdout=PIPE, stderr=PIPE) as parent:
        workers = [int(word) for word in next_line(parent).split()]
        assert len(workers) == 2
        parent.send_signal(sent)
        done = finish(parent)
        await_end(workers)
        if sent == signal.SIGINT:
            assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('started', flush=True)\n"
        "import time\n"
        "from tokenloom.resources.engines import worker_processes\n"
        "worker_processes.START_AFTER_SECONDS = 0.0\n"
        "length = worker_processes.WorkerProcesses(len, 2)\n"
        "length('a')\n"
        "while length._idle.qsize() < 2:\n"
        "    time.sleep(0.01)\n"
        "print(length('abc'), flush=True)\n",
        encoding="utf-8",
    )
    done = run([sys.executable, script])
    assert (done.stdout, done.stderr, done.returncode) == ("started\n3\n", "", 0)
