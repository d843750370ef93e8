"""What `tokenloom explain` does: foresees a build of one dataset, or of those of a mixture, and prints it."""

from __future__ import annotations

import json

from rich.console import Console

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.explain import StageExplanation, explain
from tokenloom.assets.building.mixture import MixtureBuild
from tokenloom.cli.explanation_table import explanation_json, explanation_lines, explanation_table
from tokenloom.cli.mixture_table import explanations_json, mixture_lines
from tokenloom.cli.visible import say
from tokenloom.config import MixtureConfig
from tokenloom.config.load import load_config
from tokenloom.resources.store import ArtifactStore


def run_explain(named: str, store: str | None, limit: int | None, as_json: bool) -> int:
    """Print what a build of a YAML would compute; returns the exit code."""
    config, opened = load_config(named), ArtifactStore(store, read_only=True)
    console = Console(stderr=as_json)
    if isinstance(config, MixtureConfig):
        mixture = MixtureBuild(config, opened, limit=limit)
        found = {name: _print(console, build) for name, build in mixture.builds.items()}
        for line in mixture_lines(mixture):
            say(console, line)
        told = explanations_json(mixture, found)
    else:
        build = Build(config, opened, limit=limit)
        told = explanation_json(build.name, _print(console, build))
    if as_json:
        print(json.dumps(told, ensure_ascii=False))
    return 0


def _print(console: Console, build: Build) -> list[StageExplanation]:
    stages = explain(build)
    console.print(explanation_table(build.name, stages))
    for line in explanation_lines(stages):
        say(console, line)
    return stages
