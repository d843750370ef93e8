"""`explain` predicts the next build: the same hits, with reasons; and it writes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from support.datasets_on_disk import PROMPT, STAGES, rows, write_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.chain import stage_named
from tokenloom.assets.building.explain import StageExplanation, explain
from tokenloom.assets.building.report import StageReport
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.cli import main
from tokenloom.config import PipelineConfig
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

SMALL = ChunkSize(target=4_000, maximum=16_000)
CHAT = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"


class Project:
    """A dataset, its YAML and its store, in a folder."""

    def __init__(self, folder: Path, tokenizer: dict[str, Any], **sections: Any):
        self.folder, self.store = folder, folder / "store"
        self.data = folder / "small.jsonl"
        self.config = write_dataset(folder, 120, tokenizer=tokenizer, **sections)

    def _build(self) -> Build:
        config, store = PipelineConfig.from_file(self.config), ArtifactStore(self.store)
        return Build(config, store, ComputeEngine(1), chunk_size=SMALL)

    def build(self) -> dict[str, StageReport]:
        return {report.name: report for report in self._build().run_all()}

    def explain(self) -> dict[str, StageExplanation]:
        return {stage.name: stage for stage in explain(self._build())}

    def set(self, section: str, **changes: Any) -> None:
        settings = yaml.safe_load(self.config.read_text())
        settings[section] = settings.get(section, {}) | changes
        self.config.write_text(yaml.safe_dump(settings))

    def lines(self, change: Callable[[list[str]], list[str]]) -> None:
        self.data.write_text("".join(f"{line}\n" for line in change(self.data.read_text().splitlines())))

    def chunk(self, stage: str, number: int = 0) -> Any:
        return ArtifactStore(self.store).manifest("small", stage).chunks[number]

    def listing(self) -> dict[str, bytes]:
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}


@pytest.fixture
def project(tmp_path: Path, tokenizer_folder: Path) -> Project:
    made = Project(tmp_path, {"name_or_path": str(tokenizer_folder), "max_length": 256})
    made.build()
    return made


def reasons_of(project: Project) -> str:
    return "\n".join(f"{name}: {reason}" for name, stage in project.explain().items() for reason in stage.reasons)


def predicted(project: Project) -> dict[str, StageExplanation]:
    """Return what explain predicts, checked against the build that follows; explain must change no file."""
    before = project.listing()
    stages = project.explain()
    assert project.listing() == before
    done = project.build()
    for name in STAGES:
        stage, report = stages[name], done[name]
        assert stage.hits + stage.misses + stage.waits == stage.chunks == report.chunks, name
        assert stage.hits <= report.chunks_reused <= stage.hits + stage.waits, name
        assert (report.chunks_reused == report.chunks) or stage.reasons, name
        assert str(project.folder) not in "".join((*stage.reasons, *report.explanation))
    return stages


ROW = json.dumps({"instruction": "one more", "input": "", "output": "row"})
EDIT = json.dumps({"instruction": "edited", "input": "in", "output": "otherwise"})


def _append(project: Project) -> None:
    project.lines(lambda lines: [*lines, ROW])


def _edit(project: Project) -> None:
    project.lines(lambda lines: [*lines[:60], EDIT, *lines[61:]])


def _edit_white_space(project: Project) -> None:
    project.lines(lambda lines: [*lines[:60], lines[60].replace('", "', '" , "'), *lines[61:]])


def _delete(project: Project) -> None:
    project.lines(lambda lines: [*lines[:60], *lines[61:]])


def _delete_the_end(project: Project) -> None:
    offset = project.chunk("raw", -1).runs[0].offset
    project.lines(lambda lines: lines[:offset])


def _longer(project: Project) -> None:
    project.set("tokenizer", max_length=128)


def _no_eos(project: Project) -> None:
    project.set("prompt_template", add_eos=False)


def _filter(project: Project) -> None:
    project.set("dataset", filters=["len(output) > 20"])


def _other_tokenizer(project: Project) -> None:
    settings = yaml.safe_load(project.config.read_text())["tokenizer"]
    copy = project.folder / "copied"
    shutil.copytree(settings["name_or_path"], copy)
    found = json.loads((copy / "tokenizer.json").read_text())
    found["model"]["merges"] = found["model"]["merges"][:-20]
    (copy / "tokenizer.json").write_text(json.dumps(found))
    project.set("tokenizer", name_or_path=str(copy))


def _lost(stage: str, number: int = 0) -> Callable[[Project], None]:
    def lose(project: Project) -> None:
        ArtifactStore(project.store).objects.path(project.chunk(stage, number).output).unlink()

    return lose


def _lost_action(project: Project) -> None:
    key = project.chunk("columns", 1).key
    (project.store / "actions" / key[:2] / f"{key}.json").unlink()


def _both(project: Project) -> None:
    _longer(project)
    _append(project)


CHANGES = {
    "nothing": (lambda project: None, ""),
    "append": (_append, "raw: the chunk starting at small.jsonl:{last} is new or changed"),
    "edit": (_edit, "is new or changed"),
    "white space": (_edit_white_space, "is new or changed"),
    "delete": (_delete, "is new or changed"),
    "delete the end": (_delete_the_end, "raw: the chunk starting at small.jsonl:{last} is gone"),
    "max_length": (_longer, "sequences: tokenizer.max_length: 256 → 128"),
    "add_eos": (_no_eos, "prompts: prompt_template.add_eos: true → false"),
    "filters": (_filter, 'raw: dataset.filters: [] → ["len(output) > 20"]'),
    "tokenizer": (_other_tokenizer, "tokenizer: the tokenizer copied changed"),
    "lost raw": (_lost("raw"), "raw: 1 of {chunks} chunks: objects are missing, so they are computed again"),
    "lost schema": (_lost("schema"), "schema: 1 of {chunks} chunks: objects are missing, so they are computed again"),
    "lost tokenizer": (_lost("tokenizer"), "tokenizer: 1 of 1 chunk: objects are missing, so they are computed again"),
    "lost tokens": (
        _lost("tokens", 2),
        "tokens: 1 of {chunks} chunks: objects are missing, so they are computed again",
    ),
    "lost action": (_lost_action, "columns: 1 of {chunks} chunks: objects are missing, so they are computed again"),
    "two": (_both, "sequences: tokenizer.max_length: 256 → 128"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_next_build_does_what_is_predicted(project: Project, name: str) -> None:
    change, reason = CHANGES[name]
    last = project.chunk("raw", -1)
    change(project)
    stages = predicted(project)
    expected = reason.format(
        last=last.runs[0].offset + 1, chunks=len(ArtifactStore(project.store).manifest("small", "raw").chunks)
    )
    lines = [f"{stage}: {line}" for stage, found in stages.items() for line in found.reasons]
    assert (any(expected in line for line in lines)) if expected else lines == []
    assert all(stage.state == "hit" for stage in project.explain().values())


def test_one_edited_row_leaves_all_other_chunks_cached(project: Project) -> None:
    _edit(project)
    stages = predicted(project)
    chunks = stages["raw"].chunks
    assert chunks > 5
    assert all(stages[name].hits >= chunks - 2 for name in STAGES if name != "tokenizer")


def test_a_stage_downstream_of_a_change_is_compared_as_well(project: Project) -> None:
    _append(project)
    project.set("prompt_template", add_eos=False)
    _longer(project)
    text = reasons_of(project)
    assert "prompts: prompt_template.add_eos: true → false" in text
    assert "sequences: tokenizer.max_length: 256 → 128" in text
    assert "waits for prompts: up to" in text
    predicted(project)


def test_going_back_to_an_older_setting_reuses_an_earlier_build(project: Project) -> None:
    _longer(project)
    project.build()
    project.set("tokenizer", max_length=256)
    sequences = predicted(project)["sequences"]
    assert sequences.state == "hit"
    share = f"{sequences.chunks} of {sequences.chunks} chunks"
    assert sequences.reasons == ("tokenizer.max_length: 128 → 256", f"{share}: reused from an earlier build")


@pytest.mark.parametrize("stage", STAGES)
def test_a_new_stage_version_is_reported(project: Project, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version = stage_named(stage).version
    monkeypatch.setattr(type(stage_named(stage)), "version", version + 1)
    stages = predicted(project)
    assert f"stage {stage}: version {version} → {version + 1}" in stages[stage].reasons
    assert stages[stage].hits == 0
    above = STAGES[: STAGES.index(stage)]
    assert all(stages[name].state == "hit" for name in above)


def _upgrade(folder: Path, library: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add metadata of a release that this environment finds first."""
    info = folder / "site" / f"{library}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {library}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(folder / "site"))


