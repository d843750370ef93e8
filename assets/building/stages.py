"""The stages in build order, and the version of each for one dataset."""

from __future__ import annotations

from tokenloom.assets.stage.definition import stage_named
from tokenloom.assets.stage.names import STAGES, stages_of
from tokenloom.config import PipelineConfig
from tokenloom.resources.digest import digest_json

__all__ = ["STAGES", "code_versions", "stage_named"]


def code_versions(config: PipelineConfig) -> dict[str, str]:
    """Return for each stage a digest of its version, its settings and everything upstream. Reads no data."""
    versions: dict[str, str] = {}
    for name in stages_of(config):
        stage = stage_named(name)
        upstream = [versions[above] for above in stage.above(config)]
        versions[name] = digest_json([stage.name, stage.version, stage.declared(config), upstream])[:16]
    return versions
