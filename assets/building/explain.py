"""Foresees a build: which chunks of each stage are known, which will be made, and why. Nothing is computed or written.

Each stage is prepared as a build prepares it, on manifests that hold the outputs of known actions. What a missing
action would give is not known before it is there, so that the stages below wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NoReturn, TypeVar

from tokenloom.assets.building.build import STAGES, Build, stage_named
from tokenloom.assets.building.changes import Found, reasons, share
from tokenloom.assets.stage.definition import InputChunk, Stage, Work
from tokenloom.errors import StoreError, TokenloomError
from tokenloom.resources.store import ArtifactStore, KeyParts, Manifest, ManifestChunk

T = TypeVar("T")

_NO_COUNTS = {"bytes": 0, "table_rows": 0, "rejected": 0, "filtered": 0, "tokens": 0}


@dataclass(frozen=True)
class StageExplanation:
    """What the next build will do in one stage.

    Args:
        chunks: all of them; hits + misses + waits.
        hits: found in the store.
        misses: to be made.
        waits: those whose input or settings follow from what a stage above is still to make: hits or misses then.
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
        """`hit`, `miss`, or `waits`."""
        return "miss" if self.misses else "waits" if self.waits else "hit"


def explain(build: Build) -> list[StageExplanation]:
    """What a build would do in each stage, in order.

    Raises:
        ConfigError: what the build would refuse.
    """
    foresight = _Foresight(build)
    _ = foresight.tokenizer  # a wrong tokenizer is told as a build does
    return [foresight.explain(stage_named(name)) for name in STAGES]


class _Known(IntEnum):
    """How far the facts of a stage are known: not at all, as the build before found them, or for certain."""

    NOT = 0
    BEFORE = 1
    SURE = 2


class _NotYetError(Exception):
    """What was asked for is known only when a stage above has run."""


class _NoFacts(dict[str, Any]):
    def __missing__(self, key: str) -> NoReturn:
        raise _NotYetError(key)


@dataclass(frozen=True)
class _Foreseen(InputChunk):
    """An output of a stage above, as input; `awaited` where it is not known yet, `rows` as far as they are."""

    awaited: bool = False
    rows: int = 0


