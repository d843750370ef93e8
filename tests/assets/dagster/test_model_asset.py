"""The asset `<name>/model`: trained once for the same data and settings, finished if a run ended early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from transformers import AutoModelForCausalLM

from support.dagster_project import SECTIONS, Project, new_project
from support.datasets_on_disk import STAGES
from support.soak import machine, smoke
from support.tiny_training import TINY
from tokenloom.assets.dagster.names import asset_key
from tokenloom.dagster import StoreResource
from tokenloom.definitions import load_definitions
from tokenloom.trainer import train
from tokenloom.trainer.log import read_log

pytestmark = machine("trainer")

TRAINING: dict[str, Any] = {"model": TINY, "batch_size": 4, "steps": 8, "eval_steps": 4, "save_steps": 2}


class Trained:
    """A project with a dataset `toy` that is trained on, and an instance of Dagster."""

    def __init__(self, project: Project, instance: dg.DagsterInstance):
        self.project, self.instance = project, instance
        self.runs = project.folder / "runs"
        self.write()

    def write(self, **training: Any) -> None:
        settings = {**TRAINING, "output_dir": str(self.runs), **training}
        self.project.write(training=settings, dataset={"name": "rows", "val_split": 0.2})

    def run(self, name: str = "toy") -> dg.AssetMaterialization:
        """Materialize everything, and return the materialization of the model."""
        loaded = load_definitions(self.project.pipelines)
        resources = {"store": StoreResource(root=str(self.project.root))}
        definitions = dg.Definitions(assets=loaded.assets, asset_checks=loaded.asset_checks, resources=resources)
        wanted = [*definitions.resolve_asset_graph().materializable_asset_keys]
        job = definitions.resolve_implicit_global_asset_job_def()
        result = job.execute_in_process(instance=self.instance, asset_selection=wanted)
        (found,) = (
            event.step_materialization_data.materialization
            for event in result.get_asset_materialization_events()
            if event.asset_key == asset_key(name, "model")
        )
        return found

    def version(self, name: str = "toy") -> str:
        (event,) = self.instance.fetch_materializations(asset_key(name, "model"), limit=1).records
        assert event.asset_materialization is not None and event.asset_materialization.tags is not None
        return event.asset_materialization.tags["dagster/data_version"]


@pytest.fixture
def trained(tmp_path: Path) -> Any:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Trained(new_project(tmp_path), instance)


def test_a_model_is_trained_once_for_the_same_data_and_settings(trained: Trained) -> None:
    metadata = trained.run().metadata
    (folder,) = trained.runs.iterdir()
    weights = folder / "model" / "model.safetensors"
    before, version, log = weights.stat(), trained.version(), read_log(folder / "log.jsonl")
    assert AutoModelForCausalLM.from_pretrained(folder / "model").config.hidden_size == TINY["hidden_size"]
    steps = [line["loss"] for line in log if "loss" in line]
    assert len(steps) == 8 and metadata["training_loss"].value == steps[-1] and metadata["steps"].value == 8
    evaluated = [line for line in log if "eval_loss" in line]
    assert [line["step"] for line in evaluated] == [0, 4, 8]
    assert metadata["validation_loss"].value == evaluated[-1]["eval_loss"]
    assert metadata["validation_perplexity"].value == evaluated[-1]["eval_perplexity"]
    assert "data:image/png;base64," in str(metadata["curve"].value)
    (answer, *_) = metadata["answers"].records  # pyright: ignore[reportAttributeAccessIssue]
    assert answer.data.keys() == {"prompt", "expected", "before, step 0", "after, step 8"}
    assert metadata["model"].value == str(folder / "model")

    again = trained.run()
    assert (trained.version(), list(trained.runs.iterdir())) == (version, [folder])
    assert weights.stat() == before and read_log(folder / "log.jsonl") == log
    assert again.metadata["training_loss"] == metadata["training_loss"]
    trained.write(logging_steps=3, save_total_limit=1)  # neither changes the weights
    trained.run()
    assert trained.version() == version

    trained.write(learning_rate=0.001)
    trained.run()
    assert trained.version() != version and len(list(trained.runs.iterdir())) == 2
    rows = trained.project.pipelines / "rows"
    with (rows / "a.jsonl").open("a") as file:
        file.write(json.dumps({"instruction": "one more", "input": "", "output": "row"}) + "\n")
    changed = trained.version()
    trained.run()
    assert trained.version() != changed and len(list(trained.runs.iterdir())) == 3


def test_a_run_that_ended_early_goes_on(trained: Trained) -> None:
    trained.run()
    (folder,) = trained.runs.iterdir()
    version, log = trained.version(), read_log(folder / "log.jsonl")
    weights = (folder / "model" / "model.safetensors").read_bytes()
    for path in ("model", "checkpoint-8", "checkpoint-6"):
        for file in (folder / path).iterdir():
            file.unlink()
        (folder / path).rmdir()
    times = (folder / "checkpoint-4" / "model.safetensors").stat()
    trained.run()
    assert trained.version() == version and (folder / "model" / "model.safetensors").read_bytes() == weights
    assert (folder / "checkpoint-4" / "model.safetensors").stat() == times
    lines = [[line for line in each if "loss" in line] for each in (log, read_log(folder / "log.jsonl"))]
    assert lines[0] == lines[1]


def test_no_batch_is_a_failure(trained: Trained) -> None:
    settings = {**TRAINING, "output_dir": str(trained.runs), "batch_size": 1000}
    dataset = {"name": "rows", "val_split": 0.2}
    trained.project.write(training=settings, dataset=dataset, dataloader={"drop_last": True})
    with pytest.raises(dg.Failure, match="an epoch has no batch"):
        trained.run()
    assert not [*trained.runs.glob("*/model")]


def test_a_mixture_has_a_model(trained: Trained) -> None:
    trained.project.write(dataset={"name": "rows", "val_split": 0.2})
    mixed = {"mixture": [{"dataset": "toy"}], "training": {**TRAINING, "output_dir": str(trained.runs)}}
    (trained.project.pipelines / "mix.yaml").write_text(yaml.safe_dump(mixed), encoding="utf-8")
    trained.run("mix")
    graph = load_definitions(trained.project.pipelines).resolve_asset_graph()
    assert graph.get(asset_key("mix", "model")).parent_keys == {asset_key("mix", "mixture")}
    assert not graph.has(asset_key("toy", "model"))


def test_nothing_but_a_person_starts_a_training(trained: Trained) -> None:
    sections = {"dataset": {"name": "rows", "val_split": 0.2}, "schedule": "0 3 * * *", "training": TRAINING}
    trained.project.write(**{**SECTIONS, **sections})
    definitions = load_definitions(trained.project.pipelines)
    node = definitions.resolve_asset_graph().get(asset_key("toy", "model"))
    assert node.automation_condition is None and node.parent_keys == {asset_key("toy", "sequences")}
    with dg.build_schedule_context() as context:
        (schedule,) = [*(definitions.schedules or ())]
        (request,) = [*(schedule.evaluate_tick(context).run_requests or ())]  # pyright: ignore[reportAttributeAccessIssue]
    assert {key.path[-1] for key in request.asset_selection or ()} == {*STAGES}


def test_a_missing_extra_is_named(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tokenloom.trainer.run", None)
    with pytest.raises(dg.Failure, match="pip install"):
        trained.run()


@smoke
def test_train_and_the_asset_make_the_same_model(trained: Trained, tmp_path: Path) -> None:
    trained.run()
    (folder,) = trained.runs.iterdir()
    config = trained.project.config
    assert config.training is not None
    settings = config.training.model_copy(update={"output_dir": str(tmp_path / "alone")})
    train(config.model_copy(update={"training": settings}), str(trained.project.root))
    models = [path / "model" / "model.safetensors" for path in (folder, tmp_path / "alone")]
    assert models[0].read_bytes() == models[1].read_bytes()