def test_an_upgrade_that_changes_nothing_hits(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    _upgrade(project.folder, "pyarrow", "998.0", monkeypatch)
    stages = predicted(project)
    assert {stage.state for stage in stages.values()} == {"hit"}
    assert not any(stage.reasons for stage in stages.values())


def test_an_upgrade_that_changes_a_stage_misses_there(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    _upgrade(project.folder, "pyarrow", "999.0", monkeypatch)
    monkeypatch.setattr(type(stage_named("columns")), "probe", lambda self: [pa.table({"other": [1]})])
    stages = predicted(project)
    assert stages["columns"].reasons == (f"pyarrow {pa.__version__} → 999.0 changes the output of columns",)
    assert stages["columns"].hits == 0
    assert {stages[name].state for name in ("raw", "schema")} == {"hit"}


def test_a_probe_is_kept_in_the_store(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {path.name.partition("-")[0] for path in (project.store / "probes").iterdir()}
    assert kept == {*STAGES, "border", "tokenizer.json"}
    monkeypatch.setattr("tokenloom.assets.stage.definition.Stage.probe", lambda self: pytest.fail("it is known"))
    project.build()


def test_a_changed_file_of_examples_is_reported(tmp_path: Path, tokenizer_folder: Path) -> None:
    examples = tmp_path / "shots" / "examples.jsonl"
    examples.parent.mkdir()
    examples.write_text("".join(f"{json.dumps(row)}\n" for row in rows(5, seed=3)))
    shots = {**PROMPT, "few_shot": {"count": 2, "source": str(examples)}}
    project = Project(tmp_path, {"name_or_path": str(tokenizer_folder)}, prompt_template=shots)
    project.build()
    examples.write_text("".join(f"{json.dumps(row)}\n" for row in rows(5, seed=4)))
    assert predicted(project)["prompts"].reasons == ("prompt_template.few_shot.source examples.jsonl changed",)


def test_long_values_are_shown_around_their_first_difference(project: Project) -> None:
    template = yaml.safe_load(project.config.read_text())["prompt_template"]["template"]
    project.set("prompt_template", template=template.replace("Response", "Reply"))
    (reason,) = predicted(project)["prompts"].reasons
    assert reason.startswith("prompt_template.template: …")
    assert "Response" in reason and "Reply" in reason and len(reason) < 200


def test_the_cost_of_a_trained_tokenizer_is_reported(tmp_path: Path) -> None:
    config = yaml.safe_load(write_dataset(tmp_path / "other", 5).read_text())
    project = Project(tmp_path, config["tokenizer"])
    project.build()
    _append(project)
    stages = predicted(project)
    digest = next((project.store / "tokenizers").iterdir()).name
    assert "<store>/tokenizers/" in " ".join(stages["tokenizer"].reasons)
    assert stages["tokens"].waits == stages["tokens"].chunks
    project.set("tokenizer", train=None, name_or_path=str(project.store / "tokenizers" / digest))
    predicted(project)
    _edit(project)
    assert predicted(project)["tokens"].hits >= stages["tokens"].chunks - 3


def test_shortened_conversations_wait_for_their_template(tmp_path: Path, tokenizer_folder: Path) -> None:
    tokenizer = {"name_or_path": str(tokenizer_folder), "max_length": 64, "chat_template": CHAT}
    length = {"strategy": "drop_turns"}
    project = Project(tmp_path, tokenizer, length=length, prompt_template={"format_type": "chat"})
    talk = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "because"}]
    project.lines(
        lambda lines: [json.dumps({"messages": [{**talk[0], "content": f"{n}"}, *talk[1:], *talk]}) for n in range(200)]
    )
    project.build()
    project.lines(lambda lines: [*lines, json.dumps({"messages": talk})])
    stages = predicted(project)
    assert stages["sequences"].hits > 0
    project.set("tokenizer", chat_template=CHAT.replace("m.role", "m.role|upper"))
    assert predicted(project)["prompts"].reasons == ("the chat template changed",)


def test_another_source_with_other_columns_is_not_refused(project: Project) -> None:
    project.lines(lambda lines: [json.dumps({"q": row["instruction"], "a": row["output"]}) for row in rows(120)])
    project.set("prompt_template", template="{q}\n{a}\n", label_column="a")
    stages = predicted(project)
    assert stages["columns"].waits == stages["columns"].chunks


def test_explain_prints_one_object(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    _longer(project)
    command = ["explain", str(project.config), "--store", str(project.store)]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["dataset"] == "small"
    assert [stage["name"] for stage in found["stages"]] == list(STAGES)
    assert set(found["stages"][0]) == {"name", "state", "chunks", "hits", "misses", "waits", "reasons"}
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "sequences: tokenizer.max_length: 256 → 128" in printed
    assert str(project.folder) not in printed


def test_a_missing_store_is_not_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_dataset(tmp_path, 20)
    assert main(["explain", str(config), "--store", str(tmp_path / "none"), "--limit", "5"]) == 0
    assert "raw: never built" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.jsonl", "small.yaml"]


def test_a_faulty_config_fails_as_in_a_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_dataset(tmp_path, 20, lenght={"packing": "concat"})
    assert main(["explain", str(config), "--store", str(tmp_path / "store")]) == 2
    assert "did you mean length?" in capsys.readouterr().err
    config = write_dataset(tmp_path, 20, dataset={"name": "smal.jsonl"})
    assert main(["explain", str(config), "--store", str(tmp_path / "store")]) == 2
    assert "did you mean small.jsonl?" in capsys.readouterr().err
