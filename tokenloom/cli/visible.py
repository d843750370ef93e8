"""Makes control characters visible, so that data cannot steer the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

HARMLESS = "\n\t\u200c\u200d"
"""Shown as they are although not printable: line breaks, tabs, and the joiners inside emoji and Indic words."""


def visible(text: str) -> str:
    """A text with control characters as `\\u001b`."""
    return "".join(char if char in HARMLESS or char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def say(console: Console, line: str) -> None:
    """Print a line that may hold text of the data."""
    console.print(visible(line), highlight=False, markup=False, soft_wrap=True)
