"""Checkpoints, written atomically and without pickle: of `Trainer`, and of a training loop of your own.

`NAME.safetensors` has the tensors and `NAME.json` everything else: a tree of mappings, lists, tuples, numbers and text,
in which a tensor is named by its key. A folder is complete once it is sealed: `sealed.json` has each file's digest.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint, rotate_checkpoints

from tokenloom.errors import StoreError, StoreRefusedError
from tokenloom.resources.digest import digest_parts

SEAL = "sealed.json"


def write_state(folder: Path, name: str, state: Any, write: bool = True) -> None:
    """Write a state, such as the `state_dict` of an optimizer, to two files. Sharded tensors are written whole: if it
    has any, all ranks call this.

    Args:
        write: whether this rank writes.

    Raises:
        TypeError: it contains something other than tensors, arrays, mappings, lists, tuples, numbers, text and None.
    """
    tensors: dict[str, torch.Tensor] | None = {} if write else None
    tree = _packed(state, (), tensors, {})
    if tensors is not None:
        save_file(tensors, folder / f"{name}.safetensors", {"format": "pt"})
        (folder / f"{name}.json").write_text(json.dumps(tree), encoding="utf-8")


def read_state(folder: Path, name: str, mesh: DeviceMesh | None = None) -> Any:
    """Return a state that `write_state` wrote; tensors are on the CPU.

    Args:
        mesh: the ranks over which tensors that were sharded are sharded again; None: they stay whole.
    """
    tensors = load_file(folder / f"{name}.safetensors")
    return _unpacked(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")), tensors, mesh)


def _packed(value: Any, at: tuple[str, ...], tensors: dict[str, torch.Tensor] | None, seen: dict[Any, str]) -> Any:
    """Return the tree of a state, and add its tensors to `tensors`, if they are wanted."""
    if isinstance(value, DTensor):
        dimensions = [getattr(placement, "dim", None) for placement in value.placements]
        # `full_tensor` is collective: all ranks gather, and the one that writes keeps it
        return {"sharded": [dimensions, _packed(value.full_tensor(), at, tensors, {})["tensor"]]}
    if isinstance(value, torch.Tensor):
        # tied weights are one tensor
        same = (value.data_ptr(), value.shape, value.stride(), value.dtype) if value.numel() else object()
        if same not in seen:
            seen[same] = ".".join(at) or "value"
            if tensors is not None:
                tensors[seen[same]] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": seen[same]}
    if isinstance(value, np.ndarray):
        return {"array": _packed(torch.from_numpy(value.copy()), at, tensors, seen)["tensor"]}
    if isinstance(value, dict):
        return {"dict": [[key, _packed(inner, (*at, str(key)), tensors, seen)] for key, inner in value.items()]}
    if isinstance(value, list | tuple):
        items = [_packed(inner, (*at, str(index)), tensors, seen) for index, inner in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, str | int | float | None):
        return value
    raise TypeError(f"{'.'.join(at)}: a checkpoint cannot contain {type(value).__name__}")


def _unpacked(value: Any, tensors: dict[str, torch.Tensor], mesh: DeviceMesh | None) -> Any:
    if isinstance(value, list):
        return [_unpacked(inner, tensors, mesh) for inner in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "array":
        return tensors[content].numpy()
    if kind == "sharded":
        dimensions, key = content
        placements = [Replicate() if dimension is None else Shard(dimension) for dimension in dimensions]
        return tensors[key] if mesh is None else distribute_tensor(tensors[key], mesh, placements, src_data_rank=None)
    if kind == "tuple":
        return tuple(_unpacked(inner, tensors, mesh) for inner in content)
    return {key: _unpacked(inner, tensors, mesh) for key, inner in content}


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a folder to write to, which appears under `path`, complete and sealed, when the block ends."""
    partial = partial_of(path)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    publish(partial, path)


