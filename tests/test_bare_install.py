"""`pip install tokenloom` without extras: what lacks a package names the extra that installs it; training works."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support.paths import QUICKSTART, ROOT
from support.processes import Ended, run
from support.soak import machine
from tokenloom import DataPipeline
from tokenloom.errors import EXTRAS

pytestmark = machine("wheels")

PIPELINE, RAY, S3, JAX = (f"pip install 'tokenloom[{extra}]'" for extra in ("pipeline", "ray", "s3", "jax"))
HIDE = f"import sys; sys.modules.update(dict.fromkeys({sorted(sum(EXTRAS.values(), ()))!r}))\n"
"""The start of a program that finds no package of an extra."""

COMMANDS = """
import contextlib, io, json
from tokenloom.cli.main import COMMANDS, main
data, config = sys.argv[1:]
arguments = {"inspect": [data], "check": [config], "build": [config], "explain": [config],
             "preview": [config], "versions": ["quickstart"],
             "diff": ["quickstart", "quickstart"], "trace": [config, "--step", "0"], "train": [config],
             "import": ["train.yml"], "push": [config, "org/name"],
             "export": ["quickstart", "out", "--to", "parquet"], "verify": [], "gc": [],
             "pin": ["quickstart", "--as", "run"], "templates": [], "schema": []}
ended = {}
for module in COMMANDS:
    name = module.removesuffix("_config")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([name, *arguments.get(name, ["quickstart"])])
    ended[name] = (code, err.getvalue())
print(json.dumps(ended))
"""


def ended(program: str, *arguments: object, folder: Path) -> Ended:
    return run([sys.executable, "-c", HIDE + program, *arguments], cwd=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the quickstart built in `.tokenloom`."""
    folder = tmp_path_factory.mktemp("bare")
    DataPipeline.from_config(QUICKSTART, store=folder / ".tokenloom").unwrap().build().unwrap()
    return folder


def test_the_modules_of_each_extra_are_those_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    modules = {"pillow": "PIL"}
    for extra, listed in EXTRAS.items():
        names = [Requirement(requirement).name.replace("-", "_") for requirement in extras[extra]]
        assert sorted(modules.get(name, name) for name in names) == sorted(listed)
    assert extras.keys() == {*EXTRAS, "dev"}


def test_every_command_runs_or_names_the_extra(folder: Path) -> None:
    data = QUICKSTART.parent / "samples" / "quickstart.jsonl"
    done = ended(COMMANDS, data, QUICKSTART, folder=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int, str]] = json.loads(done.stdout)
    assert {name for name, (code, _) in found.items() if code == 1} >= {"inspect", "build", "preview", "templates"}
    for name, (code, printed) in found.items():
        assert "Traceback" not in printed, (name, printed)
        if code == 1:
            (line,) = (line for line in printed.splitlines() if not line.startswith("store: "))
            assert line.endswith(f", which is not installed; run: {PIPELINE}"), (name, printed)


@pytest.mark.parametrize(
    ("program", "remedy"),
    [
        ("import tokenloom.pipeline", PIPELINE),
        ("from tokenloom import DataPipeline", PIPELINE),
        ("from tokenloom import PromptEngine", PIPELINE),
        ("import tokenloom.definitions", PIPELINE),
        ("import tokenloom.loaders.trainer", PIPELINE),
        ("from tokenloom.resources.engines.ray_engine import RayEngine; RayEngine().workers", RAY),
        ("from tokenloom import open_dataset; open_dataset('quickstart', store='s3://bucket/store')", S3),
        (
            "from tokenloom.loaders import ArrayDataLoader\n"
            "ArrayDataLoader(dataset_name='quickstart', framework='jax', batch_size=2)",
            JAX,
        ),
    ],
)
def test_an_import_names_the_extra(folder: Path, program: str, remedy: str) -> None:
    done = ended(program, folder=folder)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(f", which is not installed; run: {remedy}"), done.stderr


def test_a_built_dataset_is_trained_on_without_extras(folder: Path) -> None:
    program = "from tokenloom.loaders import TokenLoader, open_dataset\n"
    program += "print(next(iter(TokenLoader(open_dataset('quickstart'), batch_size=2)))['input_ids'].shape[0])"
    assert ended(program, folder=folder).stdout == "2\n"
