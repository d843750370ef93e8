"""Text collators: rows of tokens, or of text to tokenize, for causal and masked language modeling; and the inputs of a
transformers model in a batch of a training task, or of prompts for inference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch.utils.data import default_collate, get_worker_info

from tokenloom.errors import DataValidationError
from tokenloom.loaders.collation.collate import (
    Columns,
    OutputSchema,
    RowColumn,
    RowPadding,
    Rows,
    Side,
    create_collate_fn,
    with_labels,
)
from tokenloom.loaders.collation.context import ENDS, TreeMasks
from tokenloom.loaders.reading.batch import IGNORED, TYPE_IDS, Padding, image_inputs, to_tensors
from tokenloom.resources.tables.ragged import Ints, list_parts

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


@dataclass(frozen=True)
class TokenMasking:
    """Chooses tokens independently of each other and masks them like BERT (Devlin et al. 2019, appendix A.1).

    Args:
        mask_token_id: the mask token.
        vocab_size: random tokens are drawn from the ids below it.
        special_ids: ids that are never chosen and never drawn.
        probability: probability that a token is chosen.
        mask_replace_prob, random_replace_prob: probability that a chosen token is replaced by the mask token, or by a
            random token; the rest stay unchanged.

    Raises:
        ValueError: probabilities are out of range, or all tokens are special.
    """

    mask_token_id: int
    vocab_size: int
    special_ids: tuple[int, ...]
    probability: float = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    _special: Ints = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        chances = (self.probability, self.mask_replace_prob, self.random_replace_prob)
        if not all(0 <= chance <= 1 for chance in chances) or sum(chances[1:]) > 1:
            raise ValueError(
                "mlm_probability, mask_replace_prob and random_replace_prob must be between 0 and 1, and so must the "
                f"sum of the last two, got {chances[0]}, {chances[1]} and {chances[2]}"
            )
        special = sorted(number for number in {*self.special_ids, self.mask_token_id} if 0 <= number < self.vocab_size)
        if len(special) >= self.vocab_size:
            raise ValueError(f"all {self.vocab_size} tokens are special, so none can be drawn")
        object.__setattr__(self, "_special", np.array(special, np.int64))

    def hide(
        self, input_ids: npt.NDArray[Any], candidates: npt.NDArray[np.bool_], generator: np.random.Generator
    ) -> npt.NDArray[np.bool_]:
        """Mask tokens of `input_ids` in place.

        Args:
            input_ids: [rows, length].
            candidates: bool [rows, length], which tokens can be chosen; special ones never are.
            generator: the source of random numbers.

        Returns:
            which tokens were chosen, bool [rows, length].
        """
        chosen = generator.random(input_ids.shape) < self.probability
        chosen &= candidates & ~np.isin(input_ids, self._special)
        places = np.flatnonzero(chosen)
        # one number decides between mask, random and unchanged, so that their chances add up
        fate = generator.random(len(places))
        ids = input_ids.reshape(-1)
        ids[places[fate < self.mask_replace_prob]] = self.mask_token_id
        replaced = places[(fate >= self.mask_replace_prob) & (fate < self.mask_replace_prob + self.random_replace_prob)]
        # the n-th id that is not special: n, plus the special ids that come before it
        ranks = generator.integers(self.vocab_size - len(self._special), size=len(replaced))
        special_before = np.searchsorted(self._special - np.arange(len(self._special)), ranks, side="right")
        ids[replaced] = ranks + special_before
        return chosen


class DefaultCollator:
    """Stacks values of one shape, like torch's `default_collate`: the collator for modalities without a specific one.

    Tensors, arrays and numbers become tensors [rows, …], and texts become lists. Dicts and tuples keep their structure.
    Nothing is padded.

    Args:
        task_spec: accepted like in every collator, but not used.

    Raises:
        DataValidationError: when called with rows that cannot be stacked.
    """

    def __init__(self, task_spec: TaskSpec | None = None):
        pass

    def __call__(self, rows: Sequence[Any]) -> Any:
        if not rows:
            raise DataValidationError("the batch has no rows; collate at least one")
        try:
            return default_collate(list(rows))
        except (RuntimeError, TypeError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise DataValidationError(
                f"the default collator only stacks numbers of one shape: {reason}; choose or register a collator for "
                "these rows, or pad them with create_collate_fn"
            ) from error


class LanguageModelingDataCollator:
    """Pads rows of tokens, and adds labels for causal or masked language modeling. It can be pickled.

    Rows are dicts as for `create_collate_fn`, lists, arrays or tensors of ids, dicts with a text, or texts. Of rows
    with a text and no `input_ids`, only the text is used.

    Args:
        tokenizer: a tokenizer of transformers, or an object with `pad_token_id`, `eos_token_id`, `mask_token_id`,
            `all_special_ids` and a length that encodes texts when called. Without a pad token, its EOS token is used.
        mlm: mask tokens; the labels are the masked tokens.
        mlm_probability: probability that a token is chosen; special tokens, and those whose attention_mask is 0, never
            are.
        mask_replace_prob, random_replace_prob: probability that a chosen token is replaced by the mask token, or by a
            random token that is not special; the rest stay unchanged.
        seed: determines what is masked, together with the number of the DataLoader's worker; None: torch's generator
            does. Workers that are restarted for each epoch repeat the same random numbers in each epoch.
        pad_token_id: replaces the tokenizer's.
        padding_side: default: the tokenizer's, else right.
        text_column: the column with the text, in rows without `input_ids`.
        max_length, padding, truncation, label_pad_token_id, return_tensors, schema: as in `create_collate_fn`. Texts
            are truncated by the tokenizer, which keeps its special tokens at the end.

    Raises:
        ValueError: arguments are out of range, or the tokenizer lacks a token that they need.
        DataValidationError: when called with rows that do not fit together, the schema or `max_length`.
    """

    def __init__(
        self,
        tokenizer: Any = None,
        mlm: bool = False,
        mlm_probability: float = 0.15,
        mask_replace_prob: float = 0.8,
        random_replace_prob: float = 0.1,
        seed: int | None = None,
        pad_token_id: int | None = None,
        padding_side: Side | None = None,
        max_length: int | None = None,
        padding: Padding | None = None,
        truncation: bool = False,
        label_pad_token_id: int = IGNORED,
        return_tensors: bool = True,
        schema: Columns | None = None,
        text_column: str = "text",
    ):
        for name in ("pad_token_id", "eos_token_id"):
            pad_token_id = getattr(tokenizer, name, None) if pad_token_id is None else pad_token_id
        if pad_token_id is None:
            raise ValueError("a text collator needs a tokenizer with a pad or EOS token, or pad_token_id=")
        if seed is not None and seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed}")
        side: Side = padding_side or getattr(tokenizer, "padding_side", "right")
        self.tokenizer, self.mlm, self.seed, self.text_column = tokenizer, mlm, seed, text_column
        self.return_tensors = return_tensors
        self._collate = create_collate_fn(
            pad_token_id,
            label_pad_token_id,
            side,
            max_length,
            False,
            padding=padding,
            truncation=truncation,
            schema=schema,
        )
        self._masking, self._drawn = None, (-1, np.random.default_rng())
        if mlm:
            if getattr(tokenizer, "mask_token_id", None) is None:
                raise ValueError(
                    "masked language modeling needs a tokenizer with a mask token; add one, or pass mlm=False"
                )
            self._masking = TokenMasking(
                tokenizer.mask_token_id,
                len(tokenizer),
                tuple(tokenizer.all_special_ids),
                mlm_probability,
                mask_replace_prob,
                random_replace_prob,
            )

    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Return a batch as `create_collate_fn` does, with `labels`.

        These are the labels of the rows, else `input_ids` where attention_mask is 1. With `mlm`, they are the original
        tokens where tokens were chosen and `label_pad_token_id` elsewhere, and labels of the rows are ignored.
        """
        batch = self._collate.arrays(self._token_rows(rows))
        special = batch.pop("special_tokens_mask", None)
        if self._masking is None:
            with_labels(batch, self._collate.schema)
        else:
            candidates = batch["attention_mask"] != 0
            if special is not None:
                candidates &= special == 0
            column, original = self._collate.schema["labels"], batch["input_ids"].copy()
            chosen = self._masking.hide(batch["input_ids"], candidates, self._generator())
            batch["labels"] = np.where(chosen, original, column.pad_value).astype(column.dtype)
        return to_tensors(batch) if self.return_tensors else batch

    def _token_rows(self, rows: Sequence[Any]) -> Rows:
        if not len(rows):
            return rows
        texts: Sequence[Any] = rows
        if isinstance(rows[0], Mapping):
            if "input_ids" in rows[0] or self.text_column not in rows[0]:
                return rows
            texts = [row.get(self.text_column) for row in rows]
        elif not isinstance(rows[0], str):
            return [{"input_ids": ids} for ids in rows]
        if not callable(self.tokenizer):
            raise DataValidationError(
                "rows contain text, and this collator has no tokenizer: pass tokenizer=, or tokenize the rows"
            )
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataValidationError(
                    f"row {number} of the batch has a {type(text).__name__} instead of a text; remove such rows"
                )
        padding = self._collate.padding
        truncation = {"truncation": True, "max_length": padding.limit} if padding.truncation else {}
        encode: Any = self.tokenizer
        return [{"input_ids": ids} for ids in encode(list(texts), **truncation)["input_ids"]]

    def _generator(self) -> np.random.Generator:
        if self.seed is None:
            return np.random.default_rng(int(torch.randint(2**62, ())))
        worker = get_worker_info()
        number = 0 if worker is None else worker.id + 1
        if self._drawn[0] != number:  # a worker starts with a copy of its parent's generator
            self._drawn = number, np.random.default_rng([self.seed, number])
        return self._drawn[1]


