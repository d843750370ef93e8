"""The stages in build order, and the version of each for one dataset."""

from __future__ import annotations

from tokenloom.assets.stage.definition import STAGES, stage_named
from tokenloom.config import PipelineConfig
from tokenloom.resources.digest import digest_json

__all__ = ["STAGES", "code_versions", "stage_named"]


def code_versions(config: PipelineConfig) -> dict[str, str]:
    """Return for each stage a digest of its version, its settings and everything upstream. Reads no data."""
    versions: dict[str, str] = {}
    for name in STAGES:
        stage = stage_named(name)
        upstream = [versions[above] for above in stage.upstream]
        versions[name] = digest_json([stage.name, stage.version, stage.declared(config), upstream])[:16]
    return versions
