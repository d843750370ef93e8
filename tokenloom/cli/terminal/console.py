"""Prints lines and tables, at a fixed width if the output is not a terminal, and formats sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenloom.errors import visible

if TYPE_CHECKING:
    from rich.console import Console


def open_console(stderr: bool = False, width: int = 120) -> Console:
    """Return a console on stdout or stderr, `width` characters wide if the output is a file or a pipe."""
    from rich.console import Console  # the loaders' installation has none

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
