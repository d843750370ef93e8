"""Hostile folders: datasets saved by `datasets`, and datasets as on the hub with a card in README.md."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from support.hostile_inputs.hostile_input import DEFAULTS, FIRST, LAST, MIB, HostileInput

CONFIG = {**DEFAULTS, "dataset": {"name": "data"}}
HUB = {**DEFAULTS, "dataset": {"name": "./data", "format": "hub"}}
STATE: dict[str, Any] = {"_data_files": [{"filename": "data.arrow"}], "_fingerprint": "x", "_format_type": None}
FEATURES = {"text": {"dtype": "string", "_type": "Value"}}


def inputs() -> Iterator[HostileInput]:
    """Yield all of them."""
    yield from _saved()
    yield from _cards()


def _files(named: dict[str, bytes | str]) -> Any:
    def write(folder: Path) -> None:
        for name, content in named.items():
            path = folder / "data" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def _rows() -> bytes:
    sink, table = pa.BufferOutputStream(), pa.table({"text": ["x", "y"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _saved() -> Iterator[HostileInput]:
    """Yield folders that `datasets` would have written with `save_to_disk`."""
    state, info = json.dumps(STATE), json.dumps({"features": FEATURES})
    good: dict[str, bytes | str] = {"state.json": state, "dataset_info.json": info, "data.arrow": _rows()}
    other: dict[str, dict[str, bytes | str]] = {
        "good": {},
        "no rows": {"data.arrow": b""},
        "damaged rows": {"data.arrow": b"ARROW1" + bytes(100)},
        "deep state": {"state.json": "[" * 100_000},
        "state of a list": {"state.json": "[]"},
        "no JSON": {"state.json": "\0\xff"},
        "files elsewhere": {
            "state.json": json.dumps({**STATE, "_data_files": [{"filename": "../../../../etc/passwd"}]})
        },
        "a device": {"state.json": json.dumps({**STATE, "_data_files": [{"filename": "/dev/zero"}]})},
        "10,000 files": {"state.json": json.dumps({**STATE, "_data_files": STATE["_data_files"] * 10_000})},
        "an unknown format": {"state.json": json.dumps({**STATE, "_format_type": "os.system"})},
        "other features": {"dataset_info.json": json.dumps({"features": {"a": {"dtype": "int64", "_type": "Value"}}})},
        "a feature of code": {"dataset_info.json": json.dumps({"features": {"text": {"_type": "__import__"}}})},
        "deep features": {"dataset_info.json": json.dumps({"features": {"text": _deep(200)}})},
        "images of files": {"dataset_info.json": json.dumps({"features": {"text": {"_type": "Image"}}})},
        "features of 8 MiB": {"dataset_info.json": json.dumps({"features": FEATURES, "description": "x" * 8 * MIB})},
        "50,000 features": {
            "dataset_info.json": json.dumps({"features": {f"k{n}": FEATURES["text"] for n in range(50_000)}})
        },
    }
    for name, files in other.items():
        yield HostileInput("saved dataset", name, _files({**good, **files}), "", CONFIG)
    for name, text in {"none": "{}", "outside": '{"splits": ["../.."]}', "device": '{"splits": ["/dev"]}'}.items():
        files = {"dataset_dict.json": text}
        yield HostileInput("saved dataset", f"splits {name}", _files(files), "[23]: .*", CONFIG)  # type: ignore[arg-type]
    tfds = {"dataset_info.json": "[" * 100_000, "features.json": "{"}
    yield HostileInput("saved dataset", "tensorflow_datasets", _files(tfds), "2: .*", CONFIG)  # type: ignore[arg-type]


def _deep(levels: int) -> Any:
    kind: Any = FEATURES["text"]
    for _ in range(levels):
        kind = {"feature": kind, "_type": "Sequence"}
    return kind


def _cards() -> Iterator[HostileInput]:
    """Yield folders that `datasets` reads as it reads a repository of the hub: by the YAML of its card."""
    bomb = "\n".join(["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)])
    merges = "\n".join(
        ["m0: &m0 {k: 1}"] + [f"m{n}: &m{n}\n  <<: [{', '.join([f'*m{n - 1}'] * 10)}]" for n in range(1, 8)]
    )
    configs = "configs:\n- config_name: default\n  data_files: "
    cards = {
        "an alias bomb": bomb,
        "an alias bomb of subsets": f"{bomb}\nconfigs: *a6",
        "a merge bomb": merges,
        "deep lists": "a: " + "[" * 5000,
        "deep keys": "".join(f"{' ' * n}k:\n" for n in range(900)),
        "code": "a: !!python/object/apply:os.system [touch run]",
        "a card of 16 MiB": "a: " + "x" * 16 * MIB,
        "a card without an end": "a: |\n" + "  x\n" * 100_000,
        "100,000 digits": "a: " + "9" * 100_000,
        "controls": "a: \x00\x1b",
        "a list": "- a\n- b",
        "subsets of a number": "configs: 5",
        "subsets of nothing": "configs:",
        "5,000 subsets": "configs:\n" + "".join(f"- config_name: c{n}\n  data_files: x.jsonl\n" for n in range(5000)),
        "a subset of NUL": 'configs:\n- config_name: "a\\0b"\n  data_files: x.jsonl',
        "a subset outside": "configs:\n- config_name: ../../x\n  data_files: x.jsonl",
        "files outside": configs + "../../../../../../etc/passwd",
        "a device": configs + "/dev/zero",
        "a URL": configs + "http://127.0.0.1:1/x.jsonl",
        "stars": configs + '"' + "**/" * 200 + '*"',
        "no file": configs + "none.jsonl",
        "a number": configs + "5",
        "features of a list": "dataset_info:\n  features: [1, 2]",
        "features of code": "dataset_info:\n  features:\n  - name: text\n    dtype: __import__",
        "other features": "dataset_info:\n  features:\n  - name: a\n    dtype: int64",
        "absurd counts": "dataset_info:\n  splits:\n  - name: train\n    num_examples: -1\n    num_bytes: 1.0e+999",
        "a split of NUL": configs + '\n  - split: "a\\0/../b"\n    path: x.jsonl',
    }
    for name, text in cards.items():
        files: dict[str, bytes | str] = {"x.jsonl": FIRST + LAST, "README.md": f"---\n{text}\n---\n# Card\n"}
        yield HostileInput("hub card", name, _files(files), "2: .*dataset.format", HUB)
    files = {"x.jsonl": FIRST + LAST, "README.md": f"---\n{cards['a split of NUL']}\n---\n# Card\n"}
    yield HostileInput("hub card", "beside data files", _files(files), "0: 2 rows", CONFIG)
    scripts: dict[str, bytes | str] = {"data.py": "import os; os.system('touch run')", "x.jsonl": FIRST}
    yield HostileInput("hub card", "a script", _files(scripts), "2: .*dataset.format", HUB)

    def fifo(folder: Path) -> None:
        (folder / "data").mkdir()
        (folder / "data" / "x.jsonl").write_bytes(FIRST)
        os.mkfifo(folder / "data" / "README.md")

    yield HostileInput("hub card", "a FIFO", fifo, "2: .*dataset.format", HUB)
