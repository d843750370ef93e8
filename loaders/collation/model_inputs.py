"""The inputs of a transformers model in a batch: of a training task, or of prompts for inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from tokenloom.loaders.collation.row_columns import OutputSchema, RowColumn, RowPadding
from tokenloom.loaders.collation.tree_masks import ENDS, TreeMasks
from tokenloom.loaders.reading.batch import TYPE_IDS, Padding, image_inputs, to_tensors
from tokenloom.resources.tables.ragged import list_parts

if TYPE_CHECKING:
    import torch


def collate_prompts(
    prompts: pa.Table,
    pad_token_id: int,
    padding: Padding = "longest",
    padding_side: Literal["left", "right"] = "left",
    max_length: int | None = None,
) -> dict[str, Any]:
    """Return one batch of all prompts in a table of `PromptEngine.prompt_only`.

    Args:
        prompts: the table, with a list column `input_ids`.
        pad_token_id: fills `input_ids`.
        padding: `longest`: to the longest prompt; `max_length`; or an integer: to a multiple of it.
        padding_side: the side on which prompts are padded.
        max_length: the width for `padding="max_length"`; None: that of the longest prompt.

    Returns:
        int64 tensors `input_ids` and `attention_mask`, [rows, width].

    Raises:
        ValueError: a prompt is longer than `max_length`; prompts are never truncated.
    """
    offsets, ids = list_parts(prompts["input_ids"])
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=1))
    limit = max_length or longest
    if padding == "max_length" and longest > limit:
        raise ValueError(
            f"a prompt has {longest} tokens, more than max_length {limit}; prompts are never truncated, so raise "
            "max_length"
        )
    side = RowPadding(padding, padding_side, limit if padding == "max_length" else None)
    columns = {"input_ids": RowColumn(ids.to_numpy(), lengths)}
    return to_tensors(side.padded(columns, "input_ids", "attention_mask", OutputSchema.default(pad_token_id)))


@dataclass(frozen=True)
class TaskSpec:
    """A training task, which determines the collator and its columns.

    Args:
        name: name of the task, used in messages.
        modality: chooses the collator: `text`, `vision`, or any modality with a registered collator.
        task_type: `causal_lm`, `masked_lm`, `classification`, or any other type that your own collator supports.
        input_fields: the columns with the input; empty: the collator's usual names.
        target_field: the column with the labels; None: the collator's usual names.
        collator_options: arguments of the collator; those of `CollatorRegistry.get_collator` take precedence.

    Raises:
        ValueError: name, modality or task_type is empty.
    """

    name: str
    modality: str = "text"
    task_type: str = "causal_lm"
    input_fields: tuple[str, ...] = ()
    target_field: str | None = None
    collator_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for argument in ("name", "modality", "task_type"):
            if not getattr(self, argument):
                raise ValueError(f"{argument} of a TaskSpec must not be empty")
        fields = (self.input_fields,) if isinstance(self.input_fields, str) else tuple(self.input_fields)
        object.__setattr__(self, "input_fields", fields)

    @classmethod
    def lm_tiny(cls) -> TaskSpec:
        """Return a task of causal language modeling on text."""
        return cls("lm_tiny")

    @classmethod
    def mlm_tiny(cls) -> TaskSpec:
        """Return a task of masked language modeling on text."""
        return cls("mlm_tiny", task_type="masked_lm")

    @classmethod
    def vision_tiny(cls) -> TaskSpec:
        """Return a task of image classification."""
        return cls("vision_tiny", modality="vision", task_type="classification")


def model_inputs(
    batch: Mapping[str, Any], device: torch.device | str | None = None, model: Any = None
) -> dict[str, Any]:
    """Return the inputs that causal language models and image-text models of transformers take from a batch.

    These are `input_ids`, `labels` and `attention_mask`. For a packed batch, they are `input_ids`, `labels`,
    `position_ids` and `use_cache=False`: only without a mask and a cache do these models keep the documents of a row
    apart. Batches of datasets with images add type ids and, if they have an image, the image inputs; then
    `attention_mask` of padding rows is 1 at their first token.

    For a batch of trees, they are those of a packed batch, and `attention_mask` as the model's attention takes it: a
    tensor [rows, 1, width, width] or FlexAttention's block mask, for models with several kinds of layers one of each.

    Args:
        batch: a batch of a loader.
        device: device to move the tensors to, and to make masks on; None: they stay where they are.
        model: the model; needed for batches of trees.

    Raises:
        ValueError: the batch has `loss_weights`, which these models would ignore, or consists of pairs; or it has trees
            and no model is given, or the model does not take them.
    """
    if "loss_weights" in batch:
        raise ValueError(
            "models of transformers ignore loss_weights: remove them from the batch, and compute the loss from logits, "
            "labels and weights"
        )
    if "input_ids" not in batch:
        raise ValueError(
            f"a batch with {', '.join(sorted(batch))} has no input_ids: for pairs, pass the columns of one side"
        )
    if ENDS in batch and model is None:
        raise ValueError("the mask of a batch of trees depends on the model: pass model=")
    packed = "position_ids" in batch
    names = ["input_ids", "position_ids" if packed else "attention_mask", "labels"]
    names += [name for name in TYPE_IDS if name in batch]
    if "pixel_values" in batch:
        names += [name for name in image_inputs(batch) if name not in names]
    inputs = {name: batch[name] if device is None else batch[name].to(device) for name in names}
    if "pixel_values" in batch and not packed:  # models that compute positions need a token in each row
        mask = inputs["attention_mask"] = inputs["attention_mask"].clone()
        mask[:, 0] += ~mask.any(1)
    if ENDS in batch:
        ends = batch[ENDS] if device is None else batch[ENDS].to(device)
        inputs["attention_mask"] = TreeMasks.of(model)(ends, inputs["position_ids"])
    return {**inputs, "use_cache": False} if packed else inputs
