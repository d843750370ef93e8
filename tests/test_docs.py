"""The documentation matches the code: reference pages are generated from it, samples run, links resolve."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import tokenloom
from support.forked_programs import ForkedPrograms
from support.paths import QUICKSTART, ROOT
from tokenloom import loaders
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.config.dataset import parse_config

DOCS = ROOT / "docs"
README = ROOT / "README.md"
ROOMS = [ROOT / name / "README.md" for name in ("assets", "resources", "loaders", "trainer")]
PAGES = [README, *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md")), *ROOMS, *sorted(DOCS.rglob("*.md"))]
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def generator(name: str) -> ModuleType:
    """Load a script of docs/generate/."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "generate" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def samples(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub derives them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return generator("reference")


def test_reference_pages_are_generated_from_the_code(reference: ModuleType) -> None:
    pages = reference.pages()
    for page, text in pages.items():
        assert (DOCS / page).read_text() == text, f"docs/{page} is out of date: run `make docs`"
    written = [page for folder in ("configuration", "api") for page in (DOCS / folder).iterdir()]
    assert {page.relative_to(DOCS).as_posix() for page in written} == pages.keys()


def test_the_page_of_contracts_is_up_to_date() -> None:
    assert (DOCS / "internals" / "contracts.md").read_text() == generator("contracts").page(), "run `make docs`"


def test_the_page_of_rejected_rows_is_up_to_date() -> None:
    assert (DOCS / "prepare" / "rejects.md").read_text() == generator("rejects").page(), "run `make docs`"


def test_the_page_of_real_files_is_up_to_date(real_data: Path) -> None:
    assert (DOCS / "prepare" / "datasets.md").read_text() == generator("real_files").page(real_data), "run `make docs`"


def test_every_setting_and_public_name_is_documented() -> None:
    configuration = "".join(page.read_text() for page in (DOCS / "configuration").iterdir())

    def paths(schema: dict[str, dict[str, object]], node: dict[str, object], prefix: str) -> set[str]:
        settings: set[str] = set()
        properties = node.get("properties", {})
        assert isinstance(properties, dict)
        for name, value in properties.items():
            settings.add(prefix + name)
            for target in re.findall(r"#/\$defs/(\w+)", str(value)):
                if target != "Constant":
                    settings |= paths(schema, schema["$defs"][target], f"{prefix}{name}.")  # type: ignore[arg-type]
        return settings

    schemas = [model.model_json_schema() for model in (PipelineConfig, MixtureConfig)]
    every = {path for schema in schemas for path in paths(schema, schema, "")}
    leaves = {path for path in every if not any(other.startswith(f"{path}.") for other in every)}
    assert "mixture.weight" in leaves
    assert {path for path in leaves if f"`{path}`" not in configuration and f"## {path}" not in configuration} == set()
    api = "".join(page.read_text() for page in (DOCS / "api").iterdir())
    assert {name for name in (*tokenloom.__all__, *loaders.__all__) if f"### `{name}" not in api} == set()


@EVERY_PAGE
def test_links_resolve(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {target}#{anchor}"


def test_the_index_lists_every_page() -> None:
    index = DOCS / "README.md"
    linked = {(DOCS / target).resolve() for target in re.findall(r"\]\(([^)#:]+\.md)\)", index.read_text())}
    assert set(DOCS.rglob("*.md")) - {index} <= linked


@EVERY_PAGE
def test_yaml_samples_load(page: Path) -> None:
    for sample in samples(page, "yaml"):
        settings = yaml.safe_load(sample)
        if settings.keys() & {"dataset", "mixture"}:
            parse_config(sample, Path("sample.yaml"))


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the quickstart built."""
    store = tmp_path_factory.mktemp("quickstart") / "store"
    tokenloom.DataPipeline.from_config(QUICKSTART, store=store).unwrap().build().unwrap()
    return store


@pytest.fixture(scope="module")
def programs_of_pages() -> Iterator[ForkedPrograms]:
    with ForkedPrograms("torch", "tokenloom.pipeline", "tokenloom.loaders", "datasets", "transformers") as programs:
        yield programs


@EVERY_PAGE
def test_python_samples_run(
    page: Path, quickstart: Path, programs_of_pages: ForkedPrograms, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A page's samples run in order, in a folder with the clone's `tokenloom/` and the quickstart built."""
    if page.parent == DOCS / "api" or not (programs := samples(page, "python")):
        return
    folder = tmp_path_factory.mktemp("samples")
    (folder / "tokenloom").symlink_to(ROOT / "tokenloom")
    shutil.copytree(quickstart, folder / ".tokenloom")
    program = "\n".join(["from tokenloom import DataPipeline", *programs])
    done = programs_of_pages.run(program, folder)
    assert done.returncode == 0, done.stderr


def test_the_60_second_example_runs_as_it_is_written(tmp_path: Path) -> None:
    """Pasted into a shell of its own folder, with this test's Python as the activated environment."""
    text = README.read_text()
    section = text[text.index("## A dataset in 60 seconds") :]
    example = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)[0]
    printed = re.findall(r"\n\n```\n(.*?)```", section, re.DOTALL)[0]
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "activate").write_text(f'PATH="{binaries}:$PATH"\n')
    for command, arguments in (("python", ""), ("tokenloom", " -m tokenloom")):
        (binaries / command).write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        (binaries / command).chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TOKENLOOM_")}
    done = subprocess.run(["bash", "-ec", example], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(printed), done.stdout


def test_make_targets_in_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)`", "".join(page.read_text() for page in PAGES)))
    assert named <= targets
    assert {"install", "demo", "test", "check", "ui", "bench", "soak"} <= targets
