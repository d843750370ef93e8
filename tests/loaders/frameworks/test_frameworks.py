"""Each framework resumes from its own checkpoint at the right batch: the examples, interrupted and run again."""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing import active_children
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from support.example_scripts import example
from support.jax_training import trained
from support.loaded_rows import settings, write_rows
from support.paths import EXAMPLES
from support.soak import machine
from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.errors import LoaderStateError
from tokenloom.loaders import MapLoader, TokenDataset, TokenLoader, batch_digest, open_dataset
from tokenloom.resources.store import ArtifactStore

pytestmark = machine("trainer")

ROWS, BATCH, EVERY = 29, 8, 2
EPOCH = -(-ROWS // BATCH)


class Broken(Exception):
    """Interrupts training in the middle of a step."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, write_config: Callable[..., Path], tokenizer_folder: Path) -> Path:
    path = tmp_path_factory.mktemp("frameworks")
    write_rows(path / "rows.jsonl", ROWS)
    config = write_config(path, "data", dataset={"name": "rows.jsonl"}, **settings(tokenizer_folder))
    list(Build(PipelineConfig.from_file(config), ArtifactStore(path / "store")).run_all())
    return path / "store"


@pytest.fixture(scope="module")
def dataset(store: Path) -> TokenDataset:
    return open_dataset("data", store=store)


def given_to(model: nn.Module, break_at: int | None) -> list[str]:
    """Record the digests of a model's inputs; interrupt it at call `break_at`."""
    seen: list[str] = []

    def note(_: nn.Module, __: Any, inputs: dict[str, Any]) -> None:
        if len(seen) == break_at:
            raise Broken
        seen.append(batch_digest({name: inputs[name] for name in ("input_ids", "labels")}))

    model.register_forward_pre_hook(note, with_kwargs=True)
    return seen


def of_epochs(dataset: TokenDataset, batches: int, batch_size: int) -> list[str]:
    """Return the digests of the loader's batches from the first on."""
    loader, seen = TokenLoader(dataset, batch_size=batch_size, seed=0, padding="longest"), []
    while len(seen) < batches:
        seen += [batch_digest({name: batch[name] for name in ("input_ids", "labels")}) for batch in loader]
    return seen[:batches]


@pytest.fixture
def single_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def resumes(
    script: ModuleType, dataset: TokenDataset, tmp_path: Path, batch_size: int, batches_a_step: int, **more: Any
) -> None:
    """Interrupted in the first epoch, right after its end, and in the second epoch."""
    steps = 2 * EPOCH + 1
    right = of_epochs(dataset, steps * batches_a_step, batch_size)

    def run(folder: Path, break_at: int | None = None) -> tuple[list[str], dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        model = script.tiny_model(dataset)
        seen = given_to(model, None if break_at is None else break_at * batches_a_step)
        try:
            script.train(model, dataset, folder, steps, save_steps=EVERY, **more)
            assert break_at is None
        except Broken:
            pass
        return seen, model.state_dict()

    undisturbed, weights = run(tmp_path / "undisturbed")
    assert undisturbed == right and len(set(right)) == len(right)
    for break_at in (3, EPOCH, EPOCH + 3):
        folder = tmp_path / f"broken at {break_at}"
        assert run(folder, break_at)[0] == right[: break_at * batches_a_step]
        resumed, same_weights = run(folder)
        assert resumed == right[(break_at - break_at % EVERY) * batches_a_step :], break_at
        for name, value in weights.items():
            torch.testing.assert_close(same_weights[name], value, rtol=0, atol=0)


def test_trainer(dataset: TokenDataset, tmp_path: Path) -> None:
    resumes(example("train_with_trainer"), dataset, tmp_path, batch_size=4, batches_a_step=2)


def test_trl(dataset: TokenDataset, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    resumes(example("train_with_trl"), dataset, tmp_path, batch_size=4, batches_a_step=2)


def test_accelerate(dataset: TokenDataset, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    resumes(example("train_with_accelerate"), dataset, tmp_path, BATCH, 1)


def steps_of(loader: Any, epochs: int, looks: bool = False) -> list[tuple[int, bool]]:
    """The epochs and whether the optimizer steps, batch by batch, of a training that accumulates four batches."""
    from accelerate import Accelerator
    from accelerate.state import GradientState

    try:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
        model, prepared = accelerator.prepare(torch.nn.Linear(1, 1), loader)
        found = list[tuple[int, bool]]()
        for epoch in range(epochs):
            for _ in prepared:
                with accelerator.accumulate(model):
                    found.append((epoch, accelerator.sync_gradients))
                if looks:
                    next(iter(prepared))
        assert not GradientState().in_dataloader
        return found
    finally:
        GradientState._reset_state()


@pytest.mark.parametrize("looks", [False, True])
def test_accelerate_steps_with_the_last_batch_of_an_epoch(dataset: TokenDataset, looks: bool) -> None:
    """As it does with a loader of torch, which it wraps."""
    size = -(-len(dataset) // 6)  # six batches, the last one shorter
    expected = steps_of(DataLoader(range(len(dataset)), size), 2)  # pyright: ignore[reportArgumentType]
    assert [steps for _, steps in expected] == 2 * [False, False, False, True, False, True]
    assert steps_of(TokenLoader(dataset, size), 2, looks) == expected
    assert steps_of(MapLoader(list(range(len(dataset))), size), 2, looks) == expected


def test_a_state_under_accumulation_is_after_the_batch_in_use(dataset: TokenDataset) -> None:
    from accelerate import Accelerator
    from accelerate.state import GradientState

    whole = [batch["input_ids"].tolist() for batch in TokenLoader(dataset, 4)]
    try:
        Accelerator(cpu=True, gradient_accumulation_steps=4)
        loader = TokenLoader(dataset, 4)
        for number, _ in enumerate(loader, 1):
            resumed = TokenLoader(dataset, 4)
            resumed.load_state_dict(loader.state_dict())
            left = [batch["input_ids"].tolist() for batch in resumed]
            assert left == (whole[number:] or [batch["input_ids"].tolist() for batch in next_epoch(dataset)])
    finally:
        GradientState._reset_state()


def next_epoch(dataset: TokenDataset) -> TokenLoader:
    loader = TokenLoader(dataset, 4)
    loader.set_epoch(1)
    return loader


def test_lightning(dataset: TokenDataset, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    resumes(example("train_with_lightning"), dataset, tmp_path, BATCH, 1)


def fit(loader: Any, steps: int, folder: Path) -> None:
    """Train with Lightning up to a step, after a checkpoint in the folder if there is one, and write one."""
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.weight.sum() * batch["input_ids"].float().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    made = Trainer(
        accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    path = folder / "last.ckpt"
    made.fit(Module(), loader, ckpt_path=str(path) if path.exists() else None, weights_only=False)
    made.save_checkpoint(path)


def test_lightning_ends_the_workers_of_a_training(dataset: TokenDataset, tmp_path: Path) -> None:
    """Otherwise they end with its objects, which refer to each other: then torch waits five seconds for each worker."""
    pytest.importorskip("lightning")
    for loader in (
        TokenLoader(dataset, 2, num_workers=2),
        MapLoader(dataset[:], 2, num_workers=2, collate_fn=stack),
    ):
        fit(loader, 2, tmp_path / type(loader).__name__)
        assert active_children() == []


def stack(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {"input_ids": nn.utils.rnn.pad_sequence([torch.as_tensor(row["input_ids"]) for row in rows], True)}


@pytest.mark.parametrize("sizes", [{"token_budget": 200}, {"batch_size": 2}], ids=["token-budget", "batch-size"])
def test_lightning_may_not_finish_an_epoch_on_other_ranks(
    dataset: TokenDataset, sizes: dict[str, Any], tmp_path: Path
) -> None:
    """It counts batches. After the last one of an epoch, nothing is left to count."""
    pytest.importorskip("lightning")

    def loader(ranks: int) -> TokenLoader:
        return TokenLoader(dataset, rank=0, world_size=ranks, **sizes)

    assert len(loader(2)) > 2
    fit(loader(2), 1, tmp_path)
    with pytest.raises(LoaderStateError, match="Lightning counts the batches of an epoch"):
        fit(loader(3), 2, tmp_path)
    fit(loader(2), len(loader(2)), tmp_path)
    fit(loader(3), len(loader(2)) + 1, tmp_path)


def test_a_mesh(dataset: TokenDataset, tmp_path: Path, single_rank: None) -> None:
    script = example("train_with_mesh")
    resumes(script, dataset, tmp_path, BATCH, 1, mesh=script.make_mesh(1, "cpu"))


def test_jax(dataset: TokenDataset, store: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    steps, breaks = 2 * EPOCH + 1, [3, EPOCH, EPOCH + 3]
    (whole, parameters), runs = trained(EXAMPLES / "train_with_jax.py", store, tmp_path, steps, EVERY, breaks)
    loader, right = TokenLoader(dataset, batch_size=BATCH, seed=0), []
    while len(right) < steps:
        right += [(batch["input_ids"].tolist(), batch["labels"].tolist()) for batch in loader]
    assert whole == right[:steps]
    for break_at, ((before, _), (after, same_parameters)) in zip(breaks, runs, strict=True):
        assert before == whole[:break_at] and after == whole[break_at - break_at % EVERY :]
        for name, value in parameters.items():
            np.testing.assert_array_equal(same_parameters[name], value)


@pytest.mark.parametrize("name", ["trainer", "trl", "accelerate", "lightning", "mesh"])
def test_examples_run_as_scripts(name: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(name if name in ("trl", "accelerate", "lightning") else "transformers")
    options = ["data", "--store", store, "--steps", "10", "--checkpoints", tmp_path / "run"]
    for _ in range(2):  # the second run has nothing left to do
        monkeypatch.setattr(sys, "argv", ["example", *map(str, options)])
        example(f"train_with_{name}").main()
    assert list(tmp_path.glob("run/*"))


class SkippingTrainer(Trainer):
    """Passes the loader unchanged: Trainer counts epochs and skips batches itself."""

    def __init__(self, loader: TokenLoader, **settings: Any):
        super().__init__(**settings)
        self.loader = loader

    def get_train_dataloader(self) -> Any:
        return self.loader


def test_trainer_may_not_skip_batches_by_itself(dataset: TokenDataset, tmp_path: Path) -> None:
    def run(resume: bool) -> list[str]:
        arguments = TrainingArguments(str(tmp_path), num_train_epochs=3, save_steps=EVERY, report_to="none")
        model = example("train_with_trainer").tiny_model(dataset)
        loader = TokenLoader(dataset, batch_size=BATCH, seed=0, padding="longest")
        seen = given_to(model, None if resume else EPOCH + 3)
        SkippingTrainer(loader, model=model, args=arguments).train(resume_from_checkpoint=resume)
        return seen

    with pytest.raises(Broken):
        run(resume=False)
    with pytest.raises(LoaderStateError, match=r"skip_first_batches counts batches.*TokenLoaderMixin"):
        run(resume=True)


def test_trainer_refuses_a_checkpoint_of_another_order_or_of_no_loader(dataset: TokenDataset, tmp_path: Path) -> None:
    script = example("train_with_trainer")
    model = script.tiny_model(dataset)

    def trainer(seed: int, steps: int) -> Any:
        arguments = TrainingArguments(str(tmp_path), max_steps=steps, save_steps=2, report_to="none")
        loader = TokenLoader(dataset, batch_size=BATCH, seed=seed)
        return script.TokenTrainer(model, arguments, train_loader=loader)

    trainer(0, 2).train()
    with pytest.raises(LoaderStateError, match="seed"):
        trainer(1, 4).train(resume_from_checkpoint=True)
    path = tmp_path / "checkpoint-2" / "trainer_state.json"
    state = json.loads(path.read_text())
    assert state["epoch"] == pytest.approx(2 * BATCH / ROWS)
    del state["stateful_callbacks"]["TokenLoader"]
    path.write_text(json.dumps(state))
    with pytest.raises(LoaderStateError, match="no TokenLoader state"):
        trainer(0, 4).train(resume_from_checkpoint=True)


def test_taking_all_batches_of_an_epoch_finishes_it(dataset: TokenDataset) -> None:
    """Frameworks that know the number of batches do not ask for one more."""
    plans: list[dict[str, Any]] = [{}, {"drop_last": True}, {"token_budget": 256}]
    for plan in plans:
        loader = TokenLoader(dataset, batch_size=BATCH, seed=0, padding="longest", **plan)
        right = [[batch_digest(batch) for batch in loader] for _ in range(3)]
        loader.set_epoch(0)
        for epoch in right:
            assert [batch_digest(batch) for batch in islice(loader, len(epoch))] == epoch
        for epoch in (2, 1, 1):
            loader.set_epoch(epoch)
            assert [batch_digest(batch) for batch in islice(loader, len(right[epoch]))] == right[epoch]
        assert [batch_digest(batch) for batch in islice(loader, 2)] == right[2][:2]
        assert [batch_digest(batch) for batch in islice(loader, 2)] == right[2][:2]  # interrupted: starts again
