"""Damaged objects of a dataset: a build that reads one removes it, and runs the stage again that writes it."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.assets.building.stages import STAGES
from tokenloom.errors import DamagedObjectError, RemovedObjectError, StoreError, StoreUnavailableError
from tokenloom.resources.engines.compute import ComputeEngine
from tokenloom.resources.store import ArtifactStore, Manifest


@dataclass(frozen=True)
class Voided:
    """A stage that must run again, if it is not about to run anyway, and a sentence that says why."""

    stage: str | None
    notice: str


def read_manifest(store: ArtifactStore, dataset: str, stage: str) -> Manifest:
    """Return the latest manifest of a stage. A damaged one is removed.

    Raises:
        DatasetNotFoundError: the dataset has none.
        RemovedObjectError: it was damaged.
        StoreError: it is missing.
    """
    digest = store.manifest_digest(dataset, stage)
    try:
        return store.manifest_at(digest)
    except DamagedObjectError:
        store.objects.delete(digest)
        raise RemovedObjectError.of(digest) from None


def void_damaged(store: ArtifactStore, engine: ComputeEngine, dataset: str, digest: str) -> Voided:
    """Find the stage whose latest output an object belongs to, and remove all its damaged outputs.

    Args:
        digest: of an object that was damaged and is removed.
    """
    for stage in STAGES:
        if store.latest(dataset, stage) == digest:
            return Voided(stage, f"written again, because it was damaged: the manifest of {stage}")
        try:
            chunks = store.manifest(dataset, stage).chunks
        except StoreUnavailableError:
            raise
        except StoreError:
            continue
        owner = next((chunk for chunk in chunks if digest in chunk.objects.values()), None)
        if owner is None:
            continue
        stored = [chunk.output for chunk in chunks if store.objects.size(chunk.output) is not None]
        intact = engine.here.map(store.objects.is_intact, stored)
        damaged = [output for output, kept in zip(stored, intact, strict=True) if not kept]
        for output in damaged:
            store.objects.delete(output)
        more = f" and {len(damaged):,} more" if damaged else ""
        return Voided(stage, f"computed again, because it was damaged: {stage} of {owner.place(0)}{more}")
    return Voided(None, f"computed again, because it was damaged: object {digest}")
