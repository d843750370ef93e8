"""Public reports of runs that resume, save or evaluate wrongly: each is rebuilt with `tokenloom.trainer.train`.

A run that was killed after a checkpoint is one without the later checkpoints and without `model`. The docstring of each
test names its source, what went wrong there, and what must hold here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, TrainerCallback

from support.soak import machine
from support.tiny_training import TINY, built, summed_loss
from tokenloom.config.dataset import load_config
from tokenloom.loaders import TokenLoader, open_dataset
from tokenloom.trainer import CheckpointManager, train
from tokenloom.trainer.checkpoints import last_checkpoint, new_folder, partial_of
from tokenloom.trainer.log import read_log

pytestmark = machine("trainer")

DROPPING = {**TINY, "attention_dropout": 0.2}
STEPS = 12
"""Of three epochs of 8 batches, two of which make a step."""

Declare = Callable[..., Path]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    """A store with the dataset `ragged`: about 30 rows, and a validation split."""
    folder = tmp_path_factory.mktemp("runs")
    built(folder, "ragged", tokenizer_folder, rows=40, dataset={"name": "ragged.jsonl", "val_split": 0.3})
    assert 28 < len(open_dataset("ragged", store=folder / "store")) < 33
    return folder / "store"


def started(store: Path, folder: Path, resume: bool = False, callbacks: Any = (), **training: Any) -> Any:
    """Train on the dataset in a run folder."""
    settings = yaml.safe_load((store.parent / "ragged.yaml").read_text())
    settings["dataset"]["name"] = str(store.parent / "ragged.jsonl")
    loader = training.pop("dataloader", {"seed": 3})
    defaults = {"model": TINY, "batch_size": 4, "learning_rate": 0.01, "logging_steps": 3, "spike_threshold": 0}
    training = {**defaults, "output_dir": str(folder), **training}
    path = folder.parent / "ragged.yaml"
    path.write_text(yaml.safe_dump({**settings, "dataloader": loader, "training": training}, sort_keys=False))
    return train(load_config(path), str(store), resume=resume, callbacks=callbacks)


def kill_after(folder: Path, step: int) -> None:
    """Leave of a run what it had right after a checkpoint."""
    shutil.rmtree(folder / "model", ignore_errors=True)
    for path in folder.glob("checkpoint-*"):
        if int(path.name.split("-")[1]) > step:
            shutil.rmtree(path)
    assert (folder / f"checkpoint-{step}").is_dir()


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_log(folder / "log.jsonl") if "loss" in line]


def evaluations(folder: Path) -> dict[int, float]:
    return {line["step"]: line["eval_loss"] for line in read_log(folder / "log.jsonl") if "eval_loss" in line}


EPOCHS: dict[str, Any] = {"model": DROPPING, "epochs": 3, "gradient_accumulation_steps": 2, "warmup": 4}
SAVED: dict[str, Any] = {**EPOCHS, "save_steps": 1, "eval_steps": 5, "eval_samples": 1}


@pytest.fixture(scope="module")
def logs(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The log of a run, and that of the same run after it was killed and resumed again and again: within the first
    epoch, at its end, and within the later ones.
    """
    folder = tmp_path_factory.mktemp("resumed") / "run"
    started(store, folder, **SAVED)
    found = {"whole": read_log(folder / "log.jsonl")}
    for step in (3, 4, 6, 7, 11):
        kill_after(folder, step)
        started(store, folder, resume=True, **SAVED)
    return {**found, "resumed": read_log(folder / "log.jsonl")}


def rates(lines: list[dict[str, Any]]) -> list[float]:
    return [line["learning_rate"] / 0.01 for line in lines if "loss" in line]


def linear(step: int) -> float:
    """The learning rate of a step, counted from 0, of the largest."""
    return step / 4 if step < 4 else (STEPS - step) / (STEPS - 4)


def test_the_schedule_counts_steps_not_batches(logs: dict[str, list[dict[str, Any]]]) -> None:
    """starVLA/starVLA#210: the schedule advances with every batch, so that with two batches per step, the learning rate
    is 0 after half of the steps.

    The learning rate of each optimizer step must be that of the formula.
    """
    assert rates(logs["whole"]) == pytest.approx([linear(step) for step in range(STEPS)])


def test_the_schedule_is_advanced_once_by_a_resume(logs: dict[str, list[dict[str, Any]]]) -> None:
    """THUDM/slime#1546: each resume advances the schedule twice by the steps that were done.

    The learning rate of each step must be that of the formula, after any number of resumes.
    """
    assert rates(logs["resumed"]) == pytest.approx([linear(step) for step in range(STEPS)])


