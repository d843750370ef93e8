"""What is installed: the sdist, the wheel, and editable installs of checkouts with and without symbolic links."""

from __future__ import annotations

import os
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from support.paths import ROOT
from support.processes import run
from support.soak import machine, smoke

pytestmark = machine("wheels")

LINKS = [path for path in sorted((ROOT / "tokenloom").iterdir()) if path.is_symlink()]
PAGE = {f"cli/page.{kind}" for kind in ("css", "html", "js")}
DATA = {"importers/keys.yaml", "py.typed", *PAGE, "pipelines/quickstart.yaml", "pipelines/samples/quickstart.jsonl"}


def output(*command: object, folder: Path) -> str:
    """The output of a command that runs in `folder` and finds no other copy of the package."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return run(command, cwd=folder, env=environment, check=True).stdout


def copied(folder: Path, links: bool) -> Path:
    """A copy of the checkout; without `links`, each link is a text file with its target, as Git writes it then."""
    listed = output("git", "ls-files", "--cached", "--others", "--exclude-standard", folder=ROOT)
    for name in listed.splitlines():
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() and links:
            target.symlink_to(source.readlink())
        elif source.is_symlink():
            target.write_text(str(source.readlink()))
        elif source.is_file():
            target.write_bytes(source.read_bytes())
    return folder


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("linked") / "checkout", links=True)


@pytest.fixture(scope="module")
def unlinked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("unlinked") / "checkout", links=False)


@pytest.fixture(scope="module")
def built(linked: Path) -> tuple[Path, Path]:
    """An sdist, and the wheel built from it."""
    output(sys.executable, "-m", "build", "--no-isolation", linked, folder=linked.parent)
    (sdist,), (wheel,) = (linked / "dist").glob("*.tar.gz"), (linked / "dist").glob("*.whl")
    return sdist, wheel


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an empty environment that finds the libraries of this one, but not its tokenloom."""
    output(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", folder=tmp_path)
    (site,) = (tmp_path / "venv").glob("lib/*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return tmp_path / "venv" / "bin" / "python"


def install(python: Path, *what: object) -> None:
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--force-reinstall")
    output(python, "-m", "pip", "install", *options, *what, folder=python.parent)


def builds_the_quickstart(python: Path, package: Path) -> None:
    """From a folder that is not a checkout."""
    outside = python.parents[2] / "outside"
    outside.mkdir()
    program = (
        "import tokenloom, tokenloom.assets.raw.stage as part; print(tokenloom.__file__, part.__file__, sep='\\n')"
    )
    places = output(python, "-c", program, folder=outside).splitlines()
    assert [Path(place).resolve().is_relative_to(package.resolve()) for place in places] == [True, True]
    assert output(python.parent / "tokenloom", "--version", folder=outside).startswith("tokenloom ")
    quickstart = Path(places[0]).parent / "pipelines" / "quickstart.yaml"
    output(python.parent / "tokenloom", "build", quickstart, "--store", "store", folder=outside)
    program = "import tokenloom; print(len(tokenloom.open_dataset('quickstart', store='store')))"
    assert int(output(python, "-c", program, folder=outside)) > 400


def modules(checkout: Path) -> list[str]:
    """All files that an installed package holds, relative to its folder."""
    own = [path.relative_to(checkout / "tokenloom") for path in (checkout / "tokenloom").rglob("*.py")]
    parts = [path.relative_to(checkout) for link in LINKS for path in (checkout / link.name).rglob("*.py")]
    return sorted({path.as_posix() for path in (*own, *parts)} | DATA)


def packaged(wheel: Path) -> list[str]:
    names = zipfile.ZipFile(wheel).namelist()
    return sorted(name.removeprefix("tokenloom/") for name in names if ".dist-info/" not in name)


@smoke
def test_a_wheel_holds_every_module_once(built: tuple[Path, Path], unlinked: Path) -> None:
    assert packaged(built[1]) == modules(unlinked)


def test_an_sdist_holds_every_module_once(built: tuple[Path, Path], unlinked: Path) -> None:
    with tarfile.open(built[0]) as archive:
        names = [member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()]
    own = [name.removeprefix("tokenloom/") for name in names if name.startswith("tokenloom/")]
    parts = [name for name in names if name.startswith(tuple(f"{link.name}/" for link in LINKS))]
    assert sorted([*own, *parts]) == modules(unlinked)


def test_a_wheel_is_all_that_the_quickstart_needs(built: tuple[Path, Path], python: Path) -> None:
    install(python, built[1])
    builds_the_quickstart(python, python.parents[1])


def test_a_checkout_without_links_is_installed_in_editable_mode(unlinked: Path, python: Path) -> None:
    install(python, "--editable", unlinked)
    builds_the_quickstart(python, unlinked)


def test_a_checkout_without_links_gives_the_same_wheel(built: tuple[Path, Path], unlinked: Path) -> None:
    folder = unlinked.parent / "wheel"
    output(
        sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, unlinked, folder=folder.parent
    )
    (wheel,) = folder.glob("*.whl")
    assert packaged(wheel) == packaged(built[1])
