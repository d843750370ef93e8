"""The check `drift`: a version's rows are about as long, and trained as much, as those of the version before."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.assets.dagster.checks.stage_check import Checked, Verdict, check
from tokenloom.errors import StoreError, StoreUnavailableError
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.manifest import TRAINED
from tokenloom.resources.store.versions import LOADED, Version


@dataclass(frozen=True)
class Measures:
    """What is compared.

    Args:
        length: mean number of tokens of a row, before truncation and packing.
        trained: trained tokens divided by all tokens of the sequences.
    """

    length: float
    trained: float

    @classmethod
    def of(cls, manifest: Manifest) -> Measures:
        """Return the measures of a manifest of sequences, by its counters."""
        length = manifest.counters.get("tokens_in", 0) / max(manifest.total("rows_in"), 1)
        return cls(length, manifest.counters.get(TRAINED, 0) / max(manifest.total("tokens"), 1))


@check(LOADED, warns=True)
def drift(checked: Checked) -> Verdict:
    """Compared with the previous version of other content, the mean length of a row before truncation changed by at
    most validation.drift.length, relatively, and the trained fraction of the tokens by at most
    validation.drift.trained."""
    build = checked.build
    manifest, allowed = build.manifest(LOADED), build.config.validation.drift
    now = Measures.of(manifest)
    metadata = {"mean_length": now.length, "trained_fraction": now.trained}
    if (version := previous_version(build.store, build.name, manifest.digest)) is None:
        return Verdict(True, "no earlier version to compare with", metadata, warns=True)
    try:
        before = Measures.of(build.store.manifest_at(version.stages[LOADED]))
    except StoreUnavailableError:
        raise
    except (StoreError, KeyError):
        return Verdict(True, f"version {version} cannot be read, so nothing is compared", metadata, warns=True)
    length = abs(now.length - before.length) / before.length if before.length else 0.0
    trained = abs(now.trained - before.trained)
    metadata |= {"length_change": length, "trained_change": trained}
    compared = {
        f"mean length {before.length:,.1f} → {now.length:,.1f} tokens a row": (length, "length", allowed.length),
        f"trained tokens {before.trained:.1%} → {now.trained:.1%}": (trained, "trained", allowed.trained),
    }
    drifted = [
        f"{change} ({found:.1%} apart, above validation.drift.{setting} {most:.1%})"
        for change, (found, setting, most) in compared.items()
        if found > most
    ]
    since = f"since version {version}"
    if not drifted:
        return Verdict(True, f"{', '.join(compared)} {since}", metadata, warns=True)
    shown = f"tokenloom diff {build.name}@{version.digest[:12]} {build.name}"
    return Verdict(False, f"{'; '.join(drifted)} {since}; `{shown}` shows what changed", metadata, warns=True)


def previous_version(store: ArtifactStore, dataset: str, digest: str) -> Version | None:
    """Return the latest version of a dataset whose content has another digest. Reads no more versions than needed."""
    for blob in reversed(store.versions.blobs(dataset)):
        version = store.versions.read(blob.name)
        if version is not None and version.digest != digest:
            return version
    return None