class _Foresight(Build):
    """A build that only looks: its manifests hold what is known, and chunks without output where nothing is."""

    def __init__(self, build: Build):
        store = ArtifactStore(build.store.address, read_only=True)
        super().__init__(build.config, store, build.engine, build.limit, build.chunk_size)
        self._known: dict[str, _Known] = {}
        self._borrowed: set[str] = set()
        self._asked: set[str] = set()
        self._fed: set[str] = set()

    def manifest(self, stage: str) -> Manifest:
        self._asked.add(stage)
        return self._manifests[stage]

    def input_chunks(self, stage: str) -> Iterator[InputChunk]:
        self._fed.add(stage)
        for chunk in self._manifests[stage].chunks:
            place = (chunk.split, chunk.source, _never, chunk.offset, chunk.unit)
            yield _Foreseen(chunk.output, *place, awaited=not chunk.output, rows=chunk.rows_out)

    def explain(self, stage: Stage) -> StageExplanation:
        """Look at one stage; those above it have been looked at."""
        self._asked, self._fed = set(), set()
        previous = before = self.known_manifest(stage.name)
        prepared = self._try(lambda: self._prepared(stage))
        if prepared is None:
            parts = self.key_parts(stage, Work((), _never))
            before = previous and replace(previous, parts=_restricted(previous.parts, parts))
            listed = [*self.input_chunks(stage.upstream[0])]
        else:
            parts, listed = prepared
        manifest, found = self._look_up(stage, parts, listed, prepared is None)
        hits, waits = found.count("hit"), found.count("awaited")
        told = reasons(self.config, before, parts, manifest.chunks, found)
        told += self._waiting(stage, waits, len(found)) if waits else []
        told += [f"judged by what {name} found in the last build" for name in STAGES if self._is_assumed(name)]
        self._foresee(stage, manifest, previous)
        return StageExplanation(stage.name, len(found), hits, len(found) - hits - waits, waits, tuple(told))

    def _prepared(self, stage: Stage) -> tuple[KeyParts, list[InputChunk]]:
        work = stage.prepare(self)
        listed = [replace(chunk, load=_never) for chunk in work.chunks]  # what it would load is let go
        return self.key_parts(stage, work), listed

    def _look_up(
        self, stage: Stage, parts: KeyParts, listed: list[InputChunk], vague: bool
    ) -> tuple[Manifest, list[Found]]:
        """The stage's manifest with the outputs that are known, and what was found of each chunk.

        Args:
            vague: whether keys are not known, so that all chunks wait.
        """
        vague = vague or not all(self._known[name] for name in self._asked)
        chunks: list[ManifestChunk] = []
        found: list[Found] = []
        counters: Counter[str] = Counter()
        for chunk in listed:
            awaited = chunk.awaited if isinstance(chunk, _Foreseen) else not all(map(self._is_whole, self._asked))
            key = "" if awaited or vague else parts.key(chunk.digest)
            action = self.find_action(stage, key) if key else None
            found.append("hit" if action else self.store.why_missed(key) if key else "awaited")
            if found[-1] == "lost":  # what it made is known all the same
                action = self.store.actions.get(key)
            counters.update(action.counters if action else {})
            rows = chunk.rows if isinstance(chunk, _Foreseen) else 0
            outcome = action.outcome() if action else {**_NO_COUNTS, "rows_in": rows, "rows_out": rows, "output": ""}
            place = {"split": chunk.split, "source": chunk.source, "offset": chunk.offset, "unit": chunk.unit}
            digest = "" if awaited else chunk.digest
            chunks.append(ManifestChunk(**place, **{"rejects": None, **outcome}, input=digest, key=key))
        return Manifest(self.name, stage.name, tuple(chunks), counters=dict(counters)), found

    def _waiting(self, stage: Stage, waits: int, count: int) -> list[str]:
        """What a stage waits for."""
        vague = {name for name in self._asked if not self._known[name]}
        unmade = {name for name in self._fed or self._asked if not self._is_whole(name)}
        above = [name for name in STAGES if name in vague | unmade] or [*stage.upstream]
        return [f"waits for {' and '.join(above)}: up to {share(waits, count)}"]

    def _foresee(self, stage: Stage, manifest: Manifest, previous: Manifest | None) -> None:
        """Note what the stage's manifest will be, as far as that is known."""
        self._manifests[stage.name] = manifest
        self._asked = {stage.name}
        self._known[stage.name] = _Known.SURE
        facts = self._try(lambda: stage.facts(self, manifest))
        known = min(self._known[name] for name in self._asked)
        if facts is None and previous and any(chunk.output for chunk in manifest.chunks):
            self._borrowed.add(stage.name)
            facts, known = previous.facts, _Known.BEFORE
        elif facts is None:
            facts, known = _NoFacts(), _Known.NOT
        self._known[stage.name] = known
        self._manifests[stage.name] = replace(manifest, facts=facts)

    def _is_whole(self, name: str) -> bool:
        """Whether all outputs of a stage are known."""
        return all(chunk.output for chunk in self._manifests[name].chunks)

    def _is_assumed(self, name: str) -> bool:
        return name in self._asked & self._borrowed and self._known[name] is _Known.BEFORE

    def _try(self, function: Callable[[], T]) -> T | None:
        """What the function gives, or None where it fails for what is not known for certain."""
        try:
            return function()
        except _NotYetError:
            return None
        except TokenloomError as error:
            sure = all(self._known[name] is _Known.SURE and self._is_whole(name) for name in self._asked)
            if sure and not isinstance(error, StoreError):
                raise
            return None


def _never(*_: Any) -> NoReturn:
    raise AssertionError("nothing is computed here")


def _restricted(before: dict[str, Any], now: KeyParts) -> dict[str, Any]:
    """The parts that a manifest holds, without settings and sides that are not known today."""
    if KeyParts.from_json(before) is None:
        return before
    settings = {name: value for name, value in before["settings"].items() if name in now.settings}
    return {**before, "settings": settings, "sides": {}}
