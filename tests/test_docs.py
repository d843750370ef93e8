"""The documentation matches the code: reference pages are generated from it, samples run, links resolve."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import tokenloom
from support.forked_programs import ForkedPrograms
from support.paths import QUICKSTART, ROOT
from support.processes import run
from support.soak import machine, smoke
from tokenloom import loaders
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.config.dataset import parse_config
from tokenloom.errors import TokenloomError

DOCS = ROOT / "docs"
README = ROOT / "README.md"
ROOMS = [ROOT / name / "README.md" for name in ("assets", "resources", "loaders", "trainer", "tests")]
ROOMS += [
    page
    for name in ("assets", "resources", "loaders", "tokenloom")
    for page in sorted((ROOT / name).rglob("*/README.md"))
    if not any(folder.is_symlink() for folder in page.parents)
]
PAGES = [README, *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md")), *ROOMS, *sorted(DOCS.rglob("*.md"))]


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


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub derives them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


PAGES_WITH_PROGRAMS = [page for page in PAGES if page.parent != DOCS / "api" and samples(page, "python")]


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


def broken_links(page: Path) -> list[str]:
    """Return the links of a page to a file or heading that does not exist."""
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        linked = page.parent / target if target else page
        if not linked.exists():
            broken.append(target)
        elif anchor and anchor not in anchors(linked):
            broken.append(f"{target}#{anchor}")
    return broken


def test_links_resolve() -> None:
    faults = [f"{page.relative_to(ROOT)} links to {target}" for page in PAGES for target in broken_links(page)]
    assert not faults, "\n".join(faults)


def test_every_broken_link_is_found(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("## A `heading` of it\n```\n# no heading\n```\n")
    good = "# One\n[a](other.md) [b](other.md#a-heading-of-it) [c](#one) [d](https://example.com/none) [e](.)\n"
    page.write_text(f"{good}[f](none.md) [g](other.md#no-heading) ![h](none/i.png) [j](none.md#one) [k](#two)\n")
    assert broken_links(page) == ["none.md", "other.md#no-heading", "none/i.png", "none.md", "#two"]


def test_the_index_lists_every_page() -> None:
    index = DOCS / "README.md"
    linked = {(DOCS / target).resolve() for target in re.findall(r"\]\(([^)#:]+\.md)\)", index.read_text())}
    assert set(DOCS.rglob("*.md")) - {index} <= linked


def yaml_faults(sample: str) -> list[str]:
    """Return what is wrong with a YAML sample; one that declares a dataset or a mixture must load."""
    try:
        settings = yaml.safe_load(sample)
        if not isinstance(settings, dict):
            return ["is not a mapping"]
        if settings.keys() & {"dataset", "mixture"}:
            parse_config(sample, Path("sample.yaml"))
    except (yaml.YAMLError, TokenloomError) as error:
        return [str(error)]
    return []


def test_yaml_samples_load() -> None:
    found = [(page.relative_to(ROOT), sample) for page in PAGES for sample in samples(page, "yaml")]
    faults = [f"{page}: {fault}\n{sample}" for page, sample in found for fault in yaml_faults(sample)]
    assert not faults, "\n".join(faults)


def test_a_wrong_yaml_sample_is_found() -> None:
    assert yaml_faults("prompts: {anything: 1}\n") == yaml_faults("dataset: {name: x.jsonl}\n") == []
    wrong = ["- dataset\n", "dataset: {name: x.jsonl\n", "dataset: {nam: x.jsonl}\n", "mixture: {}\n"]
    assert [len(yaml_faults(sample)) for sample in wrong] == [1, 1, 1, 1]


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


@machine("programs")
@pytest.mark.parametrize("page", PAGES_WITH_PROGRAMS, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_samples_run(
    page: Path, quickstart: Path, programs_of_pages: ForkedPrograms, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A page's samples run in order, in a folder with the clone's `tokenloom/` and the quickstart built."""
    folder = tmp_path_factory.mktemp("samples")
    (folder / "tokenloom").symlink_to(ROOT / "tokenloom")
    shutil.copytree(quickstart, folder / ".tokenloom")
    program = "\n".join(["from tokenloom import DataPipeline", *samples(page, "python")])
    done = programs_of_pages.run(program, folder)
    assert done.returncode == 0, done.stderr


@smoke
@machine("programs")
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
    done = run(["bash", "-ec", example], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(printed), done.stdout


def targets_of(makefile: str) -> set[str]:
    return set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))


def missing_targets(page: str, targets: set[str]) -> list[str]:
    """Return what a page names after `make`, in code spans and in blocks of commands, and is not a target."""
    code = re.findall(r"```bash\n.*?```|`[^`\n]+`", page, re.DOTALL)
    named = [name for part in code for name in re.findall(r"(?:[` ]|^)make ([a-z][\w-]*)", part, re.MULTILINE)]
    return [name for name in named if name not in targets]


def test_make_targets_in_the_pages_exist() -> None:
    targets = targets_of((ROOT / "Makefile").read_text())
    named = [(page.relative_to(ROOT), name) for page in PAGES for name in missing_targets(page.read_text(), targets)]
    faults = [f"{page}: the Makefile has no target {name}" for page, name in named]
    assert not faults, "\n".join(faults)
    assert {"install", "demo", "test", "check", "ui", "bench", "soak"} <= targets


def test_every_missing_make_target_is_found() -> None:
    targets = targets_of("X ?= 1\n.PHONY: test\ntest: $(X)  ## run\n\techo: x\ntest-lowest:\n\ttrue\n$(X): y\n")
    assert targets == {"test", "test-lowest"}
    page = "To make sure: `make test`, `A=1 make test-none`; `make docs`.\n"
    page += "\n```bash\nmake test  # x\nmake lost A=2\n```\n"
    assert missing_targets(page, targets) == ["test-none", "docs", "lost"]
