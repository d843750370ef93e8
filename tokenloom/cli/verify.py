"""`tokenloom verify`: says what is damaged or missing, and what to do."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tokenloom.cli.sizes import size
from tokenloom.cli.visible import say
from tokenloom.config.load import load_config
from tokenloom.errors import StoreError
from tokenloom.resources.engines.compute import ComputeEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.verify import Finding, Verification, verify

TOLD_IN_TENTHS = 1000
"""Of so many objects the progress is told where there is no terminal."""


def run_verify(target: str | None, store: str | None, keep_damaged: bool, as_json: bool) -> int:
    """Reread a dataset, by its YAML or its name, or the whole store; returns the exit code."""
    name = target
    if target is not None and Path(target).suffix in (".yaml", ".yml"):
        name = load_config(target).dataset_name
    with _ObjectProgress(Console(stderr=True)) as progress:
        found = verify(ArtifactStore(store), name, ComputeEngine(), not keep_damaged, progress.done)
    shown = Console(stderr=as_json)
    for line in report(found, keep_damaged):
        say(shown, line)
    if as_json:
        print(json.dumps(asdict(found)))
    return StoreError.exit_code if found.findings else 0


def report(found: Verification, keep_damaged: bool = False) -> list[str]:
    """What was found, line by line."""
    lines = [_line(one) for one in found.findings]
    count = f"{found.objects:,} objects of {size(found.bytes)} reread"
    gone = f"; {found.dropped:,} outputs are gone, as keep: sequences lets them" if found.dropped else ""
    if not found.findings:
        return [f"{count}, all whole{gone}"]
    damaged = sum(one.problem == "damaged" for one in found.findings)
    told = [f"{damaged:,} damaged and {'kept' if keep_damaged else 'removed'}"] if damaged else []
    told += [f"{len(found.findings) - damaged:,} missing"] if len(found.findings) > damaged else []
    lines.append(f"{count}: {', '.join(told)}{gone}")
    datasets = sorted({one.dataset for one in found.findings if one.dataset and one.latest and one.kind != "tokenizer"})
    if keep_damaged:
        lines.append("run it without --keep-damaged to remove them, so that the next build makes them anew")
    elif datasets:
        lines.append(f"build {', '.join(datasets)}: just these chunks are made anew")
    if any(not one.latest for one in found.findings):
        lines.append("what belongs to an earlier version can only be made anew from the rows and settings of that time")
    return lines


def _line(one: Finding) -> str:
    whose = "/".join(filter(None, (one.dataset, one.stage))) or "of no dataset"
    place = f" of {one.place}" if one.place else ""
    earlier = "" if one.latest else ", of an earlier version"
    return f"{whose}: {one.kind}{place} is {one.problem}{earlier}: {one.digest or one.blob}"


class _ObjectProgress:
    """A bar on a terminal, a line for each tenth elsewhere."""

    def __init__(self, console: Console):
        self._console = console
        columns = (TextColumn("verify"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("verify", total=None)
        self._tenths = 0

    def __enter__(self) -> _ObjectProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def done(self, count: int, total: int) -> None:
        self._bar.update(self._task, completed=count, total=total)
        if not self._console.is_terminal and total >= TOLD_IN_TENTHS and count * 10 // total > self._tenths:
            self._tenths = count * 10 // total
            print(f"verify: {count:,} of {total:,} objects", file=sys.stderr)
