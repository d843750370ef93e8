"""What a build reports: its progress after every chunk, what each stage did and rejected, and what changed since the
build before, in sentences; `explain` uses them too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tokenloom.assets.stage.definition import InputChunk, explained
from tokenloom.assets.stage.rejects import REJECTS, ROW, fate
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore, KeyParts, Manifest, Missed
from tokenloom.resources.store.manifest import TOKENIZERS
from tokenloom.resources.store.manifest_chunks import ManifestChunks
from tokenloom.resources.tables.sequence_schema import check_schema


@dataclass(frozen=True)
class Progress:
    """State of a stage after one more chunk: chunks done so far, how many of them were reused, and their rows.

    `total` is the number of chunks that the stage will have, if it is known; `estimated`: about that many. `retried` is
    how often the build computed a chunk again because a machine or the store was away, and `trouble` says which chunk
    it was the last time, and why.
    """

    stage: str
    chunks: int
    reused: int
    rows: int
    total: int | None = None
    estimated: bool = False
    retried: int = 0
    trouble: str = ""

    @property
    def done(self) -> str:
        """The chunks done, and of how many, such as `12 of about 300`."""
        if self.total is None:
            return f"{self.chunks:,}"
        return f"{self.chunks:,} of {'about ' if self.estimated else ''}{self.total:,}"


OnProgress = Callable[[Progress], None]


ESTIMATE_AFTER = 3.0
"""Seconds of work after which it is worthwhile to look how large a source is."""


class Expected:
    """Input chunks of a stage, and how many there will be: their number, or for a source that is cut while it is read,
    an estimate from the bytes that the chunks so far were cut from.

    Args:
        source_bytes: returns the bytes of the source, if they are known.
    """

    def __init__(self, chunks: Iterable[InputChunk], source_bytes: Callable[[], int | None]):
        self._chunks, self._source_bytes = chunks, source_bytes
        self._count = len(chunks) if isinstance(chunks, Sized) else None
        self._started, self._cut, self._bytes = time.monotonic(), 0, 0
        self._all: int | None = None

    def __iter__(self) -> Iterator[InputChunk]:
        before: InputChunk | None = None
        for chunk in self._chunks:
            self._cut += 1
            if before is None or chunk.runs != before.runs:  # else another split of the same bytes
                # one chunk of unknown size makes the sum useless; -1 marks that
                self._bytes = self._bytes + chunk.size if chunk.size > 0 and self._bytes >= 0 else -1
            before = chunk
            yield chunk

    def total(self) -> tuple[int | None, bool]:
        """Return how many chunks there will be, or None, and whether that is an estimate."""
        if self._count is not None:
            return self._count, False
        if self._bytes <= 0 or time.monotonic() - self._started < ESTIMATE_AFTER:
            return None, False
        if self._all is None:
            self._all = self._source_bytes() or 0
        return (max(self._cut, round(self._cut * self._all / self._bytes)), True) if self._all else (None, False)


class Pace:
    """Describes how fast a stage is, since its first chunk that was seen, and how long it will take.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._started: dict[str, tuple[float, Progress]] = {}

    def __call__(self, progress: Progress) -> list[str]:
        """Return what is known: rate, time left, and chunks that were computed again."""
        now = self._clock()
        started, first = self._started.setdefault(progress.stage, (now, progress))
        seconds, chunks, parts = now - started, progress.chunks - first.chunks, []
        if seconds > 0 and chunks:
            parts.append(f"{(progress.rows - first.rows) / seconds:,.0f} rows/s")
            if progress.total is not None:
                parts.append(f"about {(progress.total - progress.chunks) * seconds / chunks:,.0f} s left")
        return [*parts, f"{progress.retried:,} retried"] if progress.retried else parts


class ProgressLog:
    """Logs the progress of a build: one line for the last stage that is at work, at most every few seconds.

    Args:
        log: receives the lines.
        every: seconds between two lines, and before the first.
        clock: returns the time in seconds.
    """

    def __init__(self, log: Callable[[str], None], every: float = 10.0, clock: Callable[[], float] = time.monotonic):
        self._log, self._every, self._clock = log, every, clock
        self._last, self._retried = clock(), 0
        self._pace = Pace(clock)

    def __call__(self, progress: Progress) -> None:
        """Log a line if it is time, and one about a chunk that is computed again."""
        now, pace = self._clock(), self._pace(progress)
        if progress.retried > self._retried:
            self._retried = progress.retried
            self._log(f"{progress.stage}: {progress.trouble}")
        if now - self._last < self._every:
            return
        self._last = now
        self._log(", ".join([f"{progress.stage}: chunk {progress.done}", f"{progress.reused:,} reused", *pace]))


