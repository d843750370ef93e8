"""Image-text models train on rows with images: each loss is that of a loop over the rows, also with other trainers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.nn.functional import log_softmax
from transformers import AutoProcessor, TrainerCallback

from support.example_scripts import example
from support.soak import machine
from support.tiny_training import TINY
from support.training_runs import assert_two_ranks_train_as_one, kill_after, losses
from support.vision_models import MODELS, TOWERS, build_images
from tokenloom import DataPipeline
from tokenloom.config import TrainingConfig
from tokenloom.config.dataset import load_config
from tokenloom.errors import ConfigError, LoaderStateError
from tokenloom.loaders import TokenDataset, TokenLoader, batch_digest, model_inputs, open_dataset, open_mixture
from tokenloom.loaders.trainer import TokenLoaderMixin
from tokenloom.resources.processors.processor import Processor
from tokenloom.trainer import PreferenceTrainer, train
from tokenloom.trainer.checkpoints import read_state
from tokenloom.trainer.log import read_log
from tokenloom.trainer.run import build_model

pytestmark = machine("trainer")

COUNTS = (1, 0, 2, 0, 0, 1, 1, 0, 3, 0, 0, 1, 1, 2, 0, 0, 1, 0, 0, 1)
"""Images of each row."""
PACKED_TO = {"qwen2_vl": 110, "llava": 130, "idefics3": 300}
ALONE = ("input_ids", "mm_token_type_ids")


class Broken(Exception):
    """Interrupts training in the middle of a step."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each family, the same rows unpacked (`llava`), packed (`llava-packed`), and a text dataset of one."""
    path = tmp_path_factory.mktemp("images")
    for family in MODELS:
        build_images(path, family, COUNTS, family, dataset={"val_split": 0.2})
        packed: Any = {"max_length": PACKED_TO[family], "length": {"packing": "best_fit"}}
        build_images(path, family, COUNTS, f"{family}-packed", dataset={"val_split": 0.2}, **packed)
        build_images(path, family, COUNTS, f"{family}-rows")
    build_images(path, "qwen2_vl", [0] * 9, "texts")
    return path


def configured(folder: Path, name: str, run: Path, **settings: Any) -> Path:
    """Write the YAML of a dataset with `training:` beside the run's folder, and return it."""
    declared = yaml.safe_load((folder / f"{name}.yaml").read_text())
    training = {"learning_rate": 0.01, "logging_steps": 1, "save_steps": 10**6, "max_grad_norm": 10**6, **settings}
    loaded = training.pop("dataloader", {"seed": 5})
    declared["dataset"]["name"] = str(folder / declared["dataset"]["name"])
    path = run.with_name(f"{run.name}-{name}.yaml")
    declared |= {"name": name, "dataloader": loaded, "training": training | {"output_dir": str(run)}}
    path.write_text(yaml.safe_dump(declared, sort_keys=False), encoding="utf-8")
    return path


def trained(folder: Path, name: str, run: Path, **settings: Any) -> Any:
    callbacks = settings.pop("callbacks", ())
    config = load_config(configured(folder, name, run, **settings))
    return train(config, str(folder / "store"), report=lambda _: None, callbacks=callbacks)


