"""Names that are hard to show or to open, and files that are not regular ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from support.hostile_inputs.hostile_input import BUILD, DEFAULTS, FIRST, INSPECT, LAST, HostileInput

GOOD = FIRST + LAST
NAMES = {
    "a line end": "a\nb.jsonl",
    "an escape sequence": "\x1b[2J\x1b]0;x\x07.jsonl",
    "markup": "[bold][%s][b].jsonl",
    "closing markup": "[b].jsonl",
    "not UTF-8": os.fsdecode(b"caf\xe9.jsonl"),
    "only not UTF-8": os.fsdecode(b"\xff\xfe.jsonl"),
    "right to left": "\u202elnosj.jsonl",
    "200 letters": "x" * 200 + ".jsonl",
    "spaces": "  .jsonl",
    "a star": "*.jsonl",
    "a star in brackets": "[*].jsonl",
    "a dash": "--json.jsonl",
    "a percent sign": "%00%s%n.jsonl",
    "a protocol": "http:.jsonl",
    "quotes": "'\"`$(touch run)`.jsonl",
    "a backslash": "a\\xff.jsonl",
    "emoji": "\U0001f4a3.jsonl",
    "a tilde": "~.jsonl",
}
STRINGS = {
    "NUL": "a\0b.jsonl",
    "5,000 letters": "x" * 5000 + ".jsonl",
    "a deep path": "a/" * 3000 + "x.jsonl",
    "dots": "../" * 3000 + "etc/passwd",
    "lone surrogate": "\ud800.jsonl",
    "stars": "**/" * 200 + "*.jsonl",
    "many brackets": "[" * 5000 + ".jsonl",
    "another's home": "~nobody_at_all/x.jsonl",
    "home": "~",
    "a folder of the system": "/proc",
    "kernel memory": "/proc/self/mem",
    "zeros": "/dev/zero",
    "the terminal": "/dev/tty",
    "standard input": "/dev/stdin",
    "null": "/dev/null",
    "no host": "http:///x.jsonl",
    "a closed port": "http://127.0.0.1:1/x.jsonl",
    "a port of 99999": "http://127.0.0.1:99999/x.jsonl",
    "an unknown protocol": "gopher://x/y.jsonl",
    "a protocol of 5,000 letters": "x" * 5000 + "://y.jsonl",
    "a file protocol": "file:///etc/passwd",
    "memory": "memory://x.jsonl",
    "data": "data:text/plain;base64,eA==",
    "github": "github://",
    "reference": "reference://x",
    "only a protocol": "s3://",
    "only colons": "::::",
    "no tfds": "tfds://" + "x" * 3000,
    "a name of 300,000 letters and a URL": "x" * 300_000 + " http://h/",
    "a hub name of 300 letters": "x" * 300 + "/y",
}


def inputs() -> Iterator[HostileInput]:
    """Yield all of them."""
    for name, file in NAMES.items():

        def write(folder: Path, file: str = file) -> None:
            (folder / "data").mkdir()
            (folder / "data" / file).write_bytes(GOOD + b"bad\n")

        config = {**DEFAULTS, "dataset": {"name": "data"}}
        yield HostileInput("file name", f"{name} in a folder", write, "0: 3 rows, 1 rejected", config)
        yield HostileInput("file name", f"inspect {name}", write, "", None, (*INSPECT, f"data/{file}"))
        config = {**DEFAULTS, "dataset": {"name": f"data/{file}"}}
        yield HostileInput("file name", name, write, "", json.dumps(config))
    for name, text in STRINGS.items():
        config = {**DEFAULTS, "dataset": {"name": text}}
        yield HostileInput("path", name, lambda folder: None, r"[123]: .*", json.dumps(config))
        if "\0" not in text and name not in ("standard input", "lone surrogate"):
            yield HostileInput("path", f"inspect {name}", lambda folder: None, r"[123]: .*", None, (*INSPECT, text))
    for name, make in SPECIAL.items():
        config = {**DEFAULTS, "dataset": {"name": "data"}}
        yield HostileInput("special file", name, make, "", config, BUILD)
    for name in ("a FIFO", "a loop", "zeros"):
        config = {**DEFAULTS, "dataset": {"name": "data/x.jsonl"}}
        yield HostileInput("special file", f"{name} by name", SPECIAL[name], "[23]: .*", config)


def _link(target: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / "data").mkdir()
        (folder / "data" / "x.jsonl").symlink_to(target)

    return make


def _fifo(folder: Path) -> None:
    (folder / "data").mkdir()
    os.mkfifo(folder / "data" / "x.jsonl")


def _folders(folder: Path) -> None:
    path = folder / "data"
    path.mkdir()
    (path / "x.jsonl").write_bytes(GOOD)
    for name in ("self", "up"):
        (path / name).symlink_to("." if name == "self" else "..")


def _many(suffix: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / "data").mkdir()
        for number in range(50_000):
            os.close(os.open(folder / "data" / f"{number}{suffix}", os.O_CREAT | os.O_WRONLY))
        (folder / "data" / "x.jsonl").write_bytes(GOOD)

    return make


def _deep(folder: Path) -> None:
    start = Path.cwd()
    (folder / "data").mkdir()
    try:
        os.chdir(folder / "data")
        for _ in range(600):  # deeper than any path that can be opened
            os.mkdir("deeper")  # noqa: PTH102
            os.chdir("deeper")
        Path("x.jsonl").write_bytes(GOOD)
    finally:
        os.chdir(start)


def _unreadable(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "x.jsonl").write_bytes(GOOD)
    (folder / "data" / "x.jsonl").chmod(0)


def _folder_as_file(folder: Path) -> None:
    (folder / "data" / "x.jsonl").mkdir(parents=True)
    (folder / "data" / "x.jsonl" / "y.jsonl").write_bytes(GOOD)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "a loop": _link("x.jsonl"),
    "a link to nothing": _link("none"),
    "a link to a folder": _link("."),
    "zeros": _link("/dev/zero"),
    "random bytes": _link("/dev/urandom"),
    "kernel memory": _link("/proc/self/mem"),
    "a file of the kernel": _link("/proc/self/environ"),
    "a FIFO": _fifo,
    "folders that link to themselves": _folders,
    "50,000 empty files": _many(".jsonl"),
    "50,000 other files": _many(".dat"),
    "600 folders deep": _deep,
    "no permission": _unreadable,
    "a folder named as a file": _folder_as_file,
    "an empty folder": lambda folder: (folder / "data").mkdir(),
}
