"""`tokenloom preview`: builds nothing, and shows what a build would store."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from support.datasets_on_disk import write_dataset
from support.golden_datasets import write_golden
from support.terminal import run, run_here
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.on_the_fly import with_tokenizer
from tokenloom.assets.shown_rows.token_runs import RowReader
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore
from tokenloom.starter.source_rows import source_rows

KINDS = [
    "small",
    "smart_chats",
    "drop_turns",
    "split",
    "drop",
    "truncate_middle",
    "text_by_paragraph",
    "preference_of_texts",
    "preference_of_chats",
    "kto",
    "few_shot_of_the_chunk",
    "few_shot_of_a_file",
    "chat_tools_and_reasoning",
    "gz_with_bad_lines",
    "files_of_a_folder",
    "arrow_with_filters",
    "saved_by_datasets",
]


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def edit(path: Path, **sections: object) -> None:
    declared = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(declared | sections))


@pytest.mark.parametrize("name", KINDS)
def test_rows_from_the_source_are_those_of_a_build(name: str, tmp_path: Path) -> None:
    config = PipelineConfig.from_file(write_golden(name, tmp_path))
    build = Build(config, ArtifactStore(tmp_path / "store"))
    list(build.run_all())
    reader = RowReader(build.store, build.name)
    numbers = sorted({0, 1, 2, 7, len(reader) // 2, len(reader) - 1})
    if config.tokenizer.train is not None:
        config = with_tokenizer(config, str(build.store.tokenizer_folder(build.facts("tokenizer")["digest"])))
    assert list(source_rows(config, numbers)) == [reader.read(number) for number in numbers]


def test_an_unbuilt_dataset_is_shown_from_any_folder_and_nothing_is_written(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    config = write_dataset(project)
    before = files(tmp_path)
    done = run("preview", config, "--row", 1, folder=elsewhere, TOKENLOOM_STORE="")
    assert (done.returncode, files(tmp_path)) == (0, before)
    assert f"store: {project / '.tokenloom'}\n" in done.stderr
    assert "(small is not built yet)" in done.stderr
    assert "⟦" in done.stdout and "row 1 · train · small.jsonl:2" in done.stdout


def test_what_is_built_is_shown_until_the_yaml_or_the_rows_change(tmp_path: Path) -> None:
    config = write_dataset(tmp_path)
    run_here("build", config, folder=tmp_path)
    stored = files(tmp_path / "store")
    assert "as built, version" in run_here("preview", config, folder=tmp_path).stderr
    rows = (tmp_path / "small.jsonl").read_text()
    (tmp_path / "small.jsonl").write_text(rows.replace("{", '{"more": 1, ', 1))
    changed = run_here("preview", config, folder=tmp_path)
    assert "the source has changed since the last build" in changed.stderr
    (tmp_path / "small.jsonl").write_text(rows)
    declared = yaml.safe_load(config.read_text())
    edit(config, prompt_template=declared["prompt_template"] | {"template": "Now: {instruction} {input} => {output}"})
    shown = run_here("preview", config, folder=tmp_path)
    assert "prompt_template.template" in shown.stderr and "Now: " in shown.stdout
    assert files(tmp_path / "store") == stored


def test_rows_have_text_before_a_build_trains_the_tokenizer_and_tokens_after_it(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, tokenizer={"train": {"vocab_size": 300}, "special_tokens": {"eos": "</s>"}})
    text = run_here("preview", config, folder=tmp_path)
    assert "without tokens until a build trains the tokenizer" in text.stderr
    assert "⟦" in text.stdout and "tokens," not in text.stdout
    assert run_here("build", config, folder=tmp_path).returncode == 0
    edit(config, length={"strategy": "drop"})
    shown = run_here("preview", config, folder=tmp_path)
    assert "with the tokenizer of the last build" in shown.stderr and "tokens," in shown.stdout


@pytest.mark.parametrize("built", [False, True])
def test_rows_are_shown_in_the_order_asked_for_and_must_exist(built: bool, tmp_path: Path) -> None:
    config = write_dataset(tmp_path)
    if built:
        run_here("build", config, folder=tmp_path)
    shown = run_here("preview", config, "--row", 5, 0, folder=tmp_path).stdout
    assert 0 < shown.index("row 5 ·") < shown.index("row 0 ·")
    wrong = run_here("preview", config, "--row", 0, 99999, folder=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--row: 99999 is out of range: the dataset has " in wrong.stderr
