"""Escapes control characters, so that data cannot control the terminal."""

from __future__ import annotations

HARMLESS = "\n\t\u200c\u200d"
"""Printed unescaped although not printable: line breaks, tabs, and the joiners in emoji and Indic words."""


def visible(text: str) -> str:
    """Return a text with control characters written like `\\u001b`."""
    return "".join(char if char in HARMLESS or char.isprintable() else f"\\u{ord(char):04x}" for char in text)
