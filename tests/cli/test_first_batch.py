"""The transcripts of pages: from a file to a batch for each kind of data, and the moves from other tools."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from support.paths import ROOT
from support.processes import run
from support.small_tokenizers import byte_level
from support.terminal import run_here

PAGE = ROOT / "docs/prepare/first_batch.md"
MOVES = [ROOT / f"docs/coming_from/{tool}.md" for tool in ("axolotl", "llamafactory", "megatron")]
SECTION = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?```bash\n(.+?)```.*?```console\n(.+?)```", re.MULTILINE | re.DOTALL)
KINDS = SECTION.findall(PAGE.read_text())
TRANSCRIPTS = KINDS + [(page.stem, *move) for page in MOVES for _, *move in SECTION.findall(page.read_text())]


def plain(text: str) -> list[str]:
    """Return the lines of a text without the frames of panels."""
    return [line.strip("\N{BOX DRAWINGS LIGHT VERTICAL} ") for line in text.splitlines()]


@pytest.mark.parametrize(
    ("data", "transcript"), [shown[1:] for shown in TRANSCRIPTS], ids=[name for name, *_ in TRANSCRIPTS]
)
def test_the_transcript_is_what_the_commands_print(
    data: str, transcript: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer").mkdir()
    byte_level().save(str(tmp_path / "tokenizer/tokenizer.json"))
    (tmp_path / "tokenizer/tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "pad_token": "<|pad|>"}))
    commands = re.findall(r"^\$ (.+)\n((?:[^$].*\n|\n)*)", transcript, re.MULTILINE)
    assert 0 < len(commands) <= 3
    run(["bash", "-ec", data], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOKENLOOM_STORE", raising=False)
    for command, shown in commands:
        printed = "\n" + "\n".join(plain(output(shlex.split(command), tmp_path))) + "\n"
        for part in re.split(r"^…\n", shown, flags=re.MULTILINE):
            wanted = "".join(f"{line}\n" for line in plain(part))
            assert f"\n{wanted}" in printed, f"{command} does not print in this order:\n{wanted}\nbut\n{printed}"
            printed = printed[printed.index(f"\n{wanted}") + len(wanted) :]


def output(command: list[str], folder: Path) -> str:
    """Return what a command of the page prints. It runs in this process, which saves the imports."""
    program, *arguments = command
    if program == "tokenloom":
        done = run_here(*arguments, folder=folder, TOKENLOOM_STORE="")
        assert done.returncode == 0, done.stderr
        return done.stdout
    assert (program, arguments[0]) == ("python", "-c")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(arguments[1], {})
    return printed.getvalue()


def test_five_kinds_are_shown() -> None:
    assert [kind for kind, _, _ in KINDS] == ["Instructions", "Chats", "Text", "Preferences", "A mixture"]


def test_every_move_is_shown() -> None:
    assert [name for name, *_ in TRANSCRIPTS[len(KINDS) :]] == [page.stem for page in MOVES]
