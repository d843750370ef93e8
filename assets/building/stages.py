"""The stages in build order, and the version of each for one dataset."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from tokenloom.assets.stage.definition import Stage
from tokenloom.config import PipelineConfig
from tokenloom.resources.digest import digest_json

STAGES = ("raw", "schema", "columns", "prompts", "tokenizer", "tokens", "sequences")
"""Names of the stages, in the order in which a build runs them."""


@cache
def stage_named(name: str) -> Stage:
    """Return the stage with that name; its package is imported on first use."""
    return import_module(f"tokenloom.assets.{name}.stage").STAGE


def code_versions(config: PipelineConfig) -> dict[str, str]:
    """Return for each stage a digest of its version, its settings and everything upstream. Reads no data."""
    versions: dict[str, str] = {}
    for name in STAGES:
        stage = stage_named(name)
        upstream = [versions[above] for above in stage.upstream]
        versions[name] = digest_json([stage.name, stage.version, stage.declared(config), upstream])[:16]
    return versions
