"""Inputs made to crash a command or to exhaust the machine, of every kind that a command reads.

Each module yields those of some kinds; `all_inputs` yields all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from support.hostile_inputs.hostile_input import HostileInput


def all_inputs() -> Iterator[HostileInput]:
    """Yield every input."""
    from support.hostile_inputs import (  # here, because some build large inputs when they are imported
        archives,
        declarations,
        encodings,
        folders,
        json_files,
        paths,
        tables,
        text_files,
        token_files,
        tokenizers,
    )

    for module in (
        json_files,
        text_files,
        encodings,
        tables,
        archives,
        paths,
        folders,
        declarations,
        token_files,
        tokenizers,
    ):
        yield from module.inputs()
