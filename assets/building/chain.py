"""The stages in build order, and chains: stages that a chunk goes through in one task, each output stored on its way
and passed on in memory; and the recomputation of outputs that `gc` dropped.

A stage joins the chain of the stage before it if its input chunks are that stage's output chunks, and nothing that it
needs to prepare depends on all of them.

Of dropped outputs exactly those that are needed are recomputed, after the dropped outputs of upstream stages that they
need; the source is read in one pass. Every chunk must come out with the digest it had. A damaged output is removed, and
its stage runs again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from tokenloom.assets.building.report import ChunkState, Expected, OnProgress, Progress, differences
from tokenloom.assets.stage.definition import (
    ChunkOutput,
    Context,
    InputChunk,
    OutputChunks,
    Stage,
    Work,
    key_parts,
    stage_named,
    validate,
    validate_rejects,
)
from tokenloom.assets.stage.names import STAGES, stages_of
from tokenloom.config import PipelineConfig
from tokenloom.errors import DataValidationError, DeadlineError, StoreError, StoreUnavailableError
from tokenloom.resources.digest import digest_json
from tokenloom.resources.engines.engine import ComputeEngine, Ready
from tokenloom.resources.store import Action, ArtifactStore, KeyParts, Manifest, ManifestChunk
from tokenloom.resources.store.manifest_chunks import GatheredChunks, KnownActions, source_place


def code_versions(config: PipelineConfig) -> dict[str, str]:
    """Return for each stage a digest of its version, its settings and everything upstream. Reads no data."""
    versions: dict[str, str] = {}
    for name in stages_of(config):
        stage = stage_named(name)
        upstream = [versions[above] for above in stage.above(config)]
        versions[name] = digest_json([stage.name, stage.version, stage.read(config), upstream])[:16]
    return versions


WRITERS = 4
"""Threads that write the outputs of one chunk, where chunks share no process."""


class DroppedInputError(Exception):
    """A chunk must be computed from an output that `gc` dropped."""


class StageFailed(Exception):
    """A stage of a chain cannot go on. The stages before it can, and must be published.

    Args:
        index: the stage's position in the chain.
        error: the error to report, if any.
    """

    def __init__(self, index: int, error: Exception | None = None):
        super().__init__(index, error)
        self.index, self.error = index, error

    @property
    def is_outage(self) -> bool:
        """Whether the same can succeed later with nothing changed by the user."""
        return getattr(self.error, "is_outage", False)


@dataclass
class Link:
    """A stage of a chain, prepared, and what is known of its output so far.

    Args:
        parts: what the keys of its chunks have in common.
        previous: the stage's manifest before this build.
        facts: the facts of its manifest if they are known ahead, else None.
        droppable: whether a result of which `gc` dropped the output is a cache hit.
        known: actions that are known to cover chunks of the stage, by key; the store is not asked for these.
        again: whether it only recomputes outputs that `gc` dropped.

    Attributes:
        chunks, states: each chunk, and whether its action was found.
        counters, engines: counters of all actions, and the certificates that they rely on.
        seconds: time that tasks spent in the stage.
        rejected: number of rejected rows.
        manifest: the stage's output once it is complete.
    """

    stage: Stage
    context: Context
    work: Work
    parts: KeyParts
    previous: Manifest | None = None
    facts: Mapping[str, Any] | None = None
    droppable: bool = False
    known: KnownActions = field(default_factory=KnownActions)
    again: bool = False
    chunks: GatheredChunks = field(default_factory=GatheredChunks)
    states: list[ChunkState] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    engines: set[str] = field(default_factory=set)
    seconds: float = 0.0
    rejected: int = 0
    manifest: Manifest | None = None

    @property
    def stands_alone(self) -> bool:
        """Whether its input is neither a source nor the output chunks of a stage, as that of the tokenizer."""
        return bool(self.stage.upstream) and not isinstance(self.work.chunks, OutputChunks)

    def follows(self, name: str) -> bool:
        """Whether the input chunks are the output chunks of a stage."""
        return isinstance(self.work.chunks, OutputChunks) and self.work.chunks.stage == name


@dataclass(frozen=True)
class LinkOutcome:
    """One chunk of one stage, found or computed; `writes` store its output."""

    chunk: ManifestChunk
    action: Action
    state: ChunkState
    seconds: float = 0.0
    writes: Sequence[Future[Any]] = ()


@dataclass(frozen=True)
class Begun:
    """A chunk on its way through a chain.

    Args:
        chunk: the input of its next stage.
        outcomes: those of the stages that it went through already.
    """

    chunk: InputChunk
    outcomes: tuple[LinkOutcome, ...] = ()

    @property
    def place(self) -> str:
        """Where the chunk starts in the source."""
        return source_place(self.chunk.runs, self.chunk.unit, 0)


@dataclass(frozen=True)
class LinkTask:
    """What one stage does with a chunk. It can be pickled.

    Args:
        parts, facts: as in `Link`.
        droppable: whether a result of which `gc` dropped the output is a cache hit.
    """

    stage: Stage
    compute: Callable[[Any], ChunkOutput]
    parts: KeyParts
    facts: Mapping[str, Any]
    droppable: bool


Write = Callable[[Callable[[], None]], Future[Any]]
"""Runs a function that writes an output, in another thread."""


@dataclass(frozen=True)
class ChainTask:
    """Takes one chunk through the stages of a chain. It can be pickled, and knows only the store.

    Running it twice, or on another machine at the same time, changes nothing: outputs are named by their content.
    """

    store: ArtifactStore
    links: Sequence[LinkTask]

    def __call__(self, begun: Begun) -> list[LinkOutcome]:
        """Return the outcomes of all stages, once everything is stored.

        Raises:
            StageFailed: a stage failed, or its output cannot be stored.
            DroppedInputError: an output that `gc` dropped is needed.
        """
        with ThreadPoolExecutor(WRITERS, thread_name_prefix="tokenloom-write") as writers:
            outcomes = self.run(writers.submit, lambda table: None, begun)
            for index, outcome in enumerate(outcomes):
                wait(outcome, index)
        return [replace(outcome, writes=()) for outcome in outcomes]

    def run(self, write: Write, on_output: Callable[[pa.Table], None], begun: Begun) -> list[LinkOutcome]:
        """Return the outcomes of all stages, whose outputs are written meanwhile.

        Args:
            on_output: called with every output that is computed.

        Raises:
            StageFailed: a stage failed.
            DroppedInputError: an output that `gc` dropped is needed.
        """
        chunk, outcomes = begun.chunk, [*begun.outcomes]
        for link in self.links[len(outcomes) :]:
            started, writes = time.perf_counter(), list[Future[Any]]()
            try:
                before = outcomes[-1].action if outcomes else None
                action, state, table = self._one(
                    link, chunk, before, on_output, lambda store, writes=writes: writes.append(write(store))
                )
            except DroppedInputError:
                raise
            except Exception as error:
                raise StageFailed(len(outcomes), error) from error
            output = output_chunk(link.parts, chunk, action)
            outcomes.append(LinkOutcome(output, action, state, time.perf_counter() - started, writes))
            chunk = self.passed_on(link, output, table)
        return outcomes

    def _one(
        self,
        link: LinkTask,
        chunk: InputChunk,
        before: Action | None,
        on_output: Callable[[pa.Table], None],
        write: Callable[[Callable[[], None]], None],
    ) -> tuple[Action, ChunkState, pa.Table | None]:
        """Find or compute one chunk of one stage, whose input has the action `before`. Returns its action, and the
        output if it was computed."""
        stage, key = link.stage, link.parts.key(chunk.digest)
        missed = self.store.look_up(key, link.droppable)
        if isinstance(missed, Action):
            return missed, "hit", None
        try:
            loaded = chunk.load()
            output = link.compute(loaded)
        except DeadlineError as error:
            raise error.at(f"{stage.name}, {source_place(chunk.runs, chunk.unit, error.row or 0)}") from error
        validate(stage, output.table)
        validate_rejects(output.rejects)
        counts = output.counts()
        rows = counts["rows_out"] + counts["rejected"] + counts["filtered"]
        if counts["rows_in"] != rows:
            raise DataValidationError(f"{stage.name}: received {counts['rows_in']} rows, but accounted for {rows}")
        on_output(output.table)
        action = self.store.put_action(
            key,
            output.table,
            output.rejects,
            output.counts(),
            output.counters,
            stage.compressed,
            stage.loaded,
            stage.lengths(output.table),
            output.engine,
            write,
            stored=before if before and before.output == chunk.digest and output.table is loaded else None,
            media=output.media,
        )
        return action, missed, output.table

    def passed_on(self, link: LinkTask, chunk: ManifestChunk, table: pa.Table | None = None) -> InputChunk:
        """Return an output as the next stage's input: the table, or else what the store has."""
        if table is not None:
            whole = table.combine_chunks()
            return as_input(link.stage, chunk, lambda: whole)
        return as_input(link.stage, chunk, partial(_load_found, self.store, link.stage, link.facts, chunk))


