"""Trains Hugging Face's `Trainer`, and what derives from it, on a `TokenLoader`. Needs transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tokenloom.errors import LoaderStateError
from tokenloom.loaders.frameworks.model_inputs import model_inputs
from tokenloom.loaders.token_loader import TokenLoader


class TokenLoaderMixin:
    """Mixed into `Trainer` or a class derived from it: trains on the batches of a `TokenLoader`, epoch after epoch, for
    `max_steps`. Checkpoints hold the loader's place, and training resumes behind the last batch it was trained on.

    `class TokenTrainer(TokenLoaderMixin, Trainer): ...`

    There is one epoch for Trainer, so that no batch is lost at the end of one: say steps for what else goes by epochs.

    Args:
        train_loader: makes the batches; Trainer does not shard them again.
        args, kwargs: Trainer's own.
    """

    def __init__(self, *args: Any, train_loader: TokenLoader, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.train_loader = train_loader
        trainer: Any = self
        trainer.args.ignore_data_skip = True  # nothing to replay: the loader goes on where it stood
        trainer.add_callback(LoaderState(train_loader))

    def get_train_dataloader(self) -> Any:
        return _Endless(self)

    def model_inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """What the model is given of a batch; to be overridden."""
        return model_inputs(batch)


class LoaderState(TrainerCallback):
    """Keeps a loader's state in Trainer's, which checkpoints hold as trainer_state.json, and goes on from it.

    Raises:
        LoaderStateError: a checkpoint without it, or of other data.
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
            raise LoaderStateError("the checkpoint has no state of a TokenLoader: it was made without TokenLoaderMixin")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        place, rows = self.loader.place, self.loader.plan.rows
        state.epoch = place.epoch + place.position / rows
        kept: Any = state.stateful_callbacks
        kept["TokenLoader"] = self.loader.state_dict()


class _Endless:
    """One epoch of a loader after the other, as Trainer's model takes them."""

    def __init__(self, trainer: TokenLoaderMixin):
        self._trainer = trainer

    def __iter__(self) -> Iterator[dict[str, Any]]:
        empty = 0  # epochs in a row; one that was resumed may have no batch left
        while empty < 2:
            empty += 1
            for batch in self._trainer.train_loader:
                empty = 0
                yield self._trainer.model_inputs(batch)