@dataclass(frozen=True)
class StageReport:
    """The result of one stage.

    Args:
        rows_in, rows_out, rejected, filtered: rows; the first is the sum of the others.
        tokens: tokens in the output.
        chunks: all chunks of the output.
        chunks_reused: chunks whose output the store already had.
        seconds: wall time.
        digest: digest of the output's content.
        counters: the stage's own counts, summed over chunks.
        explanation: sentences about what changed since the previous build.
        notices: sentences about what the data or the template can make a model learn wrong.
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
    notices: tuple[str, ...] = ()


_REASON, _FIRST = ["stage", "code", "field"], ["message", "excerpt", ROW]


def counted_rejects(store: ArtifactStore, manifest: Manifest) -> list[dict[str, Any]]:
    """Return the number of a stage's rejects by code and field, most frequent first, each with place, reason, remedy
    and excerpt of the first.

    Args:
        manifest: the stage's output; need not be published.
    """
    chunks = [chunk for chunk in manifest.chunks if chunk.rejects]
    counted: list[pa.Table] = []
    for number, chunk in enumerate(chunks):
        table = store.objects.get_verified(chunk.rejects or "", partial(check_schema, REJECTS))
        of_chunk = table.group_by(_REASON, use_threads=False)
        of_chunk = of_chunk.aggregate([(ROW, "count"), *((name, "first") for name in _FIRST)])
        of_chunk = of_chunk.rename_columns([*_REASON, "rows", *_FIRST])
        counted.append(of_chunk.append_column("chunk", pa.repeat(pa.scalar(number, pa.int64()), len(of_chunk))))
    if not counted:
        return []
    grouped = pa.concat_tables(counted).group_by(_REASON, use_threads=False)
    merged = grouped.aggregate([("rows", "sum"), *((name, "first") for name in (*_FIRST, "chunk"))])
    rows = merged.rename_columns([*_REASON, "rows", *_FIRST, "chunk"]).sort_by([("rows", "descending")]).to_pylist()
    return [
        {
            "rows": row["rows"],
            "code": row["code"],
            "field": row["field"],
            "first": chunks[row["chunk"]].place(row[ROW]),
            "reason": explained(row["stage"], row["code"], row["message"]),
            "example": row["excerpt"],
        }
        for row in rows
    ]


def reject_reasons(store: ArtifactStore, manifest: Manifest) -> str:
    """Return the most frequent reasons of a stage's rejects in one line."""
    lines = []
    for found in [found for found in counted_rejects(store, manifest) if fate(found["code"]) == "rejected"][:3]:
        where = f" in {found['field']}" if found["field"] else ""
        example = f"e.g. {found['first']}: {found['example'][:60]!r}"
        lines.append(f"{found['rows']} × {found['code']}{where} ({found['reason']}; {example})")
    return ", ".join(lines)


ChunkState = Literal["hit", "awaited"] | Missed
"""State of a chunk: `hit`, the reason of a miss, or `awaited` if its input must still be computed."""

MAX_CHARACTERS = 60
"""Maximum number of characters shown of a value."""

CONTEXT_CHARACTERS = 12
"""Characters of a long value shown before the first difference."""

MAX_SETTINGS = 8
"""Maximum number of changed settings listed."""

_NOT_READ = object()

_SIDES = {"tokenizer": "the tokenizer", "chat_template": "the chat template", "tools": "prompt_template.tools"}


