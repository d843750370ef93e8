"""Builds a dataset: runs its stages through the store and computes only the chunks that no action covers.

This module knows neither Dagster nor the terminal; both call `Build.run` and `Build.run_all`.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cached_property, partial
from itertools import chain, repeat
from typing import Any, TypeVar

import pyarrow as pa

from tokenloom.assets.building.chain import (
    Chain,
    DroppedInputError,
    Link,
    StageFailed,
    as_input,
    load_output,
    restore,
    void_damaged,
)
from tokenloom.assets.building.report import OnProgress, StageReport, reasons, reject_reasons
from tokenloom.assets.sequences.lengths import put_lengths
from tokenloom.assets.stage.definition import (
    ChunkSize,
    Context,
    InputChunk,
    OutputChunks,
    Stage,
    key_parts,
    probe_digest,
    stage_named,
)
from tokenloom.assets.stage.names import PROMPTS, TOKENIZERS, TOKENS, stages_of
from tokenloom.config import PipelineConfig
from tokenloom.errors import (
    DataValidationError,
    RejectedRowsError,
    RemovedObjectError,
    StoreError,
    StoreUnavailableError,
)
from tokenloom.resources.digest import digest_json
from tokenloom.resources.engines.engine import ComputeEngine, open_engine
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.manifest import LENGTHS, SIDECARS
from tokenloom.resources.store.manifest_chunks import KnownActions
from tokenloom.resources.store.versions import LOADED, ReadLock
from tokenloom.resources.tokenizers import TokenizerSpec, resolve_tokenizer

T = TypeVar("T")

LARGE_BYTES = 256 << 10
"""Output of a chunk, in bytes, that makes it worthwhile to prepare later stages ahead."""


class Build:
    """The build of one dataset.

    Args:
        config: the dataset's declaration.
        store: where outputs are stored.
        engine: computes chunks; default: what `compute` of the config sets.
        limit: read only the first `limit` rows of each split, and publish the dataset as `<name>@<limit>`.
        chunk_size: sizes of raw chunks.
        on_progress: called after every chunk.
    """

    def __init__(
        self,
        config: PipelineConfig,
        store: ArtifactStore,
        engine: ComputeEngine | None = None,
        limit: int | None = None,
        chunk_size: ChunkSize | None = None,
        on_progress: OnProgress | None = None,
    ):
        self.config, self.store, self.limit = config, store, limit
        self.engine = engine or open_engine(config.compute)
        self.chunk_size = chunk_size or ChunkSize()
        self.name = config.dataset_name if limit is None else f"{config.dataset_name}@{limit}"
        self._on_progress: OnProgress = on_progress or (lambda progress: None)
        self._manifests: dict[str, Manifest] = {}
        self._published: dict[str, str] = {}
        self._held: tuple[str, ReadLock | None] | None = None
        self._tokenizer: TokenizerSpec | None = None
        self._validated: dict[str, bytearray] = {}  # by stage, chunks that this build checked before it stored them
        self._chain: list[Link] = []  # stages that are prepared and not yet published
        self._links_ahead: dict[str, Future[Link]] = {}
        self._ahead: list[Callable[[], None]] = []  # starts the work of `_working_ahead`
        self._reports: dict[str, StageReport] = {}
        self._notices: list[str] = []  # for the next report

    def manifest(self, stage: str) -> Manifest:
        """Return the output of a stage: from this build, else the latest in the store. Completes the stage if it is
        in progress.

        Raises:
            RemovedObjectError: it was damaged; running the stage writes it again.
        """
        if any(link.stage.name == stage and not link.manifest for link in self._chain):
            self._complete()
        if stage not in self._manifests:
            digest = self.store.manifest_digest(self.name, stage)
            self._manifests[stage] = self.store.manifest_at(digest, remove_damaged=True)
        return self._manifests[stage]

    def facts(self, stage: str) -> Mapping[str, Any]:
        """Return the facts of a stage's manifest, without completing the stage if they are known ahead."""
        ahead = (link.facts for link in self._chain if link.stage.name == stage and link.facts is not None)
        return next(ahead, None) or self.manifest(stage).facts

    def hold_sequences(self) -> str:
        """Return the object digest of the manifest of sequences: of this build, else the latest in the store.

        It is always the same one, and `gc` keeps it while this object exists.

        Raises:
            DatasetNotFoundError: the dataset is not built.
        """
        if self._held is None:
            self._held = self.store.hold_latest(self.name)
        return self._held[0]

    def latest_manifest(self, stage: str) -> Manifest | None:
        """Return the stage's latest manifest in the store, or None if it does not exist or cannot be read."""
        try:
            if stage == SIDECARS:
                named = self.store.manifest(self.name).sidecars
                return self.store.manifest_at(named) if named else None
            digest = self.store.latest(self.name, stage)
            return self.store.manifest_at(digest) if digest else None
        except StoreUnavailableError:
            raise
        except StoreError:
            return None

    @property
    def tokenizer(self) -> TokenizerSpec:
        """The tokenizer that the config names or trains; before it is trained, only what the settings determine."""
        if self._tokenizer is None:
            self._tokenizer = resolve_tokenizer(self.config, self.store.probes)
        return self._tokenizer

    def input_chunks(self, stage: str) -> Iterator[InputChunk]:
        """Yield the output chunks of a stage, as input for the next."""
        manifest, upstream = self.manifest(stage), stage_named(stage)
        for chunk, validated in zip(manifest.chunks, self._validated.get(stage, repeat(0)), strict=False):
            load = partial(load_output, self.store, upstream, manifest.facts, chunk, bool(validated))
            yield as_input(upstream, chunk, load)

    @cached_property
    def stages(self) -> tuple[str, ...]:
        """Names of the dataset's stages, in build order."""
        return stages_of(self.config)

    def run_all(self, last: str = LOADED) -> Iterator[StageReport]:
        """Run every stage up to `last`, and yield the report of each, in order.

        A chunk goes through as many stages as it can at once; a stage that needs the complete output of another waits.
        """
        yield from self.run_stages(stages_of(self.config, last))

    def run_stages(self, names: Sequence[str]) -> Iterator[StageReport]:
        """Run some stages, in build order, on the latest outputs of the others. Otherwise like `run_all`.

        What it reads and finds damaged is computed again, also of stages that are not among `names`.
        """
        wanted, removed = [*names], set[str]()
        while True:
            try:
                for report in self._run_once(names):
                    if report.name in wanted:
                        wanted.remove(report.name)
                        notices, self._notices = self._notices, []
                        yield replace(report, notices=(*report.notices, *notices))
                return
            except RemovedObjectError as error:
                if error.digest in removed:
                    raise StoreError(f"{error}; it was damaged again: check the disk of {self.store.address}") from None
                removed.add(error.digest)
                names = self._with_damaged(names, error.digest)

    def _with_damaged(self, names: Sequence[str], digest: str) -> list[str]:
        """Return the stages to run once a damaged object was removed, and forget what was found so far."""
        self._chain, self._reports = [], {}
        stage, notice = void_damaged(self.store, self.engine, self.name, digest)
        self._notices.append(notice)
        return [name for name in self.stages if name in (stage, *names)]

    def _run_once(self, names: Sequence[str]) -> Iterator[StageReport]:
        order = [*names]
        if PROMPTS in names:
            _ = self.tokenizer  # a wrong tokenizer is reported before any work
        if TOKENIZERS in names and self.config.tokenizer.train is None:
            order.sort(key=lambda name: name != TOKENIZERS)  # so that no stage waits for it
        waiting: deque[str] = deque(names)
        with self.store.building(self.name, self.stages), self._working_ahead(names):
            for name in (*order, None):
                try:
                    self._advance(name)
                except Exception:
                    yield from self._finished(waiting)
                    raise
                yield from self._finished(waiting)

    def run(self, name: str) -> StageReport:
        """Run one stage and publish its manifest.

        Raises:
            DataValidationError: its output breaks its contract, or too many rows were rejected.
        """
        return next(report for report in [*self.run_stages([name])] if report.name == name)

    def first_chunk(self, stage: str) -> pa.Table:
        """Return the first chunk of a stage's output. What is damaged or was dropped by `gc` is computed again."""

        def read() -> pa.Table:
            first = self.manifest(stage).chunks[0].output
            restore(self.context(), self.manifest(stage), [first], self.compute)
            return self.store.objects.get_verified(first)

        return self.healing(read)

    def healing(self, read: Callable[[], T]) -> T:
        """Return what a function reads of the dataset's stored outputs. What it finds damaged is computed again, and it
        is called once more; also between two reports of `run_all`."""
        try:
            return read()
        except RemovedObjectError as error:
            # another build, as this one can be in the middle of a run
            other = Build(self.config, self.store, self.engine, self.limit, self.chunk_size, self._on_progress)
            stages = other._with_damaged((), error.digest)
            self._notices += other._notices
            for _ in other.run_stages(stages):
                pass
            return read()

    def _advance(self, name: str | None) -> None:
        """Prepare the next stage, and run what it does not have to wait for; without a stage, run all in progress."""
        if name is None:
            while self._chain:
                self._complete()
            return
        if name == TOKENS:
            self._ahead.clear()  # too late to prepare it ahead
        try:
            ahead = self._links_ahead.pop(name, None)
            link = ahead.result() if ahead else self.link(name)
        except Exception:
            self._complete(self.stages.index(name))  # a failure of a stage before it is the one to report
            raise
        unfinished = [before for before in self._chain if not before.manifest]
        # it needs all outputs of the stages before it, so it is computed now, and published in its turn
        if link.stands_alone:
            self.compute(link)
            link.manifest = self._manifests[link.stage.name] = self._completed(link)
            link.facts = link.manifest.facts
        elif unfinished and not link.follows(unfinished[-1].stage.name):
            self._complete()
        self._chain.append(link)

    @contextmanager
    def _working_ahead(self, names: Sequence[str]) -> Iterator[None]:
        """While the context lasts, a thread prepares what later stages need before their first chunk: their probes, and
        the tokenizer's engines. It starts with the first large chunk that is computed."""
        with ThreadPoolExecutor(1, thread_name_prefix="tokenloom-ahead") as thread:

            def start() -> None:
                if TOKENS in names and self.config.tokenizer.train is None:
                    link = self._links_ahead[TOKENS] = thread.submit(self.link, TOKENS)
                    thread.submit(lambda: link.result().work.load())
                for name in names:
                    thread.submit(probe_digest, stage_named(name), self.store)

            self._ahead.append(start)
            try:
                yield
            finally:
                self._ahead.clear()
                self._links_ahead.clear()

    def _on_output(self, table: pa.Table) -> None:
        if table.nbytes >= LARGE_BYTES:
            with suppress(IndexError):
                self._ahead.pop()()

    def _finished(self, waiting: deque[str]) -> Iterator[StageReport]:
        """Yield the reports of the first stages in `waiting` that are published, and remove these stages."""
        while waiting and waiting[0] in self._reports:
            yield self._reports.pop(waiting.popleft())

    def _complete(self, before: int | None = None) -> None:
        """Run and publish the stages in progress, or those before a place; by default up to the last one that must be
        run. One that is computed already waits for those before it."""
        # what is computed already stays in the chain, unless a stage after it must be run
        ends = [self._place(link) + 1 for link in self._chain if not link.manifest]
        before = before if before is not None else max(ends, default=len(self.stages))
        links = [link for link in self._chain if self._place(link) < before]
        self._chain = [link for link in self._chain if link not in links]
        if links:
            self._run(links)

    def link(self, name: str) -> Link:
        """Prepare a stage, on the outputs of this build, else the latest in the store."""
        stage = stage_named(name)
        previous = self.latest_manifest(name)
        known = self.store.known_actions(previous, self.drops(stage))
        context = replace(self.context(), latest=previous, is_cached=partial(self._is_cached, known, self.drops(stage)))
        work = stage.prepare(context)
        parts = key_parts(stage, self.config, self.store, work)
        empty = Manifest(self.name, name, ())
        facts = stage.facts(context, empty) if stage.facts_ahead else None
        return Link(stage, context, work, parts, previous, facts, self.drops(stage), known)

    def _run(self, links: Sequence[Link]) -> None:
        """Run a chain, which can have stages that are computed already, and publish its manifests in order, up to a
        failure."""
        computed, links = [link for link in links if link.manifest], [link for link in links if not link.manifest]
        started, names = time.perf_counter(), [link.stage.name for link in links]
        try:
            self._compute(links)
            computed_any = any(state != "hit" for link in links for state in link.states)
            if computed_any and any(self.store.voids(link.engines) for link in links):
                # A later chunk showed that the engine of earlier outputs is wrong.
                links = self._again(names)
                self._compute(links)
        # a stage reads an output that gc dropped: one by one, each stage has its inputs restored before it runs
        except DroppedInputError:
            for link in sorted([*computed, *links], key=self._place):
                self._run([link if link.manifest else self.link(link.stage.name)])
            return
        except StageFailed as failed:
            # stages before the failed one are published; run again, they find all their chunks stored
            before = [link for link in computed if self._place(link) < self._place(links[failed.index])]
            if failed.index or before:
                self._run([*before, *self._again(names[: failed.index])])
            raise (failed.error or failed) from None
        seconds, spent = time.perf_counter() - started, sum(link.seconds for link in links) or 1.0
        for link in sorted([*computed, *links], key=self._place):
            share = link.seconds if link.manifest else seconds * link.seconds / spent
            manifest = link.manifest or self._completed(link)
            noted = [*manifest.notes.get("notices", ()), *link.stage.notices(link.context, manifest)]
            notices = [*noted, *self._publish(manifest)]
            self._reports[link.stage.name] = StageReport(
                name=manifest.stage,
                **{name: manifest.total(name) for name in ("rows_in", "rows_out", "rejected", "filtered", "tokens")},
                chunks=len(manifest.chunks),
                chunks_reused=link.states.count("hit"),
                seconds=round(share, 4),
                digest=manifest.digest,
                counters=manifest.counters,
                explanation=tuple(reasons(self.config, link.previous, link.parts, manifest.chunks, link.states)),
                notices=tuple(notices),
            )

    def _place(self, link: Link) -> int:
        return self.stages.index(link.stage.name)

    def compute(self, link: Link) -> None:
        """Find or compute every chunk of a stage that is not part of a chain."""
        try:
            self._compute([link])
        except StageFailed as failed:
            raise (failed.error or failed) from None

    def _again(self, names: Sequence[str]) -> list[Link]:
        # `link` reads the facts of the stages before it from the chain
        waiting, self._chain = self._chain, []
        for name in names:
            self._chain.append(self.link(name))
        links, self._chain = self._chain, waiting
        return links

    def _compute(self, links: Sequence[Link]) -> None:
        if not links:
            return
        head = links[0]
        inputs, most = head.work.chunks, math.inf
        if head.stage.upstream:
            inputs = inputs if isinstance(inputs, OutputChunks) else list(inputs)
            # inputs are read twice, so they must be a list, unless they can be listed any number of times
            self._restore_inputs(head, inputs)
        if head.stage.upstream and not head.stands_alone:
            above = self.manifest(head.stage.above(self.config)[0])
            most = self.config.validation.max_reject_fraction * above.total("rows_out")
        called = (self._on_progress, most, (lambda table: None) if head.stands_alone else self._on_output)
        Chain(links, self.store, self.engine, *called).run(inputs)

    def _completed(self, link: Link) -> Manifest:
        """Return the manifest of a stage whose chunks are all computed; raise DataValidationError if too many rows were
        rejected, or none are left."""
        stage, name = link.stage, link.stage.name
        notes = link.work.notes() | ({"keep": self.config.keep} if self.drops(stage) else {})
        if name == LOADED and self.config.dataset.keep_columns:
            notes[SIDECARS] = self._sidecars(len(link.chunks))
        chunks, parts = link.chunks.all(), asdict(link.parts)
        self._validated[name] = bytearray(state != "hit" for state in link.states)
        manifest = Manifest(self.name, name, chunks, counters=dict(link.counters), notes=notes, parts=parts)
        if not manifest.total("rows_in"):
            raise DataValidationError(f"{name}: no rows left of {self.config.dataset.name}")
        manifest = replace(manifest, facts=stage.facts(link.context, manifest))
        if name == LOADED:
            manifest.notes[LENGTHS] = put_lengths(self.store, self.engine, manifest)
        rejected, rows_in = manifest.total("rejected"), manifest.total("rows_in")
        limit = self.config.validation.max_reject_fraction
        if rejected > limit * rows_in:
            raise RejectedRowsError(
                f"{name}: {rejected:,} of {rows_in:,} rows rejected, more than validation.max_reject_fraction "
                f"({limit:g}) allows: {reject_reasons(self.store, manifest)}; correct the rows, or raise the fraction "
                "to build without them (docs/prepare/rejects.md)",
                name,
                manifest,
            )
        if not manifest.total("rows_out"):
            why = f" ({reject_reasons(self.store, manifest)})" if rejected else ""
            lost = f"{rejected:,} rejected{why}, {manifest.total('filtered'):,} filtered"
            raise RejectedRowsError(f"{name}: no rows left of {self.config.dataset.name}: {lost}", name, manifest)
        return manifest

    def _sidecars(self, count: int) -> str:
        """Find or compute the sidecars of `count` chunks of sequences; return the digest of their manifest, or raise
        StoreError if the raw chunks are from another build."""
        link = self.link(SIDECARS)
        self.compute(link)
        if len(link.chunks) != count:
            raise StoreError("sequences: raw and tokens are from different builds; build the dataset again")
        manifest = Manifest(self.name, SIDECARS, link.chunks.all(), parts=asdict(link.parts))
        return self.store.put_manifest_object(replace(manifest, facts=link.stage.facts(link.context, manifest)))

    def reject_reasons(self, stage: str) -> str:
        """Return why rows of a stage were rejected, in one line."""
        return self.healing(lambda: reject_reasons(self.store, self.manifest(stage)))

    def context(self) -> Context:
        """Return the context of a stage that has nothing cached."""
        return Context(
            self.config,
            self.store,
            self.manifest,
            self.facts,
            self.input_chunks,
            lambda: self.tokenizer,
            limit=self.limit,
            chunk_size=self.chunk_size,
            ensure=lambda stage, digests: restore(self.context(), self.manifest(stage), digests, self.compute),
            engine=self.engine,
        )

    def _is_cached(self, known: KnownActions, droppable: bool, key: str) -> bool:
        """Whether an action covers a chunk; one that is found is added to `known`."""
        if known.get(key) is not None:
            return True
        if (action := self.store.find_action(key, droppable)) is not None:
            known.add(key, action)
        return action is not None

    def drops(self, stage: Stage) -> bool:
        """Whether `gc` is allowed to drop the stage's outputs."""
        return stage.droppable and self.config.keep == "sequences"

    def _publish(self, manifest: Manifest) -> list[str]:
        """Make a stage's manifest the latest; with that of the last stage, all together form a version. Return a notice
        if another YAML of the same name built the version that it replaces."""
        stage = manifest.stage
        self._manifests[stage] = manifest
        if stage != LOADED:
            self._published[stage] = self.store.put_manifest(manifest)
            return []
        # only the digest of the YAML's path is stored: the path itself can be private
        declared_by = self.config.file and digest_json(os.path.realpath(self.config.file))
        before, another = self.store.latest(self.name, stage), self.store.declared_by(self.name)
        self._published[stage] = digest = self.store.put_manifest(manifest, declared_by)
        # stages that this build did not run are part of the version with their latest manifest
        latest = {name: self._published.get(name) or self.store.latest(self.name, name) for name in self.stages}
        stages = {name: digest for name, digest in latest.items() if digest}
        self.store.versions.add(self.name, manifest.digest, stages)
        self._held = stages[LOADED], self.store.read_lock(stages[LOADED])
        if before == digest or None in (declared_by, another) or declared_by == another:
            return []
        return [f"replaces {self.name} of another YAML file; to keep both, give one of them another `name:`"]

    def _restore_inputs(self, link: Link, chunks: Iterable[InputChunk]) -> None:
        """Restore what the chunks of a stage that no action covers are computed from."""

        def reads(chunk: InputChunk) -> Sequence[tuple[str, str]]:
            return () if self._is_cached(link.known, link.droppable, link.parts.key(chunk.digest)) else chunk.reads

        needed: dict[str, set[str]] = {}
        for stage, digest in chain.from_iterable(self.engine.here.map(reads, chunks)):
            needed.setdefault(stage, set()).add(digest)
        for stage, digests in needed.items():
            restore(self.context(), self.manifest(stage), digests, self.compute)
