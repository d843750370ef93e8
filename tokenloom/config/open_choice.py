"""A YAML of `tokenloom inspect` in which a choice is still open: its sections are comments, one block per choice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenloom.errors import ConfigError

CHOICE = "# Choice "
"""Start of the first line of a choice. It ends before the first line that is not a comment."""


def check_no_open_choice(settings: Mapping[str, Any], text: str, path: Path) -> None:
    """Refuse a YAML that offers choices of which none is uncommented.

    Args:
        settings: the settings of the YAML.
        text: its text.

    Raises:
        ConfigError: the message names the lines of each choice.
    """
    if "tokenizer" in settings or "prompt_template" in settings or CHOICE not in text:
        return
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(CHOICE)]
    spans = []
    for start in starts:
        end = next((n for n in range(start, len(lines)) if not lines[n].startswith("#")), len(lines))
        spans.append(f"{start + 2} to {end}")
    if spans:
        listed = " or ".join(filter(None, [", ".join(spans[:-1]), spans[-1]]))
        message = f"choose which columns to train on: remove the '# ' before each of lines {listed}"
        raise ConfigError.at(f"{path}:{starts[0] + 1}", message)
