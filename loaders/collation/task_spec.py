"""What a model is trained to do, as far as its data are concerned: chooses the collator and tells it the columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TaskSpec:
    """A task.

    Args:
        name: of the task, for people.
        modality: chooses the collator: `text`, `vision`, or any that a collator is registered for.
        task_type: `causal_lm`, `masked_lm`, `classification`, or any other word that a collator of yours knows.
        input_fields: the columns that hold the input, for collators that look for one; empty: those of usual names.
        target_field: the column that holds labels; None: one of a usual name.
        collator_options: arguments of the collator; those of `CollatorRegistry.get_collator` win.

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
        """Causal language modeling on text."""
        return cls("lm_tiny")

    @classmethod
    def mlm_tiny(cls) -> TaskSpec:
        """Masked language modeling on text."""
        return cls("mlm_tiny", task_type="masked_lm")

    @classmethod
    def vision_tiny(cls) -> TaskSpec:
        """A label for each image."""
        return cls("vision_tiny", modality="vision", task_type="classification")
