"""A project as `dg` knows it, and its commands: a package, its definitions, and tokenloom installed with its entry
points."""

from __future__ import annotations

import os
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from subprocess import STDOUT

from support.paths import ROOT
from support.processes import Ended, run

PYPROJECT = """
[project]
name = "lake"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "lake"
"""

DEFINITIONS = """
from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


@dataclass(frozen=True)
class DgProject:
    folder: Path

    @property
    def defs(self) -> Path:
        return self.folder / "src" / "lake" / "defs"

    @property
    def environment(self) -> dict[str, str]:
        paths = (ROOT, self.folder / "installed", self.folder / "src")
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("TOKENLOOM_", "DAGSTER_"))},
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONSAFEPATH": "1",
            "COLUMNS": "200",
            "DAGSTER_HOME": str(self.folder / "home"),
        }

    def dg(self, *arguments: str) -> Ended:
        command = [sys.executable, "-c", "from dagster_dg_cli.cli import main; main()", *arguments]
        return run(command, cwd=self.folder, env=self.environment, stderr=STDOUT)


def new_dg_project(folder: Path) -> DgProject:
    made = DgProject(folder)
    made.defs.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (folder / "home").mkdir()
    (folder / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")  # else it prints a notice of that
    for package in (made.defs, made.defs.parent):
        (package / "__init__.py").touch()
    (made.defs.parent / "definitions.py").write_text(DEFINITIONS, encoding="utf-8")
    install_entry_points(folder / "installed")
    return made


def install_entry_points(folder: Path) -> None:
    """Write what `pip install` writes of the entry points that the clone's pyproject.toml declares."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = folder / f"tokenloom-{declared['version']}.dist-info"
    installed.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: tokenloom\nVersion: {declared['version']}\n"
    (installed / "METADATA").write_text(metadata, encoding="utf-8")
    groups = declared["entry-points"].items()
    lines = (f"[{group}]\n" + "".join(f"{name} = {to}\n" for name, to in names.items()) for group, names in groups)
    (installed / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
