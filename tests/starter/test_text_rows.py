"""`tokenloom inspect` of plain text: a file of prose is one document, a line of a list is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from support.paths import ROOT
from tokenloom.assets.shown_rows.token_runs import RowReader
from tokenloom.cli import main
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore
from tokenloom.starter.text_rows import detect_text_rows

WRAPPED = "The river ran past the mill and\nunder the bridge, where nobody had\nseen it rise.\n\nThen came {}.\n"
POEM = "The river ran, the river ran,\nand so did we, and so\nthe mill stood still\n\na wheel of moss,\nNo {}\n"
PARAGRAPHS = "The river ran past the mill, and nobody knew its name. " * 5 + "\n" + "In March it rose. " * 9 + "{}\n"
WORDS = "river\nmill\nbridge-head\nold wheel {}\n"
PATHS = "src/main.c\nlib/io.h,2\nREADME.md\na_b {}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENLOOM_STORE", str(tmp_path / "store"))
    return tmp_path


def written(folder: Path, text: str, suffix: str = ".txt") -> Path:
    """A folder of five files."""
    (folder / "texts").mkdir()
    for number in range(5):
        (folder / "texts" / f"{number}{suffix}").write_text(text.format(number))
    return folder / "texts"


def trained(name: str, rows: int) -> list[str]:
    reader = RowReader(ArtifactStore(Path("store")), name)
    return ["".join(run.text for run in reader.read(row).sides[""] if run.trained) for row in range(rows)]


@pytest.mark.parametrize("source", ["texts", "texts/*.txt"])
@pytest.mark.parametrize("text", [WRAPPED, POEM, PARAGRAPHS], ids=["wrapped", "poem", "paragraphs"])
def test_a_file_of_prose_is_one_document(
    folder: Path, text: str, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written(folder, text)
    assert main(["inspect", source, "--out", "texts.yaml"]) == 0
    said = "5 of 5 files read are prose: each file is one document"
    assert said in capsys.readouterr().out
    shown = (folder / "texts.yaml").read_text()
    assert f"# {said}" in shown and "dataset.reader.lines_per_row: line makes each line one row" in shown
    assert yaml.safe_load(shown)["dataset"]["reader"] == {"lines_per_row": "file"}
    assert main(["build", "texts.yaml"]) == 0
    assert trained("texts", 5) == [f"{text.format(number).rstrip()}<|endoftext|>" for number in range(5)]


@pytest.mark.parametrize("text", [WORDS, PATHS], ids=["words", "paths"])
def test_a_line_of_a_list_is_one_document(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder, text)
    assert main(["inspect", "texts"]) == 0
    assert "20 of 20 lines read are short and without punctuation, as in a list" in capsys.readouterr().out
    settings = yaml.safe_load((folder / "texts.yaml").read_text())
    assert settings["dataset"]["reader"] == {"lines_per_row": "line"}
    assert "chat_template" not in settings["tokenizer"], "plain text has no prompts and answers to separate"
    assert main(["build", "texts.yaml"]) == 0
    lines = [line for number in range(5) for line in text.format(number).splitlines()]
    assert trained("texts", 20) == [f"{line}<|endoftext|>" for line in lines]


def test_a_file_that_is_too_large_for_a_row_is_divided(folder: Path) -> None:
    for text, unit in ((WRAPPED * 9, "paragraph"), (PARAGRAPHS * 9, "line")):
        (folder / "large.txt").write_text(text)
        dataset = {"name": "large.txt", "reader": {"max_record_bytes": 500}}
        found = detect_text_rows(PipelineConfig.from_mapping({"dataset": dataset}))
        assert found is not None and found.unit == unit and "max_record_bytes (500 bytes)" in found.reason


@pytest.mark.parametrize("name", ["test.txt", "valid.txt", "train.txt.gz"])
def test_a_file_of_many_articles_is_one_document_and_says_so(real_data: Path, name: str) -> None:
    config = PipelineConfig.from_mapping({"dataset": {"name": str(real_data / "text" / "wikitext-2" / name)}})
    found = detect_text_rows(config)
    assert found is not None and found.unit == "file" and "prose with several titles ('= " in found.reason


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "docs/*.md", "docs/prepare"])
def test_markdown_is_prose(page: str) -> None:
    found = detect_text_rows(PipelineConfig.from_mapping({"dataset": {"name": str(ROOT / page)}}))
    assert found is not None and found.unit == "file"


def test_a_readme_beside_data_is_not_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = written(folder, WORDS)
    (texts / "README.md").write_text("# Words\n\nThese are words.\n")
    assert main(["inspect", "texts", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"] == {"train": 20}


def test_a_declared_unit_and_a_yaml_s_default_are_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder, WRAPPED)
    for reader, rows in ({}, 20), ({"lines_per_row": "paragraph"}, 10), ({"lines_per_row": "line"}, 20):
        settings = {"dataset": {"name": "texts", "reader": reader}, "tokenizer": {"train": {"vocab_size": 300}}}
        settings["tokenizer"]["special_tokens"] = {"eos": "</s>", "pad": "<pad>"}
        (folder / "own.yaml").write_text(yaml.safe_dump(settings))
        capsys.readouterr()
        assert main(["inspect", "own.yaml", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["splits"] == {"train": rows}
        assert main(["build", "own.yaml", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["stages"][0]["rows_out"] == rows
