"""What is printed of a mixture: what each dataset gives to an epoch, and the JSON forms of `build` and `explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from tokenloom.assets.building.build import StageReport
from tokenloom.assets.building.explain import StageExplanation
from tokenloom.assets.building.mixture import MixtureBuild
from tokenloom.cli.explanation_table import explanation_json
from tokenloom.cli.stage_table import stage_json
from tokenloom.resources.store import Manifest

if TYPE_CHECKING:
    from tokenloom.loaders import MixedDataset


def share_table(name: str, manifest: Manifest, mixed: MixedDataset) -> Table:
    """Rows and tokens of each dataset, and how many and what share of an epoch it gives."""
    table = Table(
        title=f"{name}: {len(mixed):,} rows an epoch, digest {manifest.digest[:8]}",
        box=box.SIMPLE_HEAD,
        title_style="bold",
        title_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("dataset", style="bold", no_wrap=True)
    for title in ("rows", "tokens", "rows taken", "epochs", "of rows", "of tokens"):
        table.add_column(title, justify="right", no_wrap=True)
    for share in mixed.shares():
        counts = (f"{share.rows:,}", f"{share.tokens:,}", f"{share.taken:,}", f"{share.epochs:.2f}")
        table.add_row(share.dataset, *counts, f"{share.row_share:.1%}", f"{share.token_share:.1%}")
    return table


def mixture_lines(build: MixtureBuild) -> list[str]:
    """Which datasets are not built here."""
    taken = ", ".join(member.name for member in build.members if member.config is None)
    return [f"taken as the store holds them, since no YAML beside {build.name}'s declares them: {taken}"] * bool(taken)


def mixture_json(
    build: MixtureBuild,
    reports: Mapping[str, Sequence[StageReport]],
    published: tuple[Manifest, MixedDataset] | None,
) -> dict[str, Any]:
    """What `build --json` prints: stages are named `<dataset>/<stage>`; `mixture` is null where none was published."""
    stages = []
    for name, own in reports.items():
        told = stage_json(name, own, build.builds[name].config.tokenizer.max_length)
        stages += _within(name, told["stages"])
    found: dict[str, Any] = {"dataset": build.name, "stages": stages, "mixture": None}
    if published is not None:
        manifest, mixed = published
        shares = [asdict(share) for share in mixed.shares()]
        counts = {"digest": manifest.digest, "by": build.config.by, "rows": len(mixed)}
        found["mixture"] = {**counts, "datasets": shares}
    return found


def explanations_json(build: MixtureBuild, found: Mapping[str, Sequence[StageExplanation]]) -> dict[str, Any]:
    """What `explain --json` prints: stages are named `<dataset>/<stage>`."""
    stages = [stage for name, own in found.items() for stage in _within(name, explanation_json(name, own)["stages"])]
    return {"dataset": build.name, "stages": stages}


def _within(dataset: str, stages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**stage, "name": f"{dataset}/{stage['name']}"} for stage in stages]