def test_accumulated_batches_are_not_epochs(logs: dict[str, list[dict[str, Any]]]) -> None:
    """kohya-ss/sd-scripts#2425: a resume takes the steps that were done, times the accumulated batches, for the steps
    of epochs; it skips all epochs that are left, and ends without a step.

    A run that is resumed in any epoch must have all steps, and end with its last epoch.
    """
    found = [line for line in logs["resumed"] if "loss" in line]
    assert [line["step"] for line in found] == [*range(1, STEPS + 1)]
    whole = [line["epoch"] for line in logs["whole"] if "loss" in line]
    assert [line["epoch"] for line in found] == whole and whole[-1] == 3


def test_dropout_goes_on_at_the_end_of_an_epoch(logs: dict[str, list[dict[str, Any]]]) -> None:
    """huggingface/transformers#17032: the random state of a checkpoint at the end of an epoch is not restored, so that
    a resumed run drops out other activations.

    The losses must be those of the run that was not killed, bit for bit.
    """
    losses = [[line["loss"] for line in log if "loss" in line] for log in logs.values()]
    assert losses[0] == losses[1] and len(set(losses[0])) == STEPS


def test_a_resume_loses_no_line_of_the_log(logs: dict[str, list[dict[str, Any]]]) -> None:
    """awslabs/sockeye#859: the metrics file loses a line with each stop and resume, and the lines after it are those of
    another checkpoint.

    The log must have each step once, in order.
    """
    for log in logs.values():
        assert [line["step"] for line in log if "loss" in line] == [*range(1, STEPS + 1)]
    kept = [[line for line in log if "tokens_per_second" not in line] for log in logs.values()]
    assert kept[0] == kept[1]


def test_a_resumed_run_evaluates_and_reports_at_the_same_steps(logs: dict[str, list[dict[str, Any]]]) -> None:
    """NVIDIA-NeMo/Speech#12290: intervals count from the resume, so that a resumed run logs and validates at other
    steps than before.

    Evaluations and rates must be logged at the steps of the run that was not killed.
    """
    found = {
        key: [[line["step"] for line in log if key in line] for log in logs.values()]
        for key in ("eval_loss", "tokens_per_second")
    }
    assert found["eval_loss"] == [[0, 5, 10, STEPS]] * 2  # the last step is evaluated, too
    whole, resumed = found["tokens_per_second"]
    assert {3, 6, 9, 12} <= {*whole} and resumed == whole


def test_an_evaluation_is_not_repeated_by_a_resume(store: Path, tmp_path: Path) -> None:
    """axolotl-ai-cloud/axolotl#3305: if a checkpoint was saved at a step that is evaluated, the resumed run first
    evaluates that step again.

    The log of a resumed run must have each evaluation once, with the loss of the run that was not killed.
    """
    options: dict[str, Any] = {"steps": 6, "save_steps": 2, "eval_steps": 2, "eval_samples": 1}
    started(store, tmp_path / "run", **options)
    whole = evaluations(tmp_path / "run")
    for step in (2, 4):
        kill_after(tmp_path / "run", step)
        started(store, tmp_path / "run", resume=True, **options)
        lines = [line["step"] for line in read_log(tmp_path / "run" / "log.jsonl") if "eval_loss" in line]
        assert lines == [0, 2, 4, 6] and evaluations(tmp_path / "run") == whole


def test_other_intervals_take_effect_at_a_resume(store: Path, tmp_path: Path) -> None:
    """huggingface/alignment-handbook#195: `save_steps` is changed for a resume, and the job goes on to save at the
    steps of before.

    Intervals that are changed between a run and its resume must take effect.
    """
    folder = tmp_path / "run"
    started(store, folder, steps=9, save_steps=2, eval_steps=2, eval_samples=0, logging_steps=2)
    kill_after(folder, 2)
    started(store, folder, resume=True, steps=9, save_steps=3, eval_steps=4, eval_samples=0, logging_steps=5)
    assert checkpoints(folder) == [2, 3, 6, 9]
    assert [*evaluations(folder)] == [0, 2, 4, 8, 9]
    rated = [line["step"] for line in read_log(folder / "log.jsonl") if "tokens_per_second" in line]
    assert 5 in rated and 6 not in rated


PATIENCE = (
    "EarlyStoppingCallback is not given its saved counter: restore_callback_states_from_checkpoint (arguments.py)"
)


