"""Lets Hugging Face's `Trainer`, and classes derived from it, train on a `TokenLoader`. Needs transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule

from tokenloom.errors import LoaderStateError, StoreError, missing_package
from tokenloom.loaders.collation.model_inputs import model_inputs
from tokenloom.loaders.collation.tree_masks import ENDS
from tokenloom.loaders.token_loader import TokenLoader

try:
    from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    raise missing_package(error.name or "transformers", "tokenloom.loaders.trainer") from None


class TokenLoaderMixin:
    """Mixin for `Trainer` and its subclasses that trains on a `TokenLoader`, epoch after epoch, for `max_steps`.

    Checkpoints contain the loader's position, and training resumes after the last trained batch.

    `class TokenTrainer(TokenLoaderMixin, Trainer): ...`

    Trainer sees all epochs as one, so that no batch is lost where an epoch ends. Give logging, evaluation and saving
    intervals in steps, not in epochs. If rows can have images, DDP looks for unused parameters, since a rank without
    an image in its batch does not use the vision tower.

    Args:
        train_loader: the loader; Trainer does not shard its batches again.
        args, kwargs: arguments of Trainer.
    """

    def __init__(self, *args: Any, train_loader: TokenLoader, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.train_loader = train_loader
        trainer: Any = self
        trainer.args.ignore_data_skip = True  # nothing to replay: the loader resumes by itself
        handler = trainer.accelerator.ddp_handler
        if train_loader.images and handler and trainer.args.ddp_find_unused_parameters is None:
            handler.find_unused_parameters = True  # a rank whose batch has no image does not use the vision tower
        trainer.add_callback(LoaderState(train_loader))

    def get_train_dataloader(self) -> Any:
        return _Endless(self)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load the weights of a model as `from_pretrained` does. It reverts what `save_pretrained` does to names and
        shapes, such as those of experts and vision towers; Trainer by itself would ignore weights with other names.

        Raises:
            StoreError: the checkpoint lacks a weight.
        """
        trainer, base = cast(Any, self), cast(Any, super())
        own = trainer.model
        if not isinstance(own, PreTrainedModel) or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            base._load_from_checkpoint(resume_from_checkpoint, model)
            return
        kind: Any = type(own).__bases__[1] if isinstance(own, FSDPModule) else type(own)
        saved, found = kind.from_pretrained(resume_from_checkpoint, dtype=own.dtype, output_loading_info=True)
        if found["missing_keys"]:
            raise StoreError(f"the checkpoint {resume_from_checkpoint} has no {sorted(found['missing_keys'])[0]}")
        set_model_state_dict(own, saved.state_dict(), options=StateDictOptions(full_state_dict=True))

    def model_inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the model's inputs of a batch; override it to pass others."""
        trainer = cast(Any, self)
        return model_inputs(batch, trainer.args.device if ENDS in batch else None, trainer.model)


class LoaderState(TrainerCallback):
    """Keeps a loader's state in Trainer's state, which checkpoints save as trainer_state.json, and resumes from it.

    Raises:
        LoaderStateError: a checkpoint has no loader state, or that of other data.
    """

    def __init__(self, loader: TokenLoader):
        self.loader = loader

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        kept: Any = state.stateful_callbacks
        saved = kept.get("TokenLoader")
        if saved is not None:
            self.loader.load_state_dict(saved)
        elif state.global_step:
            raise LoaderStateError("the checkpoint has no TokenLoader state: it was saved without TokenLoaderMixin")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        place, rows = self.loader.place, self.loader.plan.rows
        state.epoch = place.epoch + place.position / rows
        kept: Any = state.stateful_callbacks
        kept["TokenLoader"] = self.loader.state_dict()


class _Endless:
    """The model inputs of all epochs of a loader, one epoch after another."""

    def __init__(self, trainer: TokenLoaderMixin):
        self._trainer = trainer

    def __iter__(self) -> Iterator[dict[str, Any]]:
        empty = 0  # consecutive epochs without a batch; a resumed epoch can have none left
        while empty < 2:
            empty += 1
            for batch in self._trainer.train_loader:
                empty = 0
                yield self._trainer.model_inputs(batch)
