"""Describes in sentences what changed between two builds of a stage; for `explain` and for the report of a build."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokenloom.config import PipelineConfig
from tokenloom.resources.store import KeyParts, Manifest, Missed
from tokenloom.resources.store.manifest import TOKENIZERS
from tokenloom.resources.store.manifest_chunks import ManifestChunks

ChunkState = Literal["hit", "awaited"] | Missed
"""State of a chunk: `hit`, the reason of a miss, or `awaited` if its input must still be computed."""

MAX_CHARACTERS = 60
"""Maximum number of characters shown of a value."""

CONTEXT_CHARACTERS = 12
"""Characters of a long value shown before the first difference."""

MAX_SETTINGS = 8
"""Maximum number of changed settings listed."""

_NOT_READ = object()

_SIDES = {
    "tokenizer": "the tokenizer",
    "chat_template": "the chat template",
    "tools": "prompt_template.tools",
}


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
    same_input, same_key = (_among(chunks, previous, name) for name in ("input", "key"))
    new = np.flatnonzero(is_new & ~same_input).tolist()
    lost, earlier = states.count("lost") + int((is_new & same_key).sum()), int((is_hit & ~same_key).sum())
    if previous is None:
        lines = ["never built"]
    elif (before := KeyParts.from_json(previous.parts)) is None:
        lines = ["last built by another version of tokenloom"]
    else:
        lines = [*differences(config, before, parts)]
        lines += setting_changes(before.shaping, parts.shaping) if new else []
        lines += _inputs(config, previous, chunks, states, new)
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


def _among(chunks: ManifestChunks, previous: Manifest | None, name: str) -> npt.NDArray[np.bool_]:
    """Return bool [chunks], whether the previous manifest has a chunk with the same digest."""
    starts = chunks.starts(name)
    return np.isin(starts, previous.chunks.starts(name)) if previous else np.zeros(len(starts), bool)


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
            yield f"{_side(config, name)} {change if name in now.sides else 'is no longer read'}"


def _inputs(
    config: PipelineConfig,
    previous: Manifest,
    chunks: ManifestChunks,
    states: Sequence[ChunkState],
    new: Sequence[int],
) -> Iterator[str]:
    """Yield a sentence about the input chunks that changed.

    Args:
        new: which chunks are new.
    """
    if new and previous.stage == TOKENIZERS:
        trained = config.tokenizer.train is not None
        yield "the prompts it is trained on changed" if trained else f"the tokenizer {chunks[new[0]].place(0)} changed"
    elif len(new) == len(chunks) > 1:
        yield f"all {len(chunks):,} chunks are new or changed"
    elif new:
        yield f"{_places(chunks, new)} new or changed"
    elif "awaited" not in states:
        before = previous.chunks
        if removed := np.flatnonzero(~np.isin(before.starts("input"), chunks.starts("input"))).tolist():
            yield f"{_places(before, removed)} gone"


def _places(chunks: ManifestChunks, places: Sequence[int]) -> str:
    """Return a subject and verb for some chunks, such as `the chunk starting at rows.jsonl:120 (and 1 other) is`."""
    first, others = chunks[places[0]], len(places) - 1
    named = f"{'a chunk of' if first.runs[0].offset < 0 else 'the chunk starting at'} {first.place(0)}"
    more = f" (and {others:,} other{'s' * (others > 1)})" if others else ""
    return f"{named}{more} is"


def count_of(some: int, count: int) -> str:
    """Return a text such as `2 of 52 chunks`."""
    return f"{some:,} of {count:,} chunk{'s' * (count > 1)}"


def _side(config: PipelineConfig, name: str) -> str:
    if name == "few_shot":
        source = (config.prompt_template.few_shot.source or "").partition("?")[0].rstrip("/").rpartition("/")[2]
        return f"prompt_template.few_shot.source {source}".rstrip()
    return _SIDES.get(name, name)


def setting_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each setting that changed; the first `MAX_SETTINGS` of them."""
    changed = [f"{name}: {_change(old, new)}" for name, old, new in _leaves("", before, now)]
    more = len(changed) - MAX_SETTINGS
    return [*changed[:MAX_SETTINGS], *([f"{more} more settings changed"] if more > 0 else [])]


def _leaves(name: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the innermost values that differ, with their dotted names."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*now, *before]):
            inner = f"{name}.{key}" if name else key
            yield from _leaves(inner, before.get(key, _NOT_READ), now.get(key, _NOT_READ))
    elif before != now:
        yield name, before, now


def _change(before: Any, now: Any) -> str:
    """Show both values; long ones start shortly before the first difference."""
    old, new = _text(before), _text(now)
    start = 0
    if max(len(old), len(new)) > MAX_CHARACTERS:
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
