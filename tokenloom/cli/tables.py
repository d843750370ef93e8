"""What commands print: tables, lines about tokens, answers, turns and lengths, and rows.

In rows, trained and masked tokens have different colours, or brackets without colour.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tokenloom.assets.building.report import StageReport
from tokenloom.assets.prompts.spans import CONTENT, REASONING, STOP, TOOL_CALL
from tokenloom.assets.schema.stage import column_cells, format_cells
from tokenloom.assets.sequences.answers import ANSWERS, CUT, EMPTIED, TRAINED_OF, WITHOUT_STOP
from tokenloom.assets.sequences.lengths import AFTER, BEFORE, Histogram, fill
from tokenloom.assets.shown_rows.token_runs import BRACKETS, ShownRow, TokenRun, bracketed, plain_text
from tokenloom.assets.stage.names import PROMPTS, TOKENS
from tokenloom.assets.stage.rows import LOST
from tokenloom.assets.tokens.stage import FURTHER
from tokenloom.errors import visible
from tokenloom.resources.store import Manifest
from tokenloom.resources.store.manifest import TRAINED
from tokenloom.resources.store.objects import IMAGES

if TYPE_CHECKING:
    from tokenloom.assets.building.diff import SettingDiff, SplitDiff
    from tokenloom.assets.building.explain import StageExplanation
    from tokenloom.loaders import MixedDataset


_LOSSES = {
    "tokens_repeated": "repeated as overlap",
    "tokens_shared": "shared by texts, stored once",
    "tokens_padding": "of padding in documents",
    "tokens_cut": "truncated",
    "tokens_dropped": "dropped with their rows",
    "tokens_rejected": "rejected with their rows",
    "tokens_left_out": "omitted with sequences that train nothing",
}


def length_lines(report: StageReport, max_length: int) -> Iterator[str]:
    """Yield lines about the sequences stage.

    Args:
        max_length: in tokens.
    """
    counters = report.counters
    losses = [f"{counters[name]:,} {words}" for name, words in _LOSSES.items() if counters.get(name)]
    filled = fill(counters, report.tokens, max_length)
    stored = f"{report.tokens:,} in sequences, {counters[TRAINED]:,} of them trained"
    tokens = ", ".join([f"{counters['tokens_in']:,} tokens in, {stored}", *losses])
    yield f"{tokens}; {counters['sequences']:,} sequences, {filled:.2%} full"
    yield from answer_lines(counters)
    before, after = (Histogram.of(counters, name, max_length) for name in (BEFORE, AFTER))
    # The bars of lengths that fit are left of the line: the last two buckets hold what is longer.
    within, beyond = len(before.bounds) - 2, 2 * max_length
    for title, histogram in (("rows", before), ("sequences", after)):
        bars = histogram.bars()
        yield f"{title:>9} {bars[:within]}│{bars[within:]}"
    yield f"{'':>9} lengths up to {max_length:,}│{beyond:,}, {2 * beyond:,} and more"


def answer_lines(counters: Mapping[str, int]) -> Iterator[str]:
    """Yield lines about answers that lost tokens, and trained tokens by role, part and turn; none without answers."""
    if not counters.get(ANSWERS):
        return
    cut, unstopped, emptied = (counters[name] for name in (CUT, WITHOUT_STOP, EMPTIED))
    yield f"{counters[ANSWERS]:,} answers; {cut:,} cut, {unstopped:,} without their stop, {emptied:,} prompts emptied"
    # `assistant` has all tokens of answers: their parts are listed in brackets after it, not as roles.
    roles, turns = (
        {name: f"{count:,} {name.replace('_', ' ')}" for name, count in found.items()}
        for found in trained_counts(counters)
    )
    if parts := [roles.pop(part) for part in (CONTENT, REASONING, TOOL_CALL, STOP) if part in roles]:
        roles["assistant"] += f" ({', '.join(parts)})"
    yield f"trained tokens: {'; '.join(', '.join(found.values()) for found in (roles, turns) if found)}"


def trained_counts(counters: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the trained tokens by role and part of answers, and by turn in order."""
    counts = {name.removeprefix(TRAINED_OF): count for name, count in counters.items() if name.startswith(TRAINED_OF)}
    names = [name for name in counts if name.startswith("turn_")]
    return counts, {name: counts.pop(name) for name in sorted(names, key=lambda name: int(name.split("_")[1]))}


LONGEST_VALUE = 60
"""Characters of a setting's value that are printed."""

