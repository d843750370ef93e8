"""What `tokenloom build` does and prints: one dataset, or those of a mixture."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from tokenloom.assets.building.build import STAGES, Build, StageReport
from tokenloom.assets.building.mixture import MixtureBuild
from tokenloom.cli.length_lines import length_lines
from tokenloom.cli.progress import BuildProgress
from tokenloom.cli.stage_table import stage_json, stage_table, summary
from tokenloom.cli.visible import say
from tokenloom.config import PipelineConfig
from tokenloom.config import MixtureConfig
from tokenloom.config.load import load_config
from tokenloom.errors import ConfigError, Fault
from tokenloom.resources.engines.compute import ComputeEngine, keep_memory_low
from tokenloom.resources.store import ArtifactStore, Manifest

if TYPE_CHECKING:
    from tokenloom.loaders import MixedDataset


def run_build(parsed: argparse.Namespace) -> int:
    """Build as the command line says; returns the exit code."""
    config = load_config(parsed.config)
    if isinstance(config, MixtureConfig):
        _run_mixture(parsed, config)
        return 0
    console = _console(parsed.json)
    build, reports = build_dataset(parsed, config, Console(stderr=True))
    print_stages(console, build, reports)
    if parsed.json:
        print(json.dumps(stage_json(build.name, reports, build.config.tokenizer.max_length)))
    return 0


def build_dataset(
    parsed: argparse.Namespace, config: PipelineConfig, console: Console
) -> tuple[Build, list[StageReport]]:
    """Build a dataset as a command asks for it, with progress on `console`."""
    engine, last = _engine(parsed), _last(parsed)
    with BuildProgress(console) as progress:
        build = Build(config, ArtifactStore(parsed.store), engine, parsed.limit, on_progress=progress.chunk_done)
        return build, _told(progress, build.run_all(last))


def print_stages(console: Console, build: Build, reports: list[StageReport]) -> None:
    """Print the stages of a dataset, why rows were rejected, and lengths."""
    console.print(stage_table(build.name, reports))
    for report in reports:
        if report.rejected:
            say(console, f"{report.name} rejected {build.reject_reasons(report.name)}")
    if reports[-1].name == STAGES[-1]:
        for line in length_lines(reports[-1], build.config.tokenizer.max_length):
            say(console, line)
    console.print(summary(reports), highlight=False)


def build_mixture(
    parsed: argparse.Namespace, config: MixtureConfig, console: Console
) -> tuple[MixtureBuild, dict[str, list[StageReport]], tuple[Manifest, MixedDataset] | None]:
    """Build a mixture as a command asks for it, with progress on `console`; what it was published as, if it was."""
    from tokenloom.loaders.datasets.stored_mixture import mixed_dataset

    engine, last = _engine(parsed), _last(parsed)
    with BuildProgress(console) as progress:
        build = MixtureBuild(config, ArtifactStore(parsed.store), engine, parsed.limit, progress.chunk_done)
        reports = {name: _told(progress, stages, f"{name}/") for name, stages in build.run_each(last)}
    return build, reports, build.publish(mixed_dataset) if last == STAGES[-1] else None


def _run_mixture(parsed: argparse.Namespace, config: MixtureConfig) -> None:
    from tokenloom.cli.mixture_table import mixture_json, mixture_lines, share_table

    build, reports, published = build_mixture(parsed, config, Console(stderr=True))
    console = _console(parsed.json)
    for name, own in reports.items():
        print_stages(console, build.builds[name], own)
    for line in mixture_lines(build):
        say(console, line)
    if published is not None:
        console.print(share_table(build.name, *published))
    if parsed.json:
        print(json.dumps(mixture_json(build, reports, published)))


def _told(progress: BuildProgress, stages: Iterable[StageReport], before: str = "") -> list[StageReport]:
    reports = []
    for report in stages:
        progress.stage_done(replace(report, name=f"{before}{report.name}"))
        reports.append(report)
    return reports


def _engine(parsed: argparse.Namespace) -> ComputeEngine | None:
    """What the command asks for; None: as the YAML says."""
    if parsed.engine == "ray":
        raise ConfigError([Fault("--engine", "ray is not available in this version")])
    keep_memory_low()
    return ComputeEngine(parsed.workers) if parsed.workers else None


def _last(parsed: argparse.Namespace) -> str:
    """The stage that the command stops after."""
    last = getattr(parsed, "stage", None) or STAGES[-1]
    if last not in STAGES:
        close = difflib.get_close_matches(last, STAGES, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError([Fault("--stage", f"{last!r} is not one of {', '.join(STAGES)}{hint}")])
    return last


def _console(as_json: bool) -> Console:
    console = Console(stderr=as_json)
    return console if console.is_terminal else Console(stderr=as_json, width=120)
