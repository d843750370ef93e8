"""Outputs that a build reads and that are gone are computed again: those that `gc` dropped (`keep: sequences`), and
damaged ones.

Of dropped outputs exactly those that are needed are recomputed, after the dropped outputs of upstream stages that they
need; the source is read in one pass. Every chunk must come out with the digest it had. A damaged output is removed, and
its stage runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from tokenloom.assets.building.chain import Link
from tokenloom.assets.building.changes import differences
from tokenloom.assets.building.stages import STAGES, stage_named
from tokenloom.assets.stage.definition import Context, InputChunk
from tokenloom.assets.stage.keys import key_parts
from tokenloom.errors import StoreError, StoreUnavailableError
from tokenloom.resources.engines.compute import ComputeEngine
from tokenloom.resources.store import ArtifactStore, KeyParts, Manifest


def restore(context: Context, manifest: Manifest, digests: Collection[str], compute: Callable[[Link], None]) -> None:
    """Recompute those of a stage's outputs that are missing from the store.

    Args:
        context: must report no chunk as cached, so that sources are read.
        manifest: the stage's output.
        digests: the outputs needed, by object digest.
        compute: computes every chunk of a stage, after the dropped outputs that they are computed from.

    Raises:
        StoreError: an output cannot be reproduced: its source, its settings or an upstream stage changed.
    """
    missing = context.store.objects.missing(digests)
    if not missing:
        return
    stage = stage_named(manifest.stage)
    work = stage.prepare(context)
    parts = key_parts(stage, context.config, context.store, work)
    recorded = {chunk.key: chunk for chunk in manifest.chunks if chunk.output in missing}

    def inputs() -> Iterator[InputChunk]:
        pending = set(missing)
        for chunk in work.chunks:
            output = recorded.get(parts.key(chunk.digest))
            if output is not None and output.output in pending:
                pending.discard(output.output)
                yield chunk
            if not pending:
                return
        first = next(chunk for chunk in manifest.chunks if chunk.output in pending)
        before = KeyParts.from_json(manifest.parts)
        changes = list(differences(context.config, before, parts)) if before else []
        reason = "; ".join(changes) or "its source or an upstream stage changed"
        raise StoreError(
            f"{stage.name}: gc dropped the output of {first.place(0)}, which is needed now, and it cannot be "
            f"reproduced: {reason}; build the dataset from {stage.name} on"
        )

    link = Link(stage, context, replace(work, chunks=inputs(), source_bytes=lambda: None), parts, again=True)
    compute(link)
    for chunk in link.chunks.all():
        if chunk.output != recorded[chunk.key].output:
            context.store.actions.delete(chunk.key)
            raise StoreError(
                f"{stage.name}: gc dropped the output of {chunk.place(0)}, and recomputing it now gives other bytes; "
                "its action is removed: build again"
            )


def void_damaged(store: ArtifactStore, engine: ComputeEngine, dataset: str, digest: str) -> tuple[str | None, str]:
    """Find the stage whose latest output an object belongs to, and remove all its damaged outputs.

    Args:
        digest: of an object that was damaged and is removed.

    Returns:
        The stage that must run again, if it is not about to run anyway, and a sentence that says why.
    """
    for stage in STAGES:
        if store.latest(dataset, stage) == digest:
            return stage, f"written again, because it was damaged: the manifest of {stage}"
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
        intact = zip(stored, engine.here.map(store.objects.is_intact, stored), strict=True)
        damaged = [output for output, kept in intact if not kept]
        for output in damaged:
            store.objects.delete(output)
        more = f" and {len(damaged):,} more" if damaged else ""
        return stage, f"computed again, because it was damaged: {stage} of {owner.place(0)}{more}"
    return None, f"computed again, because it was damaged: object {digest}"