def reasons(
    config: PipelineConfig,
    previous: Manifest | None,
    parts: KeyParts,
    chunks: ManifestChunks,
    states: Sequence[ChunkState],
) -> list[str]:
    """Explain in sentences why chunks of a stage are computed or reused. Returns an empty list if nothing changed.

    Args:
        previous: the stage's manifest from the previous build.
        parts: key parts of this build. Settings and sides that are still unknown must be missing from both builds.
        chunks: chunks of this build, with their inputs and keys.
        states: state of each chunk.
    """
    count, void = len(chunks), states.count("void")
    is_new, is_hit = (np.array([state == name for state in states], bool) for name in ("new", "hit"))
    same_input, same_key = (
        np.isin(chunks.starts(name), previous.chunks.starts(name)) if previous else np.zeros(count, bool)
        for name in ("input", "key")
    )
    new = np.flatnonzero(is_new & ~same_input).tolist()
    # a key that the last build had but the store has not: its action is gone, as after gc
    lost, earlier = states.count("lost") + int((is_new & same_key).sum()), int((is_hit & ~same_key).sum())
    if previous is None:
        lines = ["never built"]
    elif (before := KeyParts.from_json(previous.parts)) is None:
        lines = ["last built by another version of tokenloom"]
    else:
        lines = [*differences(config, before, parts)]
        lines += setting_changes(before.shaping, parts.shaping) if new else []
        if new and previous.stage == TOKENIZERS:
            trained = "the prompts it is trained on changed"
            lines.append(trained if config.tokenizer.train else f"the tokenizer {chunks[new[0]].place(0)} changed")
        elif len(new) == count > 1:
            lines.append(f"all {count:,} chunks are new or changed")
        elif new:
            lines.append(f"{_places(chunks, new)} new or changed")
        elif "awaited" not in states:
            removed = np.flatnonzero(~np.isin(previous.chunks.starts("input"), chunks.starts("input"))).tolist()
            lines += [f"{_places(previous.chunks, removed)} gone"] if removed else []
    if lost:
        lines.append(f"{count_of(lost, count)}: objects are missing, so they are computed again")
    if void:
        lines.append(f"{count_of(void, count)}: the engine that computed them proved wrong, so they are computed again")
    if earlier:
        lines.append(f"{count_of(earlier, count)}: reused from an earlier build")
    if previous and previous.stage == TOKENIZERS and config.tokenizer.train and states.count("hit") < count:
        lines.append(
            "a retrained tokenizer recomputes all tokens and sequences; to freeze it, replace tokenizer.train with "
            f"name_or_path: <store>/tokenizers/{previous.facts['digest']}"
        )
    return lines


def differences(config: PipelineConfig, before: KeyParts, now: KeyParts) -> Iterator[str]:
    """Yield a sentence for each part of the keys that changed."""
    if before.version != now.version:
        yield f"stage {now.stage}: version {before.version} → {now.version}"
    elif before.probe != now.probe:
        upgraded = [
            f"{name} {before.libraries.get(name, 'unknown version')} → {version}"
            for name, version in now.libraries.items()
            if before.libraries.get(name) != version
        ]
        yield f"{' or '.join(upgraded) or 'a change of its code'} changes the output of {now.stage}"
    yield from setting_changes(before.settings, now.settings)
    for name in sorted({*before.sides, *now.sides}):
        if before.sides.get(name) != now.sides.get(name):
            change = "changed" if name in before.sides else "is read now"
            source = (config.prompt_template.few_shot.source or "").partition("?")[0].rstrip("/").rpartition("/")[2]
            few_shot = f"prompt_template.few_shot.source {source}".rstrip()
            side = few_shot if name == "few_shot" else _SIDES.get(name, name)
            yield f"{side} {change if name in now.sides else 'is no longer read'}"


def _places(chunks: ManifestChunks, places: Sequence[int]) -> str:
    """Return a subject and verb for some chunks, such as `the chunk starting at rows.jsonl:120 (and 1 other) is`."""
    first, others = chunks[places[0]], len(places) - 1
    named = f"{'a chunk of' if first.runs[0].offset < 0 else 'the chunk starting at'} {first.place(0)}"
    more = f" (and {others:,} other{'s' * (others > 1)})" if others else ""
    return f"{named}{more} is"


def count_of(some: int, count: int) -> str:
    """Return a text such as `2 of 52 chunks`."""
    return f"{some:,} of {count:,} chunk{'s' * (count > 1)}"


def setting_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each setting that changed; the first `MAX_SETTINGS` of them."""
    changed = [f"{name}: {_change(old, new)}" for name, old, new in _leaves("", before, now)]
    more = len(changed) - MAX_SETTINGS
    return [*changed[:MAX_SETTINGS], *([f"{more} more settings changed"] if more > 0 else [])]


def _leaves(name: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the innermost values that differ, with their dotted names."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*now, *before]):
            yield from _leaves(f"{name}.{key}" if name else key, before.get(key, _NOT_READ), now.get(key, _NOT_READ))
    elif before != now:
        yield name, before, now


def _change(before: Any, now: Any) -> str:
    old, new = _text(before), _text(now)
    start = 0
    if max(len(old), len(new)) > MAX_CHARACTERS:
        # a long value is shown from just before its first difference, or both would look alike
        same = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        start = max(same - CONTEXT_CHARACTERS, 0)
    return f"{_excerpt(old, start)} → {_excerpt(new, start)}"


def _excerpt(text: str, start: int) -> str:
    end = start + MAX_CHARACTERS
    return "…" * (start > 0) + text[start:end] + "…" * (len(text) > end)


def _text(value: Any) -> str:
    if value is _NOT_READ:
        return "not read"
    plain = isinstance(value, str) and value == value.strip() and value.isprintable()
    return value if plain and value else json.dumps(value, ensure_ascii=False, sort_keys=True)
