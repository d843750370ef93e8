"""A hostile input: the files of a folder, the command that reads them, and the verdict that it must end with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.command_children import Ended

MIB = 1 << 20
FIRST, LAST = b'{"text": "first"}\n', b'{"text": "last"}\n'
BUILD, INSPECT = ("build", "x.yaml", "--json", "--store", "store"), ("inspect", "--json", "--store", "store")
PREVIEW = ("preview", "x.yaml", "--store", "store")
DEFAULTS: dict[str, Any] = {
    "tokenizer": {"name_or_path": "tokenizer.json", "max_length": 128, "special_tokens": {"eos": "</s>"}},
    "prompt_template": {"format_type": "text"},
    "validation": {"max_reject_fraction": 1.0},
}
_LINES = 60
"""Most lines of an error: a YAML can have this many faults."""
_PROGRESS = re.compile(r"^\w+: [\d,]+ rows, \d+ of \d+ chunks reused, .*\n", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class HostileInput:
    """One input.

    Args:
        kind, name: together, its unique name.
        write: writes its files into the folder that the command runs in.
        verdict: a regular expression that must be found in `verdict_of` the command.
        config: sections of `x.yaml`, or its text; None: `write` writes it, or the command needs none.
        command: the arguments of `tokenloom`.
    """

    kind: str
    name: str
    write: Callable[[Path], object]
    verdict: str = ""
    config: dict[str, Any] | str | bytes | None = None
    command: tuple[str, ...] = BUILD

    def prepare(self, folder: Path) -> None:
        """Write everything that the command reads."""
        self.write(folder)
        if isinstance(self.config, dict):
            (folder / "x.yaml").write_text(json.dumps(self.config), encoding="utf-8")
        elif self.config is not None:
            text = self.config.encode() if isinstance(self.config, str) else self.config
            (folder / "x.yaml").write_bytes(text)

    def fault(self, ended: Ended, memory: int, cpu: float) -> str:
        """Return what is wrong with how the command ended, or ""."""
        if ended.late or ended.signal:
            return "hang" if ended.late else f"signal {ended.signal}"
        if "Traceback" in ended.err + ended.out:
            return f"traceback: {ended.err.strip()[-2000:]}"
        if ended.code not in (0, 1, 2, 3):
            return f"exit code {ended.code}"
        if ended.peak >= memory:
            return f"{ended.peak / MIB:.0f} MiB"
        if ended.cpu >= cpu:
            return f"{ended.cpu} CPU seconds"
        verdict = verdict_of(ended)
        if ended.code and (problem := _unclear(_PROGRESS.sub("", ended.err))):
            return f"{problem}: {ended.err[-2000:]!r}"
        return "" if re.search(self.verdict, verdict, re.DOTALL) else f"verdict {verdict!r}"


def verdict_of(ended: Ended) -> str:
    """Return the verdict of a command in one line: its rows, or its exit code and error."""
    if ended.code:
        return f"{ended.code}: {_PROGRESS.sub('', ended.err).strip()}"
    try:
        stages = json.loads(ended.out)["stages"]
    except (ValueError, KeyError):
        return "0: " + ended.out[:2000]
    lost = [sum(stage[name] for stage in stages) for name in ("rejected", "filtered")]
    for stage in stages:
        assert stage["rows_in"] == stage["rows_out"] + stage["rejected"] + stage["filtered"], stage
    return f"0: {stages[0]['rows_in']} rows, {lost[0]} rejected, {lost[1]} filtered"


def _unclear(message: str) -> str:
    """Return why an error is not clear, or ""."""
    message = message.replace("\r", "\n")  # progress bars of libraries
    lines = [line for line in message.split("\n") if line.strip()]
    if not lines:
        return "no message"
    if len(lines) > _LINES:
        return f"a message of {len(lines)} lines"
    if max(map(len, lines)) > 2010:
        return f"a line of {max(map(len, lines))} characters"
    if _CONTROL.search(message):
        return "a message with control characters"
    return ""


def data_file(kind: str, name: str, content: bytes | Callable[[Path], object], verdict: str = "", **sections: Any):
    """Return an input that is a data file, which is built as text.

    Args:
        content: its bytes, or a function that writes it to a path.
        sections: of the YAML, instead of or merged with `DEFAULTS`; `command` is the command.
    """

    def write(folder: Path) -> None:
        if callable(content):
            content(folder / name)
        else:
            (folder / name).write_bytes(content)

    command = sections.pop("command", BUILD)
    if command[0] == "inspect":
        return HostileInput(kind, f"inspect {name}", write, verdict, None, (*command, name))
    config = {**DEFAULTS, **sections, "dataset": {"name": name, **sections.get("dataset", {})}}
    return HostileInput(kind, f"{command[0]} {name}" * (command != BUILD) or name, write, verdict, config, command)


def declaration(
    kind: str, name: str, verdict: str = "", rows: bytes = FIRST + LAST, /, **sections: Any
) -> HostileInput:
    """Return an input that is the YAML of a small JSON Lines file."""
    config = {**DEFAULTS, **sections, "dataset": {"name": "x.jsonl", **sections.get("dataset", {})}}
    command = config.pop("command", BUILD)
    return HostileInput(kind, name, lambda folder: (folder / "x.jsonl").write_bytes(rows), verdict, config, command)
