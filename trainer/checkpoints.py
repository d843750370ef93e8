"""Checkpoints of `Trainer`, written atomically and without pickle."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint, rotate_checkpoints

from tokenloom.trainer.checkpoint_manager import check_sealed, partial_of, publish, read_state, write_state, writing

OPTIMIZER, RANDOM = "optimizer", "random"


def last_checkpoint(folder: Path) -> Path | None:
    """Return the last checkpoint of a run, or None if it has none.

    Raises:
        StoreError: it is damaged.
    """
    found = get_last_checkpoint(folder) if folder.is_dir() else None
    if found is None:
        return None
    check_sealed(Path(found))
    return Path(found)


class Checkpoints(Trainer):
    """Saves everything that a step depends on to `checkpoint-<step>`: model, tokenizer, optimizer, schedule, scaler,
    random states of each rank, and Trainer's state with the loader's position. A checkpoint is written under another
    name, sealed with the digests of its files, synced and renamed.

    Of a model that Accelerate has wrapped (its FSDP, DeepSpeed), model and optimizer are saved in their own formats.
    """

    step_log: Any
    optimizer: Any
    lr_scheduler: Any
    saved_step = -1
    """The last step of which a checkpoint was written or loaded."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.step_log.flush()
        self.store_flos()
        run = Path(str(self.args.output_dir))
        path = run / f"checkpoint-{self.state.global_step}"
        best = run / f"checkpoint-{self.state.best_global_step}"
        # with a limit of 1, Trainer would keep the best one instead of the last, from which a run is resumed
        keeps_best = self.args.save_total_limit != 1 and (best == path or best.exists())
        self.state.best_model_checkpoint = str(best) if keeps_best else None
        with writing(path):
            self._write_checkpoint(path)
        if self.args.should_save:
            rotate_checkpoints(
                str(run), self.args.save_total_limit, best_model_checkpoint=self.state.best_model_checkpoint
            )
        self.accelerator.wait_for_everyone()
        self.saved_step = self.state.global_step

    def _write_checkpoint(self, path: Path) -> None:
        partial = partial_of(path)
        if self.args.should_save:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self.accelerator.wait_for_everyone()
        self.save_model(str(partial), _internal_call=True)
        self._save_optimizer_and_scheduler(str(partial))
        write_state(partial, f"{RANDOM}-{self.args.process_index}", _random_states())
        if self.args.should_save:
            kept: Any = self.state.stateful_callbacks
            for callback in (*self.callback_handler.callbacks, self.control):
                if isinstance(callback, ExportableState):
                    kept[type(callback).__name__] = callback.state()
            self.state.save_to_json(str(partial / "trainer_state.json"))
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            publish(partial, path)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        pickled = Path(output_dir or str(self.args.output_dir)) / "training_args.bin"
        if self.args.should_save:
            pickled.unlink(missing_ok=True)

    def _is_wrapped(self) -> bool:
        return self.is_fsdp_enabled or self.is_deepspeed_enabled

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self._is_wrapped():
            super()._save_optimizer_and_scheduler(output_dir)
            super()._save_scaler(output_dir)
        elif self.args.should_save or mesh_of(self.model) is not None:  # all ranks gather what is sharded
            scaler = self.accelerator.scaler
            states = {
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.lr_scheduler.state_dict(),
                "scaler": scaler and scaler.state_dict(),
            }
            write_state(Path(output_dir), OPTIMIZER, states, self.args.should_save)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or self._is_wrapped():
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        states = read_state(Path(checkpoint), OPTIMIZER, mesh_of(self.model))
        groups, scheduler = self.optimizer.param_groups, self.lr_scheduler
        settings = [{name: group[name] for name in _OF_GROUPS if name in group} for group in groups]
        self.optimizer.load_state_dict(states["optimizer"])
        _shard(self.optimizer)
        scheduler.load_state_dict(states["scheduler"])
        for group, values in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(values)  # those of the config, which can be others than those of the checkpoint
        if isinstance(scheduler, LambdaLR):
            scheduler.base_lrs = [group["initial_lr"] for group in self.optimizer.param_groups]
            pairs = zip(scheduler.lr_lambdas, scheduler.base_lrs, strict=True)
            scheduler._last_lr = [rate * factor(scheduler.last_epoch) for factor, rate in pairs]
            for group, rate in zip(self.optimizer.param_groups, scheduler._last_lr, strict=True):
                group["lr"] = rate
        if states["scaler"] and self.accelerator.scaler:
            self.accelerator.scaler.load_state_dict(states["scaler"])

    def _load_rng_state(self, checkpoint: str | None) -> None:
        name = f"{RANDOM}-{self.args.process_index}"
        if checkpoint is not None and (Path(checkpoint) / f"{name}.json").exists():  # else: another number of ranks
            _set_random_states(read_state(Path(checkpoint), name))


_OF_GROUPS = ("initial_lr", "weight_decay")


def _shard(optimizer: Any) -> None:
    """Shard the states of sharded parameters that were saved by a run that was not sharded."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items() if isinstance(parameter, DTensor) else ():
            if isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and value.shape == parameter.shape:
                state[name] = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def mesh_of(model: Any) -> DeviceMesh | None:
    """Return the ranks over which a model's parameters are sharded, or None if they are not."""
    return next((each.device_mesh for each in model.parameters() if isinstance(each, DTensor)), None)


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}
    states["torch"] = torch.get_rng_state()
    return {**states, "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def _set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
