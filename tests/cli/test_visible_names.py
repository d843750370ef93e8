"""Names that users and data give are shown escaped, on one line: they control neither terminal nor message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.datasets_on_disk import rows, write_dataset
from tokenloom.cli import main
from tokenloom.errors import ConfigError, Fault, SourceError, TokenloomError, visible

NAME = "a\nFORGED: b\x1b[31m\r\u202ec\x07\x9b1m\u2028d"
SHOWN = r"a\nFORGED: b\u001b[31m\u000d\u202ec\u0007\u009b1m\u2028d"


@pytest.fixture
def printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command, and return what it prints: no character but spaces and line breaks controls the terminal, and no
    line begins with the name."""

    def run(command: str, *arguments: object) -> str:
        store = [] if command in ("check", "import", "templates") else ["--store", str(tmp_path / "store")]
        try:
            main([command, *map(str, arguments), *store])
        except SystemExit:  # of argparse
            pass
        text = "".join(capfd.readouterr())
        assert not [char for char in text if not char.isprintable() and char not in "\n\u200c\u200d"], repr(text)
        assert not [line for line in text.split("\n") if line.startswith("FORGED")], text
        return text

    return run


def test_errors_show_names_on_one_line() -> None:
    """In Python as well, where the message is printed below a traceback. A ConfigError has a line for each fault."""
    for error in (TokenloomError(NAME), SourceError(NAME)):
        assert str(error) == SHOWN
    faults = [Fault("x.yaml:1", f"{NAME}: unknown"), Fault(NAME, "missing")]
    assert str(ConfigError(faults)) == f"x.yaml:1: {SHOWN}: unknown\n{SHOWN}: missing"
    assert str(ConfigError(str(ConfigError(faults)))) == str(ConfigError(faults))
    assert visible("a\n\tb") == "a\n\tb"


@pytest.mark.parametrize("section", ["", "dataset", "tokenizer", "length"])
def test_unknown_keys(tmp_path: Path, printed: Callable[..., str], section: str) -> None:
    path = write_dataset(tmp_path, 10)
    content = yaml.safe_load(path.read_text())
    (content.setdefault(section, {}) if section else content)[NAME] = 1
    path.write_text(yaml.safe_dump(content))
    assert f"{SHOWN}: unknown setting" in printed("check", path)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("dataset", "column_mapping", {NAME: "input"}),
        ("dataset", "column_mapping", {"input": NAME}),
        ("dataset", "keep_columns", [NAME]),
        ("dataset", "name", NAME),
        ("dataset", "filters", [NAME]),
        ("tokenizer", "chat_template", NAME),
        ("prompt_template", "label_column", NAME),
        ("length", "strategy", NAME),
    ],
)
def test_values_of_settings(tmp_path: Path, printed: Callable[..., str], section: str, key: str, value: Any) -> None:
    path = write_dataset(tmp_path, 10)
    content = yaml.safe_load(path.read_text())
    content.setdefault(section, {})[key] = value
    path.write_text(yaml.safe_dump(content))
    assert "FORGED" in printed("build", path)


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ["build", NAME],
            ["versions", NAME],
            ["preview", NAME],
            ["remove", NAME],
            ["import", NAME],
            ["inspect", NAME],
        ),
        *([NAME], ["build", "x.yaml", f"--{NAME}"], ["build", "x.yaml", "--workers", NAME]),
        *(["export", "x.yaml", "out", "--to", NAME], ["templates", NAME], ["trace", "small", "--step", NAME]),
    ],
)
def test_arguments(printed: Callable[..., str], arguments: list[str]) -> None:
    assert "FORGED" in printed(*arguments)


def test_columns(tmp_path: Path, printed: Callable[..., str]) -> None:
    path = write_dataset(tmp_path, 0, validation={"max_reject_fraction": 0.5})
    made = [{**row, NAME: f"v{number}"} for number, row in enumerate(rows(20))]
    made += [{**made[0], "output": None}, {**made[0], "output": {NAME: 1}}]
    (tmp_path / "small.jsonl").write_text("\n".join(map(json.dumps, made)))
    assert "FORGED" in printed("build", path)
    printed("preview", path)
    printed("explain", path)
    assert "FORGED" in printed("inspect", tmp_path / "small.jsonl", "--out", tmp_path / "new.yaml")


def test_files(tmp_path: Path, printed: Callable[..., str]) -> None:
    (tmp_path / "files").mkdir()
    lines = [*map(json.dumps, rows(10)), "{bad", json.dumps({**rows(1)[0], "output": ""})]
    (tmp_path / "files" / f"{NAME}.jsonl").write_text("\n".join(lines))
    path = write_dataset(tmp_path, 1, dataset={"name": "files"})
    assert f"{SHOWN}.jsonl:11" in printed("build", path)
    assert SHOWN in printed("inspect", tmp_path / "files", "--out", tmp_path / "new.yaml")
    printed("preview", path)


USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": NAME}}]}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": NAME, "content": "x"}, ANSWER]},
        {"messages": [{**USER, NAME: 1}, ANSWER]},
        {"messages": [USER, CALL]},
        {"messages": [USER, ANSWER], "tools": [{"type": "function", "function": {"name": NAME, "parameters": 1}}]},
        {"messages": [{"role": "user", "content": [{"type": NAME, NAME: "x"}]}, ANSWER]},
    ],
    ids=["role", "field", "call", "tool", "part"],
)
def test_names_in_conversations(tmp_path: Path, printed: Callable[..., str], row: dict[str, Any]) -> None:
    train = {"vocab_size": 300, "min_frequency": 1}
    tokens = {"eos": "<|im_end|>", "pad": "<|endoftext|>"}
    content = {
        "dataset": {"name": "chat.jsonl"},
        "tokenizer": {"train": train, "max_length": 128, "chat_template": "chatml", "special_tokens": tokens},
        "validation": {"max_reject_fraction": 0.9},
    }
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, [{"messages": [USER, ANSWER]}] * 5 + [row])))
    printed("build", tmp_path / "chat.yaml")
    printed("preview", tmp_path / "chat.yaml")
