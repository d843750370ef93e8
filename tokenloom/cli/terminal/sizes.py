"""Formats sizes."""

from __future__ import annotations


def size(count: int) -> str:
    """Return a number of bytes in words, such as `512 bytes` or `1.5 MiB`."""
    if count < 1024:
        return f"{count:,} bytes"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:,.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"