class Steps(TrainerCallback):
    """The model before each step, and its gradients."""

    def __init__(self) -> None:
        self.models: list[Any] = []
        self.gradients: list[dict[str, torch.Tensor]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if hasattr(model, "peft_config"):
            return
        copy = type(model)(deepcopy(model.config))  # a deep copy of the model would share what TRL puts in it
        copy.load_state_dict(model.state_dict())
        self.models.append(copy)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        found = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        self.gradients.append({name: value.clone() for name, value in found.items()})


def loss_of_rows(model: Any, dataset: TokenDataset, numbers: list[int]) -> tuple[torch.Tensor, int]:
    """The summed loss of rows, one by one without padding, and their number of trained tokens."""
    total, count = torch.zeros(()), 0
    for number in numbers:
        row = dataset[number]
        tokens = {name: row[name][None] for name in ALONE if name in row}
        images = {name: value for name, value in row.items() if "pixel" in name or name.startswith("image_")}
        scores = log_softmax(model(**tokens, **images).logits[0].float(), -1)
        for place in torch.where(row["labels"][1:] != -100)[0].tolist():
            total, count = total - scores[place, row["labels"][place + 1]], count + 1
    return total, count


def places(traced: list[Any]) -> list[int]:
    """The numbers of the raw rows, which are those of the dataset that is neither packed nor split."""
    return [int(place.split(":")[1]) - 1 for row in traced for place in row.places]


def check_steps(steps: Steps, found: list[float], rows: Callable[[int], list[int]], dataset: TokenDataset) -> None:
    """Compare losses and gradients of each step with those of a loop over its rows."""
    assert len(found) == len(steps.models) == len(steps.gradients)
    for step, (model, loss, gradients) in enumerate(zip(steps.models, found, steps.gradients, strict=True)):
        total, count = loss_of_rows(model, dataset, rows(step))
        (total / count).backward()
        assert loss == pytest.approx((total / count).item(), rel=1e-5), step
        for name, value in model.named_parameters():
            if value.grad is not None:
                assert torch.allclose(gradients[name], value.grad, rtol=1e-3, atol=2e-6), (step, name)


@pytest.mark.parametrize("packed", [False, True], ids=["unpacked", "packed"])
@pytest.mark.parametrize("family", MODELS)
def test_each_step_has_the_loss_of_a_loop_over_its_rows(
    folder: Path, tmp_path: Path, family: str, packed: bool
) -> None:
    name, steps = f"{family}-packed" if packed else f"{family}-rows", Steps()
    settings: dict[str, Any] = {"batch_size": 1 if packed else 3, "gradient_accumulation_steps": 2, "steps": 4}
    settings["loss"] = "fused_linear_cross_entropy" if packed else "cross_entropy"
    trainer = trained(folder, name, tmp_path / "run", model=MODELS[family], callbacks=[steps], **settings)
    assert type(trainer.model).__name__.endswith("ForConditionalGeneration")
    loader = TokenLoader(open_dataset(name, store=folder / "store"), settings["batch_size"], seed=5, padding="longest")

    def rows(step: int) -> list[int]:
        return places([row for batch in (2 * step, 2 * step + 1) for row in loader.trace(batch)])

    plain = open_dataset(f"{family}-rows", store=folder / "store")
    check_steps(steps, [line["loss"] for line in losses(tmp_path / "run" / "log.jsonl")], rows, plain)
    first = [value for each, value in steps.gradients[0].items() if TOWERS[family] in each and "weight" in each]
    assert len(first) == 1 and first[0].abs().max() > 1e-6
    for saved in (tmp_path / "run" / "model", tmp_path / "run" / "checkpoint-4"):
        assert Processor.load(saved).name == Processor.load(folder / f"{family}-processor").name
        assert json.loads((saved / "config.json").read_text())["model_type"] == family
        if family != "qwen2_vl":  # its video processor needs torchvision
            assert type(AutoProcessor.from_pretrained(saved)).__name__ == Processor.load(saved).name


def test_adapters_train_the_vision_tower(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    steps, run = Steps(), tmp_path / "run"
    base = build_model(TrainingConfig(model=MODELS["llava"]), open_dataset("llava-rows", store=folder / "store"))
    base.save_pretrained(tmp_path / "base")
    settings: dict[str, Any] = {"model": str(tmp_path / "base"), "batch_size": 4, "steps": 2, "save_steps": 1}
    trained(folder, "llava-rows", run, lora={"r": 2}, callbacks=[steps], **settings)
    towers = [value for name, value in steps.gradients[0].items() if "vision_tower" in name and "lora_B" in name]
    assert towers and all(value.abs().max() > 0 for value in towers)
    assert all("lora" in name for name in steps.gradients[0])
    names = {path.name for path in (run / "model").iterdir()}
    assert names >= {"adapter_config.json", "processor_config.json"} and "config.json" not in names
    with pytest.raises(Broken):
        trained(folder, "llava-rows", tmp_path / "stopped", lora={"r": 2}, callbacks=[Interrupt(2)], **settings)
    config = configured(folder, "llava-rows", tmp_path / "stopped", lora={"r": 2}, **settings)
    train(load_config(config), str(folder / "store"), resume=True)
    assert losses(tmp_path / "stopped" / "log.jsonl") == losses(run / "log.jsonl")
    final = [tmp_path / each / "model" / "adapter_model.safetensors" for each in ("run", "stopped")]
    assert final[0].read_bytes() == final[1].read_bytes()


def test_evaluation(folder: Path, tmp_path: Path) -> None:
    more: dict[str, dict[str, Any]] = {
        "qwen2_vl": {"eval_samples": 4, "batch_size": 3},
        "idefics3": {"token_budget": 600},
        "qwen2_vl-packed": {"batch_size": 2},
    }
    for name, settings in more.items():
        steps, run, family = Steps(), tmp_path / name, name.split("-")[0]
        trained(folder, name, run, model=MODELS[family], steps=2, eval_steps=2, callbacks=[steps], **settings)
        validation = open_dataset(name, "validation", store=folder / "store")
        rows = places([validation.trace(row) for row in range(len(validation))])
        total, count = loss_of_rows(steps.models[0], open_dataset(f"{family}-rows", store=folder / "store"), rows)
        first = next(line for line in read_log(run / "log.jsonl") if "eval_loss" in line)
        assert first["eval_loss"] == pytest.approx((total / count).item(), rel=1e-5)
        assert first["eval_trained_tokens"] == count
        samples = read_log(run / "samples.jsonl")
        shown = ["<|image_pad|>" in line["prompt"] or "<image>" in line["prompt"] for line in samples]
        assert all("answer" in line["expected"] for line in samples)
        assert name == "qwen2_vl-packed" or (any(shown) and not all(shown))  # images of later documents: no sample


@pytest.mark.parametrize("name", ["qwen2_vl-packed", "idefics3-rows"])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(folder: Path, tmp_path: Path, name: str) -> None:
    """The first is killed; the other one ends, with worker processes, in mid-epoch."""
    model = {**MODELS[name.split("-")[0]]}
    model["text_config"] = {**model["text_config"], "attention_dropout": 0.1}
    settings: dict[str, Any] = {"model": model, "batch_size": 1, "steps": 20, "save_steps": 3, "scheduler": "cosine"}
    settings["gradient_accumulation_steps"] = 2
    trained(folder, name, tmp_path / "whole", **settings)
    whole, run = losses(tmp_path / "whole" / "log.jsonl"), tmp_path / "stopped"
    config = configured(folder, name, run, **settings)
    if name == "qwen2_vl-packed":
        arguments = ["tokenloom", "train", str(config), "--store", str(folder / "store")]
        kill_after(8, arguments, run / "log.jsonl", tmp_path / "printed")
    else:
        stopped = load_config(configured(folder, name, run, **settings, dataloader={"seed": 5, "num_workers": 2}))
        with pytest.raises(Broken):
            train(stopped, str(folder / "store"), callbacks=[Interrupt(8)])
    train(load_config(config), str(folder / "store"), resume=True)
    assert losses(run / "log.jsonl") == whole and len(whole) == 20
    final = [tmp_path / each / "model" / "model.safetensors" for each in ("whole", "stopped")]
    assert final[0].read_bytes() == final[1].read_bytes()
    states = [read_state(tmp_path / each / "checkpoint-20", "optimizer") for each in ("whole", "stopped")]
    assert repr(states[0]) == repr(states[1])


class Interrupt(TrainerCallback):
    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise Broken


def test_two_ranks_have_the_losses_of_one_that_accumulates(folder: Path, tmp_path: Path) -> None:
    """Also in steps in which one of them has no image, or only in some of its accumulated batches."""
    pairs, loaded = [], {"shuffle": "none"}
    (tmp_path / "store").symlink_to(folder / "store")  # where the ranks look for it
    runs = {"qwen2_vl-rows": {"gradient_checkpointing": True}, "llava-rows": {"gradient_accumulation_steps": 2}}
    for name, more in runs.items():
        settings: dict[str, Any] = {"model": MODELS[name.split("-")[0]], "batch_size": 1, "steps": 5, **more}
        settings["dataloader"] = loaded
        accumulated = settings.get("gradient_accumulation_steps", 1)
        once = settings | {"gradient_accumulation_steps": 2 * accumulated}
        one, two = (
            configured(folder, name, tmp_path / f"{name}-{ranks}", **each) for ranks, each in ((1, once), (2, settings))
        )
        pairs.append((one, two))
        dataset = open_dataset(name, store=folder / "store")
        shown = [
            [bool(row.images) for step in range(10) for row in TokenLoader(dataset, 1, False).trace(2 * step + rank)]
            for rank in (0, 1)
        ]
        assert [*zip(*shown, strict=True)].count((True, False)) > 1 and (False, False) in zip(*shown, strict=True)
    assert_two_ranks_train_as_one(pairs, tmp_path / "printed", steps=5)


def test_a_mixture_of_images_and_texts(folder: Path, tmp_path: Path) -> None:
    mixture = {"mixture": [{"dataset": "texts"}, {"dataset": "qwen2_vl-rows"}], "dataloader": {"seed": 5}}
    mixture["training"] = {"model": MODELS["qwen2_vl"], "batch_size": 2, "steps": 6, "logging_steps": 1}
    mixture["training"] |= {"output_dir": str(tmp_path / "run")}
    path = folder / "mixed.yaml"
    path.write_text(yaml.safe_dump(mixture, sort_keys=False), encoding="utf-8")
    DataPipeline.from_config(path, folder / "store").unwrap().build().unwrap()
    steps = Steps()
    train(load_config(path), str(folder / "store"), callbacks=[steps])
    datasets = {name: open_dataset(name, store=folder / "store") for name in ("texts", "qwen2_vl-rows")}
    loader = TokenLoader(open_mixture("mixed", store=folder / "store"), 2, seed=5, padding="longest")
    for step, line in enumerate(losses(tmp_path / "run" / "log.jsonl")):
        sums = [loss_of_rows(steps.models[step], datasets[row.dataset], places([row])) for row in loader.trace(step)]
        expected = sum(total.item() for total, _ in sums) / sum(count for _, count in sums)
        assert line["loss"] == pytest.approx(expected, rel=1e-5)
    assert Processor.load(tmp_path / "run" / "model").name == "Qwen2VLProcessor"


def test_what_does_not_train_on_images_is_refused(folder: Path, tmp_path: Path) -> None:
    dataset = open_dataset("llava-rows", store=folder / "store")
    refused: list[tuple[Any, str]] = [
        ({"model": MODELS["llava"], "strategy": "fsdp"}, r"training\.strategy: .*rows with images; set strategy: ddp"),
        ({"model": TINY}, r"training\.model: llama does not take images; set an image-text model"),
        ({"model": {**MODELS["llava"], "image_token_id": 3}}, r"training\.model: the image token .* has id 3"),
    ]
    for settings, message in refused:
        with pytest.raises(ConfigError, match=message):
            build_model(TrainingConfig(**settings), dataset)
    model = build_model(TrainingConfig(model=MODELS["llava"]), dataset)
    with pytest.raises(ConfigError, match=r"training\.loss: dpo does not train on rows with images"):
        PreferenceTrainer(model, TrainingConfig(loss="dpo", steps=1), TokenLoader(dataset, 2), output_dir=tmp_path)


def test_accelerate_neither_shards_nor_slices_batches(folder: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    dataset = open_dataset("qwen2_vl-rows", store=folder / "store")
    right = [batch_digest(batch) for batch in TokenLoader(dataset, 3, seed=1)]
    for split_batches in (False, True):
        settings = accelerate.DataLoaderConfiguration(split_batches=split_batches, dispatch_batches=split_batches)
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=settings)
        assert [batch_digest(batch) for batch in accelerator.prepare(TokenLoader(dataset, 3, seed=1))] == right
    with pytest.raises(LoaderStateError, match="skip_first_batches counts batches"):
        next(iter(accelerate.skip_first_batches(TokenLoader(dataset, 3, seed=1), 2)))


def given_to(model: Any, break_at: int | None) -> list[str]:
    """Record the digests of a model's inputs; interrupt it at call `break_at`."""
    seen: list[str] = []
    tensors = {"input_ids", "labels", "attention_mask", "position_ids", "mm_token_type_ids"}

    def note(_: Any, __: Any, inputs: dict[str, Any]) -> None:
        if len(seen) == break_at:
            raise Broken
        kept = {k: v for k, v in inputs.items() if k in tensors or "pixel" in k or k.startswith("image_")}
        seen.append(batch_digest(kept))

    model.register_forward_pre_hook(note, with_kwargs=True)
    return seen


@pytest.mark.parametrize("framework", ["trainer", "trl", "accelerate", "lightning"])
@pytest.mark.parametrize("name", ["qwen2_vl-packed", "idefics3-rows"])
def test_other_trainers_get_the_batches_unchanged_and_resume(
    folder: Path, tmp_path: Path, framework: str, name: str
) -> None:
    pytest.importorskip(framework if framework != "trainer" else "transformers")
    script, dataset = example(f"train_with_{framework}"), open_dataset(name, store=folder / "store")
    accumulated, size = (2, 4) if framework in ("trainer", "trl") else (1, 8)

    def run(where: str, break_at: int | None = None) -> tuple[list[str], dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        model: Any = build_model(TrainingConfig(model=MODELS[name.split("-")[0]]), dataset)
        seen = given_to(model, break_at)
        with pytest.raises(Broken) if break_at else contextlib.nullcontext():
            script.train(model, dataset, tmp_path / where, 4, save_steps=1)
        return seen, model.state_dict()

    right: list[str] = []
    loader = TokenLoader(dataset, batch_size=size, seed=0, padding="longest")
    while len(right) < 4 * accumulated:
        right += [batch_digest({k: v for k, v in model_inputs(b).items() if k != "use_cache"}) for b in loader]
    whole, weights = run("whole")
    assert whole == right[: 4 * accumulated]
    assert run("stopped", 2 * accumulated)[0] == right[: 2 * accumulated]
    rest, same = run("stopped")
    assert rest == right[2 * accumulated : 4 * accumulated]
    for key, value in weights.items():
        assert torch.equal(same[key], value), key


@pytest.mark.parametrize("name", ["qwen2_vl-packed", "llava-rows"])
def test_trl_has_the_losses_of_a_loop_over_rows(folder: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("trl")
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    class Tuned(TokenLoaderMixin, SFTTrainer):
        pass

    family, steps, dataset = name.split("-")[0], Steps(), open_dataset(name, store=folder / "store")
    packed = dataset.packed
    arguments = SFTConfig(
        str(tmp_path),
        max_steps=3,
        logging_steps=1,
        learning_rate=0.01,
        gradient_accumulation_steps=2,
        bf16=False,
        use_cpu=True,
        max_grad_norm=1e6,
        report_to="none",
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    trainer: Any = Tuned(
        build_model(TrainingConfig(model=MODELS[family]), dataset),
        arguments,
        train_dataset=Dataset.from_list([{name: dataset[0][name].tolist() for name in ("input_ids", "labels")}]),
        processing_class=(AutoTokenizer if packed else AutoProcessor).from_pretrained(dataset.tokenizer_path),
        callbacks=[steps],
        train_loader=TokenLoader(dataset, batch_size=2, seed=5, padding="longest"),
    )
    trainer.train()
    loader = TokenLoader(dataset, batch_size=2, seed=5, padding="longest")

    def rows(step: int) -> list[int]:
        return places([row for batch in (2 * step, 2 * step + 1) for row in loader.trace(batch)])

    assert packed or (tmp_path / "checkpoint-3" / "processor_config.json").exists()
    found = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    check_steps(steps, found, rows, open_dataset(f"{family}-rows", store=folder / "store"))
