"""Prints lines and tables, at a fixed width if the output is not a terminal."""

from __future__ import annotations

from rich.console import Console

from tokenloom.errors import visible


def open_console(stderr: bool = False, width: int = 120) -> Console:
    """Return a console on stdout or stderr.

    Args:
        width: characters per line if the output is a file or a pipe.
    """
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=width)


def say(console: Console, line: str) -> None:
    """Print a line that can contain text from the data."""
    console.print(visible(line, lines=False), highlight=False, markup=False, soft_wrap=True)
