"""Makes outputs of a stage anew that `gc` dropped (`keep: sequences`), where something must be computed from them.

The stage's work is done again for exactly those chunks, after that of the stages above which it needs; the source is
read in one pass. Every chunk must come out as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from tokenloom.assets.building.changes import differences
from tokenloom.assets.stage.definition import ChunkOutput, Context, InputChunk, Work, stage_named
from tokenloom.errors import StoreError
from tokenloom.resources.store import KeyParts
from tokenloom.resources.store.objects import encode_table

if TYPE_CHECKING:
    from tokenloom.resources.engines.compute import ComputeEngine
    from tokenloom.resources.store import Manifest


class Builder(Context, Protocol):
    """A build, as far as it is needed here."""

    @property
    def engine(self) -> ComputeEngine: ...

    def reread(self, rereading: bool) -> None:
        """Have sources read even where their chunks are known, or no more."""
        ...

    def computing(self, work: Work) -> Callable[[Any], ChunkOutput]:
        """What computes chunks, to be handed to the next `engine.map`."""
        ...

    def tell(self, what: str, chunks: int, reused: int, rows: int) -> None:
        """Tell of finished chunks."""
        ...


def restore_inputs(build: Builder, chunks: Iterable[InputChunk]) -> None:
    """Make anew what is missing of what the chunks are loaded from.

    Raises:
        StoreError: it cannot be made as it was.
    """
    wanted: dict[str, set[str]] = {}
    for chunk in chunks:
        for stage, digest in chunk.reads:
            wanted.setdefault(stage, set()).add(digest)
    for stage, digests in wanted.items():
        restore(build, build.manifest(stage), digests)


def restore(build: Builder, manifest: Manifest, digests: Collection[str]) -> None:
    """Make anew what is missing of some of a stage's outputs.

    Raises:
        StoreError: it cannot be made as it was.
    """
    lost = {digest for digest in digests if build.store.objects.renew(digest) is None}
    if not lost:
        return
    build.reread(True)
    try:
        _make_anew(build, manifest, lost)
    finally:
        build.reread(False)


def _make_anew(build: Builder, manifest: Manifest, lost: set[str]) -> None:
    stage = stage_named(manifest.stage)
    work = stage.prepare(build)
    parts = build.key_parts(stage, work)
    known = {chunk.key: chunk for chunk in manifest.chunks if chunk.output in lost}

    def needed() -> Iterator[InputChunk]:
        pending = set(lost)
        for chunk in work.chunks:
            found = known.get(parts.key(chunk.digest))
            if found is not None and found.output in pending:
                pending.discard(found.output)
                yield chunk
            if not pending:
                return
        first = next(chunk for chunk in manifest.chunks if chunk.output in pending)
        before = KeyParts.from_json(manifest.parts)
        told = list(differences(build.config, before, parts)) if before else []
        changed = "; ".join(told) or "its source or the stages above it have changed"
        raise StoreError(
            f"{stage.name}: gc dropped what was made of {first.place(0)}, which is needed now, and since then "
            f"{changed}: build the dataset from {stage.name} on"
        )

    chunks: Iterable[InputChunk] = needed()
    if stage.upstream:
        chunks = list(chunks)
        restore_inputs(build, chunks)
    compute, rows = build.computing(work), 0

    def remake(chunk: InputChunk) -> tuple[str, str, int]:
        made = compute(chunk.load())
        digest = build.store.objects.put(encode_table(made.table, stage.compressed))
        return parts.key(chunk.digest), digest, made.rows_in

    for count, (key, digest, rows_in) in enumerate(build.engine.map(remake, chunks), 1):
        if digest != known[key].output:
            build.store.actions.delete(key)
            raise StoreError(
                f"{stage.name}: gc dropped what was made of {known[key].place(0)}, and it comes out otherwise now; "
                "its action has been removed: build again"
            )
        rows += rows_in
        build.tell(f"{stage.name} again", count, 0, rows)
