"""Chains: stages that a chunk goes through in one task, each output stored on its way and passed on in memory.

A stage joins the chain of the stage before it if its input chunks are that stage's output chunks, and nothing that it
needs to prepare depends on all of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from tokenloom.assets.building.changes import ChunkState
from tokenloom.assets.building.progress import Expected, OnProgress, Progress
from tokenloom.assets.stage.definition import ChunkOutput, Context, InputChunk, OutputChunks, Stage, Work
from tokenloom.assets.stage.validation import validate, validate_rejects
from tokenloom.errors import DataValidationError, DeadlineError
from tokenloom.resources.engines.compute import ComputeEngine
from tokenloom.resources.store import Action, ArtifactStore, KeyParts, Manifest, ManifestChunk
from tokenloom.resources.store.manifest_chunks import source_place


class DroppedInputError(Exception):
    """A chunk must be computed from an output that `gc` dropped."""


class StageFailed(Exception):
    """A stage of a chain cannot go on. The stages before it can, and must be published.

    Args:
        index: the stage's position in the chain. The cause, if any, is the error to report.
    """

    def __init__(self, index: int):
        super().__init__(index)
        self.index = index


@dataclass
class Link:
    """A stage of a chain, prepared, and what is known of its output so far.

    Args:
        parts: what the keys of its chunks have in common.
        previous: the stage's manifest before this build.
        facts: the facts of its manifest if they are known ahead, else None.

    Attributes:
        chunks, actions, states: of each chunk, and whether its action was found.
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
    chunks: list[ManifestChunk] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    states: list[ChunkState] = field(default_factory=list)
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
class _Done:
    """One chunk of one stage; `writes` store its output."""

    chunk: ManifestChunk
    action: Action
    state: ChunkState
    seconds: float
    writes: Sequence[Future[None]]


