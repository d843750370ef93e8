"""`keep: sequences`: builds still hit dropped outputs, and recompute them to the same bytes if they are needed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from support.builds import SMALL, digests
from support.dagster_project import Project, new_project, runnable
from support.datasets_on_disk import STAGES, TOKENIZER, write_dataset
from support.soak import some
from support.stage_checks import run_alone
from support.store_files import INTERMEDIATE, chunks, latest, object_path, stems
from support.terminal import run_here
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.report import StageReport
from tokenloom.config import PipelineConfig
from tokenloom.errors import StoreError
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.gc import collect
from tokenloom.resources.store.verify import verify


def build(config: Path, store: Path, limit: int | None = None) -> dict[str, StageReport]:
    parsed = PipelineConfig.from_file(config)
    made = Build(parsed, ArtifactStore(store), ComputeEngine(2), limit, SMALL)
    return {report.name: report for report in made.run_all()}


def drop(store: Path, keep: int = 3) -> None:
    collect(ArtifactStore(store), keep, timedelta(0), delete=True)


def outputs(store: Path, name: str = "small") -> dict[str, list[str]]:
    return {stage: [chunk["output"] for chunk in chunks(store, found)] for stage, found in latest(store, name).items()}


def made(reports: dict[str, StageReport]) -> dict[str, int]:
    return {name: report.chunks - report.chunks_reused for name, report in reports.items()}


def change(config: Path, **sections: Any) -> None:
    settings = yaml.safe_load(config.read_text())
    for name, section in sections.items():
        settings[name] = {**settings.get(name, {}), **section} if isinstance(section, dict) else section
    config.write_text(yaml.safe_dump(settings))


def append(config: Path) -> None:
    with config.with_suffix(".jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"instruction": "one more", "input": "", "output": "row"}) + "\n")


def write_conversations(config: Path) -> None:
    """Replace the rows by conversations, some longer than `max_length`, with a chat template."""
    rows = [json.loads(line) for line in config.with_suffix(".jsonl").read_text().splitlines()]
    speakers = (("user", "instruction"), ("assistant", "output"))
    turns = [[{"role": role, "content": row[name]} for role, name in speakers * 3] for row in rows]
    config.with_suffix(".jsonl").write_text("".join(json.dumps({"messages": found}) + "\n" for found in turns))
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|endoftext|>\n{% endfor %}"
    change(config, tokenizer={"chat_template": template, "max_length": 128})
    settings = yaml.safe_load(config.read_text()) | {"prompt_template": {"format_type": "chat"}}
    config.write_text(yaml.safe_dump(settings))


def test_gc_drops_only_intermediate_outputs_and_a_build_still_hits(tmp_path: Path) -> None:
    config, store = write_dataset(tmp_path, 400, keep="sequences"), tmp_path / "store"
    cold = build(config, store)
    before, actions = outputs(store), stems(store, "actions")
    drop(store)
    left = stems(store, "objects")
    for stage, digests_of in before.items():
        assert {digest in left for digest in digests_of} == {stage not in INTERMEDIATE}, stage
    assert left >= set(latest(store, "small").values())
    assert stems(store, "actions") == actions
    warm = build(config, store)
    assert (digests(warm), set(made(warm).values())) == (digests(cold), {0})
    assert stems(store, "objects") == left
    found = verify(ArtifactStore(store))
    assert (found.findings, found.dropped) == ([], len({digest for stage in INTERMEDIATE for digest in before[stage]}))


CHANGES: dict[str, dict[str, Any]] = {
    "packing": {"length": {"packing": "concat"}},
    "drop_turns": {"length": {"strategy": "drop_turns"}},
    "control": {"tokenizer": {"control_tokens_in_content": "keep"}},
    "vocabulary": {"tokenizer": {"train": {"vocab_size": 400, "min_frequency": 2}}},
    "template": {"prompt_template": {"template": "{instruction}\n{input}\n{output}\n"}},
    "mapping": {"prompt_template": {"template": "{instruction}\n{output}\n"}},
    "filter": {"dataset": {"filters": ["len(output) > 20"]}},
    "rows": {},
}


@pytest.mark.parametrize(
    ("changed", "limit"),
    some([*((name, None) for name in CHANGES), ("template", 250), ("drop_turns", 250), ("rows", 250)], 2),
)
def test_a_change_after_dropping_gives_the_same_as_without(tmp_path: Path, changed: str, limit: int | None) -> None:
    dataset = {"name": "small.jsonl", "val_split": 0.2}
    config, store, whole = write_dataset(tmp_path, 400, dataset=dataset), tmp_path / "store", tmp_path / "whole"
    if changed == "drop_turns":
        write_conversations(config)
    build(config, whole, limit)
    change(config, keep="sequences")
    build(config, store, limit)
    drop(store)
    change(config, **CHANGES[changed])
    if changed == "rows":
        append(config)
    again = build(config, store, limit)
    change(config, keep="all")
    undropped = build(config, whole, limit)
    assert made(again) == made(undropped)
    assert digests(again) == digests(undropped) == digests(build(config, tmp_path / "cold", limit))
    assert verify(ArtifactStore(store)).findings == []


def test_only_the_chunks_upstream_of_a_lost_one_are_recomputed(tmp_path: Path) -> None:
    config, store = write_dataset(tmp_path, 600, keep="sequences"), tmp_path / "store"
    cold = build(config, store)
    before = outputs(store)
    drop(store)
    object_path(store, before["sequences"][1]).unlink()
    left = stems(store, "objects")
    healed = build(config, store)
    assert digests(healed) == digests(cold)
    assert made(healed) == {stage: int(stage == "sequences") for stage in STAGES}
    assert stems(store, "objects") - left == {before[stage][1] for stage in (*INTERMEDIATE, "sequences")}


def test_lost_rejects_are_recomputed(tmp_path: Path) -> None:
    config, store = write_dataset(tmp_path, 300, keep="sequences"), tmp_path / "store"
    lines = config.with_suffix(".jsonl").read_text().splitlines()
    lines[20] = json.dumps({"instruction": "say nothing", "input": "", "output": " "})
    config.with_suffix(".jsonl").write_text("\n".join(lines) + "\n")
    cold = build(config, store)
    drop(store)
    (rejects,) = [chunk["rejects"] for chunk in chunks(store, latest(store, "small")["columns"]) if chunk["rejects"]]
    object_path(store, rejects).unlink()
    healed = build(config, store)
    assert (digests(healed), made(healed)["columns"]) == (digests(cold), 1)
    assert object_path(store, rejects).exists()


def test_keep_all_recomputes_dropped_outputs(tmp_path: Path) -> None:
    config, store = write_dataset(tmp_path, 300, keep="sequences"), tmp_path / "store"
    cold = build(config, store)
    drop(store)
    change(config, keep="all")
    again = build(config, store)
    assert digests(again) == digests(cold)
    assert {stage for stage, count in made(again).items() if count} == set(INTERMEDIATE)
    drop(store)
    found = verify(ArtifactStore(store))
    assert (found.findings, found.dropped) == ([], 0)


def test_outputs_that_another_dataset_keeps_are_not_dropped(tmp_path: Path) -> None:
    store = tmp_path / "store"
    build(write_dataset(tmp_path / "a", 300, "a", keep="sequences"), store)
    build(write_dataset(tmp_path / "b", 300, "b"), store)
    drop(store)
    assert set().union(*outputs(store, "b").values()) <= stems(store, "objects")
    assert verify(ArtifactStore(store)).findings == []


def test_an_output_that_differs_now_is_reported_and_rebuilt(tmp_path: Path) -> None:
    config, store = write_dataset(tmp_path, 300, keep="sequences"), tmp_path / "store"
    cold = build(config, store)
    drop(store)
    opened = ArtifactStore(store)
    key = chunks(store, latest(store, "small")["raw"])[0]["key"]
    action = opened.actions.get(key)
    assert action is not None
    opened.actions.put(key, replace(action, output="0" * 64))
    (store / "datasets" / "small" / "raw.json").unlink()  # else the manifest states the action
    with pytest.raises(
        StoreError, match=r"raw: .*small\.jsonl:1, and recomputing it now gives other bytes; .* build again"
    ):
        build(config, store)
    assert digests(build(config, store)) == digests(cold)


@pytest.mark.parametrize("changed", ["source", "settings"])
def test_a_single_stage_reports_what_it_cannot_reproduce(tmp_path: Path, changed: str) -> None:
    config, store = write_dataset(tmp_path, 300, keep="sequences"), tmp_path / "store"
    build(config, store)
    drop(store)
    change(config, tokenizer={"control_tokens_in_content": "keep"})
    if changed == "source":
        write_dataset(tmp_path / "other", 300, seed=5)
        (tmp_path / "other" / "small.jsonl").rename(tmp_path / "small.jsonl")
        message = r"raw: gc dropped .*small\.jsonl:1, .* its source .* changed; build the dataset from raw on"
    else:
        change(config, prompt_template={"add_eos": False})
        message = r"prompts: gc dropped .*prompt_template\.add_eos: .*; build the dataset from prompts on"
    alone = Build(PipelineConfig.from_file(config), ArtifactStore(store), ComputeEngine(2), chunk_size=SMALL)
    with pytest.raises(StoreError, match=message):
        alone.run("tokens")
    assert digests(build(config, store)) == digests(build(config, tmp_path / "cold"))


@pytest.mark.parametrize("longest", [256, 50])
def test_rows_are_shown_and_sources_inspected_after_dropping(tmp_path: Path, longest: int) -> None:
    tokenizer = {**TOKENIZER, "max_length": longest}
    write_dataset(
        tmp_path, 50, keep="sequences", dataset={"name": "small.jsonl", "val_split": 0.3}, tokenizer=tokenizer
    )
    wanted = ["preview", "small.yaml", "--row", 0, 20, 49]
    assert run_here("build", "small.yaml", folder=tmp_path).returncode == 0
    first = run_here(*wanted, folder=tmp_path)
    assert (first.returncode, "dropped here" in first.stdout) == (0, longest < 256)
    drop(tmp_path / "store")
    assert run_here(*wanted, folder=tmp_path).stdout == first.stdout
    assert run_here(*wanted, "--inference", folder=tmp_path).returncode == 0
    left = stems(tmp_path / "store", "objects")
    printed = run_here("inspect", "small.yaml", "--json", folder=tmp_path)
    assert (printed.returncode, sum(json.loads(printed.stdout)["splits"].values())) == (0, 50)
    drop(tmp_path / "store")
    assert len(stems(tmp_path / "store", "objects") - left) == 2  # the manifests of small@inspect


def materialize(project: Project, *stages: str) -> dg.ExecuteInProcessResult:
    selection = dg.AssetSelection.assets(*(["toy", stage] for stage in stages))
    job = dg.define_asset_job("some", selection=selection, executor_def=dg.in_process_executor)
    config = PipelineConfig.from_file(project.pipelines / "toy.yaml")
    definitions = dg.Definitions.merge(runnable(config, project.root), dg.Definitions(jobs=[job]))
    with dg.DagsterInstance.ephemeral() as instance:
        return definitions.resolve_job_def("some").execute_in_process(instance=instance, raise_on_error=False)


def test_dagster_runs_checks_and_single_stages_after_dropping(tmp_path: Path) -> None:
    project = new_project(tmp_path)
    project.write(keep="sequences")
    assert materialize(project, *STAGES).success
    drop(project.root)
    again = materialize(project, *STAGES)
    assert again.success
    assert all(check.passed for check in again.get_asset_check_evaluations())
    for stage in STAGES:
        alone = run_alone(project.pipelines / "toy.yaml", project.root, stage, "contract")
        assert alone.passed
        # The sample of an asset shows the first chunk, which is computed again.
        assert ("gc dropped 1 of 2 chunks" in alone.description) == (stage in INTERMEDIATE), stage
    drop(project.root)
    project.write(keep="sequences", length={"packing": "concat"})
    assert materialize(project, "sequences").success
    cold = [report.digest for report in Build(project.config, ArtifactStore(tmp_path / "cold")).run_all()]
    assert project.store.manifest("toy").digest == cold[-1]