class TextCollator(LanguageModelingDataCollator):
    """The collator of text tasks: a `LanguageModelingDataCollator` set up from a `TaskSpec`.

    Args:
        task_spec: its `task_type` is `causal_lm` or `masked_lm`; its `input_fields` name the column with the text.
        tokenizer, options: arguments of `LanguageModelingDataCollator`; they take precedence over the task.

    Raises:
        ValueError: the task is of another type, or arguments are out of range.
    """

    def __init__(self, task_spec: TaskSpec | None = None, tokenizer: Any = None, **options: Any):
        if task_spec is not None:
            if task_spec.task_type not in ("causal_lm", "masked_lm"):
                raise ValueError(
                    f"task {task_spec.name!r} is {task_spec.task_type!r}, but a text collator supports 'causal_lm' and "
                    "'masked_lm': register another collator, or use create_collate_fn or create_seq2seq_collate"
                )
            fields = [name for name in task_spec.input_fields if name not in OutputSchema.default()]
            if len(fields) > 1:
                raise ValueError(
                    f"task {task_spec.name!r} has several input fields {fields}, but a text collator reads only one"
                )
            column = fields[0] if fields else "text"
            options = {"mlm": task_spec.task_type == "masked_lm", "text_column": column, **options}
        super().__init__(tokenizer, **options)