def _load_found(store: ArtifactStore, stage: Stage, facts: Mapping[str, Any], chunk: ManifestChunk) -> pa.Table:
    """Return the output of a cache hit; raise DroppedInputError if `gc` dropped it."""
    if store.objects.renew(chunk.output) is None:
        raise DroppedInputError
    return load_output(store, stage, facts, chunk)


@dataclass(frozen=True)
class Chain:
    """Runs prepared stages over the input chunks of the first.

    Args:
        reject_limit: more rejected rows of one stage than this are certain to be too many.
        on_output: called with every output that this process computes, in the thread that computes it.
    """

    links: Sequence[Link]
    store: ArtifactStore
    engine: ComputeEngine
    on_progress: OnProgress
    reject_limit: float
    on_output: Callable[[pa.Table], None]

    def run(self, chunks: Iterable[InputChunk]) -> None:
        """Find or compute every chunk of every stage, and record them in the links.

        Args:
            chunks: the input of the first stage.

        Raises:
            StageFailed: a stage failed, or rejects too many rows.
            DroppedInputError: an output that `gc` dropped is needed; run the stages one by one.
        """
        task = ChainTask(self.store, [self._link_task(link) for link in self.links])
        rows, reused = Counter[int](), Counter[int]()
        expected = Expected(chunks, self.links[0].work.source_bytes)
        with ThreadPoolExecutor(self.engine.workers, thread_name_prefix="tokenloom-write") as writers:
            # in this process, outputs are written while later chunks are computed; other ones return what is stored
            function = partial(task.run, writers.submit, self.on_output) if self.engine.in_process else task
            for outcomes in self.engine.map(function, (self._begin(task, chunk) for chunk in expected), self.store):
                total, estimated = expected.total()
                for index, (link, one) in enumerate(zip(self.links, outcomes, strict=True)):
                    wait(one, index)
                    link.chunks.append(one.chunk)
                    link.states.append(one.state)
                    link.counters.update(one.action.counters)
                    link.engines.add(one.action.engine)
                    link.seconds += one.seconds
                    link.rejected += one.action.rejected
                    rows[index] += one.action.rows_in
                    reused[index] += one.state == "hit"
                    counts = len(link.chunks), reused[index], rows[index]
                    retried, trouble = self.engine.retries.count, self.engine.retries.last
                    name = link.stage.name + " again" * link.again
                    self.on_progress(Progress(name, *counts, total, estimated, retried, trouble))
                    # too many for good: later stages must not go on; the last one is refused when it is complete
                    if link.rejected > self.reject_limit and index + 1 < len(self.links):
                        raise StageFailed(index + 1)

    def _link_task(self, link: Link) -> LinkTask:
        compute = self.engine.apart(link.work.compute) if link.work.holds_lock else link.work.compute
        return LinkTask(link.stage, compute, link.parts, link.facts or {}, link.droppable)

    def _begin(self, task: ChainTask, chunk: InputChunk) -> Begun | Ready[list[LinkOutcome]]:
        """Follow a chunk through the stages as far as their outcomes are known; where a task costs more than asking the
        store, as far as it has them."""
        outcomes: list[LinkOutcome] = []
        for link, linked in zip(self.links, task.links, strict=True):
            # a task in this process asks the store as cheaply as this loop does, and several do at once
            if not link.known and self.engine.in_process:
                return Begun(chunk, tuple(outcomes))
            key = link.parts.key(chunk.digest)
            action = link.known.get(key)
            if action is None and not self.engine.in_process:
                action = self.store.find_action(key, link.droppable)
            if action is None:
                return Begun(chunk, tuple(outcomes))
            output = output_chunk(link.parts, chunk, action)
            outcomes.append(LinkOutcome(output, action, "hit"))
            chunk = task.passed_on(linked, output)
        return Ready(outcomes)


