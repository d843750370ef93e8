"""Predicts a build without running it: which chunks of each stage are cached, which must be computed, and why.

Each stage is prepared as in a build, on manifests that hold the outputs of cached chunks. The output of a missing
chunk is unknown until a build computes it, so chunks of later stages that depend on it wait. `outdated` only looks for
a first difference, and reads no more of the source than it is told to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from itertools import islice
from typing import Any, NoReturn, TypeVar

import pyarrow as pa

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.chain import stage_named
from tokenloom.assets.building.report import ChunkState, count_of, differences, reasons, setting_changes
from tokenloom.assets.stage.definition import Context, InputChunk, OutputChunks, Stage, key_parts
from tokenloom.assets.stage.names import RAW, TOKENIZERS
from tokenloom.errors import StoreError, StoreUnavailableError, TokenloomError
from tokenloom.resources.store import Action, ArtifactStore, KeyParts, Manifest, ManifestChunk
from tokenloom.resources.store.manifest import SIDECARS

T = TypeVar("T")

_NO_COUNTS = {"bytes": 0, "table_rows": 0, "rejected": 0, "filtered": 0, "tokens": 0}


@dataclass(frozen=True)
class StageExplanation:
    """What the next build will do in one stage.

    Args:
        chunks: all chunks: hits + misses + waits.
        hits: chunks whose output is in the store.
        misses: chunks that will be computed.
        waits: chunks whose input or settings depend on output that an upstream stage must still compute. They turn out
            to be hits or misses then.
        reasons: sentences.
    """

    name: str
    chunks: int
    hits: int
    misses: int
    waits: int
    reasons: tuple[str, ...]

    @property
    def state(self) -> str:
        """`hit`, `miss` or `waits`."""
        return "miss" if self.misses else "waits" if self.waits else "hit"


def explain(build: Build) -> list[StageExplanation]:
    """Return what a build would do in each stage, in order; with `keep_columns`, also for their sidecars.

    Raises:
        ConfigError: the build would raise it, too.
    """
    forecast = _Forecast(build)
    _ = forecast.tokenizer  # a wrong tokenizer is reported first, as in a build
    names = (*build.stages, SIDECARS) if build.config.dataset.keep_columns else build.stages
    return [forecast.explain(stage_named(name)) for name in names]


def outdated(build: Build, chunks: int) -> str | None:
    """Return why the stored dataset is not what a build would give now, or None if it is.

    Compares the settings, versions and side inputs of all stages. The source is read only as far as the first chunks
    reach.

    Args:
        chunks: the number of first raw chunks to compare.

    Raises:
        ConfigError: the build would raise it, too.
        SourceError: the source cannot be read.
    """
    for name in build.stages:
        previous = build.latest_manifest(name)
        if previous is None:
            return f"{build.name} is not built"
        try:
            link = build.link(name)
        except StoreUnavailableError:
            raise
        except StoreError:
            return f"the last build of {build.name} is not complete"
        before = KeyParts.from_json(previous.parts)
        if before is None:
            return "the last build was by another version of tokenloom"
        changed = [*differences(build.config, before, link.parts), *setting_changes(before.shaping, link.parts.shaping)]
        if changed:
            return f"changed since the last build: {'; '.join(changed)}"
        inputs, most = link.work.chunks, chunks if name == RAW else len(previous.chunks) + 1
        if isinstance(inputs, OutputChunks):
            if [chunk.input for chunk in previous.chunks] != [chunk.digest for chunk in inputs]:
                return f"the last build of {build.name} did not finish {name}"
        elif [chunk.input for chunk in previous.chunks[:most]] != [chunk.digest for chunk in islice(inputs, most)]:
            return f"the {'source' if name == RAW else name} has changed since the last build"
    return None


def trained_tokenizer(build: Build) -> str | None:
    """Return the folder of the tokenizer that the last build trained with the present settings, if there is one."""
    previous = build.latest_manifest(TOKENIZERS)
    if build.config.tokenizer.train is None or previous is None:
        return None
    before = KeyParts.from_json(previous.parts)
    try:
        if before is not None and not [*differences(build.config, before, build.link(TOKENIZERS).parts)]:
            return str(build.store.tokenizer_folder(previous.facts["digest"]))
    except StoreUnavailableError:
        raise
    except StoreError:
        pass
    return None


class _Certainty(IntEnum):
    """How much is known about a stage's facts: nothing, those of the last build, or those of the next build."""

    UNKNOWN = 0
    ASSUMED = 1
    CERTAIN = 2


