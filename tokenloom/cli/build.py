"""`tokenloom build`: builds a dataset, or the datasets of a mixture, and prints what each stage did."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tokenloom.cli.options import (
    add_command,
    add_compute,
    add_config,
    add_json,
    add_limit,
    add_store,
    compute_engine,
    open_store,
)
from tokenloom.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from tokenloom.assets.building.build import Build
    from tokenloom.assets.building.report import StageReport
    from tokenloom.assets.building.target import BuildTarget
    from tokenloom.config.dataset import Config
    from tokenloom.loaders import MixedDataset
    from tokenloom.resources.store import Manifest


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    parser = add_command(commands, "build", "build a dataset, computing only what changed", run)
    add_config(parser)
    add_store(parser)
    add_limit(parser)
    add_compute(parser)
    parser.add_argument("--stage", metavar="STAGE", help="stop after this stage")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Build, and print the stages of every dataset."""
    from rich.console import Console

    from tokenloom.cli.tables import share_table
    from tokenloom.cli.terminal import open_console, say
    from tokenloom.config.dataset import MixtureConfig, load_config

    config = load_config(args.config)
    built = build_target(args, config, Console(stderr=True), args.stage)
    target, console = built.target, open_console(stderr=args.json)
    for dataset, reports in built.reports.items():
        _print_stages(console, target.builds[dataset], reports)
    for line in stored_lines(target):
        say(console, line)
    if built.published is not None:
        console.print(share_table(target.name, *built.published))
    if isinstance(config, MixtureConfig) and config.unweighted:
        say(console, f"Notice: {config.unweighted}.")
    if args.json:
        print(json.dumps(_to_json(built)))
    return 0


@dataclass(frozen=True)
class Built:
    """A build that a command ran.

    Args:
        reports: what each stage did, by dataset.
        published: a mixture's manifest and the split that it opens with; None if nothing was mixed.
    """

    target: BuildTarget
    reports: dict[str, list[StageReport]]
    published: tuple[Manifest, MixedDataset] | None


def build_target(args: argparse.Namespace, config: Config, console: Console, last: str | None = None) -> Built:
    """Build what a config declares with the command's options, and show progress on `console`.

    Args:
        last: the stage to stop after; None: run all.
    """
    from tokenloom.assets.building.chain import STAGES
    from tokenloom.assets.building.target import open_target
    from tokenloom.cli.terminal import BuildProgress

    engine, last = compute_engine(args, config.compute), last or STAGES[-1]
    if last not in STAGES:
        raise ConfigError.at("--stage", f"{last!r} is not one of {', '.join(STAGES)}{did_you_mean(last, STAGES)}")
    reports: dict[str, list[StageReport]] = {}
    store = open_store(args, config.folder)
    with BuildProgress(console) as progress:
        target = open_target(config, store, engine, args.limit, progress.chunk_done)
        for dataset, stages in target.run_each(last):
            reports[dataset] = []
            for report in stages:
                progress.stage_done(replace(report, name=target.label(dataset, report.name)))
                reports[dataset].append(report)
    return Built(target, reports, target.publish() if last == STAGES[-1] else None)


def stored_lines(target: BuildTarget) -> list[str]:
    """Return a line about the datasets of a mixture that are not built, if there are any."""
    text = f"used as stored, because no YAML in the folder of {target.name} declares them: {', '.join(target.stored)}"
    return [text] if target.stored else []


def _print_stages(console: Console, build: Build, reports: list[StageReport]) -> None:
    """Print the stages of a dataset, why rows were rejected, and sequence lengths."""
    from tokenloom.assets.building.chain import STAGES
    from tokenloom.assets.columns.unused import unused_notice
    from tokenloom.assets.sequences.answers import unstopped_warning
    from tokenloom.assets.stage.definition import stage_named
    from tokenloom.assets.stage.names import MEDIA
    from tokenloom.cli.tables import length_lines, stage_table, turn_lines
    from tokenloom.cli.terminal import open_console, say

    console.print(stage_table(build.name, reports))
    if unused := [name for stage in reports for name in build.manifest(stage.name).notes.get("unused_columns", [])]:
        say(open_console(stderr=True), f"{build.name}: {unused_notice(unused)}")
    for report in reports:
        if report.rejected:
            say(console, f"{report.name} rejected {build.reject_reasons(report.name)}")
        for notice in report.notices:
            say(console, f"{report.name}: {notice}")
        if report.name == MEDIA:
            say(console, _image_line(stage_named(MEDIA).summary(build.config, build.manifest(MEDIA))))
    for line in turn_lines(reports):
        say(console, line)
    if reports[-1].name == STAGES[-1]:
        for line in length_lines(reports[-1], build.config.tokenizer.max_length):
            say(console, line)
        if warning := unstopped_warning(build.config, reports[-1].counters):
            say(console, warning)
    console.print(_summary(reports), highlight=False)


def _image_line(counts: Mapping[str, int]) -> str:
    """Return a line about the images of a dataset, given the summary of `media`."""
    from tokenloom.cli.terminal import size

    images, bytes_, repeated = (counts[name] for name in ("images", "image_bytes", "images_shared"))
    line = f"{images:,} {'image' if images == 1 else 'different images'}, {size(bytes_)}"
    return f"{line}; {repeated:,} further uses of them are not stored again" if repeated else line


def _summary(reports: list[StageReport]) -> str:
    """Return one line with the main results of a dataset's build."""
    last, counts = reports[-1], ("chunks", "chunks_reused", "seconds", "rejected")
    chunks, reused, seconds, rejected = (sum(getattr(report, count) for report in reports) for count in counts)
    rows = f"{last.rows_out:,} rows" + (f", {last.tokens:,} tokens" if last.tokens else "")
    truncated = last.counters.get("tokens_cut", 0)
    lost = (f"; {rejected:,} rejected" if rejected else "") + (f"; {truncated:,} tokens truncated" if truncated else "")
    return f"{rows}{lost}; {reused} of {chunks} chunks reused; {seconds:.2f} s"


def _to_json(built: Built) -> dict[str, Any]:
    """Return what `--json` prints: one entry per stage, and for a mixture what it mixes, or null if unpublished."""
    from tokenloom.assets.stage.definition import stage_named

    target, stages = built.target, []
    for dataset, reports in built.reports.items():
        build = target.builds[dataset]
        for report in reports:
            stage = {**asdict(report), "name": target.label(dataset, report.name)}
            stages.append(stage | stage_named(report.name).summary(build.config, build.manifest(report.name)))
    printed: dict[str, Any] = {"dataset": target.name, "stages": stages}
    if target.is_mixture:
        printed["mixture"] = None
    if built.published is not None:
        manifest, mixed = built.published
        shares = [asdict(share) for share in mixed.shares()]
        counts = {"digest": manifest.digest, "by": manifest.facts["by"], "rows": len(mixed)}
        printed["mixture"] = {**counts, "datasets": shares}
    return printed