def test_patience_is_counted_over_a_resume(store: Path, tmp_path: Path) -> None:
    """huggingface/transformers#28544: early stopping counts from 0 after a resume, so that a run that is killed often
    enough never stops.

    A resumed run must stop where the run that was not killed stops.
    """
    folder = tmp_path / "run"
    options: dict[str, Any] = {
        "steps": 30,
        "learning_rate": 3.0,
        "eval_steps": 2,
        "eval_samples": 0,
        "early_stopping_patience": 3,
    }
    started(store, folder, save_steps=1, **options)
    end = steps_of(folder)[-1]["step"]
    assert end < 30
    for step in (end - 3, end - 1):  # after one evaluation without progress, and after two
        kill_after(folder, step)
        started(store, folder, resume=True, save_steps=1, **options)
        assert steps_of(folder)[-1]["step"] == end
        assert (folder / "model").is_dir()


class Backdated(TrainerCallback):
    """Gives each new checkpoint an earlier time than those before it, as file systems with other clocks do."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        os.utime(path, (10**9 - state.global_step,) * 2)


def test_checkpoints_are_as_old_as_their_steps(store: Path, tmp_path: Path) -> None:
    """huggingface/transformers#26961: the age of a checkpoint is taken from the file system's clock, which deletes the
    one that was just saved.

    The last checkpoints by step must be kept, and resumed from, whatever their times.
    """
    started(store, tmp_path / "run", steps=5, save_steps=1, save_total_limit=2, callbacks=[Backdated()])
    assert checkpoints(tmp_path / "run") == [4, 5]
    assert last_checkpoint(tmp_path / "run") == tmp_path / "run" / "checkpoint-5"


@pytest.fixture(scope="module")
def overfitted(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose learning rate, and with it the loss on the validation split, rises; two checkpoints are kept."""
    folder = tmp_path_factory.mktemp("overfitted") / "run"
    options: dict[str, Any] = {"steps": 30, "learning_rate": 6.0, "warmup": 60, "save_total_limit": 2}
    started(store, folder, save_steps=3, eval_steps=3, eval_samples=0, **options)
    return folder


def test_the_best_checkpoint_is_kept(overfitted: Path) -> None:
    """huggingface/transformers#15089: with `save_total_limit`, the checkpoint with the lowest loss is deleted.

    It must be kept, with the weights that had that loss.
    """
    losses = evaluations(overfitted)
    best = min((step for step in losses if step), key=lambda step: losses[step])
    assert 0 < best < 30
    assert best in checkpoints(overfitted)
    model = AutoModelForCausalLM.from_pretrained(overfitted / f"checkpoint-{best}")
    rows = open_dataset("ragged", "validation", store=_store_of(overfitted))
    total, weight = summed_loss(model, TokenLoader(rows, 4, shuffle="none", padding="longest"))
    assert float(total.detach()) / weight == pytest.approx(losses[best], rel=1e-4)


def _store_of(folder: Path) -> str:
    source = yaml.safe_load((folder.parent / "ragged.yaml").read_text())["dataset"]["name"]
    return str(Path(source).parent / "store")


def test_the_newest_checkpoint_is_kept(overfitted: Path) -> None:
    """huggingface/transformers#11769: with `save_total_limit`, the newest checkpoints are deleted, right after they
    were saved, in favour of older ones.

    The last one must be kept next to the best one.
    """
    assert checkpoints(overfitted)[-1] == 30
    assert len(checkpoints(overfitted)) == 2


def test_a_finished_run_keeps_its_end(store: Path, tmp_path: Path) -> None:
    """huggingface/transformers#35070: with a best checkpoint and `save_total_limit=1`, the end of the training deletes
    the last checkpoint.

    It must be kept, and resuming a finished run must train nothing: not from the best checkpoint on, either.
    """
    folder = tmp_path / "run"
    options: dict[str, Any] = {"steps": 9, "learning_rate": 6.0, "warmup": 60, "save_total_limit": 1}
    options |= {"save_steps": 3, "eval_steps": 3, "eval_samples": 0}
    started(store, folder, **options)
    assert min(evaluations(folder).items(), key=lambda pair: pair[1])[0] < 9
    before = read_log(folder / "log.jsonl"), (folder / "model" / "model.safetensors").stat().st_mtime_ns
    steps: list[int] = []
    started(store, folder, resume=True, callbacks=[Counted(steps)], **options)
    assert not steps
    assert (read_log(folder / "log.jsonl"), (folder / "model" / "model.safetensors").stat().st_mtime_ns) == before
    assert checkpoints(folder)[-1] == 9


class Counted(TrainerCallback):
    """Notes the steps that are trained."""

    def __init__(self, steps: list[int]):
        self.steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps.append(state.global_step)