_COUNTS = {
    "rows in": "rows_in",
    "rows out": "rows_out",
    "rejected": "rejected",
    "filtered": "filtered",
    "tokens": "tokens",
    "chunks": "chunks",
    "reused": "chunks_reused",
}
_STATES = {"hit": "green", "miss": "yellow", "waits": "cyan"}


_NAME: dict[str, Any] = {"style": "bold", "no_wrap": True}
_NUMBER: dict[str, Any] = {"justify": "right", "no_wrap": True}
_LONG: dict[str, Any] = {"overflow": "fold"}
"""Options of columns."""


def _table(title: str | None, columns: Mapping[str, Mapping[str, Any]]) -> Table:
    text = None if title is None else Text(visible(title, lines=False), style="bold")
    table = Table(title=text, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    for name, options in columns.items():
        table.add_column(name, **options)
    return table


def _numbers(*names: str) -> dict[str, dict[str, Any]]:
    return dict.fromkeys(names, _NUMBER)


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}" if value else "·"


def stage_table(name: str, reports: Sequence[StageReport]) -> Table:
    """Return a table of rows, tokens, chunks, seconds and digest of each stage; filtered rows only if there are any."""
    filtered = any(report.filtered for report in reports)
    shown = {title: field for title, field in _COUNTS.items() if field != "filtered" or filtered}
    digest = {"style": "dim", "no_wrap": True}
    table = _table(name, {"stage": _NAME, **_numbers(*shown, "seconds"), "digest": digest})
    for report in reports:
        cells = [
            Text(_count(count := getattr(report, field)), "yellow" if field == "rejected" and count else "")
            for field in shown.values()
        ]
        table.add_row(report.name, *cells, f"{report.seconds:.2f}", report.digest[:8])
    return table


def explanation_table(name: str, stages: Sequence[StageExplanation]) -> Table:
    """Return whether each stage hits, misses or waits, and how many of its chunks do."""
    numbers = _numbers("chunks", "hits", "misses", "waits")
    table = _table(name, {"stage": _NAME, "": {"no_wrap": True}, **numbers})
    for stage in stages:
        cells = [_count(count) for count in (stage.chunks, stage.hits, stage.misses, stage.waits)]
        table.add_row(stage.name, Text(stage.state, _STATES[stage.state]), *cells)
    return table


def share_table(name: str, manifest: Manifest | None, mixed: MixedDataset) -> Table:
    """Return what each dataset of a mixture contributes to an epoch; without a manifest, of one that is not built."""
    digest = f", digest {manifest.digest[:8]}" if manifest else ""
    numbers = _numbers("rows", "tokens", "rows taken", "epochs", "of rows", "of tokens")
    table = _table(f"{name}: {len(mixed):,} rows per epoch{digest}", {"dataset": _NAME, **numbers})
    for share in mixed.shares():
        counts = (f"{share.rows:,}", f"{share.tokens:,}", f"{share.taken:,}", f"{share.epochs:.2f}")
        table.add_row(share.dataset, *counts, f"{share.row_share:.1%}", f"{share.token_share:.1%}")
    return table


def version_table(dataset: str, versions: Sequence[Mapping[str, Any]]) -> Table:
    """Return date, digest, rows, tokens, chunks and pins of each version."""
    counts = ("rows", "tokens", "chunks")
    pinned = any(version["pins"] for version in versions)
    columns = {"published (UTC)": _NAME, "digest": {"no_wrap": True}, **_numbers(*counts)}
    table = _table(dataset, columns | ({"pinned as": {}} if pinned else {}))
    for version in versions:
        cells = ["gone" if version[name] is None else f"{version[name]:,}" for name in counts]
        cells += [visible(", ".join(version["pins"]))] if pinned else []
        table.add_row(version["published"][:19].replace("T", " "), version["digest"][:12], *cells)
    return table


def split_table(splits: Sequence[SplitDiff]) -> Table:
    """Return rows and tokens on both sides of a comparison; `?` if the store no longer holds the count."""
    numbers = _numbers("A", "B", "added", "removed", "changed")
    table = _table(None, {"split": {"style": "bold"}, "": {}, **numbers})
    for split in splits:
        for unit, counts in (("rows", split.rows), ("tokens", split.tokens)):
            cells = [_count(counts[name]) for name in ("a", "b", "added", "removed")]
            names = ("changed",) if "changed" in counts else ("changed_from", "changed_to")
            changed = " → ".join(dict.fromkeys(_count(counts[name]) for name in names))
            table.add_row(visible(split.split) if unit == "rows" else "", unit, *cells, changed)
    return table


