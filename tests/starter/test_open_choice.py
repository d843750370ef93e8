"""`tokenloom inspect` of rows that can be read in several ways: a choice in the YAML, or a question on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from support.open_choices import choice_lines, uncommented
from support.processes import DEADLINE, run, started
from support.soak import machine
from tokenloom.cli import main
from tokenloom.cli.inspect import QUESTION
from tokenloom.starter.starter_yaml import FILL_IN

pytestmark = machine("programs")

SIDES = ("response_a", "response_b")
PAIRS = [{"prompt": f"Ask {n}?", "response_a": f"Say {n}.", "response_b": f"Tell {n}."} for n in range(30)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with rows that have two answers each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENLOOM_STORE", str(tmp_path / "store"))
    (tmp_path / "two.json").write_text(json.dumps(PAIRS))
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    """What a build of two.yaml says."""
    capsys.readouterr()
    assert main(["build", "two.yaml"]) == 2
    return capsys.readouterr().err


def test_a_build_names_the_choices_and_each_builds_once_it_is_uncommented(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "two.json"]) == 0
    assert "Wrote two.yaml; make a choice in it, then build it" in capsys.readouterr().out
    written = (folder / "two.yaml").read_text()
    message = refused(capsys)
    heading = 1 + written.split("\n").index("# Choice 1: prompt/completion, from prompt, response_a")
    assert message.startswith(f"two.yaml:{heading}: choose which columns to train on")
    *readings, own = choice_lines(message)
    assert len(readings) == 2
    chosen = []
    for first, last in readings:
        (folder / "two.yaml").write_text(uncommented(written, first, last))
        settings = yaml.safe_load((folder / "two.yaml").read_text())
        assert (
            settings["prompt_template"]["format_type"] == "chat" and settings["tokenizer"]["chat_template"] == "lines"
        )
        assert settings["dataset"]["column_mapping"]["prompt"] == "prompt"
        chosen.append(settings["dataset"]["column_mapping"]["completion"])
        assert main(["build", "two.yaml"]) == 0
    assert {*chosen} == {*SIDES}
    (folder / "two.yaml").write_text(uncommented(written, *own))
    assert f"no column {FILL_IN}" in refused(capsys)


def test_two_choices_at_once_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "two.json"]) == 0
    written = (folder / "two.yaml").read_text()
    (first, last), (second, end), _ = choice_lines(refused(capsys))
    (folder / "two.yaml").write_text(uncommented(uncommented(written, first, last), second, end))
    assert "set twice" in refused(capsys)


def on_a_terminal(folder: Path, typed: str, *arguments: str) -> str:
    """What `tokenloom inspect` writes to a terminal, given what a person types."""
    command = [sys.executable, "-m", "tokenloom", "inspect", "two.json", *arguments]
    terminal, end = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), end)
    shown = b""
    with started(command, cwd=folder, env={**os.environ, "COLUMNS": "100"}, **streams) as process:
        os.close(end)
        os.write(terminal, typed.encode())
        try:
            while select.select([terminal], [], [], DEADLINE)[0] and (block := os.read(terminal, 1 << 16)):
                shown += block
        except OSError:  # the process has closed its end
            pass
        os.close(terminal)
        assert process.wait(DEADLINE) == 0, shown
    return shown.decode()


def chosen(folder: Path) -> str | None:
    """The answers that the YAML trains on, or None if it leaves the choice open."""
    dataset = yaml.safe_load((folder / "two.yaml").read_text())["dataset"]
    return dataset.get("column_mapping", {}).get("completion")


@pytest.mark.parametrize(("typed", "asked"), [("2\n", 1), ("9\nx\n1\n", 3), ("\n", 1), ("\4", 1)])
def test_a_terminal_is_asked(folder: Path, typed: str, asked: int, capsys: pytest.CaptureFixture[str]) -> None:
    shown = on_a_terminal(folder, typed)
    assert shown.count(QUESTION) == asked
    _, rest = shown.split("1: prompt/completion")
    first, second = rest.split(QUESTION)[0].split("2: prompt/completion")
    assert "Say 0." in first and "Tell 0." in second
    answer = re.findall(r"\d", typed)[-1:]
    assert chosen(folder) == (SIDES[int(answer[0]) - 1] if answer else None)
    if answer:
        assert main(["build", "two.yaml"]) == 0
    else:
        assert "choose which columns" in refused(capsys)


@pytest.mark.parametrize("arguments", [("--json", "--out", "two.yaml"), ("--out", "-")])
def test_output_for_programs_does_not_ask(folder: Path, arguments: Sequence[str]) -> None:
    assert QUESTION not in on_a_terminal(folder, "", *arguments)


def test_a_pipe_is_not_asked(folder: Path) -> None:
    command = [sys.executable, "-m", "tokenloom", "inspect", "two.json"]
    done = run(command, cwd=folder, input="1\n")
    assert done.returncode == 0 and QUESTION not in done.stdout + done.stderr
    assert chosen(folder) is None
