"""The parts of cache keys that all chunks of a stage share."""

from __future__ import annotations

from tokenloom.assets.stage.definition import Stage, Work
from tokenloom.assets.stage.probe import library_versions, probe_digest
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore, KeyParts


def key_parts(stage: Stage, config: PipelineConfig, store: ArtifactStore, work: Work | None = None) -> KeyParts:
    """Return what the keys of a stage's chunks have in common.

    Args:
        store: caches the digest of the stage's probe.
        work: adds resolved settings and side inputs; None if the stage has none, or they are unknown.
    """
    settings, sides = (work.settings, work.sides) if work else ({}, {})
    return KeyParts(
        stage.name,
        stage.version,
        probe_digest(stage, store),
        {**stage.settings(config), **settings},
        dict(sides),
        library_versions(stage),
        stage.shaping(config),
    )
