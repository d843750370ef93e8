"""Small datasets built in a store, and the digests of what came out."""

from __future__ import annotations

from pathlib import Path

from support.datasets_on_disk import write_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.report import OnProgress, StageReport
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.config import PipelineConfig
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

SMALL = ChunkSize(target=24_000, maximum=96_000)


def build(
    config: Path,
    store: Path | str,
    workers: int = 2,
    size: ChunkSize = SMALL,
    on_progress: OnProgress | None = None,
) -> dict[str, StageReport]:
    parts = PipelineConfig.from_file(config), ArtifactStore(store), ComputeEngine(workers)
    made = Build(*parts, chunk_size=size, on_progress=on_progress)
    return {report.name: report for report in made.run_all()}


def digests(reports: dict[str, StageReport]) -> dict[str, str]:
    return {name: report.digest for name, report in reports.items()}


def frozen_tokenizer(folder: Path) -> dict[str, object]:
    """A tokenizer that does not depend on the rows: trained on others, then named by path."""
    made = write_dataset(folder / "tokenizer", 200, name="other", seed=9)
    build(made, folder / "tokenizer" / "store")
    store = ArtifactStore(folder / "tokenizer" / "store")
    path = store.tokenizer_folder(store.manifest("other", "tokenizer").facts["digest"])
    return {"name_or_path": str(path), "max_length": 256}
