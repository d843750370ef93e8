"""The check `rejects`: a stage rejects no more rows than `validation.max_reject_fraction` allows."""

from __future__ import annotations

from typing import Any

from tokenloom.assets.building.report import reject_reasons
from tokenloom.assets.dagster.checks.stage_check import Checked, Verdict, check
from tokenloom.assets.dagster.metadata import rejects_table
from tokenloom.assets.stage.definition import stage_named
from tokenloom.assets.stage.names import LOADED, RAW
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore, Manifest


@check(LOADED)
def rejects(checked: Checked) -> Verdict:
    """No stage rejects more than validation.max_reject_fraction of its rows. Warns from half of it. A build that
    rejects more fails."""
    build = checked.build
    stages = [stage for stage in build.stages if stage_named(stage).remedies]
    verdicts = build.healing(lambda: [rejected(build.config, build.manifest(stage), build.store) for stage in stages])
    found = [verdict for verdict in verdicts if verdict.metadata["rejected"]]
    count, rows = sum(verdict.metadata["rejected"] for verdict in found), build.manifest(RAW).total("rows_in")
    metadata: dict[str, Any] = {"rejected": count, "rows_in": rows, "reject_fraction": count / max(rows, 1)}
    for verdict in found:
        metadata |= {name: value for name, value in verdict.metadata.items() if name not in metadata}
    failed = [verdict for verdict in found if not verdict.passed]
    text = "\n".join(verdict.description for verdict in failed or found) or f"none of {rows:,} rows rejected"
    return Verdict(not failed, text, metadata, warns=all(verdict.warns for verdict in failed))


def rejected(config: PipelineConfig, manifest: Manifest, store: ArtifactStore) -> Verdict:
    """Check the rejected rows of a stage, also of one that failed because of them.

    Args:
        manifest: its chunks; need not be published.
    """
    count, rows, limit = manifest.total("rejected"), manifest.total("rows_in"), config.validation.max_reject_fraction
    share = count / max(rows, 1)
    metadata: dict[str, Any] = {"rejected": count, "rows_in": rows, "reject_fraction": share}
    if not count:
        return Verdict(True, f"none of {rows:,} rows rejected", metadata)
    fails, warns = count > limit * rows, 2 * count >= limit * rows
    metadata[f"rejected/{manifest.stage}"] = count
    metadata[f"rejects/{manifest.stage}"] = rejects_table(store, manifest)
    allowed = f"more than validation.max_reject_fraction ({limit:g}) allows" if fails else f"{limit:.2%} are allowed"
    text = f"{manifest.stage}: {count:,} of {rows:,} rows ({share:.2%}) rejected, {allowed}: "
    text += reject_reasons(store, manifest)
    if fails:
        text += "; correct the rows, or raise the fraction to build without them"
    return Verdict(not (fails or warns), text, metadata, warns=not fails)
