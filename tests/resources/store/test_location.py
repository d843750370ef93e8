"""Which store is used where none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenloom.resources.store.versions import default_store


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with YAMLs two folders deep; the working directory is elsewhere."""
    monkeypatch.delenv("TOKENLOOM_STORE", raising=False)
    (tmp_path / "project/data/yamls").mkdir(parents=True)
    (tmp_path / "elsewhere/deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere/deep")
    return tmp_path / "project"


def test_the_environment_names_the_store(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".tokenloom").mkdir()
    monkeypatch.setenv("TOKENLOOM_STORE", "s3://bucket/prefix")
    assert default_store(project) == "s3://bucket/prefix"


@pytest.mark.parametrize(
    ("existing", "found"),
    [
        (["project/data/yamls", "project/data", "project"], "project/data/yamls"),
        (["project/data", "project", "elsewhere/deep"], "project/data"),
        (["project", "elsewhere"], "project"),
        (["elsewhere/deep", "elsewhere"], "elsewhere/deep"),
        (["elsewhere"], "elsewhere"),
    ],
)
def test_the_nearest_existing_store_is_used(project: Path, existing: list[str], found: str) -> None:
    for folder in existing:
        (project.parent / folder / ".tokenloom").mkdir()
    assert default_store(project / "data/yamls") == str(project.parent / found / ".tokenloom")


@pytest.mark.parametrize("mark", ["pyproject.toml", "workspace.yaml", ".git"])
def test_a_new_store_is_at_the_root_of_the_project(project: Path, mark: str) -> None:
    (project / mark).touch()
    assert default_store(project / "data/yamls") == str(project / ".tokenloom")


def test_a_new_store_without_a_project_is_beside_the_yaml(project: Path) -> None:
    assert default_store(project / "data/yamls") == str(project / "data/yamls/.tokenloom")
    assert default_store() == str(Path.cwd() / ".tokenloom")


def test_no_store_is_put_into_an_installed_package(project: Path) -> None:
    (project / "pyproject.toml").touch()
    installed = project / "lib/site-packages/tokenloom/pipelines"
    installed.mkdir(parents=True)
    assert default_store(installed) == str(Path.cwd() / ".tokenloom")


def test_a_file_is_not_a_store(project: Path) -> None:
    (project / "data/.tokenloom").touch()
    (project / ".tokenloom").mkdir()
    assert default_store(project / "data") == str(project / ".tokenloom")
