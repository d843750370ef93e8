"""Natural mistakes, as docs/prepare/mistakes.md shows them: what is printed names the place and the remedy."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from support.paths import ROOT
from support.small_tokenizers import byte_level
from support.terminal import run_here

PAGE = ROOT / "docs/prepare/mistakes.md"
PROJECT = "/home/me/project"
"""The folder that the page has in place of the test's."""

ROWS = [{"instruction": f"What is {number} + {number}?", "output": f"{2 * number}"} for number in range(40)]


def write(folder: Path, name: str = "rows.yaml", **changes: object) -> None:
    prompt = {"format_type": "custom", "template": "### {instruction}\n{output}", "label_column": "output"}
    settings = {
        "dataset": {"name": "rows.jsonl"},
        "tokenizer": {"name_or_path": "tokenizer"},
        "prompt_template": prompt,
    } | changes
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(yaml.safe_dump(settings, sort_keys=False))


def typo(folder: Path) -> None:
    text = (folder / "rows.yaml").read_text()
    (folder / "rows.yaml").write_text(text.replace("prompt_template:", "promt_template:"))


def wrong_column(folder: Path) -> None:
    text = (folder / "rows.yaml").read_text()
    (folder / "rows.yaml").write_text(text.replace("{instruction}", "{instructions}"))


def wrong_label(folder: Path) -> None:
    text = (folder / "rows.yaml").read_text()
    (folder / "rows.yaml").write_text(text.replace("label_column: output", "label_column: answer"))


def wrong_path(folder: Path) -> None:
    write(folder, dataset={"name": "row.jsonl"})


def no_tokenizer(folder: Path) -> None:
    write(folder, tokenizer={"max_length": 512})


def bad_row(folder: Path) -> None:
    lines = ["instruction,output", *(f"{row['instruction']},{row['output']}" for row in ROWS)]
    lines[4] = "What is 3, or 4?,3,4"
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    write(folder, dataset={"name": "rows.csv"})


def chat(folder: Path) -> None:
    talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for _ in ROWS))
    write(folder, dataset={"name": "chats.jsonl"}, prompt_template={"format_type": "chat"})


def two_of_one_name(folder: Path) -> None:
    for name in ("first", "second"):
        write(folder, f"{name}/rows.yaml", tokenizer={"name_or_path": "../tokenizer", "max_length": len(name)})
        (folder / f"{name}/rows.jsonl").write_text((folder / "rows.jsonl").read_text())
    assert run_here("build", "first/rows.yaml", folder=folder).returncode == 0


def old_store(folder: Path) -> None:
    (folder / "old").mkdir()
    (folder / "old/FORMAT").write_text("tokenloom store 2\n")


def nothing(folder: Path) -> None:
    """Make no mistake in the files."""


MISTAKES: dict[str, Callable[[Path], None]] = {
    "A setting with a typo": typo,
    "A column that does not exist": wrong_column,
    "A label that is not in the template": wrong_label,
    "A wrong path": wrong_path,
    "A wrong YAML": nothing,
    "No tokenizer": no_tokenizer,
    "Data in place of a YAML": nothing,
    "Another folder": nothing,
    "An unknown command": nothing,
    "An unknown option": nothing,
    "A CSV file with a bad row": bad_row,
    "Conversations without a chat template": chat,
    "Two YAMLs of one name": two_of_one_name,
    "A store of an older version": old_store,
}


def transcripts() -> dict[str, tuple[str, str]]:
    """Return command and output of each transcript of the page, by heading."""
    found = re.findall(r"^## (.+?)\n.*?```console\n\$ (.+?)\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return {heading: (command, output) for heading, command, output in found}


def outcome(heading: str, command: str, folder: Path) -> str:
    """Return the last line that a command prints after a mistake, or of a successful build the line about it."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "tokenizer").mkdir()
    byte_level().save(str(folder / "tokenizer/tokenizer.json"))
    (folder / "tokenizer/tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "pad_token": "<|pad|>"}))
    write(folder)
    MISTAKES[heading](folder)
    done = run_here(*shlex.split(command)[1:], folder=folder)
    printed = [line for line in (done.stdout + done.stderr).splitlines() if "replaces" in line or done.returncode]
    return printed[-1].replace(str(folder), PROJECT) + "\n"


def test_the_page_has_every_mistake() -> None:
    assert [*transcripts()] == [*MISTAKES]


@pytest.mark.parametrize("heading", MISTAKES)
def test_what_is_printed_is_what_the_page_shows(heading: str, tmp_path: Path) -> None:
    command, output = transcripts()[heading]
    assert outcome(heading, command, tmp_path) == output
