"""Recomputes intermediate outputs that `gc` dropped (`keep: sequences`), if something must be computed from them.

Exactly the missing chunks are recomputed, after the missing chunks of upstream stages that they need; the source is
read in one pass. Every chunk must come out with the digest it had.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenloom.assets.building.changes import differences
from tokenloom.assets.building.progress import OnProgress, Progress
from tokenloom.assets.building.stages import stage_named
from tokenloom.assets.stage.definition import ChunkOutput, Context, InputChunk
from tokenloom.assets.stage.keys import key_parts
from tokenloom.errors import StoreError
from tokenloom.resources.store import ArtifactStore, KeyParts
from tokenloom.resources.store.objects import encode_table

if TYPE_CHECKING:
    from tokenloom.resources.engines.compute import ComputeEngine
    from tokenloom.resources.store import Manifest


def restore_inputs(
    context: Context, engine: ComputeEngine, chunks: Iterable[InputChunk], on_progress: OnProgress
) -> None:
    """Recompute the missing objects that some chunks are loaded from; arguments as in `restore`."""
    digests: dict[str, set[str]] = {}
    for chunk in chunks:
        for stage, digest in chunk.reads:
            digests.setdefault(stage, set()).add(digest)
    for stage, needed in digests.items():
        restore(context, engine, context.manifest(stage), needed, on_progress)


def restore(
    context: Context, engine: ComputeEngine, manifest: Manifest, digests: Collection[str], on_progress: OnProgress
) -> None:
    """Recompute those of a stage's outputs that are missing from the store.

    Args:
        context: must report no chunk as cached, so that sources are read.
        engine: runs the computation.
        manifest: the stage's output.
        digests: the outputs needed, by object digest.
        on_progress: called after every chunk.

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

    chunks: Iterable[InputChunk] = inputs()
    if stage.upstream:
        chunks = list(chunks)
        restore_inputs(context, engine, chunks, on_progress)
    compute = engine.apart(work.compute) if work.holds_lock else work.compute
    recompute = _Recompute(context.store, compute, parts, stage.compressed)
    rows = 0
    for count, (key, digest, rows_in) in enumerate(engine.map(recompute, chunks, context.store), 1):
        if digest != recorded[key].output:
            context.store.actions.delete(key)
            raise StoreError(
                f"{stage.name}: gc dropped the output of {recorded[key].place(0)}, and recomputing it now gives other "
                "bytes; its action is removed: build again"
            )
        rows += rows_in
        on_progress(Progress(f"{stage.name} again", count, 0, rows))


@dataclass(frozen=True)
class _Recompute:
    """Computes a chunk and stores its output; returns its key, the digest of the output, and its number of rows."""

    store: ArtifactStore
    compute: Callable[[Any], ChunkOutput]
    parts: KeyParts
    compressed: bool

    def __call__(self, chunk: InputChunk) -> tuple[str, str, int]:
        output = self.compute(chunk.load())
        digest = self.store.objects.put(encode_table(output.table, self.compressed))
        return self.parts.key(chunk.digest), digest, output.rows_in
