"""`tokenloom check`: all faults of all files, by line, and nothing is read but YAML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.datasets_on_disk import write_dataset
from tokenloom.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset whose data does not exist, and a mixture of it."""
    write_dataset(tmp_path, 4).rename(tmp_path / "poems.yaml")
    (tmp_path / "small.jsonl").unlink()
    (tmp_path / "mix.yaml").write_text("mixture: [{dataset: poems}]\n")
    return tmp_path


def test_sound_files_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(folder)]) == 0
    assert capsys.readouterr().out == "1 dataset, 1 mixture: no faults\n"
    assert main(["check", str(folder / "poems.yaml"), str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"datasets": ["poems"], "mixtures": ["mix"], "faults": []}
    assert sorted(path.name for path in folder.iterdir()) == ["mix.yaml", "poems.yaml"]


def test_every_fault_is_named_by_its_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "typo.yaml").write_text("dataset:\n  nam: rows\nkeep: some\n")
    (folder / "twice.yaml").write_text("name: poems\ndataset: {name: rows}\n")
    (folder / "mix.yaml").write_text("mixture: [{dataset: mix}]\n")
    assert main(["check", str(folder)]) == 2
    lines = capsys.readouterr().err
    for line in (
        "mix.yaml:1: mixture.0.dataset: 'mix' is the mixture itself",
        "twice.yaml:1: name: dataset 'poems' is already declared in",
        "typo.yaml:2: dataset.nam: unknown setting; did you mean name?",
        "typo.yaml:3: keep: 'some' is not one of all, sequences",
    ):
        assert line in lines
    assert main(["check", str(folder), "--json"]) == 2
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert {Path(fault["place"].rpartition(":")[0]).name for fault in faults} == {"mix.yaml", "twice.yaml", "typo.yaml"}


def test_a_path_without_yamls_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 2
    assert "this folder has no YAML file" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "gone.yaml")]) == 2
    assert "gone.yaml" in capsys.readouterr().err
