"""The check `stored`: all that a dataset's manifests name exists; run alone, it rereads every byte."""

from __future__ import annotations

from functools import partial

from tokenloom.assets.building.build import Build
from tokenloom.assets.dagster.checks.stage_check import Checked, Verdict, check, listed
from tokenloom.assets.stage.names import LOADED
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk
from tokenloom.resources.store.manifest import manifests


@check(LOADED)
def stored(checked: Checked) -> Verdict:
    """Within a run: every object of the dataset's latest outputs exists, and each output has its size. Run alone or
    scheduled: rereads all bytes of the dataset, its earlier versions too, and removes what is damaged, so that the next
    run computes just those chunks."""
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
    latest = [*manifests(((stage, "") for stage in build.stages), partial(_read, build))]
    chunks = [(manifest, chunk) for _, _, manifest in latest for chunk in manifest.chunks]
    found = list(build.engine.here.map(lambda named: _missing(build.store, *named), chunks))
    missing = [line for lines in found for line in lines]
    objects = sum(len(chunk.objects) for _, chunk in chunks)
    text = f"{objects:,} objects of {len(latest)} manifests exist; run this check alone to reread them"
    if missing:
        text = f"{listed(missing)}\nThe next run computes these chunks again."
    return Verdict(not missing, text, {"objects": objects, "faulty": len(missing)})


def _read(build: Build, stage: str, digest: str) -> Manifest:
    return build.store.manifest_at(digest) if digest else build.manifest(stage)


def _missing(store: ArtifactStore, manifest: Manifest, chunk: ManifestChunk) -> list[str]:
    """Return the objects of a chunk that are missing, or whose output has another size."""
    faulty = list[str]()
    for kind, digest in chunk.objects.items():
        size = store.objects.size(digest)
        if size is None if kind != "output" else size != chunk.bytes and not (size is None and manifest.droppable):
            place = f"{manifest.dataset}/{manifest.stage}: {kind} of {chunk.place(0)}"
            faulty.append(f"{place} is missing or has another size: {digest}")
    return faulty