@dataclass(frozen=True)
class Chain:
    """Runs prepared stages over the input chunks of the first.

    Args:
        find_action: returns the action that covers a chunk, by stage and key.
        validated: digests of outputs that this build checked before it stored them; chains add theirs.
        reject_limit: more rejected rows of one stage than this are certain to be too many.
        on_output: called with every output that is computed, in the thread that computes it.
    """

    links: Sequence[Link]
    store: ArtifactStore
    engine: ComputeEngine
    find_action: Callable[[Stage, str], Action | None]
    validated: set[str]
    on_progress: OnProgress
    reject_limit: float
    on_output: Callable[[pa.Table], None]

    def run(self, chunks: Iterable[InputChunk], covered: Mapping[str, Action]) -> None:
        """Find or compute every chunk of every stage, and record them in the links.

        Args:
            chunks: the input of the first stage.
            covered: actions that are known to cover chunks of the first stage, by key.

        Raises:
            StageFailed: a stage failed, or rejects too many rows.
            DroppedInputError: an output that `gc` dropped is needed; run the stages one by one.
        """
        computes = [
            self.engine.apart(link.work.compute) if link.work.holds_lock else link.work.compute for link in self.links
        ]
        rows, reused = Counter[int](), Counter[int]()
        expected = Expected(chunks, self.links[0].work.source_bytes)
        with ThreadPoolExecutor(self.engine.workers, thread_name_prefix="tokenloom-write") as writers:
            for done in self.engine.map(partial(self._task, computes, covered, writers), expected):
                total, estimated = expected.total()
                for index, (link, one) in enumerate(zip(self.links, done, strict=True)):
                    _wait(one.writes, index)
                    link.chunks.append(one.chunk)
                    link.actions.append(one.action)
                    link.states.append(one.state)
                    link.seconds += one.seconds
                    link.rejected += one.action.rejected
                    rows[index] += one.action.rows_in
                    reused[index] += one.state == "hit"
                    counts = len(link.chunks), reused[index], rows[index]
                    self.on_progress(Progress(link.stage.name, *counts, total, estimated))
                    if link.rejected > self.reject_limit and index + 1 < len(self.links):
                        raise StageFailed(index + 1)

    def _task(
        self,
        computes: Sequence[Callable[[Any], ChunkOutput]],
        covered: Mapping[str, Action],
        writers: Executor,
        chunk: InputChunk,
    ) -> list[_Done]:
        """Take one chunk through all stages, and have its outputs written meanwhile."""
        done: list[_Done] = []
        for index, (link, compute) in enumerate(zip(self.links, computes, strict=True)):
            started, writes = time.perf_counter(), []
            try:
                action, state, table = self._one(
                    link,
                    compute,
                    covered if not index else {},
                    chunk,
                    lambda store, writes=writes: writes.append(writers.submit(store)),
                )
            except DroppedInputError:
                raise
            except Exception as error:
                raise StageFailed(index) from error
            place = {"split": chunk.split, "runs": chunk.runs, "unit": chunk.unit}
            output = ManifestChunk(**place, input=chunk.digest, key=link.parts.key(chunk.digest), **vars(action))
            done.append(_Done(output, action, state, time.perf_counter() - started, writes))
            chunk = self._passed_on(link, output, table)
        return done

    def _one(
        self,
        link: Link,
        compute: Callable[[Any], ChunkOutput],
        covered: Mapping[str, Action],
        chunk: InputChunk,
        write: Callable[[Callable[[], None]], None],
    ) -> tuple[Action, ChunkState, pa.Table | None]:
        """Find or compute one chunk of one stage. Returns its action, and the output if it was computed."""
        stage, key = link.stage, link.parts.key(chunk.digest)
        if (action := covered.get(key) or self.find_action(stage, key)) is not None:
            return action, "hit", None
        missed = self.store.why_missed(key)
        try:
            output = compute(chunk.load())
        except DeadlineError as error:
            raise error.at(f"{stage.name}, {source_place(chunk.runs, chunk.unit, error.row or 0)}") from error
        _verify(stage, output)
        self.on_output(output.table)
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
        )
        self.validated.add(action.output)
        return action, missed, output.table

    def _passed_on(self, link: Link, chunk: ManifestChunk, table: pa.Table | None) -> InputChunk:
        """Return an output as the next stage's input."""
        if table is not None:
            whole = table.combine_chunks()
            return as_input(link.stage, chunk, lambda: whole)

        def load() -> pa.Table:
            if self.store.objects.renew(chunk.output) is None:
                raise DroppedInputError
            return load_output(self.store, link.stage, link.facts or {}, chunk, self.validated)

        return as_input(link.stage, chunk, load)


def _wait(writes: Iterable[Future[None]], index: int) -> None:
    """Wait until the output of a chunk is stored.

    Raises:
        StageFailed: it could not be.
    """
    for written in writes:
        try:
            written.result()
        except Exception as error:
            raise StageFailed(index) from error


def as_input(stage: Stage, chunk: ManifestChunk, load: Callable[[], pa.Table]) -> InputChunk:
    """Return an output chunk of a stage as input for the next."""
    return InputChunk(chunk.output, chunk.split, chunk.runs, load, chunk.unit, ((stage.name, chunk.output),))


def load_output(
    store: ArtifactStore, stage: Stage, facts: Mapping[str, Any], chunk: ManifestChunk, validated: set[str]
) -> pa.Table:
    """Return a stored output of a stage. It is checked again unless this build did so, for objects can be crafted.

    Raises:
        StoreError: it is missing or damaged, breaks its contract, or does not fit the facts and the number of rows in
            its manifest.
    """
    if chunk.output in validated:
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


def _verify(stage: Stage, output: ChunkOutput) -> None:
    """Check one chunk's output against its contract, and that its row counts add up."""
    validate(stage, output.table)
    validate_rejects(output.rejects)
    counts = output.counts()
    rows = counts["rows_out"] + counts["rejected"] + counts["filtered"]
    if counts["rows_in"] != rows:
        raise DataValidationError(f"{stage.name}: received {counts['rows_in']} rows, but accounted for {rows}")