class _UnknownFactError(Exception):
    """A fact was read that an upstream stage must still compute."""


class _NoFacts(dict[str, Any]):
    def __missing__(self, key: str) -> NoReturn:
        raise _UnknownFactError(key)


@dataclass(frozen=True)
class _PredictedChunk(InputChunk):
    """An output chunk of an upstream stage, as input; `awaited`: its content is unknown. `rows` is 0 if unknown."""

    awaited: bool = False
    rows: int = 0


class _Forecast(Build):
    """A dry run of a build. In its manifests, chunks without an output are those that must still be computed."""

    def __init__(self, build: Build):
        store = ArtifactStore(build.store.address, read_only=True)
        super().__init__(build.config, store, build.engine, build.limit, build.chunk_size)
        self._certainty: dict[str, _Certainty] = {}
        self._assumed: set[str] = set()
        self._read: set[str] = set()
        """Stages whose manifests the current stage reads."""
        self._consumed: set[str] = set()
        """Stages whose chunks the current stage takes as input."""

    def explain(self, stage: Stage) -> StageExplanation:
        """Predict one stage; its upstream stages must have been predicted before."""
        self._read, self._consumed = set(), set()
        previous = before = self.latest_manifest(stage.name)
        prepared = self._try(lambda: self._prepared(stage))
        if prepared is None:
            parts = key_parts(stage, self.config, self.store)
            # settings and sides that depend on missing facts are not compared, or all would count as changed
            before = previous and replace(previous, parts=_comparable(previous.parts, parts))
            inputs = [*self.input_chunks(stage.above(self.config)[0])]
        else:
            parts, inputs = prepared
        manifest, states = self._look_up(stage, parts, inputs, keys_known=prepared is not None)
        hits, waits = states.count("hit"), states.count("awaited")
        lines = reasons(self.config, before, parts, manifest.chunks, states)
        if waits:
            unknown = {name for name in self._read if not self._certainty[name]}
            upstream = self._read.intersection(stage.above(self.config))
            incomplete = {name for name in (self._consumed or self._read) | upstream if not self._is_complete(name)}
            above = [name for name in self.stages if name in unknown | incomplete] or [*stage.above(self.config)]
            lines.append(f"waits for {' and '.join(above)}: up to {count_of(waits, len(states))}")
        assumed = [name for name in self.stages if name in self._read & self._assumed]
        lines += [f"assumes that {name} finds the same as in the last build" for name in assumed]
        # from here on, what is known of the stage's manifest is recorded for the stages after it
        self._manifests[stage.name] = manifest
        # `facts` may read other manifests: what it read decides how certain its result is
        self._read = {stage.name}
        self._certainty[stage.name] = _Certainty.CERTAIN
        context = replace(self.context(), latest=previous)
        facts = self._try(lambda: stage.facts(context, manifest))
        certainty = min(self._certainty[name] for name in self._read)
        # the next best guess: the facts will be those of the last build
        if facts is None and previous and any(chunk.output for chunk in manifest.chunks):
            self._assumed.add(stage.name)
            facts, certainty = previous.facts, _Certainty.ASSUMED
        elif facts is None:
            facts, certainty = _NoFacts(), _Certainty.UNKNOWN
        self._certainty[stage.name] = certainty
        self._manifests[stage.name] = replace(manifest, facts=facts)
        return StageExplanation(stage.name, len(states), hits, len(states) - hits - waits, waits, tuple(lines))

    def context(self) -> Context:
        return replace(super().context(), ensure=_not_computed)

    def manifest(self, stage: str) -> Manifest:
        self._read.add(stage)
        return self._manifests[stage]

    def input_chunks(self, stage: str) -> Iterator[InputChunk]:
        self._consumed.add(stage)
        for chunk in self._manifests[stage].chunks:
            place = (chunk.split, chunk.runs, partial(self._stored, chunk.output), chunk.unit)
            yield _PredictedChunk(chunk.output, *place, awaited=not chunk.output, rows=chunk.rows_out)

    def _stored(self, output: str) -> pa.Table:
        """Return an output that the store has; raise _UnknownFactError if it must still be computed."""
        if not output:
            raise _UnknownFactError
        return self.store.objects.get(output)

    def _prepared(self, stage: Stage) -> tuple[KeyParts, list[InputChunk]]:
        link = self.link(stage.name)
        return link.parts, [replace(chunk, load=_never) for chunk in link.work.chunks]  # releases what `load` holds

    def _look_up(
        self, stage: Stage, parts: KeyParts, inputs: list[InputChunk], keys_known: bool
    ) -> tuple[Manifest, list[ChunkState]]:
        """Return the stage's manifest with all outputs that are known, and the state of each chunk. All wait if `parts`
        is incomplete, so that keys are not known."""
        # a key holds facts of other stages; while one of these is unknown, no key of this stage is certain
        keys_known = keys_known and all(self._certainty[name] for name in self._read)
        chunks: list[ManifestChunk] = []
        states: list[ChunkState] = []
        counters: Counter[str] = Counter()
        for chunk in inputs:
            predicted = isinstance(chunk, _PredictedChunk)
            awaited = chunk.awaited if predicted else not all(map(self._is_complete, self._read))
            key = parts.key(chunk.digest) if keys_known and not awaited else ""
            found = self.store.look_up(key, self.drops(stage)) if key else "awaited"
            action = found if isinstance(found, Action) else None
            states.append("hit" if isinstance(found, Action) else found)
            if states[-1] == "lost":  # the action still names the output's digest
                action = self.store.actions.get(key)
            counters.update(action.counters if action else {})
            rows = chunk.rows if predicted else 0
            outcome = vars(action) if action else {**_NO_COUNTS, "rows_in": rows, "rows_out": rows, "output": ""}
            place = {"split": chunk.split, "runs": chunk.runs, "unit": chunk.unit}
            digest = "" if awaited else chunk.digest
            chunks.append(ManifestChunk(**place, **{"rejects": None, **outcome}, input=digest, key=key))
        return Manifest(self.name, stage.name, tuple(chunks), counters=dict(counters)), states

    def _is_complete(self, name: str) -> bool:
        return all(chunk.output for chunk in self._manifests[name].chunks)

    def _try(self, function: Callable[[], T]) -> T | None:
        """Return the function's result, or None if it fails because something is not known for certain."""
        try:
            return function()
        except _UnknownFactError:
            return None
        except StoreUnavailableError:
            raise
        except TokenloomError as error:
            # an error that follows from certain facts is one that the build would raise too
            sure = all(self._certainty[name] is _Certainty.CERTAIN and self._is_complete(name) for name in self._read)
            if sure and not isinstance(error, StoreError):
                raise
            return None


def _not_computed(stage: str, digests: Collection[str]) -> NoReturn:
    """
    Raises:
        StoreError: always.
    """
    raise StoreError(f"{len(digests):,} chunks of {stage} must be read, which only a build does")


def _never(*_: Any) -> NoReturn:
    raise AssertionError("explain computes nothing")


def _comparable(before: dict[str, Any], now: KeyParts) -> dict[str, Any]:
    """Return the key parts of a manifest without the settings and sides that are not known yet."""
    if KeyParts.from_json(before) is None:
        return before
    settings = {name: value for name, value in before["settings"].items() if name in now.settings}
    return {**before, "settings": settings, "sides": {}}
