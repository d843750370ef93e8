"""The check `overlap`: no row of a validation or test split is in `train` too."""

from __future__ import annotations

from typing import Any

from tokenloom.assets.dagster.checks.stage_check import MAX_LISTED, Checked, Verdict, check
from tokenloom.assets.dagster.metadata import text_table
from tokenloom.assets.stage.names import LOADED
from tokenloom.config import PipelineConfig


def has_splits(config: PipelineConfig) -> bool:
    """Return whether a dataset can have several splits, by its settings."""
    splits = config.dataset.splits
    return config.dataset.val_split > 0 or splits is None or len(splits) > 1


@check(LOADED, warns=True)
def overlap(checked: Checked) -> Verdict:
    """No row of another split occurs in `train` with the same tokens, as truncated. Reads all sequences when they are
    new; for unchanged sequences the result is looked up."""
    from tokenloom.assets.sequences.shown import shared_rows

    build = checked.build
    manifest = build.manifest(LOADED)
    found = shared_rows(build.store, build.engine, manifest)
    if not found:
        return Verdict(True, f"nothing to compare: the only splits are {', '.join(manifest.splits)}", warns=True)
    metadata: dict[str, Any] = {"shared_rows": sum(split.shared for split in found)}
    for split in found:
        metadata[f"shared_fraction/{split.split}"] = split.shared / max(split.rows, 1)
    shared = [split for split in found if split.shared]
    if not shared:
        names = ", ".join(f"{split.rows:,} of {split.split}" for split in found)
        return Verdict(True, f"no row in common with train: {names}", metadata, warns=True)
    examples = [
        {"split": split.split, "row": place, "also in train": other}
        for split in shared
        for place, other in split.examples[:MAX_LISTED]
    ]
    metadata["examples"] = text_table(examples)
    counts = "; ".join(
        f"{split.shared:,} of {split.rows:,} rows of {split.split} ({split.shared / split.rows:.2%}) are in train too, "
        f"such as {split.examples[0][0]}, which is {split.examples[0][1]}"
        for split in shared
    )
    return Verdict(False, f"{counts}; remove these rows from one of the splits", metadata, warns=True)
