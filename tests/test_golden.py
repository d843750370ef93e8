"""Output digests under these versions: a change in what a stage makes must come with a new stage version.

Where a stage's code changes its output on purpose, bump its `version` and write the new digests:
`python tests/test_golden.py`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from datasets_on_disk import write_dataset

from tokenloom.assets.build import STAGES, Build, stage_named
from tokenloom.assets.raw.cut import ChunkSize
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore

GOLDEN = Path(__file__).parent / "golden_digests.json"
QUICKSTART = Path(__file__).parent.parent / "pipelines" / "quickstart.yaml"
SMALL = ChunkSize(target=24_000, maximum=96_000)


def digests(folder: Path) -> dict[str, dict[str, str]]:
    """Digest of each stage's output for two datasets, by stage and version."""
    found: dict[str, dict[str, str]] = {}
    for config in (write_dataset(folder, 300, length={"packing": "concat"}), QUICKSTART):
        build = Build(PipelineConfig.from_file(config), ArtifactStore(folder / "store"), chunk_size=SMALL)
        reports = {report.name: report.digest for report in build.run_all()}
        found[build.name] = {f"{name} {stage_named(name).version}": reports[name] for name in STAGES}
    return found


def test_a_changed_output_comes_with_a_new_stage_version(tmp_path: Path) -> None:
    golden, found = json.loads(GOLDEN.read_text()), digests(tmp_path)
    for dataset, stages in found.items():
        for stage, digest in stages.items():
            assert golden[dataset].get(stage) == digest, (
                f"{dataset}: {stage} makes other bytes; see {Path(__file__).name}"
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        GOLDEN.write_text(json.dumps(digests(Path(folder)), indent=2) + "\n")
    sys.exit(0)
