"""Renders rows, telling trained from masked tokens: by colour on a terminal, by brackets without colour, or in HTML."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from tokenloom.cli.terminal.token_runs import Run, ShownRow
from tokenloom.cli.terminal.visible import visible

_STYLES = {
    (True, False): "bold green",
    (False, False): "bright_black",
    (True, True): "black on green",
    (False, True): "black on bright_black",
}


BRACKETS = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}", "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"
"""Around trained text where there is no colour."""


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


def _coloured(runs: Sequence[Run]) -> Text:
    return Text.assemble(*((_shown(run), _style(run)) for run in runs))


def _bracketed(runs: Sequence[Run]) -> Text:
    parts = Text()
    for trained, group in groupby(runs, key=lambda run: run.trained):
        text = "".join(map(_shown, group))
        parts.append(text.join(BRACKETS) if trained else text)
    return parts


def _panel(row: ShownRow, marked: Callable[[Sequence[Run]], Text]) -> RenderableType:
    sides = [Text.assemble((f"{side}:\n" if side else "", "bold"), marked(runs)) for side, runs in row.sides.items()]
    text = Text(row.absence, "yellow") if row.absence else Text("\n\n").join(sides)
    return Panel(text, title=Text(visible(_title(row))), title_align="left", border_style="dim")


def _title(row: ShownRow) -> str:
    counts = f" · {row.tokens:,} tokens, {row.trained:,} trained" if row.tokens else ""
    label = "" if row.label is None else f" · label {str(row.label).lower()}"
    return f"row {row.row} · {row.split} · {row.place}{label}{counts}"


def _style(run: Run) -> str:
    return _STYLES[run.trained, run.control]


def _shown(run: Run) -> str:
    return visible(run.text)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
article {{ border: 1px solid #8886; border-radius: 6px; margin: 1rem 0; padding: .6rem 1rem; }}
h2 {{ font-size: .85rem; font-weight: 600; opacity: .7; margin: 0 0 .4rem; }}
pre {{ font: 14px/1.55 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }}
.t {{ background: #2e9e4433; color: light-dark(#11602a, #7fe39a); }}
.m {{ opacity: .62; }}
.c {{ border: 1px solid currentColor; border-radius: 4px; padding: 0 .25em; font-size: .85em; }}
.absent {{ color: #b8860b; }}
</style></head><body>
<h1>{title}</h1>
<p><span class="t">trained</span> · <span class="m">masked</span> · <span class="t c">trained control token</span> ·
<span class="m c">masked control token</span></p>
{rows}
</body></html>
"""


def html_preview(dataset: str, rows: Sequence[ShownRow]) -> str:
    """Return a self-contained HTML page with the rows."""
    return _PAGE.format(title=html.escape(dataset), rows="\n".join(_article(row) for row in rows))


def _article(row: ShownRow) -> str:
    if row.absence:
        body = f'<span class="absent">{html.escape(row.absence)}</span>'
    else:
        body = "\n\n".join(
            (f"<b>{side}:</b>\n" if side else "")
            + "".join(f'<span class="{_classes(run)}">{html.escape(_shown(run))}</span>' for run in runs)
            for side, runs in row.sides.items()
        )
    return f"<article><h2>{html.escape(_title(row))}</h2><pre>{body}</pre></article>"


def _classes(run: Run) -> str:
    return ("t" if run.trained else "m") + (" c" if run.control else "")
