"""The component in a project made for `dg`: listed, scaffolded, checked and loaded by its commands."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from support.dagster_project import SECTIONS
from support.datasets_on_disk import STAGES
from support.dg_project import DgProject, new_dg_project
from support.paths import ROOT
from support.processes import run
from support.soak import machine

pytestmark = machine("daemon")

COMPONENT = "tokenloom.TokenloomDatasets"
FIELDS = ("path", "declaration", "store", "deps", "key_prefix", "group", "owners", "tags")


@pytest.fixture
def project(tmp_path: Path) -> DgProject:
    rows = (json.dumps({"instruction": f"Square {n}", "output": f"{n * n}"}) for n in range(60))
    (tmp_path / "squares.jsonl").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return new_dg_project(tmp_path)


def asset_keys(project: DgProject) -> set[str]:
    done = project.dg("list", "defs", "--json")
    assert done.returncode == 0, done.stdout
    return {asset["asset_key"] for asset in json.loads(done.stdout).get("assets", ())}


def test_dg_lists_the_component(project: DgProject) -> None:
    listed = project.dg("list", "components", "--json")
    assert listed.returncode == 0, listed.stdout
    (summary,) = [each["summary"] for each in json.loads(listed.stdout)["items"] if each["key"] == COMPONENT]
    assert summary.startswith("Datasets and mixtures declared in YAML")


def test_dg_describes_every_field(project: DgProject) -> None:
    shown = project.dg("utils", "inspect-component", COMPONENT, "--defs-yaml-json-schema")
    assert shown.returncode == 0, shown.stdout
    fields = json.loads(shown.stdout)["properties"]["attributes"]["properties"]
    assert tuple(fields) == FIELDS
    assert [name for name, field in fields.items() if not field.get("description", "").endswith(".")] == []


def test_a_scaffolded_folder_is_ready_for_yamls(project: DgProject) -> None:
    done = project.dg("scaffold", "defs", COMPONENT, "text")
    assert done.returncode == 0, done.stdout
    assert "Next: declare a dataset in src/lake/defs/text/pipelines, " in done.stdout
    settings = yaml.safe_load((project.defs / "text" / "defs.yaml").read_text())
    assert settings == {"type": COMPONENT, "attributes": {"path": "pipelines"}}
    assert asset_keys(project) == set()


def test_rows_are_inspected_into_a_dataset_that_loads(project: DgProject) -> None:
    done = project.dg("scaffold", "defs", COMPONENT, "text", "--rows", "squares.jsonl")
    assert done.returncode == 0, done.stdout
    assert "Wrote src/lake/defs/text/pipelines/squares.yaml" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Next: check the YAML in src/lake/defs/text/pipelines")
    checked = project.dg("check", "defs")
    assert checked.returncode == 0, checked.stdout
    assert asset_keys(project) == {"squares/source", *(f"squares/{stage}" for stage in STAGES)}


def test_rows_that_cannot_be_inspected_leave_nothing(project: DgProject) -> None:
    done = project.dg("scaffold", "defs", COMPONENT, "text", "--rows", "absent.jsonl")
    assert done.returncode != 0
    assert "absent.jsonl" in done.stdout
    assert "Traceback" not in done.stdout
    assert not (project.defs / "text").exists()


def place_in(path: Path, text: str) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return f"{path.name}:{next(number for number, line in enumerate(lines, 1) if text in line)}"


def test_faulty_yamls_fail_the_check_with_their_lines(project: DgProject) -> None:
    """In a file and inline. Where nothing is checked, the others load."""
    faulty = {**SECTIONS, "tokenizer": {"max_length": "many"}}
    for folder, attributes in (("in_file", {"path": "text.yaml"}), ("inline", {"declaration": faulty})):
        (project.defs / folder).mkdir()
        component = yaml.safe_dump({"type": COMPONENT, "attributes": attributes}, sort_keys=False)
        (project.defs / folder / "defs.yaml").write_text(component, encoding="utf-8")
    text = project.defs / "in_file" / "text.yaml"
    text.write_text(yaml.safe_dump(faulty, sort_keys=False), encoding="utf-8")
    checked = project.dg("check", "defs")
    assert checked.returncode != 0
    place = place_in(text, "max_length")
    assert f"{place}: tokenizer.max_length: expected an integer, got 'many'" in checked.stdout.replace("\n", "")
    text.write_text(yaml.safe_dump(SECTIONS, sort_keys=False), encoding="utf-8")
    checked = project.dg("check", "defs")
    assert checked.returncode != 0
    place = place_in(project.defs / "inline" / "defs.yaml", "max_length")
    assert f"{place}: tokenizer.max_length: expected an integer, got 'many'" in checked.stdout.replace("\n", "")
    good = {"text/source", *(f"text/{stage}" for stage in STAGES)}
    assert asset_keys(project) == {*good, "defs/sequences"}


def test_the_page_works_as_it_is_written(project: DgProject) -> None:
    """Its two `defs.yaml`, and its subclass in a third."""
    text = (ROOT / "docs" / "operate" / "embed.md").read_text()
    (crawled,) = [sample for sample in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class Crawled" in sample]
    (project.defs.parent / "crawled.py").write_text(crawled, encoding="utf-8")
    samples = re.findall(r"```yaml\n(type: .*?)```", text, re.DOTALL)
    subclass = "type: lake.crawled.Crawled\nattributes:\n  path: own.yaml\n"
    for folder, sample in zip(("text", "pages", "crawled"), (*samples, subclass), strict=True):
        (project.defs / folder).mkdir()
        (project.defs / folder / "defs.yaml").write_text(sample, encoding="utf-8")
    (project.defs / "text" / "pipelines").mkdir()
    for path in ("text/pipelines/squares.yaml", "crawled/own.yaml"):
        (project.defs / path).write_text(yaml.safe_dump(SECTIONS, sort_keys=False), encoding="utf-8")
    checked = project.dg("check", "defs")
    assert checked.returncode == 0, checked.stdout
    own = (f"{name}/{stage}" for name in ("text/squares", "pages", "own") for stage in STAGES)
    assert asset_keys(project) == {*own, "pages/source", "own/source", "crawl/pages"}


def test_commands_of_dg_load_no_heavy_library() -> None:
    """They import each name that `tokenloom` lists."""
    heavy = {"torch", "transformers", "pandera", "datasets", "polars", "tokenizers"}
    code = (
        "import sys, dagster_dg_cli, tokenloom;"
        "assert [type(getattr(tokenloom, name)).__name__ for name in dir(tokenloom)];"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = run([sys.executable, "-c", code])
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
