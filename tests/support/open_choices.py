"""Makes a choice in a YAML of `tokenloom inspect`, as a person with an editor would."""

from __future__ import annotations

import re


def choice_lines(message: str) -> list[tuple[int, int]]:
    """The first and last line of each choice, as a build's message names them."""
    return [(int(first), int(last)) for first, last in re.findall(r"(\d+) to (\d+)", message)]


def uncommented(text: str, first: int, last: int) -> str:
    """The YAML with some lines uncommented, counted from 1."""
    lines = text.split("\n")
    assert all(line.startswith("# ") for line in lines[first - 1 : last])
    return "\n".join([*lines[: first - 1], *(line[2:] for line in lines[first - 1 : last]), *lines[last:]])