def setting_table(settings: Sequence[SettingDiff]) -> Table:
    """Return the settings, library versions and side inputs that differ."""
    table = _table(None, {"stage": {"style": "bold", **_LONG}, "what": _LONG, "A": _LONG, "B": _LONG})
    for setting in settings:
        cells = (setting.stage, visible(setting.name), _value(setting.a), _value(setting.b))
        table.add_row(*map(Text, cells))
    return table


def _value(value: Any) -> str:
    if value is None:
        return "·"
    text = visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), lines=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def column_table(title: str, columns: Sequence[Mapping[str, Any]]) -> Table:
    """Return type, nulls, empty values, distinct values, lengths, scripts and an example of every column or path."""
    numbers = _numbers("null", "empty", "distinct", "p50", "p99")
    example = {"overflow": "ellipsis", "no_wrap": True, "style": "dim"}
    first = {"column": {"style": "bold", **_LONG}, "type": _LONG}
    table = _table(title, {**first, **numbers, "scripts": {}, "example": example})
    for column in columns:
        table.add_row(*(Text(visible(cell, lines=False)) for cell in column_cells(column).values()))
    return table


def format_table(formats: Sequence[Mapping[str, Any]]) -> Table:
    """Return the formats that match the data, the most likely first, with confidence and evidence."""
    columns = {"format": {"style": "bold"}, "confidence": {"justify": "right"}, "evidence": _LONG}
    table = _table("formats", columns)
    for candidate in formats:
        table.add_row(*(Text(visible(cell)) for cell in format_cells(candidate).values()))
    return table


def template_table(templates: Sequence[Mapping[str, Any]]) -> Table:
    """Return what each built-in chat template is for, what it renders, its stop, and whether turns are exact."""
    from tokenloom.assets.prompts.chat_certificate import KNOWN, LACKING

    table = _table(None, {"template": _NAME, "what it is for, renders and trains": _LONG})
    for template in templates:
        found = {finding["name"]: finding for finding in template["certificate"]}
        lacking = found["control tokens"]["found"]
        rejects = f"; rejects rows with {', '.join(template['rejects'])}" if template["rejects"] else ""
        lines = [
            template["description"],
            f"renders {', '.join(template['renders'])}{rejects}",
            f"stop {found['stop']['evidence']}: {found['stop']['found']}; turns {found['turns']['found']}",
        ]
        if lacking != KNOWN:
            lines.append(f"tokens to add to the tokenizer: {lacking.removeprefix(LACKING)}")
        table.add_row(template["name"], Text(visible("\n".join(lines))))
    return table


def finding_table(certificate: Sequence[Mapping[str, str]]) -> Table:
    """Return the findings of a chat template's certificate."""
    table = _table("certificate", {"what": _NAME, "found": _LONG})
    for finding in certificate:
        table.add_row(finding["name"], Text(visible(finding["found"])))
    return table


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
        console.print(Group(legend, *(_panel(row, lambda runs: Text(bracketed(runs))) for row in rows)))
        return
    legend = Text.assemble(
        (dataset, "bold"), "  ", ("trained", _STYLES[True, False]), " · ", ("masked", _STYLES[False, False]), " · ",
        ("trained control token", _STYLES[True, True]), " · ", ("masked control token", _STYLES[False, True]),
    )  # fmt: skip
    console.print(Group(legend, *(_panel(row, _coloured) for row in rows)))


def _coloured(runs: Sequence[TokenRun]) -> Text:
    styles = (_CUT if run.dropped else _STYLES[run.trained, run.control] for run in runs)
    return Text.assemble(*((plain_text(run), style) for run, style in zip(runs, styles, strict=True)))


def _panel(row: ShownRow, marked: Callable[[Sequence[TokenRun]], Text]) -> RenderableType:
    sides = [Text.assemble((f"{side}:\n" if side else "", "bold"), marked(runs)) for side, runs in row.sides.items()]
    text = Text(row.absence, "yellow") if row.absence else Text("\n\n").join(sides)
    text = Text("\n").join([text, *(Text(f"{SHARED}: {note}", "yellow") for note in row.notes)])
    counts = f" · {row.tokens:,} tokens, {row.trained:,} trained" if row.tokens else ""
    counts += f", {row.dropped:,} cut" if row.dropped else ""
    label = "" if row.label is None else f" · label {str(row.label).lower()}"
    title = Text(visible(f"row {row.row} · {row.split} · {row.place}{label}{counts}"))
    return Panel(text, title=title, title_align="left", border_style="dim")
