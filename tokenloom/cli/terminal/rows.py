"""Prints rows, distinguishing trained from masked tokens by colour, or by brackets without colour, and counts of
turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from tokenloom.assets.building.report import StageReport
from tokenloom.assets.shown_rows.token_runs import BRACKETS, ShownRow, TokenRun, bracketed, plain_text
from tokenloom.assets.stage.names import PROMPTS, TOKENS
from tokenloom.assets.stage.rows import LOST
from tokenloom.assets.tokens.stage import FURTHER
from tokenloom.errors import visible
from tokenloom.resources.store.objects import IMAGES


def turn_lines(reports: Sequence[StageReport]) -> Iterator[str]:
    """Yield lines about the trained turns, and about the texts of rows that have several."""
    stages = {report.name: report for report in reports}
    if (prompts := stages.get(PROMPTS)) is None or not prompts.counters:
        return
    from tokenloom.assets.prompts.exact import NOT_EXACT, TEXTS, TURNS

    if TURNS not in prompts.counters:
        return
    counters = prompts.counters
    line = f"{counters[TURNS]:,} turns trained"
    if counters[NOT_EXACT]:
        line += f", {counters[NOT_EXACT]:,} of them not as at inference (certificate of prompts: turns)"
    yield line
    if counters[TEXTS] == prompts.rows_out:
        return
    line = f"{counters[TEXTS]:,} texts of {prompts.rows_out:,} rows"
    if tokens := stages.get(TOKENS):
        further = tokens.counters.get(FURTHER, 0)
        line += f": {further / (tokens.tokens - further):.1%} more tokens than with the longest of each row"
        if not {"tokens_shared", IMAGES} & stages[reports[-1].name].counters.keys():
            line += "; length.packing: tree stores what they share once"
    if lost := stages[reports[-1].name].counters.get(LOST):
        line += f"; {lost:,} of them too long"
    yield line


_STYLES = {
    (True, False): "bold green",
    (False, False): "bright_black",
    (True, True): "black on green",
    (False, True): "black on bright_black",
}
_CUT = "black on yellow"
SHARED = "not the tokens of the prompt at inference"
"""Before the `notes` of a row."""


def print_preview(console: Console, dataset: str, rows: Sequence[ShownRow]) -> None:
    """Print rows below a legend: in colour, or with brackets around what is trained."""
    if console.color_system is None or console.no_color:
        legend = Text(f"{dataset}  {'trained'.join(BRACKETS)} \N{MIDDLE DOT} masked")
        console.print(Group(legend, *(_panel(row, _bracketed) for row in rows)))
        return
    legend = Text.assemble(
        (dataset, "bold"), "  ", ("trained", _STYLES[True, False]), " · ", ("masked", _STYLES[False, False]), " · ",
        ("trained control token", _STYLES[True, True]), " · ", ("masked control token", _STYLES[False, True]),
    )  # fmt: skip
    console.print(Group(legend, *(_panel(row, _coloured) for row in rows)))


def _coloured(runs: Sequence[TokenRun]) -> Text:
    return Text.assemble(*((plain_text(run), _style(run)) for run in runs))


def _bracketed(runs: Sequence[TokenRun]) -> Text:
    return Text(bracketed(runs))


def _panel(row: ShownRow, marked: Callable[[Sequence[TokenRun]], Text]) -> RenderableType:
    sides = [Text.assemble((f"{side}:\n" if side else "", "bold"), marked(runs)) for side, runs in row.sides.items()]
    text = Text(row.absence, "yellow") if row.absence else Text("\n\n").join(sides)
    text = Text("\n").join([text, *(Text(f"{SHARED}: {note}", "yellow") for note in row.notes)])
    return Panel(text, title=Text(visible(_title(row))), title_align="left", border_style="dim")


def _title(row: ShownRow) -> str:
    counts = f" · {row.tokens:,} tokens, {row.trained:,} trained" if row.tokens else ""
    counts += f", {row.dropped:,} cut" if row.dropped else ""
    label = "" if row.label is None else f" · label {str(row.label).lower()}"
    return f"row {row.row} · {row.split} · {row.place}{label}{counts}"


def _style(run: TokenRun) -> str:
    return _CUT if run.dropped else _STYLES[run.trained, run.control]
