"""Documentation says what the code does: reference pages are those that the code gives, samples run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import tokenloom
from support.paths import QUICKSTART, ROOT
from tokenloom import loaders
from tokenloom.config import PipelineConfig
from tokenloom.config.mixture import MixtureConfig
from tokenloom.config.yaml_file import parse_config

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def script(name: str) -> ModuleType:
    """A script of docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "generate" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return script("reference")


def test_configuration_and_api_pages_are_those_of_the_code(reference: ModuleType) -> None:
    for page, text in (
        ("configuration.md", reference.configuration()),
        ("api_reference.md", reference.api_reference()),
    ):
        assert (ROOT / "docs" / page).read_text() == text, f"docs/{page} is behind the code: run `make docs`"


def test_the_page_of_real_files_is_what_is_found_in_them(real_data: Path) -> None:
    assert (ROOT / "docs" / "datasets.md").read_text() == script("real_files").page(real_data), "run `make docs`"


def test_every_setting_and_public_name_is_documented() -> None:
    configuration = (ROOT / "docs" / "configuration.md").read_text()

    def paths(schema: dict[str, dict[str, object]], node: dict[str, object], prefix: str) -> set[str]:
        found: set[str] = set()
        properties = node.get("properties", {})
        assert isinstance(properties, dict)
        for name, value in properties.items():
            found.add(prefix + name)
            for target in re.findall(r"#/\$defs/(\w+)", str(value)):
                if target != "Constant":
                    found |= paths(schema, schema["$defs"][target], f"{prefix}{name}.")  # type: ignore[arg-type]
        return found

    schemas = [model.model_json_schema() for model in (PipelineConfig, MixtureConfig)]
    every = {path for schema in schemas for path in paths(schema, schema, "")}
    leaves = {path for path in every if not any(other.startswith(f"{path}.") for other in every)}
    assert "mixture.weight" in leaves
    assert {path for path in leaves if f"`{path}`" not in configuration and f"## {path}" not in configuration} == set()
    api = (ROOT / "docs" / "api_reference.md").read_text()
    assert {name for name in (*tokenloom.__all__, *loaders.__all__) if f"### `{name}" not in api} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_yaml_samples_load(page: Path) -> None:
    for sample in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
        settings = yaml.safe_load(sample)
        if settings.keys() & {"dataset", "mixture"}:
            parse_config(sample, Path("sample.yaml"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_samples_run(page: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In a folder that holds the quickstart, built."""
    samples = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    if not samples or page.name == "api_reference.md":
        return
    folder = tmp_path_factory.mktemp("samples")
    (folder / "pipelines").symlink_to(QUICKSTART.parent)
    (folder / "dataset.yaml").write_text(
        (QUICKSTART).read_text().replace("samples/", str(QUICKSTART.parent / "samples") + "/")
    )
    built = "DataPipeline.from_config('pipelines/quickstart.yaml').unwrap().build().unwrap()"
    program = "\n".join(["from tokenloom import DataPipeline", built, *samples])
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_make_targets_are_those_that_the_readme_names() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)`", "".join(page.read_text() for page in PAGES)))
    assert named <= targets
    assert {"install", "demo", "test", "check", "ui", "bench", "soak"} <= targets
