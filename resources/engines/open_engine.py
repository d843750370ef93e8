"""Opens the engine that `compute` of a YAML sets."""

from __future__ import annotations

from tokenloom.config.schema import ComputeConfig
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.engines.ray_engine import RayEngine


def open_engine(compute: ComputeConfig) -> ComputeEngine:
    """Return an engine. One of a Ray cluster connects when it is used."""
    if compute.engine == "ray":
        return RayEngine(compute.workers, compute.address)
    return ComputeEngine(compute.workers)
