"""Inspecting, exporting and importing from Python: the values and errors are those of the commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.datasets_on_disk import rows
from tokenloom import DataPipeline, import_config
from tokenloom.cli import main
from tokenloom.errors import ConfigError, Err

AXOLOTL = """
base_model: org/model
datasets:
  - {path: rows.jsonl, type: completion}
  - {path: org/more, type: completion}
lora_r: 8
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with rows and its own store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENLOOM_STORE", str(tmp_path / "store"))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(60)), encoding="utf-8")
    return tmp_path


def fault(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints if it fails."""
    capsys.readouterr()
    assert main(command) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_an_inspection_is_that_of_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspection = DataPipeline.inspect("rows.jsonl", limit=50).unwrap()
    assert capsys.readouterr() == ("", "")
    assert [path.name for path in folder.glob("*.yaml")] == []
    assert main(["inspect", "rows.jsonl", "--limit", "50", "--json", "--out", "rows.yaml"]) == 0
    assert json.loads(json.dumps(inspection.report())) == json.loads(capsys.readouterr().out)
    assert inspection.report()["splits"] == {"train": 50}
    assert inspection.yaml() == (folder / "rows.yaml").read_text(encoding="utf-8")
    assert "name: ../rows.jsonl" in inspection.yaml("pipelines")


@pytest.mark.parametrize("kind", [str, Path])
def test_a_yaml_is_inspected_beside_its_store(
    folder: Path, kind: type[str] | type[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKENLOOM_STORE")
    (folder / "pipelines" / ".tokenloom").mkdir(parents=True)
    (folder / "pipelines" / "rows.yaml").write_text("dataset: {name: ../rows.jsonl}\ntokenizer: {name_or_path: x}\n")
    inspection = DataPipeline.inspect(kind("pipelines/rows.yaml")).unwrap()
    assert inspection.build.store.address == str(folder / "pipelines" / ".tokenloom")


def test_an_export_is_that_of_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rows.yaml").write_text(DataPipeline.inspect("rows.jsonl").unwrap().yaml())
    pipeline = DataPipeline.from_config("rows.yaml").unwrap()
    exported = pipeline.export("python", "parquet", split="train", shard_size="1KB").unwrap()
    assert capsys.readouterr() == ("", "")
    assert main(["export", "rows.yaml", "--to", "parquet", "command", "--shard-size", "1KB", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {**printed, "dataset": "rows", "splits": exported.splits, "notices": exported.notices}
    assert exported.folder == (folder / "python").resolve() and exported.files
    again = [folder / "command" / path.relative_to(exported.folder) for path in exported.files]
    assert [path.read_bytes() for path in exported.files] == [path.read_bytes() for path in again]


def test_an_import_is_that_of_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "lora.yml").write_text(AXOLOTL)
    imported = import_config("lora.yml", out="made/")
    assert capsys.readouterr() == ("", "") and not (folder / "made").exists()
    assert main(["import", "lora.yml", "--json", "--out", "made/"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"tool": "axolotl", "files": [*map(str, imported.texts)], **imported.report}
    assert {path: path.read_text(encoding="utf-8") for path in imported.texts} == imported.texts
    assert imported.to_build == (folder.relative_to(folder) / "made" / "lora.yaml",)


def test_errors_are_those_of_the_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of values that the command's parser refuses."""
    (folder / "rows.yaml").write_text(DataPipeline.inspect("rows.jsonl").unwrap().yaml())
    (folder / "lora.yml").write_text("base_model: org/model\ndatasets: [{path: a.jsonl, type: reflection}]\n")
    pipeline = DataPipeline.from_config("rows.yaml").unwrap()
    for result, command in (
        (DataPipeline.inspect("row.jsonl"), ["inspect", "row.jsonl"]),
        (DataPipeline.inspect("rows.jsonl", split="tests"), ["inspect", "rows.jsonl", "--split", "tests"]),
        (pipeline.export("store", "hf"), ["export", "rows.yaml", "store", "--to", "hf"]),
        (pipeline.export("out", "hf", "tests"), ["export", "rows.yaml", "out", "--to", "hf", "--split", "tests"]),
        (
            pipeline.export("out", "hf", shard_size="x"),
            ["export", "rows.yaml", "out", "--to", "hf", "--shard-size", "x"],
        ),
    ):
        assert isinstance(result, Err) and isinstance(result.error, ConfigError)
        assert str(result.error) == fault(
            [*command, *(["--out", "new.yaml"] if command[0] == "inspect" else [])], capsys
        )
    with pytest.raises(ConfigError) as raised:
        import_config("lora.yml")
    assert str(raised.value) == fault(["import", "lora.yml"], capsys)
    refused = [pipeline.export("out", "hff"), DataPipeline.inspect("rows.jsonl", style="chatt")]
    faults = [str(result.error) for result in refused if isinstance(result, Err)]
    assert [text.partition(";")[2] for text in faults] == [" did you mean hf?", " did you mean chat?"]
    with pytest.raises(ConfigError, match=r"'axolot' is not one of .*; did you mean axolotl"):
        import_config("lora.yml", tool="axolot")
