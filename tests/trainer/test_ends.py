"""How a run ends: its exit status, what it leaves, and what a resumed run makes of that, for each way to end."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from support.processes import DEADLINE, Ended, run
from support.soak import machine
from support.tiny_training import TINY, built, tiny_model, trainer_on
from support.training_runs import losses
from tokenloom.cli import main
from tokenloom.config import TrainingConfig
from tokenloom.config.dataset import load_config
from tokenloom.errors import ConfigError, LoaderStateError
from tokenloom.loaders import TokenDataset, TokenLoader, open_dataset
from tokenloom.loaders.trainer import TokenLoaderMixin
from tokenloom.trainer import TokenTrainer, train
from tokenloom.trainer.endings import only_run_in
from tokenloom.trainer.log import read_log

pytestmark = machine("trainer")

MODEL = {**TINY, "num_hidden_layers": 1}
SETTINGS: dict[str, Any] = {"model": MODEL, "batch_size": 4, "steps": 8, "save_steps": 3, "logging_steps": 2}
SETTINGS |= {"eval_steps": 4, "eval_samples": 1, "learning_rate": 0.01, "spike_threshold": 0}
ENDS = {  # place, number, how, status, checkpoints
    "sigterm in a step": ("step", 5, "SIGTERM", 1, {3, 5}),
    "sigterm in the first step": ("step", 1, "SIGTERM", 1, {1}),
    "sigterm in an evaluation": ("evaluation", 5, "SIGTERM", 1, {3, 4}),
    "sigterm in the first evaluation": ("evaluation", 2, "SIGTERM", 1, set[int]()),
    "sigterm in the last evaluation": ("evaluation", 8, "SIGTERM", 1, {3, 6, 8}),
    "sigterm in a save": ("save", 3, "SIGTERM", 1, {3}),
    "sigint in a step": ("step", 5, "SIGINT", 130, {3}),
    "sigkill in a step": ("step", 5, "SIGKILL", -9, {3}),
    "sigkill in a save": ("save", 6, "SIGKILL", -9, {3}),
    "sigkill before the model": ("model", 0, "SIGKILL", -9, {3, 6, 8}),
    "sigterm before the model": ("model", 0, "SIGTERM", 1, {3, 6, 8}),
    "a full disk in a save": ("step", 5, "full", 1, {3}),
    "a full disk before the model": ("model", 0, "full", 0, {3, 6, 8}),
    "a failed evaluation": ("evaluation", 5, "error", 1, {3}),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    """A folder with `ragged.yaml`, its store, and the run `whole`."""
    folder = tmp_path_factory.mktemp("ends")
    dataset = {"name": "ragged.jsonl", "val_split": 0.3}
    training = {**SETTINGS, "output_dir": str(folder / "whole")}
    config = built(folder, "ragged", tokenizer_folder, rows=60, keep="all", dataset=dataset, training=training)
    assert main(["train", str(config), "--store", str(folder / "store")]) == 0
    return folder


def declared(folder: Path, run: Path, **training: Any) -> Path:
    """Write a YAML of the dataset with other settings."""
    settings = yaml.safe_load((folder / "ragged.yaml").read_text())
    settings |= {"name": "ragged", "training": SETTINGS | {"output_dir": str(run)} | training}
    path = folder / f"{run.name}.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def stopped(place: str, number: int, how: str, *arguments: object, ranks: int = 1) -> Ended:
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"] if ranks > 1 else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *torchrun, "support.stopped_training", place, number, how, *arguments]
    return run(command, seconds=ranks * DEADLINE, env=environment)


def checkpoints(run: Path) -> set[int]:
    return {int(path.name.removeprefix("checkpoint-")) for path in run.glob("checkpoint-*")}


def log_of(run: Path) -> list[dict[str, Any]]:
    """Return the lines of the log and the samples that do not depend on the clock."""
    lines = [*read_log(run / "log.jsonl"), *read_log(run / "samples.jsonl")]
    return [line for line in lines if "tokens_per_second" not in line]


def assert_ended_as(run: Path, whole: Path) -> None:
    assert log_of(run) == log_of(whole)
    weights = [folder / "model" / "model.safetensors" for folder in (run, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    states = [json.loads((folder / "checkpoint-8" / "trainer_state.json").read_text()) for folder in (run, whole)]
    names = ("best_metric", "best_global_step", "global_step", "max_steps", "stateful_callbacks")
    assert [states[0][name] for name in names] == [states[1][name] for name in names]
    assert not [*run.glob(".*.partial")]


@pytest.mark.parametrize("end", ENDS)
def test_each_end_has_its_status_and_is_resumed(
    undisturbed: Path, tmp_path: Path, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place, number, how, status, saved = ENDS[end]
    run = tmp_path / "run"
    arguments = ["train", declared(undisturbed, run), "--store", undisturbed / "store"]
    ended = stopped(place, number, how, *arguments, "--resume")  # which builds nothing, and says less
    said = ended.stderr.strip()
    assert (ended.returncode, checkpoints(run)) == (status, saved), ended
    assert (run / "model").is_dir() == (status == 0)
    if how != "error":
        assert "Traceback" not in said and said.count("\n") == 0, said
    if how in ("SIGTERM", "SIGINT"):
        assert "--resume" in said and (how == "SIGINT" or "SIGTERM" in said), said
    if how == "full" and status:
        assert f"{run / 'checkpoint-6'} cannot be written: File too large (os error 27)" in said
    assert main([*map(str, arguments), "--resume"]) == 0
    assert_ended_as(run, undisturbed / "whole")
    capsys.readouterr()


@pytest.mark.parametrize("changed", [{"eval_steps": 10**6}, {"eval_steps": 1}])
def test_two_ranks_stop_at_the_same_step(undisturbed: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    run = tmp_path / "run"
    settings = {"steps": 10**6, "save_steps": 10**6, "eval_samples": 0, "spike_threshold": 0, **changed}
    arguments = ["train", declared(undisturbed, run, **settings), "--store", undisturbed / "store"]
    ended = stopped("step", 3, "SIGTERM", *arguments, ranks=2)
    (step,) = checkpoints(run)
    assert ended.returncode == 1 and f"stopped by SIGTERM after step {step}, which is saved" in ended.stderr
    assert len(losses(run / "log.jsonl")) == step and not (run / "model").exists()
    assert {*(run / f"checkpoint-{step}").glob("random-?.json")} == {
        run / f"checkpoint-{step}" / f"random-{rank}.json" for rank in (0, 1)
    }


def test_all_steps(undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, store = tmp_path / "run", str(undisturbed / "store")
    shutil.copytree(undisturbed / "whole", run)
    arguments = ["train", str(declared(undisturbed, run)), "--store", store, "--resume"]
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")}
    assert main(arguments) == 0  # it is finished, and stays as it is
    assert "the run is finished: step 8" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")} == before
    for setting, value in (("learning_rate", 0.02), ("batch_size", 2), ("z_loss", 0.001), ("scheduler", "cosine")):
        declared(undisturbed, run, **{setting: value})
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert f"training.{setting}: {value} here, but the run finished at step 8 with" in said
    declared(undisturbed, run, steps=6)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "training.steps: 6 end at step 6" in said and "checkpoint-8 is at step 8" in said
    declared(undisturbed, run, steps=10)
    assert main(arguments) == 0
    assert 10 in checkpoints(run) and AutoModelForCausalLM.from_pretrained(run / "model")
    assert (run / "model" / "model.safetensors").read_bytes() == (
        run / "checkpoint-10" / "model.safetensors"
    ).read_bytes()


def test_a_model_of_an_earlier_end_is_replaced(undisturbed: Path, tmp_path: Path) -> None:
    run, store = tmp_path / "run", str(undisturbed / "store")
    shutil.copytree(undisturbed / "whole", run)
    train(load_config(declared(undisturbed, run, steps=10)), store, resume=True)
    last = (run / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(run / "model")
    shutil.copytree(undisturbed / "whole" / "model", run / "model")  # as if it had ended before the model
    train(load_config(declared(undisturbed, run, steps=10)), store, resume=True)
    assert (run / "model" / "model.safetensors").read_bytes() == last


def test_settings_of_a_run_take_effect_or_are_refused(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, faults = str(undisturbed / "store"), list[str]()
    run = tmp_path / "run"
    shutil.copytree(undisturbed / "whole", run)
    for name in ("model", "checkpoint-8", "checkpoint-6"):
        shutil.rmtree(run / name)
    arguments = ["train", str(run.parent / "none"), "--store", store, "--resume"]
    kept = {
        "model.hidden_size": {"model": {**MODEL, "hidden_size": 32}},
        "optimizer": {"optimizer": "lion"},
        "optimizer_args.betas": {"optimizer_args": {"betas": [0.9, 0.95]}},
        "random_seed": {"random_seed": 1},
        "lora": {"lora": {"r": 2}},
        "token_budget": {"batch_size": None, "token_budget": 96},
    }
    for name, changed in kept.items():
        arguments[1] = str(declared(undisturbed, run, **changed))
        if main(arguments) != 2 or f"training.{name}: " not in (said := capsys.readouterr().err) or "\n" in said[:-1]:
            faults.append(name)
    config = load_config(declared(undisturbed, run))
    for name, value in (("seed", 5), ("shuffle", "none"), ("drop_last", True)):
        loading = config.dataloader.model_copy(update={name: value})
        with pytest.raises(LoaderStateError, match=rf"{name} is .* in the state"):
            train(config.model_copy(update={"dataloader": loading}), store, resume=True)
    assert not faults, faults

    class Groups(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
            found.append([(group["lr"], group["weight_decay"]) for group in optimizer.param_groups])

    found = list[Any]()
    changed = {"learning_rate": 0.04, "weight_decay": 0.5, "scheduler": "cosine", "save_steps": 2, "logging_steps": 5}
    config = load_config(declared(undisturbed, run, **changed, loss="fused_linear_cross_entropy", eval_steps=3))
    train(config, store, resume=True, callbacks=[Groups()])
    rates = [0.04 * 0.5 * (1 + math.cos(math.pi * step / 8)) for step in range(3, 8)]
    assert [groups[0][0] for groups in found] == pytest.approx(rates)
    assert {decay for groups in found for _, decay in groups} == {0.0, 0.5}
    log = read_log(run / "log.jsonl")
    assert [line["learning_rate"] for line in losses(run / "log.jsonl")][3:] == pytest.approx(rates)
    assert [line["step"] for line in log if "eval_loss" in line] == [0, 6, 8] and checkpoints(run) == {3, 4, 6, 8}
    assert 5 in [line["step"] for line in log if "tokens_per_second" in line]


@pytest.mark.parametrize("patience", [1, 2])
def test_early_stopping(undisturbed: Path, tmp_path: Path, patience: int, capsys: pytest.CaptureFixture[str]) -> None:
    run, store = tmp_path / "run", str(undisturbed / "store")
    changed = {"early_stopping_patience": patience, "eval_steps": 1, "save_steps": 100, "save_total_limit": 1}
    # each step moves away from the best weights, which are those before the first
    config = declared(undisturbed, run, **changed, learning_rate=10.0, max_grad_norm=0, steps=20)
    arguments = ["train", str(config), "--store", store]
    assert main(arguments) == 0
    evaluated = [line["eval_loss"] for line in read_log(run / "log.jsonl") if "eval_loss" in line]
    worse = 0
    for number, loss in enumerate(evaluated):
        worse = 0 if number == 0 or loss < min(evaluated[:number]) else worse + 1
        assert (worse >= patience) == (number == len(evaluated) - 1)
    step = len(evaluated) - 1
    assert checkpoints(run) == {step} and (run / "model").is_dir()
    capsys.readouterr()
    assert main([*arguments, "--resume"]) == 0
    assert f"the run is finished: step {step}" in capsys.readouterr().out
    shutil.rmtree(run / "model")
    assert main([*arguments, "--resume"]) == 0
    assert checkpoints(run) == {step} and (run / "model").is_dir()
    assert len(losses(run / "log.jsonl")) == step


def test_no_batch(undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(declared(undisturbed, tmp_path / "run", batch_size=64))
    loading = config.dataloader.model_copy(update={"drop_last": True})
    with pytest.raises(ConfigError, match=r"an epoch has no batch, since \d+ rows are fewer than a global batch of 64"):
        train(config.model_copy(update={"dataloader": loading}), str(undisturbed / "store"))
    assert not (tmp_path / "run" / "model").exists()
    for split, budget in (("train", 8), ("validation", 8)):
        arguments = {"batch_size": None, "token_budget": budget}
        config = declared(undisturbed, tmp_path / "small", **arguments)
        assert main(["train", str(config), "--store", str(undisturbed / "store"), "--resume"]) == 2, split
        said = capsys.readouterr().err
        assert "token_budget: a row of" in said and said.count("\n") == 1


def test_a_second_run_in_the_folder(undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    arguments = ["train", str(declared(undisturbed, run)), "--store", str(undisturbed / "store")]
    with only_run_in(run):
        assert main(arguments) == 2
        assert f"another run trains in {run}" in capsys.readouterr().err
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(DEADLINE,))
        worker.start()  # as the worker processes of a loader, which can outlive the run for a while
    try:
        assert main(arguments) == 0
    finally:
        worker.kill()
        worker.join()


@pytest.fixture
def dataset(undisturbed: Path) -> TokenDataset:
    return open_dataset("ragged", store=undisturbed / "store")


class PlainTrainer(TokenLoaderMixin, Trainer):
    pass


def test_trainers_used_directly_refuse_an_epoch_without_a_batch(dataset: TokenDataset, tmp_path: Path) -> None:
    loader = TokenLoader(dataset, batch_size=64, drop_last=True)
    arguments = TrainingArguments(str(tmp_path), max_steps=2, report_to="none", use_cpu=True)
    with pytest.raises(ConfigError, match="an epoch has no batch"):
        PlainTrainer(tiny_model(dataset), arguments, train_loader=loader).train()
    with pytest.raises(ConfigError, match="an epoch has no batch"):
        TokenTrainer(tiny_model(dataset), TrainingConfig(steps=2), loader, output_dir=tmp_path)
    trainer = trainer_on(dataset, tmp_path)
    with pytest.raises(ConfigError, match="nothing to evaluate"):
        trainer.evaluate(loader)


def test_a_trainer_used_directly_resumes_with_other_batches(dataset: TokenDataset, tmp_path: Path) -> None:
    settings = {"steps": None, "epochs": 2, "save_steps": 5}
    one = trainer_on(dataset, tmp_path / "one", **settings)
    one.train()
    for step in (10, 15, 20, 25, 26):
        shutil.rmtree(tmp_path / "one" / f"checkpoint-{step}")
    model = tiny_model(dataset, seed=3)
    other = trainer_on(dataset, tmp_path / "one", model, batch_size=8, **settings)
    other.train(resume_from_checkpoint=str(tmp_path / "one" / "checkpoint-5"))
    rows = len(dataset)
    left = -(-(rows - 20) // 8) + -(-rows // 8)
    assert other.state.global_step == 5 + left
    assert other.train_loader.place.epoch in (1, 2) and other.train_loader.place.position in (0, rows)
    again = trainer_on(dataset, tmp_path / "one", tiny_model(dataset, seed=4), batch_size=8, **settings)
    again.train(resume_from_checkpoint=True)  # it is finished: only its weights are loaded
    assert again.state.global_step == other.state.global_step
    states = [trainer.model.state_dict() for trainer in (again, other)]  # pyright: ignore[reportOptionalMemberAccess]
    assert all((value == states[1][name]).all() for name, value in states[0].items())