def partial_of(path: Path) -> Path:
    """Return the folder in which a folder is written."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in a sentence why a file or folder cannot be written, and remove what is written of it.

    Raises:
        StoreRefusedError: it cannot.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial_of(path), ignore_errors=True)
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error).rpartition("error: ")[2]
        message = f"{path} cannot be written: {reason}; free space or set another training.output_dir, then resume"
        raise StoreRefusedError(message) from error


def publish(partial: Path, path: Path) -> None:
    """Seal a folder and rename it. A folder of that name, which is the same step of the same run, is replaced."""
    files = [file for file in sorted(partial.rglob("*")) if file.is_file()]
    digests = {str(file.relative_to(partial)): _digest(file) for file in files}
    (partial / SEAL).write_text(json.dumps(digests, indent=1), encoding="utf-8")
    # on the disk before the rename, or a crash could leave a sealed folder with empty files
    for file in (*files, partial / SEAL, partial):
        _sync(file)
    if path.exists():
        shutil.rmtree(path)
    partial.rename(path)
    _sync(path.parent)


def check_sealed(folder: Path) -> None:
    """Check the files of a folder.

    Raises:
        StoreError: the folder is not complete, or a file was changed or removed.
    """
    try:
        digests = json.loads((folder / SEAL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise StoreError(f"{folder} is not a complete checkpoint: it has no readable {SEAL}") from None
    for name, digest in digests.items():
        if not (folder / name).is_file() or _digest(folder / name) != digest:
            raise StoreError(
                f"the checkpoint {folder} is damaged: {name} is missing or has other bytes; use an older one"
            )


def has_same_weights(checkpoint: Path, model: Path) -> bool:
    """Return whether a sealed folder of a model has the weights of a sealed checkpoint."""
    if not (model / SEAL).is_file():
        return False
    weights, own = (json.loads((folder / SEAL).read_text(encoding="utf-8")) for folder in (checkpoint, model))
    names = [name for name in own if name.endswith(".safetensors")]
    return bool(names) and all(weights.get(name) == own[name] for name in names)


def _digest(file: Path) -> str:
    if not file.stat().st_size:
        return digest_parts([])
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return digest_parts([memoryview(mapped)])


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class CheckpointManager:
    """Checkpoints of a training loop: one folder each, which appears complete or not at all.

    `model.safetensors` has the weights under the names of `state_dict`; other parts are safetensors and JSON too.
    Loading runs no code from a checkpoint. `TokenTrainer` writes its own checkpoints.

    Args:
        checkpoint_dir: folder of the checkpoints.
    """

    def __init__(self, checkpoint_dir: str | os.PathLike[str]):
        self.checkpoint_dir = Path(checkpoint_dir)

    def save(
        self,
        model: nn.Module,
        optimizer: Any = None,
        scheduler: Any = None,
        epoch: int = 0,
        metrics: Mapping[str, float] | None = None,
        custom_state: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a checkpoint and return its folder, `epoch-<epoch>`, numbered if it exists already.

        Args:
            model, optimizer, scheduler: have `state_dict`; the last two can be None.
            custom_state: tensors, mappings, lists, numbers and text, such as `loader.state_dict()`.

        Raises:
            TypeError: a state contains something else.
        """
        # never over an existing one: two runs can share a folder
        base = path = self.checkpoint_dir / f"epoch-{epoch:04d}"
        number = 1
        while path.exists():
            number += 1
            path = base.with_name(f"{base.name}-{number}")
        with new_folder(path) as folder:
            write_state(folder, "model", model.state_dict())
            states = {
                "optimizer": optimizer and optimizer.state_dict(),
                "scheduler": scheduler and scheduler.state_dict(),
                "epoch": epoch,
                "metrics": dict(metrics or {}),
                "custom_state": dict(custom_state or {}),
            }
            write_state(folder, "state", states)
        return path

    def load(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return what `save` was given: `model`, `optimizer` and `scheduler` as states for `load_state_dict`, and
        `epoch`, `metrics` and `custom_state`. Tensors are on the CPU.

        Raises:
            StoreError: the checkpoint is not complete, or damaged.
        """
        check_sealed(Path(path))
        return {"model": read_state(Path(path), "model"), **read_state(Path(path), "state")}

    def latest(self) -> Path | None:
        """Return the last checkpoint of the last epoch, or None if there is none."""
        names = [(match, path) for path in self.checkpoint_dir.glob("epoch-*") if (match := _NAME.fullmatch(path.name))]
        return max(names, key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 1)))[1] if names else None


_NAME = re.compile(r"epoch-(\d+)(?:-(\d+))?")


OPTIMIZER, RANDOM = "optimizer", "random"


def last_checkpoint(folder: Path) -> Path | None:
    """Return the last checkpoint of a run, or None if it has none.

    Raises:
        StoreError: it is damaged.
    """
    last = get_last_checkpoint(folder) if folder.is_dir() else None
    if last is None:
        return None
    check_sealed(Path(last))
    return Path(last)


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
        states = {
            "python": random.getstate(),
            "numpy": np.random.get_state(legacy=False),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        write_state(partial, f"{RANDOM}-{self.args.process_index}", states)
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
        # Trainer pickles its arguments; checkpoints of tokenloom hold no pickle
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
        for parameter, state in self.optimizer.state.items():  # saved by a run that was not sharded
            for name, value in state.items() if isinstance(parameter, DTensor) else ():
                is_whole = isinstance(value, torch.Tensor) and not isinstance(value, DTensor)
                if is_whole and value.shape == parameter.shape:
                    mesh, placements = parameter.device_mesh, parameter.placements
                    state[name] = distribute_tensor(value, mesh, placements, src_data_rank=None)
        scheduler.load_state_dict(states["scheduler"])
        for group, values in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(values)  # those of the config, which can be others than those of the checkpoint
        if isinstance(scheduler, LambdaLR):
            scheduler.base_lrs = [group["initial_lr"] for group in self.optimizer.param_groups]
            pairs = zip(scheduler.lr_lambdas, scheduler.base_lrs, strict=True)
            # the rate of the next step, by the config's schedule: the checkpoint has that of the old one
            scheduler._last_lr = [rate * factor(scheduler.last_epoch) for factor, rate in pairs]
            for group, rate in zip(self.optimizer.param_groups, scheduler._last_lr, strict=True):
                group["lr"] = rate
        if states["scaler"] and self.accelerator.scaler:
            self.accelerator.scaler.load_state_dict(states["scaler"])

    def _load_rng_state(self, checkpoint: str | None) -> None:
        name = f"{RANDOM}-{self.args.process_index}"
        if checkpoint is not None and (Path(checkpoint) / f"{name}.json").exists():  # else: another number of ranks
            states = read_state(Path(checkpoint), name)
            random.setstate(states["python"])
            np.random.set_state(states["numpy"])
            torch.set_rng_state(states["torch"])
            if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
                torch.cuda.set_rng_state_all(states["cuda"])


_OF_GROUPS = ("initial_lr", "weight_decay")


def mesh_of(model: Any) -> DeviceMesh | None:
    """Return the ranks over which a model's parameters are sharded, or None if they are not."""
    return next((each.device_mesh for each in model.parameters() if isinstance(each, DTensor)), None)
