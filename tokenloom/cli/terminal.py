"""What commands print with: lines, sizes in words, and the progress of builds, checks and exports.

Progress is a live bar on a terminal and plain lines elsewhere. `rich` is imported on first use: the loaders'
installation has none, and commands that print nothing do not wait for it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from tokenloom.errors import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars

    from tokenloom.assets.building.report import Progress, StageReport


def open_console(stderr: bool = False, width: int = 120) -> Console:
    """Return a console on stdout or stderr, `width` characters wide if the output is a file or a pipe."""
    from rich.console import Console

    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=width)


def say(console: Console, line: str) -> None:
    """Print a line that can contain text from the data."""
    console.print(visible(line, lines=False), highlight=False, markup=False, soft_wrap=True)


def size(count: int) -> str:
    """Return a number of bytes in words, such as `512 bytes` or `1.5 MiB`."""
    if count < 1024:
        return f"{count:,} bytes"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:,.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


LINES_FROM = 1000
"""Number of objects from which a check without a terminal prints a line per tenth."""


def count_bar(console: Console) -> Bars:
    """Return a progress bar with counts and the remaining time; invisible without a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bars(*columns, console=console, transient=True, disable=not console.is_terminal)


class _Progress:
    """Bars that are shown while a block runs.

    Args:
        bars: made of `rich`, and invisible without a terminal.
    """

    def __init__(self, console: Console, bars: Bars):
        self._console, self._live, self._bars = console, console.is_terminal, bars

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()


class BuildProgress(_Progress):
    """Shows a build on a console: a live line per stage, or a plain line per finished stage. A context manager."""

    def __init__(self, console: Console):
        from rich.progress import Progress as Bars
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        from tokenloom.assets.building.report import Pace

        texts = map(TextColumn, ("{task.description:<10}", "{task.fields[done]}"))
        columns = (SpinnerColumn(), *texts, TimeElapsedColumn())
        super().__init__(console, Bars(*columns, console=console, transient=True, disable=not console.is_terminal))
        self._tasks: dict[str, int] = {}
        self._pace, self._retried = Pace(), 0

    def chunk_done(self, progress: Progress) -> None:
        """Show that a chunk of a stage is done, and a line about one that is computed again."""
        if progress.retried > self._retried:
            self._retried = progress.retried
            say(self._console, f"{progress.stage}: {progress.trouble}")
        if not self._live:
            return
        if progress.stage not in self._tasks:
            self._tasks[progress.stage] = self._bars.add_task(progress.stage, total=None, done="")
        counts = f"{progress.done} chunks, {progress.rows:,} rows, {progress.reused:,} reused"
        done = ", ".join([counts, *self._pace(progress)])
        self._bars.update(self._tasks[progress.stage], done=done)  # pyright: ignore[reportArgumentType]

    def stage_done(self, report: StageReport) -> None:
        """Show that a stage is done."""
        if self._live:
            return
        reused = f"{report.chunks_reused} of {report.chunks} chunks reused"
        line = f"{report.name}: {report.rows_out:,} rows, {reused}, {report.seconds:.2f} s"
        self._console.print(line, highlight=False, soft_wrap=True)


class ObjectProgress(_Progress):
    """Shows how many objects are checked: a bar, or a plain line per tenth. A context manager."""

    def __init__(self, console: Console):
        super().__init__(console, count_bar(console))
        self._task, self._tenths = self._bars.add_task("verify", total=None), 0

    def object_done(self, count: int, total: int) -> None:
        """Show that `count` of `total` objects are checked."""
        self._bars.update(self._task, completed=count, total=total)
        if not self._live and total >= LINES_FROM and count * 10 // total > self._tenths:
            self._tenths = count * 10 // total
            print(f"verify: {count:,} of {total:,} objects", file=sys.stderr)
