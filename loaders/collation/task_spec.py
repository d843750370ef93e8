"""A training task as far as its data are concerned: it determines the collator and its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
