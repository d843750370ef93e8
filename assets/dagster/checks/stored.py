"""The check `stored`: all that a dataset's manifests name exists; run alone, it rereads every byte."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.stages import STAGES
from tokenloom.assets.dagster.checks.stage_check import Checked, Verdict, listed
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk

DESCRIPTION = (
    "Within a run: every object of the dataset's latest outputs exists, and each output has its size. Run alone or "
    "scheduled: rereads all bytes of the dataset, its earlier versions too, and removes what is damaged, so that the "
    "next run computes just those chunks."
)


def stored(checked: Checked) -> Verdict:
    """Check that all of a dataset is stored: within a run without reading it, otherwise by rereading it."""
    return _present(checked.build) if checked.report else _reread(checked.build)


def _reread(build: Build) -> Verdict:
    from tokenloom.resources.store.verify import verify

    result = verify(build.store, build.name, build.engine.here)
    found = [finding for finding in result.findings if finding.problem != "unknown"]
    metadata = {"objects": result.objects, "bytes": result.bytes, "faulty": len(found), "dropped": result.dropped}
    if not found:
        return Verdict(True, f"{result.objects:,} objects reread, none damaged or missing", metadata)
    remedies = []
    if any(finding.latest and finding.kind != "tokenizer" for finding in found):
        remedies.append("The next run computes these chunks again.")
    if any(finding.kind == "tokenizer" for finding in found):
        remedies.append("Tokenizer files were restored.")
    if any(not finding.latest for finding in found):
        remedies.append("An earlier version can only be computed again from its own rows and settings.")
    return Verdict(False, "\n".join([listed(map(str, found)), *remedies]), metadata)


def _present(build: Build) -> Verdict:
    manifests = [*_latest(build)]
    chunks = [(manifest, chunk) for manifest in manifests for chunk in manifest.chunks]
    found = list(build.engine.here.map(lambda named: _missing(build.store, *named), chunks))
    missing = [line for lines in found for line in lines]
    objects = sum(1 + len(chunk.beside) for _, chunk in chunks)
    text = f"{objects:,} objects of {len(manifests)} manifests exist; run this check alone to reread them"
    if missing:
        text = f"{listed(missing)}\nThe next run computes these chunks again."
    return Verdict(not missing, text, {"objects": objects, "faulty": len(missing)})


def _latest(build: Build) -> Iterator[Manifest]:
    for stage in STAGES:
        yield (manifest := build.manifest(stage))
        yield from map(build.store.manifest_at, manifest.named.values())


def _missing(store: ArtifactStore, manifest: Manifest, chunk: ManifestChunk) -> list[str]:
    """Return the objects of a chunk that are missing, or whose output has another size."""
    size = store.objects.size(chunk.output)
    absent = {"rejects": chunk.rejects, "lengths": chunk.lengths}
    faulty = [(kind, digest) for kind, digest in absent.items() if digest and store.objects.size(digest) is None]
    if size != chunk.bytes and not (size is None and manifest.droppable):
        faulty.append(("output", chunk.output))
    return [
        f"{manifest.dataset}/{manifest.stage}: {kind} of {chunk.place(0)} is missing or has another size: {digest}"
        for kind, digest in faulty
    ]
