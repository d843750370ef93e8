"""Pipes, sockets and devices in the place of any file that is read: refused by name, and never waited for."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.raw_rows import read
from support.reading_child import read_in_children
from tokenloom.errors import StoreError
from tokenloom.resources.store.blobs.folder import Folder

INDEX = b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 4, 1, 2, 2, 0, 0, 1)
TOKENS = struct.pack("<ii", 1, 2)
SHARD = {"column_names": ["text"], "column_encodings": ["str"], "column_sizes": [None], "format": "mds", "version": 2}
SHARD |= {"samples": 1, "raw_data": {"basename": "b/a.mds", "bytes": 20}, "zip_data": None}


def _megatron(folder: Path) -> None:
    for name, content in {"x.idx": INDEX, "x.bin": TOKENS, "x_loss_mask.idx": INDEX}.items():
        (folder / name).write_bytes(content)


def _flat(folder: Path) -> None:
    np.array([1, 2], "<u2").tofile(folder / "token_ids_part_0.npy")


def _mds(folder: Path) -> None:
    (folder / "b").mkdir()
    (folder / "index.json").write_text(json.dumps({"shards": [SHARD]}))


def _saved(folder: Path) -> None:
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}], "_fingerprint": "x"}))


Write = Callable[[Path], None]
READERS: dict[str, tuple[Write, str, str, dict[str, Any]]] = {
    "tokens of Megatron": (_megatron, "x.bin", "x.idx", {}),
    "index of Megatron": (_megatron, "x.idx", "x.bin", {"format": "megatron"}),
    "mask of Megatron": (_megatron, "x_loss_mask.idx", "x.idx", {}),
    "tokens of a mask": (_megatron, "x_loss_mask.bin", "x.idx", {}),
    "mask of flat tokens": (_flat, "labels_mask_part_0.npy", "", {"reader": {"dtype": "uint16", "eos_id": 2}}),
    "documents of flat tokens": (_flat, "token_ids_part_0.csv.gz", "", {"reader": {"dtype": "uint16"}}),
    "shard of MDS": (_mds, "b/a.mds", "", {"format": "mds"}),
    "saved dataset": (_saved, "data.arrow", "", {}),
    "files in a zip": (lambda folder: None, "x.zip", "zip://*.jsonl::", {}),
    "a file in a zip": (lambda folder: None, "x.zip", "zip://a.jsonl::", {"format": "jsonl"}),
    "a file's URL": (lambda folder: None, "x.jsonl", "file://", {}),
}
"""What writes the other files, the special one, what `dataset.name` names, and settings."""


def _link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened, pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)  # the paths of sockets are short
        opened.bind(path.name)


SPECIAL: dict[str, Write] = {"pipe": os.mkfifo, "device": _link, "socket": _socket}
KNOWN = "it is a pipe, a socket or a device|not a regular file|No such device or address"


def _cases(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind, make in SPECIAL.items():
        for reader, (write, special, named, settings) in READERS.items():
            inside = folder / kind / reader.replace(" ", "_").replace("'", "")
            inside.mkdir(parents=True)
            write(inside)
            (inside / special).unlink(missing_ok=True)
            make(inside / special)
            path = f"{named}{inside / special}" if ":" in named else str(inside / named)
            yield f"{kind}: {reader}", {"name": path, **settings}


def test_special_files_are_refused_by_every_reader(tmp_path: Path) -> None:
    names, datasets = zip(*_cases(tmp_path), strict=True)
    faults = []
    for name, outcome in zip(names, read_in_children([*datasets]), strict=True):
        refused = [text for text in KNOWN.split("|") if text in outcome.error]
        if not refused or outcome.signal or outcome.traceback or outcome.peak > 300 << 20:
            faults.append(f"{name}: {outcome}")
    assert not faults, "\n".join(faults)


def test_special_files_beside_data_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": "x"}\n')
    for name in ("FORMAT", "README.md"):
        os.mkfifo(tmp_path / name)
    assert read(tmp_path)[0] == [{"a": "x"}]
    with pytest.raises(StoreError, match="not a regular file"):
        Folder(tmp_path).read("FORMAT")
