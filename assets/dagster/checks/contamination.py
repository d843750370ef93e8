"""The check `contamination`: no row that is trained on contains an item of an evaluation."""

from __future__ import annotations

from typing import Any

from tokenloom.assets.building.report import reject_reasons
from tokenloom.assets.dagster.checks.stage_check import Checked, Verdict, check
from tokenloom.assets.dagster.metadata import rejects_table
from tokenloom.assets.stage.names import DECONTAMINATE


@check(DECONTAMINATE, warns=True)
def contamination(checked: Checked) -> Verdict:
    """No row that stays contains an item of an evaluation. With `decontaminate.action: drop` such rows are counted."""
    from tokenloom.assets.decontaminate.stage import contained

    build = checked.build
    manifest = build.manifest(DECONTAMINATE)
    counted, rows = contained(manifest.counters), manifest.total("rows_in")
    total = sum(counted.values())
    metadata: dict[str, Any] = {"contaminated": total, "rows_in": rows}
    metadata |= {f"contaminated/{name}": count for name, count in counted.items()}
    if not total:
        return Verdict(True, f"none of {rows:,} rows contains an item of an evaluation", metadata, warns=True)
    metadata["items"] = rejects_table(build.store, manifest)
    text = f"{total:,} of {rows:,} rows contain an item of an evaluation: {reject_reasons(build.store, manifest)}"
    if manifest.total("filtered"):
        return Verdict(True, f"{text}; they are dropped", metadata, warns=True)
    return Verdict(False, f"{text}; they stay, until you set decontaminate.action: drop", metadata, warns=True)
