"""Builds a dataset: runs its stages through the store, computing only the chunks that no action covers.

Nothing here knows Dagster or the terminal; both call `Build.run` and `Build.run_all`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tokenloom.assets.building.changes import Found, reasons
from tokenloom.assets.building.restore import restore, restore_inputs
from tokenloom.assets.stage.definition import ChunkOutput, ChunkSize, InputChunk, Stage, Work, stage_named
from tokenloom.assets.stage.probe import library_versions, probe_digest
from tokenloom.assets.stage.rejects import summarize
from tokenloom.config import PipelineConfig
from tokenloom.errors import DataValidationError, StoreError, StoreUnavailableError
from tokenloom.resources.digest import digest_json
from tokenloom.resources.engines.compute import ComputeEngine
from tokenloom.resources.store import Action, ArtifactStore, KeyParts, Manifest, ManifestChunk
from tokenloom.resources.tokenizers import TokenizerSpec, resolve_tokenizer

STAGES = ("raw", "schema", "columns", "prompts", "tokenizer", "tokens", "sequences")
"""The stages, in the order in which a build runs them."""


@dataclass(frozen=True)
class StageReport:
    """What one stage did: rows and tokens in counts, chunks made and reused, seconds, and the output's digest.

    `explanation` says in sentences what had changed since the build before.
    """

    name: str
    rows_in: int
    rows_out: int
    rejected: int
    filtered: int
    tokens: int
    chunks: int
    chunks_reused: int
    seconds: float
    digest: str
    counters: dict[str, int]
    explanation: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progress:
    """One chunk of a stage is done."""

    stage: str
    chunks: int
    reused: int
    rows: int


class Build:
    """One dataset being built.

    Args:
        config: what to build.
        store: where it goes.
        engine: what computes chunks.
        limit: only the first `limit` rows of each split; published as `<name>@<limit>`.
        chunk_size: sizes of raw chunks.
        on_progress: told of every finished chunk.
    """

    def __init__(
        self,
        config: PipelineConfig,
        store: ArtifactStore,
        engine: ComputeEngine | None = None,
        limit: int | None = None,
        chunk_size: ChunkSize | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ):
        self.config, self.store, self.limit = config, store, limit
        self.engine = engine or ComputeEngine(config.compute.workers)
        self.chunk_size = chunk_size or ChunkSize()
        self.name = config.dataset_name if limit is None else f"{config.dataset_name}@{limit}"
        self._on_progress = on_progress or (lambda progress: None)
        self.rereading = False
        self._seen: dict[str, Action] = {}
        self._manifests: dict[str, Manifest] = {}
        self._published: dict[str, str] = {}
        self._tokenizer: TokenizerSpec | None = None

    def manifest(self, stage: str) -> Manifest:
        """The output of a stage: of this build, else the latest in the store."""
        if stage not in self._manifests:
            self._manifests[stage] = self.store.manifest(self.name, stage)
        return self._manifests[stage]

    def known_manifest(self, stage: str) -> Manifest | None:
        """The stage's latest manifest in the store, or None where there is none, or none that can be read."""
        try:
            return self.store.manifest(self.name, stage)
        except StoreUnavailableError:
            raise
        except StoreError:
            return None

    def known_facts(self, stage: str) -> dict[str, Any]:
        """The facts of the stage's latest manifest in the store, or none."""
        known = self.known_manifest(stage)
        return known.facts if known else {}

    @property
    def tokenizer(self) -> TokenizerSpec:
        """The tokenizer that the config names or trains, as far as its files tell."""
        if self._tokenizer is None:
            self._tokenizer = resolve_tokenizer(self.config)
        return self._tokenizer

    def input_chunks(self, stage: str) -> Iterator[InputChunk]:
        """The output chunks of an upstream stage, as input."""
        for chunk in self.manifest(stage).chunks:
            yield InputChunk(
                chunk.output,
                chunk.split,
                chunk.source,
                lambda digest=chunk.output: self.store.objects.get_verified(digest),
                chunk.offset,
                chunk.unit,
                ((stage, chunk.output),),
            )

    def restore(self, manifest: Manifest, digests: Collection[str]) -> None:
        """Make anew what is missing of some outputs of an intermediate stage.

        Raises:
            StoreError: it cannot be made as it was.
        """
        restore(self, manifest, digests)

    def run_all(self, last: str = "sequences") -> Iterator[StageReport]:
        """Run every stage up to `last`, yielding each one's report."""
        names = STAGES[: STAGES.index(last) + 1]
        if "prompts" in names:
            _ = self.tokenizer  # a wrong tokenizer is told before any work
        for name in names:
            yield self.run(name)

    def run(self, name: str) -> StageReport:
        """Run one stage and publish its manifest.

        Raises:
            DataValidationError: its output breaks its contract, or too many rows were rejected.
        """
        started = time.perf_counter()
        self.store.prepare()
        stage = stage_named(name)
        work = stage.prepare(self)
        parts = self.key_parts(stage, work)
        chunks, actions, found = self._results(stage, work, parts)
        if self.store.voids(actions):  # what made them was found wrong on a later chunk
            work = stage.prepare(self)
            chunks, actions, found = self._results(stage, work, parts)
        counters: Counter[str] = Counter()
        for action in actions:
            counters.update(action.counters)
        notes = work.notes() | ({"keep": "sequences"} if self._drops(stage) else {})
        previous = self.known_manifest(name)
        told = {"counters": dict(counters), "notes": notes, "parts": asdict(parts)}
        manifest = Manifest(self.name, name, tuple(chunks), **told)
        if not manifest.total("rows_in"):
            raise DataValidationError(f"{name}: there are no rows left of {self.config.dataset.name}")
        manifest = replace(manifest, facts=stage.facts(self, manifest))
        self._check_rejects(stage, manifest)
        if not manifest.total("rows_out"):
            raise DataValidationError(f"{name}: no row is left of {self.config.dataset.name}: {self._losses(manifest)}")
        self._publish(manifest)
        explanation = reasons(self.config, previous, parts, chunks, found)
        return self._report(manifest, found, time.perf_counter() - started, explanation)

    def _publish(self, manifest: Manifest) -> None:
        """Make a stage's manifest the latest; with that of the last stage, all of them are a version."""
        self._manifests[manifest.stage] = manifest
        self._published[manifest.stage] = self.store.put_manifest(manifest)
        if manifest.stage == STAGES[-1]:
            latest = {name: self._published.get(name) or self.store.latest(self.name, name) for name in STAGES}
            stages = {name: digest for name, digest in latest.items() if digest}
            self.store.versions.add(self.name, manifest.digest, stages)

    def key_parts(self, stage: Stage, work: Work) -> KeyParts:
        """What the keys of a stage's chunks have in common."""
        return KeyParts(
            stage.name,
            stage.version,
            probe_digest(stage, self.store),
            {**stage.settings(self.config), **work.settings},
            dict(work.sides),
            library_versions(stage),
            stage.shaping(self.config),
        )

    def _results(
        self, stage: Stage, work: Work, parts: KeyParts
    ) -> tuple[list[ManifestChunk], list[Action], list[Found]]:
        """What became of every chunk, and whether it was there already; tells of each as it is done."""
        chunks: list[ManifestChunk] = []
        actions: list[Action] = []
        found: list[Found] = []
        reused = rows = 0
        listed, known = work.chunks, {}
        if stage.upstream:
            listed = list(listed)
            known = self._covered(stage, parts, listed)
        for chunk, key, action, what in self.engine.map(self._step(stage, work, parts, known), listed):
            place = {"split": chunk.split, "source": chunk.source, "offset": chunk.offset, "unit": chunk.unit}
            chunks.append(ManifestChunk(**place, input=chunk.digest, key=key, **action.outcome()))
            actions.append(action)
            found.append(what)
            reused += what == "hit"
            rows += action.rows_in
            self.tell(stage.name, len(chunks), reused, rows)
        return chunks, actions, found

    def reread(self, rereading: bool) -> None:
        """Have sources read even where their chunks are known, or no more."""
        self.rereading = rereading

    def tell(self, what: str, chunks: int, reused: int, rows: int) -> None:
        """Tell of finished chunks."""
        self._on_progress(Progress(what, chunks, reused, rows))

    def computing(self, work: Work) -> Callable[[Any], ChunkOutput]:
        """What computes chunks, to be handed to the next `engine.map`."""
        return self.engine.apart(work.compute) if work.holds_lock else work.compute

    def _covered(self, stage: Stage, parts: KeyParts, chunks: Collection[InputChunk]) -> dict[str, Action]:
        """The actions that cover chunks, by key; what all others are loaded from is there then."""
        keys = [parts.key(chunk.digest) for chunk in chunks]
        found = zip(keys, self.engine.map(lambda key: self.find_action(stage, key), keys), strict=True)
        known = {key: action for key, action in found if action is not None}
        restore_inputs(self, (chunk for chunk, key in zip(chunks, keys, strict=True) if key not in known))
        return known

    def has_action(self, stage: Stage, key: str) -> bool:
        """Whether a chunk of a stage is covered, by its key; what covers it is not sought again."""
        if (action := self.find_action(stage, key)) is not None:
            self._seen[key] = action
        return action is not None

    def find_action(self, stage: Stage, key: str) -> Action | None:
        """What covers a chunk of a stage, by its key."""
        return self.store.find_action(key, dropped=self._drops(stage))

    def _drops(self, stage: Stage) -> bool:
        """Whether `gc` may drop the stage's outputs."""
        return stage.droppable and self.config.keep == "sequences"

    def _step(
        self, stage: Stage, work: Work, parts: KeyParts, known: dict[str, Action]
    ) -> Callable[[InputChunk], tuple[InputChunk, str, Action, Found]]:
        compute = self.computing(work)

        def step(chunk: InputChunk) -> tuple[InputChunk, str, Action, Found]:
            key = parts.key(chunk.digest)
            if (action := known.get(key) or self._seen.pop(key, None) or self.find_action(stage, key)) is not None:
                return chunk, key, action, "hit"
            why = self.store.why_missed(key)
            output = compute(chunk.load())
            _verify(stage, output)
            made = self.store.put_action(
                key,
                output.table,
                output.rejects,
                output.counts(),
                output.counters,
                stage.compressed,
                stage.loaded,
                output.engine,
            )
            return chunk, key, made, why

        return step

    def reject_reasons(self, stage: str) -> str:
        """Why rows of a stage were rejected, in one line."""
        return reject_reasons(self.store, self.manifest(stage))

    def _check_rejects(self, stage: Stage, manifest: Manifest) -> None:
        rejected, rows_in = manifest.total("rejected"), manifest.total("rows_in")
        limit = self.config.validation.max_reject_fraction
        if rejected <= limit * rows_in:
            return
        reasons = reject_reasons(self.store, manifest)
        raise DataValidationError(
            f"{stage.name}: {rejected:,} of {rows_in:,} rows rejected, more than validation.max_reject_fraction "
            f"({limit:g}) allows: {reasons}"
        )

    def _losses(self, manifest: Manifest) -> str:
        """What became of rows that did not go on."""
        rejected, filtered = manifest.total("rejected"), manifest.total("filtered")
        reasons = f" ({reject_reasons(self.store, manifest)})" if rejected else ""
        return f"{rejected:,} were rejected{reasons}, {filtered:,} filtered"

    @staticmethod
    def _report(manifest: Manifest, found: Sequence[Found], seconds: float, explanation: Sequence[str]) -> StageReport:
        return StageReport(
            name=manifest.stage,
            rows_in=manifest.total("rows_in"),
            rows_out=manifest.total("rows_out"),
            rejected=manifest.total("rejected"),
            filtered=manifest.total("filtered"),
            tokens=manifest.total("tokens"),
            chunks=len(manifest.chunks),
            chunks_reused=found.count("hit"),
            seconds=round(seconds, 4),
            digest=manifest.digest,
            counters=manifest.counters,
            explanation=tuple(explanation),
        )


def reject_reasons(store: ArtifactStore, manifest: Manifest) -> str:
    """Why rows of a stage's output were rejected, in one line, with places in the source."""
    return summarize([(store.objects.get(chunk.rejects), chunk.place) for chunk in manifest.chunks if chunk.rejects])


def _verify(stage: Stage, output: ChunkOutput) -> None:
    """Hold one chunk's output against its contract and its counts against each other."""
    from tokenloom.assets.stage.contract import validate, validate_rejects

    validate(stage, output.table)
    validate_rejects(output.rejects)
    counts = output.counts()
    gone = counts["rows_out"] + counts["rejected"] + counts["filtered"]
    if counts["rows_in"] != gone:
        raise DataValidationError(f"{stage.name}: {counts['rows_in']} rows came in, {gone} are accounted for")


def code_versions(config: PipelineConfig) -> dict[str, str]:
    """For each stage, a digest of its version, its own settings and everything upstream; no data is read."""
    versions: dict[str, str] = {}
    for name in STAGES:
        stage = stage_named(name)
        upstream: Iterable[str] = [versions[above] for above in stage.upstream]
        versions[name] = digest_json([stage.name, stage.version, stage.declared(config), list(upstream)])[:16]
    return versions
