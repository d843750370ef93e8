"""What changed between two builds of a stage, in sentences: shared by what foresees a build and what tells of one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from tokenloom.config import PipelineConfig
from tokenloom.resources.store import KeyParts, Manifest, ManifestChunk, Missed

Found = Literal["hit", "awaited"] | Missed
"""What became of a chunk: its action was there, or why it was not; or its input is still to be made."""

LONGEST, CONTEXT, MOST = 60, 12, 8
"""Characters of a value that are shown, those of them before the first difference, and settings that are listed."""

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
    chunks: Sequence[ManifestChunk],
    found: Sequence[Found],
) -> list[str]:
    """Why the chunks of a stage are made or were known: no sentence where nothing changed.

    Args:
        previous: the stage's manifest of the build before.
        parts: today's; settings and sides that are not known yet are left out of both.
        chunks, found: today's chunks with their inputs and keys, and what became of each.
    """
    count = len(chunks)
    inputs = {chunk.input for chunk in previous.chunks} if previous else set()
    keys = {chunk.key for chunk in previous.chunks} if previous else set()
    pairs = list(zip(chunks, found, strict=True))
    new = [chunk for chunk, what in pairs if what == "new" and chunk.input not in inputs]
    lost = [chunk for chunk, what in pairs if what == "lost" or (what == "new" and chunk.key in keys)]
    void = [chunk for chunk, what in pairs if what == "void"]
    earlier = [chunk for chunk, what in pairs if what == "hit" and chunk.key not in keys]
    if previous is None:
        lines = ["never built"]
    elif (before := KeyParts.from_json(previous.parts)) is None:
        lines = ["last built by another version of tokenloom"]
    else:
        lines = [*differences(config, before, parts)]
        lines += _settings(before.shaping, parts.shaping) if new else []
        lines += _inputs(config, previous, chunks, found, new)
    if lost:
        lines.append(f"{share(len(lost), count)}: their objects are missing; they are made again")
    if void:
        lines.append(f"{share(len(void), count)}: the engine that made them was found wrong; they are made again")
    if earlier:
        lines.append(f"{share(len(earlier), count)}: known from an earlier build")
    if previous and previous.stage == "tokenizer" and config.tokenizer.train and found.count("hit") < count:
        lines.append(
            "a retrained tokenizer recomputes all tokens and sequences; to freeze it, put "
            f"name_or_path: <store>/tokenizers/{previous.facts['digest']} in the place of tokenizer.train"
        )
    return lines


def differences(config: PipelineConfig, before: KeyParts, now: KeyParts) -> Iterator[str]:
    """A sentence for each part of the keys that changed."""
    if before.version != now.version:
        yield f"stage {now.stage}: version {before.version} → {now.version}"
    elif before.probe != now.probe:
        upgraded = [
            f"{name} {before.libraries.get(name, 'of no known version')} → {version}"
            for name, version in now.libraries.items()
            if before.libraries.get(name) != version
        ]
        yield f"{' or '.join(upgraded) or 'something in its code'} changes what {now.stage} makes"
    yield from _settings(before.settings, now.settings)
    for name in sorted({*before.sides, *now.sides}):
        if before.sides.get(name) != now.sides.get(name):
            what = "changed" if name in before.sides and name in now.sides else "is read now"
            yield f"{_side(config, name)} {what if name in now.sides else 'is no longer read'}"


def _inputs(
    config: PipelineConfig,
    previous: Manifest,
    chunks: Sequence[ManifestChunk],
    found: Sequence[Found],
    new: Sequence[ManifestChunk],
) -> Iterator[str]:
    """What changed among the chunks that come in."""
    if new and previous.stage == "tokenizer":
        trained = config.tokenizer.train is not None
        yield "the prompts that it is trained on changed" if trained else f"the tokenizer {new[0].source} changed"
    elif len(new) == len(chunks) > 1:
        yield f"all {len(chunks):,} chunks are new or changed"
    elif new:
        yield f"{_places(new)} new or changed"
    elif "awaited" not in found:
        today = {chunk.input for chunk in chunks}
        if gone := [chunk for chunk in previous.chunks if chunk.input not in today]:
            yield f"{_places(gone)} gone"


def _places(chunks: Sequence[ManifestChunk]) -> str:
    first, others = chunks[0], len(chunks) - 1
    named = f"a chunk of {first.source}" if first.offset < 0 else f"the chunk of {first.place(0)} on"
    more = f" (and {others:,} other{'s' * (others > 1)})" if others else ""
    return f"{named}{more} is"


def share(some: int, count: int) -> str:
    """Such as `2 of 52 chunks`."""
    return f"{some:,} of {count:,} chunk{'s' * (count > 1)}"


def _side(config: PipelineConfig, name: str) -> str:
    if name == "few_shot":
        source = (config.prompt_template.few_shot.source or "").partition("?")[0].rstrip("/").rpartition("/")[2]
        return f"prompt_template.few_shot.source {source}".rstrip()
    return _SIDES.get(name, name)


def _settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changed = [f"{name}: {_change(old, new)}" for name, old, new in _leaves("", before, now)]
    more = len(changed) - MOST
    return [*changed[:MOST], *([f"{more} more settings changed"] if more > 0 else [])]


def _leaves(name: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """The innermost values that differ, by their dotted names."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*now, *before]):
            inner = f"{name}.{key}" if name else key
            yield from _leaves(inner, before.get(key, _NOT_READ), now.get(key, _NOT_READ))
    elif before != now:
        yield name, before, now


def _change(before: Any, now: Any) -> str:
    """Both values, long ones from shortly before where they begin to differ."""
    old, new = _text(before), _text(now)
    begin = 0
    if max(len(old), len(new)) > LONGEST:
        same = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        begin = max(same - CONTEXT, 0)
    return f"{_cut(old, begin)} → {_cut(new, begin)}"


def _cut(text: str, begin: int) -> str:
    end = begin + LONGEST
    return "…" * (begin > 0) + text[begin:end] + "…" * (len(text) > end)


def _text(value: Any) -> str:
    if value is _NOT_READ:
        return "not read"
    plain = isinstance(value, str) and value == value.strip() and value.isprintable()
    return value if plain and value else json.dumps(value, ensure_ascii=False, sort_keys=True)