def output_chunk(parts: KeyParts, chunk: InputChunk, action: Action) -> ManifestChunk:
    """Return what a manifest lists for a chunk that an action covers."""
    place = {"split": chunk.split, "runs": chunk.runs, "unit": chunk.unit}
    return ManifestChunk(**place, input=chunk.digest, key=parts.key(chunk.digest), **vars(action))


def wait(outcome: LinkOutcome, index: int) -> None:
    """Wait until the output of a chunk is stored.

    Raises:
        StageFailed: it could not be.
    """
    for written in outcome.writes:
        try:
            written.result()
        except Exception as error:
            raise StageFailed(index, error) from error


def as_input(stage: Stage, chunk: ManifestChunk, load: Callable[[], pa.Table]) -> InputChunk:
    """Return an output chunk of a stage as input for the next."""
    return InputChunk(chunk.output, chunk.split, chunk.runs, load, chunk.unit, ((stage.name, chunk.output),))


def load_output(
    store: ArtifactStore, stage: Stage, facts: Mapping[str, Any], chunk: ManifestChunk, validated: bool = False
) -> pa.Table:
    """Return a stored output of a stage.

    Args:
        validated: whether this build checked it before it stored it; others are checked again, for objects can be
            crafted.

    Raises:
        StoreError: it is missing or damaged, breaks its contract, or does not fit the facts and the number of rows in
            its manifest.
    """
    if validated:
        return store.objects.get_verified(chunk.output)
    return store.objects.get_verified(chunk.output, partial(_check_stored, stage, facts, chunk.table_rows))


def _check_stored(stage: Stage, facts: Mapping[str, Any], rows: int, table: pa.Table) -> None:
    if table.num_rows != rows:
        raise ValueError(f"has {table.num_rows:,} rows, but its manifest lists {rows:,}")
    try:
        validate(stage, table)
        fits = stage.fits(table.schema, facts)
    except (DataValidationError, pa.ArrowException, TypeError, LookupError) as error:
        raise ValueError(str(error)) from error
    if not fits:
        raise ValueError(f"has other columns than its manifest states: {', '.join(table.column_names)[:200]}")


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
        # the source is read only as far as the last chunk that is needed
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
            # the action promises an output that nothing gives any more
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
        # an object rarely rots alone, so the stage's others are checked before it runs again
        damaged = [output for output, kept in intact if not kept]
        for output in damaged:
            store.objects.delete(output)
        more = f" and {len(damaged):,} more" if damaged else ""
        return stage, f"computed again, because it was damaged: {stage} of {owner.place(0)}{more}"
    return None, f"computed again, because it was damaged: object {digest}"
