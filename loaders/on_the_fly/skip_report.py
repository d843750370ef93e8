"""Reports the rows that worker processes skip to the process that owns the stream."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from tokenloom.loaders.on_the_fly.row_encoder import SkippedRow
from tokenloom.loaders.on_the_fly.shares import Share

_SHOWN = 3


class SkipReport:
    """The rows that each share of a stream skipped in its latest epoch.

    Each share writes its rows to a file in a temporary folder, which is deleted with the report. Unlike a queue, a file
    works for any start method of worker processes, can be pickled, and never makes a worker wait for a reader.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tokenloom-skipped-"))
        weakref.finalize(self, _remove, self._folder, os.getpid())

    def begin(self, share: Share) -> ShareReport:
        """Return an empty report of one share."""
        self._folder.mkdir(exist_ok=True)  # a copy of the report can outlive the original, which deletes the folder
        for stale in self._folder.glob("*.jsonl"):
            if not stale.name.startswith(f"{share.count}-"):
                stale.unlink(missing_ok=True)
        return ShareReport(self._folder / f"{share.count}-{share.number}.jsonl")

    def rows(self) -> tuple[SkippedRow, ...]:
        """Return all skipped rows, sorted by shard and number."""
        lines = [line for path in self._folder.glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
        rows = [SkippedRow(*json.loads(line)) for line in lines]
        return tuple(sorted(rows, key=lambda skipped: (skipped.shard or 0, skipped.row)))

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder}


class ShareReport:
    """The rows that one share skips in one epoch."""

    def __init__(self, path: Path):
        self._path, self._codes, self._first = path, Counter[str](), list[SkippedRow]()
        path.write_text("")

    def add(self, rows: Sequence[SkippedRow]) -> None:
        """Add skipped rows."""
        if not rows:
            return
        lines = "".join(f"{json.dumps(astuple(row))}\n" for row in rows)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(lines)
        self._codes.update(row.code for row in rows)
        self._first += rows[: _SHOWN - len(self._first)]

    def warn(self) -> None:
        """Warn about the rows that were skipped, at the end of an epoch."""
        if not self._codes:
            return
        counts = ", ".join(f"{count:,} × {code}" for code, count in self._codes.most_common())
        first = "; ".join(map(str, self._first))
        message = f"{self._codes.total():,} rows were skipped: {counts} (e.g. {first}); `skipped` lists all of them"
        warnings.warn(message, stacklevel=3)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # forked processes inherit the finalizer
        shutil.rmtree(folder, ignore_errors=True)
