"""Whether a stored dataset is what a build would give now. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.changes import differences, setting_changes
from tokenloom.assets.building.stages import STAGES
from tokenloom.assets.stage.definition import InputChunk, OutputChunks
from tokenloom.errors import StoreError
from tokenloom.resources.store import KeyParts, ManifestChunk


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
    for name in STAGES:
        previous = build.latest_manifest(name)
        if previous is None:
            return f"{build.name} is not built"
        try:
            link = build.link(name)
        except StoreError:
            return f"the last build of {build.name} is not complete"
        before = KeyParts.from_json(previous.parts)
        if before is None:
            return "the last build was by another version of tokenloom"
        changed = [*differences(build.config, before, link.parts), *setting_changes(before.shaping, link.parts.shaping)]
        if changed:
            return f"changed since the last build: {'; '.join(changed)}"
        inputs = link.work.chunks
        if isinstance(inputs, OutputChunks):
            if [chunk.input for chunk in previous.chunks] != [chunk.digest for chunk in inputs]:
                return f"the last build of {build.name} did not finish {name}"
        elif not _same(previous.chunks, inputs, chunks if name == "raw" else len(previous.chunks) + 1):
            return f"the {'source' if name == 'raw' else name} has changed since the last build"
    return None


def trained_tokenizer(build: Build) -> str | None:
    """Return the folder of the tokenizer that the last build trained with the present settings, if there is one."""
    previous = build.latest_manifest("tokenizer")
    if build.config.tokenizer.train is None or previous is None:
        return None
    before = KeyParts.from_json(previous.parts)
    with suppress(StoreError):
        if before is not None and not [*differences(build.config, before, build.link("tokenizer").parts)]:
            return str(build.store.tokenizer_folder(previous.facts["digest"]))
    return None


def _same(previous: Sequence[ManifestChunk], inputs: Iterable[InputChunk], count: int) -> bool:
    """Return whether the first chunks are those of the last build."""
    return [chunk.input for chunk in previous[:count]] == [chunk.digest for chunk in islice(inputs, count)]
