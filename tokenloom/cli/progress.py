"""Progress of a build: a live line for each stage on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from tokenloom.assets.building.build import Progress, StageReport


class BuildProgress:
    """Shows a build on a console; a context manager."""

    def __init__(self, console: Console):
        self._console = console
        self._live = console.is_terminal
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description:<10}"),
            TextColumn("{task.fields[done]}"),
            TimeElapsedColumn(),
        )
        self._bars = Bars(*columns, console=console, transient=True, disable=not self._live)
        self._tasks: dict[str, int] = {}

    def __enter__(self) -> BuildProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def chunk_done(self, progress: Progress) -> None:
        """A chunk of a stage is done."""
        if not self._live:
            return
        if progress.stage not in self._tasks:
            self._tasks[progress.stage] = self._bars.add_task(progress.stage, total=None, done="")
        done = f"{progress.chunks:,} chunks, {progress.rows:,} rows, {progress.reused:,} reused"
        self._bars.update(self._tasks[progress.stage], done=done)  # pyright: ignore[reportArgumentType]

    def stage_done(self, report: StageReport) -> None:
        """A stage is done."""
        if self._live:
            return
        reused = f"{report.chunks_reused} of {report.chunks} chunks reused"
        line = f"{report.name}: {report.rows_out:,} rows, {reused}, {report.seconds:.2f} s"
        self._console.print(line, highlight=False, soft_wrap=True)
