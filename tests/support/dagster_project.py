"""A project as a user has it, for tests of the Dagster edge: a folder with pipelines, their data and a store."""

from __future__ import annotations

import gzip
import json
import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import yaml

from support.datasets_on_disk import STAGES
from support.paths import ROOT
from tokenloom.assets.dagster.names import asset_key
from tokenloom.config import PipelineConfig
from tokenloom.dagster import StoreResource, dataset_definitions
from tokenloom.resources.store import ArtifactStore

WORKSPACE = ROOT / "workspace.yaml"
ROWS = 60

TEMPLATE = "### {instruction}\n{input}\n### Response:\n{output}\n"
SECTIONS: dict[str, Any] = {
    "dataset": {"name": "rows"},
    "tokenizer": {
        "train": {"vocab_size": 400, "min_frequency": 1},
        "max_length": 64,
        "special_tokens": {"eos": "<|endoftext|>", "pad": "<|pad|>"},
    },
    "prompt_template": {"template": TEMPLATE, "label_column": "output"},
}


@dataclass(frozen=True)
class Project:
    """A folder as a user has it: pipelines/ with YAMLs and data, and a store."""

    folder: Path

    @property
    def pipelines(self) -> Path:
        return self.folder / "pipelines"

    @property
    def root(self) -> Path:
        return self.folder / "store"

    @property
    def store(self) -> ArtifactStore:
        return ArtifactStore(self.root)

    def environment(self, **more: str) -> dict[str, str]:
        own = {"TOKENLOOM_PIPELINES": str(self.pipelines), "TOKENLOOM_STORE": str(self.root)}
        return {**os.environ, **own, **more}

    def write(self, stem: str = "toy", **sections: Any) -> Path:
        """A YAML; each section given replaces that of `SECTIONS`."""
        path = self.pipelines / f"{stem}.yaml"
        path.write_text(yaml.safe_dump({**SECTIONS, **sections}, sort_keys=False), encoding="utf-8")
        return path

    @property
    def config(self) -> PipelineConfig:
        return PipelineConfig.from_file(self.pipelines / "toy.yaml")

    def run(self, *stages: str, instance: dg.DagsterInstance | None = None) -> dg.ExecuteInProcessResult:
        """Materialize some stages, or all, on an instance of its own unless one is given."""
        keys = [asset_key("toy", stage) for stage in stages or STAGES]
        job = runnable(self.config, self.root).resolve_implicit_global_asset_job_def()
        with nullcontext(instance) if instance else dg.DagsterInstance.ephemeral() as used:
            return job.execute_in_process(instance=used, asset_selection=keys, raise_on_error=False)


def runnable(config: PipelineConfig, store: Path | None = None) -> dg.Definitions:
    """The definitions of one dataset, and the store that they need."""
    resource = StoreResource(root=str(store) if store else None)
    return dg.Definitions.merge(dataset_definitions(config), dg.Definitions(resources={"store": resource}))


def new_project(folder: Path) -> Project:
    """One dataset of two files, so of two chunks: a compressed file shares none."""
    made = Project(folder)
    rows = made.pipelines / "rows"
    rows.mkdir(parents=True)
    for part, name in enumerate(("a.jsonl", "b.jsonl.gz")):
        numbers = range(part * ROWS // 2, (part + 1) * ROWS // 2)
        records = ({"instruction": f"Square {n}", "input": f"mind {n % 7}", "output": f"{n * n}"} for n in numbers)
        data = "".join(f"{json.dumps(record)}\n" for record in records).encode()
        (rows / name).write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
    made.write()
    return made


def failure(result: dg.ExecuteInProcessResult) -> str:
    """The description of the one step that failed."""
    assert not result.success
    (event,) = [event for event in result.all_events if event.is_step_failure]
    data = event.step_failure_data.user_failure_data
    assert data is not None
    return data.description or ""
