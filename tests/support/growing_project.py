"""A Dagster project with an upstream asset that appends rows to a file, which a dataset reads: a package of its own, as
users have it, with the dataset in Python or in a `defs.yaml`."""

from __future__ import annotations

from pathlib import Path

import yaml

from support.dagster_project import SECTIONS

UPSTREAM = '''
import json
from pathlib import Path

import dagster as dg

FOLDER = Path(__file__).parent
FILE = FOLDER / "pages.jsonl"


@dg.asset(key=["crawl", "pages"])
def pages(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """The k-th run appends 20 + k rows."""
    runs = FOLDER / "runs.txt"
    number = int(runs.read_text()) + 1 if runs.exists() else 0
    runs.write_text(str(number))
    with FILE.open("a") as file:
        for row in range(20 + number):
            text = f"{number} {row}"
            file.write(json.dumps({"instruction": f"Repeat {text}", "input": "", "output": text}) + "\\n")
    return dg.MaterializeResult(metadata={"written": 20 + number})
'''

IN_PYTHON = """
from tokenloom.config import PipelineConfig
from tokenloom.dagster import StoreResource, dataset_definitions

found = dataset_definitions(
    PipelineConfig.from_file(FOLDER / "datasets" / "pages.yaml"),
    deps=["crawl/pages"],
    store=StoreResource(root=str(FOLDER / "store")),
)
"""

IN_YAML = """
found = dg.load_from_defs_folder(path_within_project=FOLDER)
"""

JOB = """
defs = dg.Definitions.merge(
    dg.Definitions(
        assets=[pages],
        jobs=[
            dg.define_asset_job("in_process", executor_def=dg.in_process_executor),
            dg.define_asset_job("multiprocess", executor_def=dg.multiprocess_executor.configured(FORKSERVER)),
        ],
    ),
    found,
)


def multiprocess() -> dg.JobDefinition:
    return defs.resolve_job_def("multiprocess")
"""

FORKSERVER = {"start_method": {"forkserver": {"preload_modules": ["tokenloom.dagster", "tokenloom.pipeline"]}}}

SUBCLASS = """
import dagster as dg
from tokenloom.dagster import TokenloomDatasets


class Crawled(TokenloomDatasets):
    def get_asset_spec(self, spec):
        spec = spec.merge_attributes(metadata={"license": "CC0"})
        return spec.merge_attributes(deps=[dg.AssetKey(["crawl", "pages"])]) if spec.key.path[-1] == "raw" else spec

    def execute(self, run):
        for event in super().execute(run):
            if isinstance(event, dg.MaterializeResult):
                event = event._replace(metadata={**event.metadata, "dataset": run.config.dataset_name})
            yield event
"""

WAYS = ("function", "path", "declaration", "subclass")
"""How the project declares its dataset."""


def new_package(folder: Path, way: str) -> str:
    """Write the package, and return its name: one of its own, because modules stay imported."""
    name = f"growing_{way}_{folder.parent.name.rpartition('-')[2]}_{folder.name}".replace("-", "_")
    package = folder / name
    datasets = package / ("datasets" if way == "function" else "defs/pages")
    datasets.mkdir(parents=True)
    settings = {**SECTIONS, "dataset": {"name": str(package / "pages.jsonl")}}
    if way != "declaration":
        (datasets / "pages.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    if way != "function":
        data = {"declaration": settings} if way == "declaration" else {"path": "pages.yaml"}
        upstream = {} if way == "subclass" else {"deps": ["crawl/pages"]}
        component = {
            "type": f"{name}.crawled.Crawled" if way == "subclass" else "tokenloom.TokenloomDatasets",
            "attributes": {**data, **upstream, "store": str(package / "store")},
        }
        (package / "crawled.py").write_text(SUBCLASS, encoding="utf-8")
        (datasets / "defs.yaml").write_text(yaml.safe_dump(component, sort_keys=False), encoding="utf-8")
        (package / "defs" / "__init__.py").touch()
    project = f'[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "{name}"\n'
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    declared = IN_PYTHON if way == "function" else IN_YAML
    code = UPSTREAM + declared + f"\nFORKSERVER = {FORKSERVER!r}\n" + JOB
    (package / "__init__.py").touch()
    (package / "definitions.py").write_text(code, encoding="utf-8")
    return name
