"""No test waits for a process without a deadline."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.paths import TESTS
from support.processes import ask, finish, kill, next_line, run, started
from support.waiting import until

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print("x" * 5000, child.pid, flush=True)
print("no answer", file=sys.stderr, flush=True)
time.sleep(1000)
"""
DAEMON = """
import os, time
if not os.fork():
    os.setsid()
    print(os.getpid(), flush=True)
    if os.fork():
        time.sleep(1000)
    time.sleep(0.2)
    print(os.getpid(), flush=True)
time.sleep(1000)
"""
"""A program whose child leaves the group, and whose grandchild stays in that of the child."""

DETACHED = """
import os, time
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    print(os.getpid(), flush=True)
time.sleep(1000)
"""
"""A program that starts a process which is neither in its group nor its descendant, and which has its stdout."""


def is_running(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_process_that_does_not_end_is_killed_with_its_group() -> None:
    begun = time.monotonic()
    with pytest.raises(AssertionError) as caught:
        run([sys.executable, "-c", PARENT], seconds=1)
    assert time.monotonic() - begun < 10
    message = str(caught.value)
    assert message.startswith(f"{sys.executable} -c '\nimport subprocess") and "…" in message
    assert " did not end within 1 s; its last output: xxx" in message and message.endswith("no answer")
    assert len(message) < 2500
    (child,) = (int(word) for word in message.split() if word.isdecimal() and word != "1")
    until(lambda: not is_running(child))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_descendants_in_other_groups_are_killed_too(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"did not end within 2 s; its last output: \d+\n\d+$") as caught:
        run([sys.executable, "-c", DAEMON], seconds=2, log=tmp_path / "log")
    until(lambda: not any(map(is_running, map(int, str(caught.value).split()[-2:]))))


def test_a_detached_process_does_not_hold_the_test() -> None:
    begun = time.monotonic()
    with pytest.raises(AssertionError, match=r"did not end within 2 s; its last output: \d+$") as caught:
        run([sys.executable, "-c", DETACHED], seconds=2)
    assert time.monotonic() - begun < 20
    os.kill(int(str(caught.value).split()[-1]), signal.SIGKILL)


def test_the_log_of_a_program_that_runs_again(tmp_path: Path) -> None:
    program = "import sys; print(sys.argv[1], file=sys.stderr)"
    printed = [run([sys.executable, "-c", program, word], log=tmp_path / "log").stdout for word in "ab"]
    assert printed == ["a\n", "a\nb\n"]


def test_an_unanswered_request_ends() -> None:
    program = "import time; print('ready', flush=True); print('part', end='', flush=True); time.sleep(1000)"
    with started([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert next_line(process) == "ready\n"
        with pytest.raises(AssertionError, match=r"did not end within 0\.5 s; its last output: part"):
            next_line(process, 0.5)
        assert process.wait(10) == -signal.SIGKILL


def test_a_program_that_ends_gives_no_answer() -> None:
    program = "input(); print(1); input()"
    with started([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert ask(process, "a") == "1\n"
        with pytest.raises(AssertionError, match=r"^\S+ -c '.*' ended without an answer$"):
            ask(process, "b")


def test_what_a_program_printed_and_returned() -> None:
    program = "import sys; print(sys.stdin.read()); print('b', file=sys.stderr); sys.exit(3)"
    done = run([sys.executable, "-c", program], input="a")
    assert (done.returncode, done.stdout, done.stderr) == (3, "a\n", "b\n")
    with pytest.raises(AssertionError, match=r"ended with status 3; its last output: b"):
        run([sys.executable, "-c", program], check=True)


def test_a_process_ends_with_its_block() -> None:
    running = []
    with started(["sleep", "1000"]) as first, started(["sleep", "1000"]) as second:
        running += [first, second]
        kill(second)
        assert finish(second).returncode == -signal.SIGKILL
    assert [process.returncode for process in running] == [-signal.SIGKILL] * 2


# The rule.

STARTS = {
    "os": {"popen", "system"},
    "subprocess": {"Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "run"},
}
TIMEOUTS = {"communicate": 1, "wait": 0}
"""Methods that wait for a process, and how many arguments come before their timeout."""

OTHERS = {
    "support/processes.py": "sets the deadlines",
    "support/stray_processes.py": "starts what waits for the end of the suite",
}
"""Files that start processes themselves, and why."""


def starts(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return name in STARTS.get(module, ())
    return False


def waits_for_ever(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(attr=name) if name in TIMEOUTS:
            timeouts = call.args[TIMEOUTS[name] :] or [one.value for one in call.keywords if one.arg == "timeout"]
            return all(isinstance(one, ast.Constant) and one.value is None for one in timeouts)
    return False


def waiting_without_deadline(trees: Mapping[str, ast.Module]) -> list[str]:
    """The places that start processes in another way than `support.processes`, or wait for one without a deadline."""
    found: list[str] = []
    for name, tree in trees.items():
        nodes = [*ast.walk(tree)]
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        imported = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module in STARTS]
        starting = [call.lineno for call in calls if starts(call)]
        starting += [
            node.lineno for node in imported if {alias.name for alias in node.names} & STARTS[str(node.module)]
        ]
        if name not in OTHERS:
            found += [f"{name}:{line} starts a process itself: use support.processes" for line in sorted(starting)]
        found += [f"{name}:{call.lineno} waits without a deadline" for call in calls if waits_for_ever(call)]
    return found


def test_every_process_has_a_deadline() -> None:
    texts = {path.relative_to(TESTS).as_posix(): path.read_text() for path in sorted(TESTS.rglob("*.py"))}
    assert OTHERS.keys() <= texts.keys()
    named = re.compile(r"subprocess|\bos import|\bos\.(popen|system)|communicate\(|wait\(")  # parsing all takes seconds
    found = waiting_without_deadline({name: ast.parse(text) for name, text in texts.items() if named.search(text)})
    assert not found, "\n".join(found)


CODE = """
import os, subprocess
from subprocess import PIPE, check_output
def f(process: subprocess.Popen[str], event) -> subprocess.CompletedProcess[str]:
    with subprocess.Popen(["a"], stdout=subprocess.PIPE) as other:
        other.wait(5), other.communicate(timeout=5), other.communicate("", 5), event.wait(timeout=5)
        other.wait(), other.communicate(), other.communicate("a")
    os.system("a"), process.wait(None), process.wait(timeout=None), process.communicate("a", timeout=None)
    return subprocess.run(["a"])
"""


def test_every_wait_without_a_deadline_is_found() -> None:
    trees = {name: ast.parse(CODE) for name in ("support/processes.py", "a.py")}
    waits = [f"{name}:{line} waits without a deadline" for name in trees for line in (7, 7, 7, 8, 8, 8)]
    starting = [f"a.py:{line} starts a process itself: use support.processes" for line in (3, 5, 8, 9)]
    assert sorted(waiting_without_deadline(trees)) == sorted(waits + starting)
