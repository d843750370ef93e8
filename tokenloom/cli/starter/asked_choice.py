"""Asks on the terminal which of several readings of the rows is right, showing a row of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.prompt import Prompt

from tokenloom.assets.schema.candidates import Ambiguity, FormatCandidate
from tokenloom.cli.rows.source_rows import rendered_row
from tokenloom.cli.starter.source_facts import Inspection
from tokenloom.cli.terminal.console import say
from tokenloom.cli.terminal.rows import print_preview
from tokenloom.config import PipelineConfig
from tokenloom.config.dataset import parse_config
from tokenloom.errors import TokenloomError

QUESTION = "Which one is right? (number, or Enter to choose in the YAML)"


def ask(inspection: Inspection, target: Path) -> Inspection:
    """Return the inspection with the reading that the user chose; unchanged if there is none to choose.

    Args:
        target: the YAML that will be written.
    """
    if inspection.refused is not None or not isinstance(inspection.choice, Ambiguity) or not inspection.choice.close:
        return inspection
    console = Console(stderr=True)
    chosen = [replace(inspection, choice=reading) for reading in inspection.choice.close]
    for number, one in enumerate(chosen, 1):
        _show(console, number, one, target)
    numbers = [str(number) for number in range(1, len(chosen) + 1)]
    try:
        answer = Prompt.ask(
            QUESTION, console=console, choices=[*numbers, ""], show_choices=False, default="", show_default=False
        )
    except EOFError:  # Ctrl-D
        answer = ""
    return chosen[int(answer) - 1] if answer else inspection


def _show(console: Console, number: int, one: Inspection, target: Path) -> None:
    reading = one.choice
    assert isinstance(reading, FormatCandidate)
    say(console, f"{number}: {reading.format}, {', '.join(f'{role}: {text}' for role, text in reading.roles.items())}")
    try:
        config = parse_config(one.yaml(target.parent), target)
        assert isinstance(config, PipelineConfig)
        if (row := rendered_row(config, one.build)) is not None:
            print_preview(console, config.dataset_name, [row])
    except TokenloomError as error:
        for line in str(error).split("\n"):
            say(console, line)