def test_steps_and_epochs_are_compared_as_numbers(tmp_path: Path) -> None:
    """allenai/open-instruct#542: the last checkpoint is looked up by its name as text, in which 9000 comes after 10000.

    The last one must be the one of the largest number.
    """
    for name in ("checkpoint-10000", "checkpoint-9000", "checkpoint-999"):
        with new_folder(tmp_path / name) as folder:
            (folder / "trainer_state.json").write_text("{}")
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10000"
    manager = CheckpointManager(tmp_path / "own")
    for epoch in (9999, 10_000, 998):
        with new_folder(tmp_path / "own" / f"epoch-{epoch:04d}"):
            pass
    assert manager.latest() == tmp_path / "own" / "epoch-10000"


def test_the_last_step_is_saved(store: Path, tmp_path: Path) -> None:
    """ecmwf/anemoi-training#183: a run whose last step is no multiple of the interval saves no checkpoint of it.

    The last step must have a checkpoint, and its weights must be those of `model`.
    """
    started(store, tmp_path / "run", steps=5, save_steps=2)
    assert checkpoints(tmp_path / "run") == [2, 4, 5]
    saved = [load_file(tmp_path / "run" / name / "model.safetensors") for name in ("checkpoint-5", "model")]
    assert saved[0].keys() == saved[1].keys()
    assert all(bool((value == saved[1][name]).all()) for name, value in saved[0].items())


def interrupted(folder: Path, step: int, partial: Path) -> None:
    """Leave of a run what it had when it was killed while it saved a step, in a folder that had half of its files."""
    files = sorted((folder / f"checkpoint-{step}").iterdir())
    partial.mkdir()
    for file in files[: len(files) // 2]:
        shutil.copy(file, partial / file.name)
    kill_after(folder, step - 2)


def test_an_interrupted_save_is_not_resumed_from(store: Path, tmp_path: Path) -> None:
    """NVIDIA-NeMo/Automodel#3261: a job that is killed while it saves leaves a folder that looks like its last
    checkpoint; the resumed job hangs on it.

    A resume must continue from the last complete checkpoint, and end as a run that was not killed.
    """
    folder = tmp_path / "run"
    started(store, folder, steps=6, save_steps=2)
    whole = steps_of(folder), (folder / "model" / "model.safetensors").read_bytes()
    interrupted(folder, 4, partial_of(folder / "checkpoint-4"))
    assert last_checkpoint(folder) == folder / "checkpoint-2"
    started(store, folder, resume=True, steps=6, save_steps=2)
    assert (steps_of(folder), (folder / "model" / "model.safetensors").read_bytes()) == whole
    assert checkpoints(folder) == [2, 4, 6]


def test_an_interrupted_save_leaves_no_files_for_ever(store: Path, tmp_path: Path) -> None:
    """howervoo/speechturn#15: the temporary file of an interrupted save is never removed; with each interruption, the
    disk has one more.

    A resumed run must remove it, also if it was saved at a step at which this run saves nothing, as for a preemption.
    """
    folder = tmp_path / "run"
    started(store, folder, steps=6, save_steps=2)
    interrupted(folder, 4, partial_of(folder / "checkpoint-3"))
    started(store, folder, resume=True, steps=6, save_steps=2)
    assert checkpoints(folder) == [2, 4, 6]
    assert not [path.name for path in folder.iterdir() if path.name.endswith(".partial")]


def test_an_evaluation_leaves_the_training_as_it_is(store: Path, tmp_path: Path) -> None:
    """tk-rusch/coRNN#1: after an evaluation, the model stays in evaluation mode, which turns dropout off.

    The losses of a run must be the same with evaluations and without.
    """
    plain, evaluated = ({"model": DROPPING, "steps": 6, **more} for more in ({}, {"eval_steps": 1, "eval_samples": 1}))
    started(store, tmp_path / "plain", **plain)
    started(store, tmp_path / "evaluated", **evaluated)
    assert steps_of(tmp_path / "plain") == steps_of(tmp_path / "evaluated")


def test_an_evaluation_drops_no_rows(store: Path, tmp_path: Path) -> None:
    """areal-project/AReaL#1096: `drop_last`, which is meant for the training, also drops rows of the validation.

    The loss of an evaluation must be that over all its rows.
    """
    rows = open_dataset("ragged", "validation", store=store)
    size = next(size for size in (3, 4, 5) if len(rows) % size)
    options: dict[str, Any] = {
        "steps": 2,
        "eval_steps": 2,
        "eval_samples": 0,
        "dataloader": {"seed": 3, "drop_last": True},
    }
    trainer = started(store, tmp_path / "run", batch_size=size, **options)
    total, weight = summed_loss(trainer.model, TokenLoader(rows, 4, shuffle="none", padding="longest"))
    line = [line for line in read_log(tmp_path / "run" / "log.jsonl") if "eval_loss" in line][-1]
    assert line["eval_trained_tokens"] == weight
    assert line["eval_loss"] == pytest.approx(float(total.detach()) / weight, rel=1e-5)
